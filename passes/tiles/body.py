"""Bodies: a region of a joint graph as a graph of its own, for one shard of the tokens.

A body takes slices of the region's sharded inputs and the other inputs whole. It returns the shard's part of each
output. Its operators are those of the joint graph; only sizes among their arguments change. The shape of each result is
compared with the state that the rules of `facts/tokens/rules/` derived.

Where sizes are symbolic a body takes the symbols as inputs as well, and computes the sizes that its operators are told.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.operators import family, qualified_name
from memgraph.facts.tokens.kinds import COUNTERS, SIZED, TOLD_KEYS, TOLD_QUERIES
from memgraph.facts.tokens.nodes import counts_from_zero, shape_of
from memgraph.facts.tokens.region import TokenRegion
from memgraph.facts.tokens.states import PARTIAL, MixesTokens, Sharded, State
from memgraph.facts.views import view_base
from memgraph.passes.insert import call, size
from memgraph.passes.tiles.stored import CalledGraph
from memgraph.runtime.tile_ops import accumulator

aten = torch.ops.aten
# A size, which may be symbolic.
Size: TypeAlias = "int | torch.SymInt"


@dataclasses.dataclass
class Body:
    """The graph of one shard."""

    module: fx.GraphModule
    """The graph; it returns a tuple."""
    placeholders: tuple[fx.Node, ...]
    """Its inputs, in the order in which a call gives them."""
    exposed: tuple[fx.Node, ...]
    """The nodes that the body returns, by place."""
    values: dict[str, int]
    """By output of the region, its place in the body's tuple."""
    products: dict[str, tuple[fx.Node, fx.Node]]
    """By output that is a matrix product summed over tokens, its two factors: views of exposed nodes or of inputs."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """A part of the tokens, and of attention the keys that it is given."""

    rows: Size
    """How many tokens it has."""
    start: Size = 0
    """The first key that it is given."""
    left_out: Size = 0
    """How many keys it is not given."""

    @property
    def has_all_keys(self) -> bool:
        """Whether it is given all keys, at any length."""
        return isinstance(self.left_out, int) and self.left_out == 0

    @property
    def kind(self) -> str:
        """A text that is equal for shards that run the same body."""
        return f"{self.rows} {self.left_out}"

    def shape(self, region: TokenRegion, name: str, whole: Sequence[Size]) -> list[Size]:
        """What the shape of a value of the region is for this shard.  whole: its shape for all tokens."""
        sizes = shard_shape(whole, region.states.get(name), self.rows)
        if name in region.keys:
            sizes[region.keys[name]] -= self.left_out
        return sizes


def shard_shape(shape: Sequence[Size], state: State | None, rows: Size) -> list[Size]:
    """The shape of a value for a shard of `rows` tokens."""
    if not isinstance(state, Sharded):
        return list(shape)
    sizes = list(shape)
    for dim in state.dims[:-1]:
        sizes[dim] = 1
    sizes[state.dims[-1]] = rows_of(state, rows)
    return sizes


def rows_of(state: Sharded, tokens: Size) -> Size:
    """The rows of a value that so many tokens have."""
    rows = tokens * state.factor
    return rows if state.multiple == 1 else -(-rows // state.multiple) * state.multiple


def same_shape(one: Sequence[Size], other: Sequence[Size]) -> bool:
    """Whether two shapes are equal, whatever the symbols in them are."""
    return len(one) == len(other) and all(map(compat.same_size, one, other))


def fits(shape: Sequence[Size], wanted: Sequence[Size], state: State | None) -> bool:
    """Whether a value has the shape that a shard is to have.

    How torch writes rows that are filled up is not how `rows_of` does, where their number is a symbol.
    """
    filled = isinstance(state, Sharded) and state.multiple > 1 and len(shape) == len(wanted)
    return same_shape(shape, wanted) or filled and all(map(compat.seem_equal, shape, wanted))


def build_body(
    nodes: Mapping[str, fx.Node],
    region: TokenRegion,
    names: Sequence[str],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    shard: Shard,
    mode: Any,
) -> Body:
    """The body for a shard.

    names: the region's nodes that the body runs, in order.  inputs: by name, the shard's inputs as fake tensors, and
    symbols.  outputs: of the region, by name.  mode: the fake mode of the values.
    The caller computes products that sum over tokens. For a mean over tokens the body returns the shard's share.
    Raises MixesTokens where an operator does not run on a shard, or a value does not have the shape that the token flow
    says.
    """
    graph, told = fx.Graph(), f"{shard.rows} of {region.tokens} tokens"
    new: dict[fx.Node, fx.Node] = {}
    for name, value in inputs.items():
        new[nodes[name]] = made = graph.placeholder(name)
        made.meta["val"] = value
    placeholders = tuple(new.values())
    for name in names:
        node = nodes[name]
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda read: _given(graph, mode, read, new))
        state = region.states[name]
        args = _resized(graph, mode, node, list(args), region, shard)
        try:
            if state == PARTIAL and qualified_name(node.target) == "aten::mean":
                made = _share(graph, mode, node, args, kwargs)
            else:
                made = call(graph, mode, node.target, *args, name=name, **kwargs)
        except Exception as error:  # an operator may raise anything on arguments that do not fit
            raise MixesTokens(node, f"does not run on {told}: {type(error).__name__}") from error
        new[node] = made
        value = made.meta["val"]
        sliced = isinstance(value, torch.Tensor) and (isinstance(state, Sharded) or name in region.keys)
        if sliced and not fits(value.shape, shard.shape(region, name, shape_of(node)), state):
            raise MixesTokens(node, f"gives {list(value.shape)} for {told}")
    exposed: dict[fx.Node, int] = {}
    values, products = {}, {}
    for name in outputs:
        node, made = nodes[name], new[nodes[name]]
        if region.states[name] == PARTIAL and qualified_name(node.target) == "aten::mm":
            products[name] = (made.args[0], made.args[1])
            for factor in products[name]:
                base = view_base(factor)
                if base.op != "placeholder":
                    exposed.setdefault(base, len(exposed))
        else:
            if view_base(made).op == "placeholder":
                raise MixesTokens(node, "is an input of its region")
            values[name] = exposed.setdefault(made, len(exposed))
    graph.output(tuple(exposed))
    for node in reversed(graph.nodes):  # the products that the caller computes; views stay, since factors are views
        if node.op == "call_function" and not node.users and family(node.target) != "view":
            graph.erase_node(node)
    return Body(CalledGraph({}, graph), placeholders, tuple(exposed), values, products)


def _share(graph: fx.Graph, mode: Any, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> fx.Node:
    """A shard's share of a mean over all tokens."""
    target = aten.sum.dim_IntList if len(args) > 1 else aten.sum.default
    total = call(graph, mode, target, *args, **dict(kwargs) | {"dtype": accumulator(node.meta["val"].dtype)})
    count = math.prod(shape_of(node.args[0])) // math.prod(shape_of(node))
    return call(graph, mode, aten.div.Tensor, total, size(graph, mode, count), name=node.name)


