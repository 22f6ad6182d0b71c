"""How a token region grows from the operator that makes a token's row longer.

the seed and all wide values  ->  sums of outputs  ->  puts of outputs into tables  ->  readers of parts
                              ->  inputs that are cheaper made inside
                              ->  what lies between its forward and its backward
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Sequence

from torch import fx

from memgraph.facts.costs import logical_bytes
from memgraph.facts.operators import family, qualified_name
from memgraph.facts.tokens import border
from memgraph.facts.tokens.border import Draft, Frame
from memgraph.facts.tokens.flow import TokenFlow
from memgraph.facts.tokens.graph import WIDE, TokenGraph, common_path
from memgraph.facts.tokens.kinds import GROUPED_PRODUCTS, MAKERS, PRODUCTS
from memgraph.facts.tokens.nodes import is_tensor, shape_of
from memgraph.facts.tokens.queries import Rows
from memgraph.facts.tokens.region import TokenRegion
from memgraph.facts.tokens.states import PARTIAL, REPLICATED, MixesTokens, Sharded
from memgraph.facts.tokens.tangent import DependentForward, one_tangent, thin_between

# A region is worth it if its wide values together have this many times the bytes of its outputs.
WORTH = 2.0


def grow(graph: TokenGraph, seed: fx.Node, rows: fx.Node) -> tuple[frozenset[fx.Node], TokenRegion | None]:
    """The nodes around a seed that could be a region, and the region; None if it is not worth it.  Raises MixesTokens.

    rows: the matrix whose rows are the tokens.
    """
    flow = TokenFlow(Frame(graph, shape_of(rows)[0], math.prod(shape_of(rows))))
    if qualified_name(seed.target) not in GROUPED_PRODUCTS:  # their rows are sorted, the tokens are somewhere above
        flow.require(rows, Sharded((0,)), seed)
    _grow(flow, seed)
    _add_between(flow)
    return flow.draft.members, _region(flow.frame, flow.draft)


def grow_attention(graph: TokenGraph, scores: fx.Node) -> tuple[frozenset[fx.Node], TokenRegion | None]:
    """A region around a product of queries and keys, after the nodes that are its alone; its tokens are the queries.

    None if it is not worth it, or no attention.  Raises MixesTokens.
    """
    queries = scores.args[0]
    numbers = math.ceil(math.prod(shape_of(scores)) / WIDE)
    flow = TokenFlow(Frame(graph, shape_of(queries)[1], numbers, scores=scores))
    flow.require(queries, Sharded((1,)), scores)
    _grow(flow, scores)
    _add_rows(flow)
    own = frozenset(node for node in flow.draft.members if not border.is_spared(flow.draft, node))
    region = _region(flow.frame, flow.draft)
    if region is None or region.kind != "mlp":  # no product makes the scores thin again
        return own, None
    return own, dataclasses.replace(region, kind="attention")


def _grow(flow: TokenFlow, seed: fx.Node) -> None:
    flow.add(seed)
    flow.spread()
    _add_sums_of_outputs(flow)
    if flow.frame.scores is not None:
        _add_puts(flow)
    _add_readers_of_parts(flow)
    _move_border_up(flow)


def _add_sums_of_outputs(flow: TokenFlow) -> None:
    """Take in what adds up several outputs, with the views between: one value crosses instead of several."""
    while node := border.sum_of_outputs(flow.frame, flow.draft):
        for read in node.all_input_nodes:
            if is_tensor(read):
                flow.include(read)
        flow.add(node)
        flow.spread()


def _add_puts(flow: TokenFlow) -> None:
    """Take in what puts an output into a table, with the views between: each shard has its part of a small sum."""
    for node in border.outputs(flow.frame, flow.draft):
        chain = border.put_of_output(flow.frame, node)
        if chain:
            flow.attempt(functools.partial(_add_partial, flow, chain))


def _add_partial(flow: TokenFlow, chain: Sequence[fx.Node]) -> None:
    _add_all(flow, chain)
    if flow.known(chain[-1]) != PARTIAL:
        raise MixesTokens(chain[-1], "is no sum over the shards")


def _add_readers_of_parts(flow: TokenFlow) -> None:
    """Take in what reads a view of a part of a value: the view as an output would hold the whole value."""
    tried: set[fx.Node] = set()
    while fresh := flow.draft.members - tried:
        for node in flow.frame.graph.in_order(fresh):
            if border.is_part(flow.draft, node):
                readers = [user for user in node.users if user not in flow.draft.members]
                flow.attempt(functools.partial(_add_all, flow, readers))
        tried |= fresh


def _add_all(flow: TokenFlow, nodes: Collection[fx.Node]) -> None:
    for node in nodes:
        if node not in flow.draft.members:
            flow.add(node)
    flow.spread()


def _move_border_up(flow: TokenFlow) -> None:
    """Move the border above inputs until none of them is cheaper made inside."""
    moved = True
    while moved:
        moved = False
        for node in border.inputs(flow.frame, flow.draft):
            moved = _move_above(flow, node) or moved
        if moved:
            flow.spread()


def _move_above(flow: TokenFlow, node: fx.Node) -> bool:
    """Move the border above an input if its own inputs take fewer bytes, or if it is a view; returns whether it did."""
    if node.op != "call_function" or not is_tensor(node):
        return False
    if border.after_members(flow.frame, flow.draft, node):
        flow.include(node)
        return True
    state = flow.known(node)
    if state == REPLICATED and qualified_name(node.target) in MAKERS:
        flow.draft = flow.draft.with_member(node).with_spared(frozenset((node,)))
        return True
    if state is None:
        return False
    if family(node.target) == "view":
        if state == REPLICATED:
            for read in node.all_input_nodes:
                flow.require(read, REPLICATED, node)
    elif not border.is_cheaper_inside(flow.frame, flow.draft, node, state):
        return False
    before = flow.draft.members
    if not flow.try_include(node, state):
        return False
    flow.draft = flow.draft.with_spared(flow.draft.members - before)
    return True


def _add_rows(flow: TokenFlow) -> None:
    """Have each shard make its own rows of a mask, which has an entry for each query and key, out of thin values."""
    for node in border.inputs(flow.frame, flow.draft):
        shape = shape_of(node) if is_tensor(node) else ()
        rank = len(shape) - (bool(shape) and shape[-1] == 1)  # [.., queries, keys], or a 1 behind them
        if rank < 2 or flow.known(node) != Sharded((rank - 2,)) or node in flow.frame.graph.backward:
            continue
        rows = Rows()
        try:
            rows.follow(node, rank - 2)
        except MixesTokens:
            continue  # it is cut, then
        found = rows.members | rows.inputs
        if rows.members and all(flow.known(read) in (None, state) for read, state in found.items()):
            members, spared = flow.draft.members.union(rows.members), flow.draft.spared.union(rows.members)
            flow.draft = dataclasses.replace(
                flow.draft, states={**flow.draft.states, **found}, members=members, spared=spared
            )


def _add_between(flow: TokenFlow) -> None:
    """Take in what lies between the forward and the backward, if that makes one tile of both."""
    frame, before = flow.frame, flow.draft
    reads = border.inputs(frame, before)
    between = thin_between(frame.graph, before.members, reads, _dependent_forward(frame, before))
    if not between:
        return
    flow.attempt(functools.partial(_include_between, flow, between))
    if not _one_tangent(frame, flow.draft)[0]:
        flow.draft = before


def _include_between(flow: TokenFlow, between: Collection[fx.Node]) -> None:
    while reads := [node for node in border.inputs(flow.frame, flow.draft) if node in between]:
        for node in reads:
            flow.include(node)
        flow.spread()
    _move_border_up(flow)


def _one_tangent(frame: Frame, draft: Draft) -> tuple[str, tuple[str, ...]]:
    reads = border.inputs(frame, draft)
    return one_tangent(frame.graph, draft.members, reads, _dependent_forward(frame, draft))


def _dependent_forward(frame: Frame, draft: Draft) -> DependentForward:
    return DependentForward(frame.graph, {node for node in draft.members if not border.is_spared(draft, node)})


def _region(frame: Frame, draft: Draft) -> TokenRegion | None:
    """The region of a finished draft; None if it is not worth it.  Raises MixesTokens."""
    graph, states = frame.graph, draft.states
    reads, left = border.inputs(frame, draft), border.outputs(frame, draft)
    _refuse_crossing(draft, reads, left)
    members = graph.in_order(draft.members)
    wide = [node for node in members if isinstance(states[node], Sharded) and border.is_wide(frame, node)]
    sizes = [logical_bytes(node.meta["val"]) for node in border.own_values(wide)]
    leaving = sum(logical_bytes(node.meta["val"]) for node in left if states[node] != PARTIAL)
    if not sizes or sum(sizes) < WORTH * leaving:
        return None
    forward = [node for node in members if node not in graph.backward]
    factors = [node for node in forward if qualified_name(node.target) in PRODUCTS]
    closed = any(not set(wide).isdisjoint(node.all_input_nodes) for node in factors)
    tangent, chain = _one_tangent(frame, draft)
    return TokenRegion(
        kind="mlp" if closed else "loss",
        module=common_path(factors or forward),
        tokens=frame.tokens,
        forward=tuple(node.name for node in forward),
        backward=tuple(node.name for node in members if node in graph.backward),
        inputs=tuple(node.name for node in reads),
        outputs=tuple(node.name for node in left),
        states={node.name: state for node, state in states.items()},
        wide_bytes=sum(sizes),
        row_bytes=max(sizes) // frame.tokens,
        tangent=tangent,
        chain=chain,
    )


def _refuse_crossing(draft: Draft, reads: Collection[fx.Node], left: Collection[fx.Node]) -> None:
    """Raises MixesTokens if a value at the border cannot cross it."""
    for node in left:
        state = draft.states[node]
        if state != PARTIAL and not border.crosses(state):
            raise MixesTokens(node, "is read outside, but belongs to one shard")
    for node in reads:
        if draft.states.get(node) is None and is_tensor(node):
            raise MixesTokens(node, "is read in a way that does not tell whether by tokens or whole")
