"""How a token-parallel region grows from the operator that makes a token's row longer."""

from __future__ import annotations

import heapq
import math

import torch
from torch import fx

from memgraph.facts.costs import logical_bytes
from memgraph.facts.operators import family, short_name
from memgraph.facts.tokens.region import PRODUCTS, Region, TokenGraph, common_path, sorted_within
from memgraph.facts.tokens.rules import entrywise, parts, picks, products  # noqa: F401  they register their rules
from memgraph.facts.tokens.states import (
    LENGTHS,
    MAKERS,
    ROUTING,
    SUM,
    WHOLE,
    Mixed,
    State,
    Tokens,
    is_tensor,
    normal,
    rule_of,
    shape_of,
)
from memgraph.facts.tokens.tangent import computed, one_tangent, thin_between

# A region is worth it when its wide values together are this many times what crosses its border on the way out.
WORTH = 2.0
# An input this many times thinner than a token's row stays an input, however it is made.
THIN = 8


class Growth:
    """One region while it grows; what the rules ask (`states.Flow`)."""

    def __init__(self, graph: TokenGraph, seed: fx.Node, rows: fx.Node) -> None:
        self.graph, self.seed = graph, seed
        self.tokens = shape_of(rows)[0]
        self.row = math.prod(shape_of(rows)) // self.tokens
        self.states: dict[fx.Node, State] = {}
        self.members: set[fx.Node] = set()
        self.spared: set[fx.Node] = set()  # members that are computed outside as well, for those who read them there
        self.asked: dict[fx.Node, State] = {}  # what the reader of a node that is pulled in takes it for
        self.below: tuple[set[fx.Node], set[fx.Node]] = (set(), set())  # what depends on members, by side
        self.reached: set[fx.Node] = set()
        self.queue: list[tuple[int, fx.Node]] = []
        if "grouped" not in short_name(seed.target):  # its rows are sorted, the tokens somewhere above
            self.require(rows, Tokens((0,)), seed)

    # What the rules ask

    def known(self, node: fx.Node) -> State | None:
        return self.states.get(node)

    def require(self, node: fx.Node, state: State, reader: fx.Node) -> State:
        known = self.states.get(node)
        if known is None and self._belongs(node, state):
            known = self._try_pull(node, state)
        if known is None:
            if isinstance(state, Tokens) and not state.crosses:
                raise Mixed(reader, f"needs {node.name} in the order of its shard")
            self.states[node] = known = state
        if known != state:
            raise Mixed(reader, f"reads {node.name} both by tokens and whole")
        return known

    def wanted(self, node: fx.Node) -> State | None:
        return self.asked.get(node)

    def guess(self, node: fx.Node, reader: fx.Node) -> State:
        """What nothing decides has the tokens first, where that many come first, unless it is made of weights alone."""
        if self._after_members(node):
            return self.pull(node)
        state: State = WHOLE
        sorts = sorted_within(node)
        if node not in self.graph.weights and node.op != "get_attr" and not sorts:
            shape, product = shape_of(node), 1
            for end, size in enumerate(shape):
                product *= size
                if product == self.tokens or len(shape) == 1 and product % self.tokens == 0:
                    state = Tokens(normal(shape, range(end + 1)), product // self.tokens)
                    break
        return self.pull(node) if sorts else self.require(node, state, reader)

    def pull(self, node: fx.Node) -> State:
        """Make a node a member.  Raises Mixed where it cannot be one."""
        if node.op != "call_function":
            raise Mixed(node, "comes from outside and is not split by tokens")
        if node not in self.members:
            self._add(node)
        return self.states[node]

    # Growth

    def run(self) -> Region | None:
        """Grow to the end; None where the region would not be worth it.  Raises Mixed."""
        self._add(self.seed)
        self._drain()
        while self._absorb():
            self._drain()
        tried: set[fx.Node] = set()
        while fresh := self.members - tried:
            for node in sorted(fresh, key=self.graph.place.__getitem__):
                self._follow_view(node)
            tried |= fresh
        self._tighten()
        self._bridge()
        return self._region()

    def _tighten(self) -> None:
        while any([self._narrow(node) for node in self._inputs()]):
            self._drain()

    def _narrow(self, node: fx.Node) -> bool:
        """Move the border above an input, where what is read there instead takes fewer bytes or is no view."""
        if node.op != "call_function" or not is_tensor(node):
            return False
        if self._after_members(node):
            self.pull(node)
            return True
        state, kind = self.states.get(node), family(node.target)
        if state == WHOLE and short_name(node.target) in MAKERS:
            self.members.add(node)
            self.spared.add(node)
            return True
        if kind == "view":
            if state == WHOLE:
                for read in node.all_input_nodes:
                    self.require(read, WHOLE, node)
        elif kind != "pointwise" or not isinstance(state, Tokens) or self._drawn(node):
            return False
        elif short_name(node.target) in LENGTHS:
            return False  # a shard would count from 0
        else:
            size = logical_bytes(node.meta["val"])
            above = sum(_held_bytes(read) for read in node.all_input_nodes if read not in self.members)
            if math.prod(shape_of(node)) < self.row * self.tokens / THIN or above > size / 2:
                return False
        before = set(self.members)
        if self._try_pull(node, state) is None:
            return False
        self.spared |= self.members - before
        return True

    def _drain(self) -> None:
        while self.queue:
            _, node = heapq.heappop(self.queue)
            if node not in self.members and node.op == "call_function":
                self._add(node)

    def _add(self, node: fx.Node) -> None:
        self.members.add(node)
        self.reached.add(node)
        self._mark_below(node)
        before = self.states.pop(node, None)
        state = rule_of(node)(node, self) if node not in self.graph.dead else WHOLE
        self._refuse_spread(node, state)
        if before is not None and before != state:
            raise Mixed(node, "is read both by tokens and whole")
        self.states[node] = state
        if self._spreads(node, state):
            for user in node.users:
                heapq.heappush(self.queue, (self.graph.place[user], user))

    def _refuse_spread(self, node: fx.Node, state: State) -> None:
        """What is the same for some tokens meets in its reader what has its own for each of them."""
        for read in node.all_input_nodes:
            known = self.states.get(read)
            if isinstance(known, Tokens) and known.spread:
                dims = state.dims if isinstance(state, Tokens) else ()
                if family(node.target) != "pointwise" or tuple(shape_of(node)[dim] for dim in dims) != known.spread:
                    raise Mixed(node, f"reads {read.name}, which is not each token's own")

    def _spreads(self, node: fx.Node, state: State) -> bool:
        """Whether all that reads a value belongs to the region as well."""
        if isinstance(state, tuple):
            return True  # its parts are told apart
        if isinstance(state, Tokens):
            return not state.crosses or self._wide(node)
        return state == ROUTING

    def _wide(self, node: fx.Node) -> bool:
        value = node.meta.get("val")
        values = value if isinstance(value, list | tuple) else [value]
        numbers = sum(math.prod(item.shape) for item in values if isinstance(item, torch.Tensor))
        return numbers > self.row * self.tokens

    def _belongs(self, node: fx.Node, state: State) -> bool:
        """Whether what a member reads must or should be computed in the region."""
        if node.op != "call_function":
            return False
        if self._after_members(node):
            return True
        if not isinstance(state, Tokens):
            return False
        name = short_name(node.target)
        if name in MAKERS:
            return name not in LENGTHS or not state.crosses
        return not state.crosses or (self._wide(node) and not self._drawn(node))

    def _drawn(self, node: fx.Node) -> bool:
        """Whether a value is a draw or a mask made of one: where a number stands in the whole decides what is drawn."""
        reads = (node, *node.all_input_nodes)
        return any(read.op == "call_function" and "random" in short_name(read.target) for read in reads)

    def _try_pull(self, node: fx.Node, state: State) -> State | None:
        """The state of a node that was pulled in; None where it stays outside, which only its width spoke against."""
        if short_name(node.target) in MAKERS:
            self.members.add(node)
            self.states[node] = state
            return state
        must = self._after_members(node) or (isinstance(state, Tokens) and not state.crosses)
        kept = self._snapshot()
        self.asked[node] = state
        try:
            if (found := self.pull(node)) != state:
                raise Mixed(node, "is read both by tokens and whole")
            return found
        except Mixed:
            if must:
                raise
            self._restore(kept)
            return None

    def _snapshot(self) -> tuple:
        below = set(self.below[0]), set(self.below[1])
        return dict(self.states), set(self.members), set(self.spared), below, list(self.queue)

    def _restore(self, kept: tuple) -> None:
        self.states, self.members, self.spared, self.below, self.queue = kept

    def _side(self, node: fx.Node) -> int:
        return int(node in self.graph.backward)

    def _mark_below(self, node: fx.Node) -> None:
        side = self._side(node)
        below = self.below[side]
        pending = list(node.users)
        while pending:
            user = pending.pop()
            if user not in below and self._side(user) == side:
                below.add(user)
                pending += user.users

    def _after_members(self, node: fx.Node) -> bool:
        """Whether a node that is none computes something from members of its own side."""
        return node not in self.members and node in self.below[self._side(node)]

    def _absorb(self) -> bool:
        """Take in what adds up several outputs, with the views between: one value crosses instead of two."""
        views = {user for node in self.members for user in node.users if self._thin_view(user, node)}
        inside = self.members | views
        for node in sorted({user for read in inside for user in read.users} - inside, key=self.graph.place.__getitem__):
            reads = [read for read in node.all_input_nodes if is_tensor(read)]
            if node.op != "call_function" or family(node.target) != "pointwise" or not inside.issuperset(reads):
                continue
            if len(set(reads)) < 2 or not all(self._crosses(read) for read in reads):
                continue
            for read in reads:
                if read not in self.members:
                    self.pull(read)
            self._add(node)
            return True
        return False

    def _follow_view(self, node: fx.Node) -> None:
        """Take in what reads a view that is a part of what it views: as an output it would hold all of that."""
        value = node.meta.get("val")
        part = isinstance(value, torch.Tensor) and not value.is_contiguous() and self._crosses(node)
        readers = [user for user in node.users if user not in self.members]
        if not part or family(node.target) not in ("view", "getitem") or self._spared(node):
            return
        kept = self._snapshot()
        try:
            for user in readers:
                if user not in self.members:
                    self._add(user)
            self._drain()
        except Mixed:
            self._restore(kept)

    def _bridge(self) -> None:
        """Take in what lies between the forward and the backward, where that makes one tile of both."""
        between = thin_between(self.graph, self.members, self._inputs(), self._computed())
        if not between:
            return
        kept = self._snapshot()
        try:
            while any([self._take(node) for node in self._inputs() if node in between]):
                self._drain()
            self._tighten()
            if not self._one_tangent()[0]:
                self._restore(kept)
        except Mixed:
            self._restore(kept)

    def _take(self, node: fx.Node) -> bool:
        self.pull(node)
        return True

    def _thin_view(self, user: fx.Node, node: fx.Node) -> bool:
        return (
            user not in self.members
            and user.op == "call_function"
            and family(user.target) == "view"
            and self._crosses(node)
        )

    def _crosses(self, node: fx.Node) -> bool:
        state = self.states.get(node)
        if state is None and node.all_input_nodes:  # a view that is not in yet
            state = self.states.get(node.all_input_nodes[0])
        return isinstance(state, Tokens) and state.crosses

    # The result

    def _inputs(self) -> list[fx.Node]:
        reads = {read for node in self.members - self.graph.dead for read in node.all_input_nodes} - self.members
        return sorted(reads, key=self.graph.place.__getitem__)

    def _region(self) -> Region | None:
        members = sorted(self.members, key=self.graph.place.__getitem__)
        outputs = [
            node for node in members if not self._spared(node) and any(user not in self.members for user in node.users)
        ]
        for node in outputs:
            state = self.states[node]
            if not (state == SUM or isinstance(state, Tokens) and state.crosses):
                raise Mixed(node, "is read outside, but belongs to one shard")
        for node in self._inputs():
            if self.states.get(node) is None and is_tensor(node):
                raise Mixed(node, "is read in a way that does not tell whether by tokens or whole")
        wide = [node for node in members if isinstance(self.states[node], Tokens) and self._wide(node)]
        own = [node for node in wide if family(node.target) not in ("view", "getitem")]
        total = sum(logical_bytes(node.meta["val"]) for node in own)
        leaving = sum(logical_bytes(node.meta["val"]) for node in outputs if self.states[node] != SUM)
        if total < WORTH * leaving:
            return None
        forward = [node for node in members if node not in self.graph.backward]
        closing = [
            node
            for node in forward
            if short_name(node.target) in PRODUCTS and any(read in wide for read in node.all_input_nodes)
        ]
        factors = [node for node in forward if short_name(node.target) in PRODUCTS]
        names = {node.name: state for node, state in self.states.items()}
        tangent, chain = self._one_tangent()
        return Region(
            kind="mlp" if closing else "loss",
            module=common_path(factors or forward),
            tokens=self.tokens,
            forward=tuple(node.name for node in forward),
            backward=tuple(node.name for node in members if node in self.graph.backward),
            inputs=tuple(node.name for node in self._inputs()),
            outputs=tuple(node.name for node in outputs),
            states=names,
            wide_bytes=total,
            row_bytes=max(logical_bytes(node.meta["val"]) for node in own) // self.tokens,
            tangent=tangent,
            chain=chain,
        )

    def _spared(self, node: fx.Node) -> bool:
        return node in self.spared or self.states[node] == WHOLE

    def _one_tangent(self) -> tuple[str, tuple[str, ...]]:
        return one_tangent(self.graph, self.members, self._inputs(), self._computed())

    def _computed(self) -> set[fx.Node]:
        return computed(self.graph, {node for node in self.members if not self._spared(node)})


def _held_bytes(node: fx.Node) -> int:
    """The bytes that stand for a value: of a view, those of what it views."""
    while node.op == "call_function" and family(node.target) == "view" and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return logical_bytes(node.meta.get("val"))