def _given(graph: fx.Graph, mode: Any, read: fx.Node, new: Mapping[fx.Node, fx.Node]) -> Any:
    """What stands in a body for a node that one of its own read: a size is computed again."""
    return new[read] if read in new else size(graph, mode, read.meta["val"])


def _resized(
    graph: fx.Graph, mode: Any, node: fx.Node, args: list[Any], region: TokenRegion, shard: Shard
) -> list[Any]:
    """The arguments for one shard: sizes of the output are replaced by those of the shard."""
    name, state = qualified_name(node.target), region.states[node.name]
    if name in TOLD_QUERIES:
        args[TOLD_QUERIES[name]] = size(graph, mode, shard.rows)
    if name in TOLD_KEYS and not shard.has_all_keys:
        told = node.args[TOLD_KEYS[name]]
        told = told.meta["val"] if isinstance(told, fx.Node) else told
        args[TOLD_KEYS[name]] = size(graph, mode, told - shard.left_out)
    if not isinstance(state, Sharded) and node.name not in region.keys:
        return args
    if name in COUNTERS and isinstance(state, Sharded):
        if not counts_from_zero(node):
            raise MixesTokens(node, "does not count from 0")
        return [size(graph, mode, shard.rows * state.factor)]
    shape = shard.shape(region, node.name, shape_of(node))
    if name == "aten::as_strided":
        if not is_contiguous(args[0].meta["val"]):
            raise MixesTokens(node, "picks by strides")
        args[1:3] = ([size(graph, mode, entry) for entry in steps] for steps in (shape, contiguous_strides(shape)))
    if name in SIZED:
        args[SIZED[name]] = [size(graph, mode, entry) for entry in shape]
    if name == "aten::slice" and len(args) > 3 and args[1] % len(shape) == region.keys.get(node.name):
        # Up to the last key; `queries.py` knows that it begins with the first.
        args[3] = size(graph, mode, shape[args[1]])
    return args


def contiguous_strides(shape: Sequence[Size]) -> list[Size]:
    """The strides of a value without gaps, its last dimension innermost."""
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]


def is_contiguous(value: torch.Tensor) -> bool:
    """Whether a value has no gaps and its last dimension innermost, whatever the symbols in its sizes are."""
    steps = zip(value.shape, value.stride(), contiguous_strides(value.shape), strict=True)
    return all(compat.same_size(length, 1) or compat.same_size(mine, wanted) for length, mine, wanted in steps)


def sizes(tokens: Size, shards: int, multiple: int = 1) -> list[Size]:
    """How many tokens each shard has: all the same but for the last one.

    All but the last have a multiple of so many. None is empty, and there are at most `shards`, where the number of
    tokens is known. Where it is symbolic there are always `shards`, and what is left over is in the last one: of fewer
    tokens than shards, all.
    """
    if not isinstance(tokens, int):
        return symbolic_sizes(tokens, shards, multiple)
    size = math.ceil(tokens / max(1, min(shards, tokens)))
    size = -(-size // multiple) * multiple
    full, rest = divmod(tokens, size)
    return [size] * full + ([rest] if rest else [])


def symbolic_sizes(tokens: Any, shards: int, multiple: int) -> list[Any]:
    """`sizes` as expressions of the number of tokens.

    Blocks that are left over would make the last of many shards several times as long. So each bit of their number says
    of one group of shards, twice as many as the bit before, whether they have a block more: shards of a group run one
    body, and there are few groups. The last has what no group takes: where `shards` is a power of 2, less than a block.
    """
    few, over = tokens // multiple // shards, tokens // multiple % shards if multiple > 1 else 0
    counts: list[Any] = []
    for bit in range((shards - 1).bit_length() if multiple > 1 else 0):
        group = min(2**bit, shards - 1 - len(counts))
        counts += [(few + over // 2**bit % 2) * multiple] * group
    counts += [few * multiple] * (shards - 1 - len(counts))
    return [*counts, tokens - sum(counts)]
