"""Which nodes belong to a token region: functions of a region's draft, which is frozen.

A change makes a new draft. So an attempt to move the border is given up by keeping the old draft.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import fx

from memgraph.facts.costs import logical_bytes
from memgraph.facts.operators import family, qualified_name
from memgraph.facts.tokens.graph import TokenGraph
from memgraph.facts.tokens.kinds import COUNTERS, DRAWS, MAKERS
from memgraph.facts.tokens.nodes import shape_of, tensors
from memgraph.facts.tokens.states import REPLICATED, ROUTING, Sharded, State
from memgraph.facts.tokens.table_gradients import puts_into_zeros
from memgraph.facts.views import is_view, view_base

# An input with over this many times fewer numbers than `Frame.numbers` stays an input, however it is made.
THIN = 8


@dataclasses.dataclass(frozen=True)
class Frame:
    """What stays the same while a region grows."""

    graph: TokenGraph
    tokens: int
    """The number of tokens in all shards."""
    numbers: int
    """The numbers in the matrix whose rows are the tokens: a value with more numbers is wide."""
    scores: fx.Node | None = None
    """Of attention, whose tokens are the queries, the product of queries and keys: no value has the tokens but those
    that are made of it, or read together with such a value."""


@dataclasses.dataclass(frozen=True)
class Draft:
    """A region while it grows."""

    states: Mapping[fx.Node, State] = dataclasses.field(default_factory=dict)
    """By node, the states of members and inputs."""
    asked: Mapping[fx.Node, State] = dataclasses.field(default_factory=dict)
    """By member that a reader needs inside, the state that the reader asks for."""
    members: frozenset[fx.Node] = frozenset()
    """The nodes that each shard computes."""
    spared: frozenset[fx.Node] = frozenset()
    """Members that the graph computes outside as well, for readers outside."""
    entered: frozenset[fx.Node] = frozenset()
    """Members of which all is below the region that the graph makes of them, on their own side (forward, backward)."""
    pending: frozenset[fx.Node] = frozenset()
    """Readers of members that become members next."""

    def with_state(self, node: fx.Node, state: State) -> Draft:
        return dataclasses.replace(self, states={**self.states, node: state})

    def with_asked(self, node: fx.Node, state: State) -> Draft:
        return dataclasses.replace(self, asked={**self.asked, node: state})

    def with_member(self, node: fx.Node) -> Draft:
        return dataclasses.replace(self, members=self.members | {node})

    def with_spared(self, nodes: frozenset[fx.Node]) -> Draft:
        return dataclasses.replace(self, spared=self.spared | nodes)


def entered(frame: Frame, draft: Draft, node: fx.Node) -> Draft:
    """The draft with one more member, whose state is yet to be found."""
    states = {known: state for known, state in draft.states.items() if known is not node}
    if is_given(frame, draft, node):  # a shard makes it for itself: what other layers make of it is theirs
        return dataclasses.replace(draft, states=states, members=draft.members | {node})
    more = draft.entered | {node}
    return dataclasses.replace(draft, states=states, members=draft.members | {node}, entered=more)


def after_members(frame: Frame, draft: Draft, node: fx.Node) -> bool:
    """Whether a node that is no member depends on members of its own side."""
    return node not in draft.members and _is_below(frame, draft, node)


def _is_below(frame: Frame, draft: Draft, node: fx.Node) -> bool:
    """Whether a node depends on a member of its own side (forward or backward).

    It is a walk up, no further than to the first of these members: what is below an early region is most of the graph,
    and few nodes are asked for.
    """
    place, backward = frame.graph.place, frame.graph.backward
    side = node in backward
    first = min((place[member] for member in draft.entered if (member in backward) == side), default=place[node])
    pending, seen = [node], {node}
    while pending:
        for read in pending.pop().all_input_nodes:
            if place[read] < first or read in seen or (read in backward) != side:
                continue
            if read in draft.entered:
                return True
            seen.add(read)
            pending.append(read)
    return False


def crosses(state: State | None) -> bool:
    """Whether a value has rows for each shard and may cross the border."""
    return isinstance(state, Sharded) and state.crosses


def is_wide(frame: Frame, node: fx.Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return sum(math.prod(item.shape) for item in values if isinstance(item, torch.Tensor)) > frame.numbers


def is_drawn(node: fx.Node) -> bool:
    """Whether a value is a draw or a mask made of one: its place in the whole value decides what is drawn."""
    return any(qualified_name(read.target) in DRAWS for read in (node, *node.all_input_nodes))


def belongs(frame: Frame, draft: Draft, node: fx.Node, state: State) -> bool:
    """Whether a shard must or should compute a value that one of the members reads."""
    if node.op != "call_function":
        return False
    if after_members(frame, draft, node):
        return True
    if not isinstance(state, Sharded):
        return False
    name = qualified_name(node.target)
    if name in MAKERS:
        return name not in COUNTERS or not state.crosses
    if not state.crosses:
        return True
    shared = is_given(frame, draft, node) and not draft.members.issuperset(node.users)
    return is_wide(frame, node) and not is_drawn(node) and not shared


def spreads(frame: Frame, draft: Draft, node: fx.Node, state: State) -> bool:
    """Whether all readers of a member belong to the region as well."""
    if isinstance(state, tuple):
        return True  # the readers tell its parts apart
    if isinstance(state, Sharded):
        return not state.crosses or (is_wide(frame, node) and not is_given(frame, draft, node))
    return state == ROUTING


def is_given(frame: Frame, draft: Draft, node: fx.Node) -> bool:
    """Whether a value of the forward is given to attention, and not made of its scores: what makes its mask, say.

    All layers may read it.
    """
    if frame.scores is None or node is frame.scores or node in frame.graph.backward:
        return False
    return not _is_below(frame, draft, node)


def is_spared(draft: Draft, node: fx.Node) -> bool:
    """Whether readers outside get the value from outside: each shard computes it for itself alone."""
    return node in draft.spared or draft.states[node] == REPLICATED


def inputs(frame: Frame, draft: Draft) -> list[fx.Node]:
    """The nodes outside that members read, in order."""
    reads = {read for node in draft.members - frame.graph.dead for read in node.all_input_nodes}
    return frame.graph.in_order(reads - draft.members)


def outputs(frame: Frame, draft: Draft) -> list[fx.Node]:
    """The members that are read outside, in order."""
    left = [node for node in draft.members if not is_spared(draft, node) and not draft.members.issuperset(node.users)]
    return frame.graph.in_order(left)


def sum_of_outputs(frame: Frame, draft: Draft) -> fx.Node | None:
    """An operator that adds up several outputs: as a member, it lets one value cross the border instead of several."""
    views = {user for node in draft.members for user in node.users if _is_thin_view(draft, user, node)}
    inside = draft.members | views
    for node in frame.graph.in_order({user for read in inside for user in read.users} - inside):
        reads = tensors(node)
        if node.op != "call_function" or family(node.target) != "pointwise" or not inside.issuperset(reads):
            continue
        if len(set(reads)) > 1 and all(crosses(_state_through_view(draft, read)) for read in reads):
            return node
    return None


def put_of_output(frame: Frame, output: fx.Node) -> list[fx.Node]:
    """What leads from a gradient to the operator that adds its entries up in a smaller table; empty if nothing does.

    Nothing on the way reads another gradient.
    """
    chain, node = [], output
    while len(node.users) == 1:
        (user,) = node.users
        gradients = [read for read in tensors(user) if read in frame.graph.backward]
        if gradients != [node]:
            break
        chain.append(user)
        if puts_into_zeros(user):
            return chain if math.prod(shape_of(user)) < math.prod(shape_of(output)) else []
        if not is_view(user) and family(user.target) != "pointwise":
            break
        node = user
    return []


def _is_thin_view(draft: Draft, user: fx.Node, node: fx.Node) -> bool:
    """Whether a reader outside views a member that may cross the border."""
    return user not in draft.members and is_view(user) and crosses(_state_through_view(draft, node))


def _state_through_view(draft: Draft, node: fx.Node) -> State | None:
    """The state of a node; the state of its first input if the node is a view outside."""
    state = draft.states.get(node)
    return draft.states.get(node.all_input_nodes[0]) if state is None and node.all_input_nodes else state


def is_part(draft: Draft, node: fx.Node) -> bool:
    """Whether a member is a view of a part of a value: as an output it would hold all of that value."""
    value = node.meta.get("val")
    part = isinstance(value, torch.Tensor) and not value.is_contiguous() and crosses(_state_through_view(draft, node))
    return part and family(node.target) in ("view", "getitem") and not is_spared(draft, node)


def is_cheaper_inside(frame: Frame, draft: Draft, node: fx.Node, state: State) -> bool:
    """Whether an input is large, and made entry by entry of values outside with at most half of its bytes."""
    if family(node.target) != "pointwise" or not isinstance(state, Sharded) or is_drawn(node):
        return False
    if qualified_name(node.target) in COUNTERS:  # a shard would count from 0
        return False
    above = sum(_held_bytes(read) for read in node.all_input_nodes if read not in draft.members)
    large = math.prod(shape_of(node)) >= frame.numbers / THIN
    return large and above <= logical_bytes(node.meta["val"]) / 2


def _held_bytes(node: fx.Node) -> int:
    """The bytes that a value holds: a view holds all of what it views."""
    return logical_bytes(view_base(node).meta.get("val"))


def own_values(nodes: list[fx.Node]) -> list[fx.Node]:
    """The nodes with a storage of their own."""
    return [node for node in nodes if family(node.target) not in ("view", "getitem")]
