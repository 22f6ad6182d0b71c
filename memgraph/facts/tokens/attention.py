"""Calls of attention that can run one shard of the queries at a time, which needs no more of a mask than their rows.

    mask = where(key_position > query_position - 8, 0, -inf)       [batch, 1, queries, keys]
    out, logsumexp = attention(q, k, v, mask)           ...        dq, dk, dv = attention_backward(dout, q, ..., mask)

A region has the attention, its backward, and what makes the mask of thin values (`queries.py`). Its tokens are the
queries: keys and values are the same for all shards, and their gradients are sums over the shards. What makes the mask
may belong to several regions, and to both sides of one: each makes its own rows. Where no query may read keys that are
far away (a window), a shard is given the keys alone that its queries may read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from torch import fx

from memgraph.facts.costs import logical_bytes, storage_span
from memgraph.facts.joint import overwritten_inputs
from memgraph.facts.masks.reach import Reaches
from memgraph.facts.operators import argument, family, qualified_name, short_name
from memgraph.facts.tokens.graph import TokenGraph, common_path
from memgraph.facts.tokens.nodes import shape_of
from memgraph.facts.tokens.queries import Rows, keys_after
from memgraph.facts.tokens.region import RefusedRegion, TokenRegion
from memgraph.facts.tokens.states import PARTIAL, REPLICATED, MixesTokens, Sharded, State
from memgraph.facts.views import view_base

# All values of attention are [batch, heads, tokens, ...].
_TOKENS = 2
_BY_QUERY = Sharded((_TOKENS,))


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """A kernel of attention of which a part of the queries gives a part of each output, a sum, or the same."""

    mask: str
    """The argument that is the mask."""
    outputs: tuple[State, ...]
    gradients: tuple[State, ...] = (_BY_QUERY, PARTIAL, PARTIAL)
    """The outputs of its backward: of queries, keys and values."""
    multiple: int = 1
    """Each shard but the last has a multiple of so many queries."""

    def inputs(self) -> dict[str, State]:
        """By argument of it and its backward, how a shard reads it."""
        return {
            **dict.fromkeys(("query", "grad_out", "grad_out_", "out"), _BY_QUERY),
            **dict.fromkeys(("key", "value", "philox_seed", "philox_offset"), REPLICATED),
            "logsumexp": self.outputs[1],
        }


_CPU = "aten::_scaled_dot_product_flash_attention_for_cpu"
# Without dropout no kernel reads its seed and its offset: one shard's are all shards'.
_SEEDS = (REPLICATED, REPLICATED)
# The sums of exponentials are filled up to whole blocks of queries, so each shard has to begin with one.
_BLOCKS = Sharded((2,), multiple=32)
KERNELS = {
    _CPU: _Kernel("attn_mask", (_BY_QUERY, _BY_QUERY)),
    "aten::_scaled_dot_product_efficient_attention": _Kernel(
        "attn_bias", (_BY_QUERY, _BLOCKS, *_SEEDS), multiple=_BLOCKS.multiple
    ),
    # Between its sums and the seeds stand lengths of packed sequences and of queries and keys, which no node reads.
    # Some versions of cuDNN take whole blocks of 64 alone (torch's checks): such shards are taken where the whole is.
    "aten::_scaled_dot_product_cudnn_attention": _Kernel(
        "attn_bias", (_BY_QUERY, _BY_QUERY, *[REPLICATED] * 4, *_SEEDS, REPLICATED), multiple=64
    ),
}
# Another one that takes a mask, and of which nothing else is known.
MASKS = {name: kernel.mask for name, kernel in KERNELS.items()}
MASKS["aten::_scaled_dot_product_fused_attention_overrideable"] = "attn_bias"


def find_attention(
    joint: fx.GraphModule, weights: Collection[str] = (), device: str = "cpu"
) -> tuple[tuple[TokenRegion, ...], tuple[RefusedRegion, ...]]:
    """The regions of all calls of attention with a mask of queries x keys, and what was refused with the reason.

    weights: the names of the inputs that are known to be parameters.  device: the kind that the step runs on.
    """
    graph = TokenGraph(joint, weights)
    overwritten = {node.name for node in overwritten_inputs(joint.graph.nodes)}
    backward = _backward_calls(graph)
    regions: list[TokenRegion] = []
    refused: list[RefusedRegion] = []
    reaches = Reaches()
    for call in graph.nodes:
        mask = mask_of(call)
        if mask is None or call in graph.backward:
            continue
        try:
            region = _region(graph, [call, *backward.get(call, ())], mask, device, reaches)
        except MixesTokens as problem:
            what = problem.node.name if problem.node.op == "placeholder" else short_name(problem.node.target)
            refused.append(RefusedRegion(common_path([call]), problem.node.name, f"{what} {problem.reason}"))
            continue
        if region.backward and overwritten.intersection(region.inputs):
            reason = "its backward would read an input that the forward overwrites"
            refused.append(RefusedRegion(region.module, call.name, reason))
        else:
            regions.append(region)
    return tuple(regions), tuple(refused)


def mask_of(call: fx.Node) -> fx.Node | None:
    """The mask of a call of attention, or of its backward, if it has an entry for each query and key."""
    name = qualified_name(call.target).removesuffix("_backward") if call.op == "call_function" else ""
    mask = argument(call, MASKS[name]) if name in MASKS else None
    whole = isinstance(mask, fx.Node) and len(shape_of(mask)) > 1 and 1 not in shape_of(mask)[-2:]
    return mask if whole else None


def _region(
    graph: TokenGraph,
    calls: Sequence[fx.Node],
    mask: fx.Node,
    device: str,
    reaches: Reaches,
) -> TokenRegion:
    """The region of a call of attention.  calls: it, and its backward.  Raises MixesTokens."""
    call = calls[0]
    kernel = KERNELS.get(qualified_name(call.target))
    if kernel is None:
        raise MixesTokens(call, "is not known to run a part of its queries")
    # A CPU build of torch that traces for a card writes down the CPU's kernel, in place of one of the card's.
    stands_in = qualified_name(call.target) == _CPU and device != "cpu"
    rows = Rows()
    states: dict[fx.Node, Any] = {}
    for node in calls:
        _refuse(node)
        states[node] = kernel.outputs if node is call else kernel.gradients
        own = mask_of(node)
        for name, state in kernel.inputs().items():
            read = argument(node, name)
            if isinstance(read, fx.Node):
                rows.read(read, state, node, _TOKENS if name in ("key", "value") else -1)
        if own is not None:
            rows.follow(own)
        states |= {part: states[node][part.args[1]] for part in node.users}
    ends = [part for node in calls for part in node.users]
    for gradient in [part for part in ends if states[part] == PARTIAL]:
        summed = _summed_over_heads(gradient)
        _note_keys(rows, [gradient, *summed])
        ends += summed
    states |= dict.fromkeys((node for node in ends if node not in states), PARTIAL) | rows.members
    members = graph.in_order(states)
    forward = [node for node in members if node not in graph.backward]
    backward = [node for node in members if node in graph.backward]
    handed = [part for part in call.users if not set(part.users).isdisjoint(backward)]
    left = [node for node in ends if node in handed or not set(node.users) <= set(members)]
    sizes = [logical_bytes(node.meta["val"]) for node in rows.members if family(node.target) != "view"]
    reads = {read for node in members for read in node.all_input_nodes if read not in states}
    reach = None if rows.all_keys or any(mask_of(node) not in (mask, None) for node in calls) else reaches.of(mask)
    return TokenRegion(
        kind="attention",
        module=common_path([call]),
        tokens=shape_of(mask)[-2],
        forward=tuple(node.name for node in forward),
        backward=tuple(node.name for node in backward),
        inputs=tuple(node.name for node in graph.in_order(reads)),
        outputs=tuple(node.name for node in graph.in_order(left)),
        states={node.name: state for node, state in (states | rows.inputs).items()},
        wide_bytes=sum(sizes),
        # What it is made of is fused with it, and a mask that is the same for all heads lies there once.
        row_bytes=storage_span(mask.meta["val"]) // shape_of(mask)[-2],
        handed=tuple(node.name for node in graph.in_order(handed)),
        multiple=max(other.multiple for other in KERNELS.values()) if stands_in else kernel.multiple,
        reach=reach,
        keys={} if reach is None else {node.name: dim for node, dim in rows.keys.items() if dim >= 0},
    )


def _note_keys(rows: Rows, chain: Sequence[fx.Node]) -> None:
    """Note along which dimension the keys of a gradient run, and of those that are made of it one after the other."""
    keys = _TOKENS
    for node in chain:
        keys = keys if node is chain[0] else keys_after(node, keys)
        rows.all_keys |= keys < 0
        rows.has_keys(node, keys)


def _summed_over_heads(gradient: fx.Node) -> list[fx.Node]:
    """What makes one gradient of those of all heads that share keys or values; empty where each has its own.

    Each shard sums over the heads first: the sum over all shards, in float32, is so much smaller. A sum that stays in a
    longer type than the gradient's is left out: the trial would ask for that type's digits, and a shard does not have
    them.
    """
    found: list[fx.Node] = []
    pending: list[fx.Node] = []
    summed, node = False, gradient
    while len(node.users) == 1:
        (node,) = node.users
        name = qualified_name(node.target) if node.op == "call_function" else ""
        ends = name in ("aten::sum", "prims::convert_element_type")
        if not (ends or (name and family(node.target) == "view")):
            break
        pending.append(node)
        summed = summed or name == "aten::sum"
        if summed and ends and node.meta["val"].dtype == gradient.meta["val"].dtype:
            found, pending = [*found, *pending], []
    return found


def _refuse(call: fx.Node) -> None:
    """Raises MixesTokens where a call does more than to attend with its mask."""
    if argument(call, "dropout_p"):
        raise MixesTokens(call, "drops weights out, and which ones depends on their place in the whole")
    if argument(call, "is_causal"):
        raise MixesTokens(call, "is told that it is causal beside its mask")
    if any((argument(call, "grad_input_mask") or ())[3:]):
        raise MixesTokens(call, "gives a gradient of its mask")
    if qualified_name(call.target) == _CPU:
        # The shards of its sums are put together in the type that torch says they have: 2.11 is wrong for float64.
        made, said = (value.dtype for value in call.meta["val"])
        if made.itemsize > said.itemsize:
            raise MixesTokens(call, f"makes its sums in {made}, and this torch says that they are {said}")


def _backward_calls(graph: TokenGraph) -> dict[fx.Node, list[fx.Node]]:
    """By call of attention, the calls of its backward: they read its sums of exponentials."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.backward:
        if node.op == "call_function" and qualified_name(node.target).removesuffix("_backward") in KERNELS:
            for call in view_base(argument(node, "logsumexp")).all_input_nodes:
                found.setdefault(call, []).append(node)
    return found
