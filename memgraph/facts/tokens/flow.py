"""How the states of a region's nodes follow from one another.

The rule of each member gives its state and asks for the states of what it reads. Members whose readers belong to the
region as well put those readers on the worklist.

    unknown  ->  what a reader requires (inputs)  |  what the rule gives (members);   two answers: MixesTokens
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from torch import fx

from memgraph.facts.operators import family, qualified_name
from memgraph.facts.tokens import border
from memgraph.facts.tokens.border import Draft, Frame
from memgraph.facts.tokens.graph import sorted_within
from memgraph.facts.tokens.kinds import MAKERS
from memgraph.facts.tokens.nodes import shape_of, tensors
from memgraph.facts.tokens.rules import rule_of
from memgraph.facts.tokens.states import REPLICATED, MixesTokens, Sharded, State, without_ones
from memgraph.facts.views import view_base


class TokenFlow:
    """The draft of a region, and the steps that change it. It answers what the rules ask (`rules.Flow`)."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.tokens = frame, frame.tokens
        self.draft = Draft()

    # What the rules ask

    def known(self, node: fx.Node) -> State | None:
        return self.draft.states.get(node)

    def asked(self, node: fx.Node) -> State | None:
        return self.draft.asked.get(node)

    def read(self, node: fx.Node, reader: fx.Node) -> State:
        known = self.known(node)
        if known is not None:
            return known
        if (
            border.after_members(self.frame, self.draft, node)
            or sorted_within(node)
            or self._is_gradient_of_weights(node)
        ):
            return self.include(node)
        return self.require(node, self._default(node), reader)

    def computed(self, node: fx.Node) -> State:
        return self.known(node) or self.include(node)

    def require(self, node: fx.Node, state: State, reader: fx.Node) -> State:
        known = self.known(node)
        if known is None:
            if border.belongs(self.frame, self.draft, node, state) and self.try_include(node, state):
                return state
            if isinstance(state, Sharded) and not state.crosses:
                raise MixesTokens(reader, f"needs {node.name} in the order of its shard")
            self.draft = self.draft.with_state(node, state)
        elif known != state:
            raise MixesTokens(reader, f"reads {node.name} both by tokens and whole")
        return state

    # Steps

    def include(self, node: fx.Node) -> State:
        """Make a node a member.  Raises MixesTokens if it cannot be one."""
        if node.op != "call_function":
            raise MixesTokens(node, "comes from outside and is not split by tokens")
        if node not in self.draft.members:
            self.add(node)
        return self.draft.states[node]

    def try_include(self, node: fx.Node, state: State) -> bool:
        """Make a node a member in a state that its reader asks for.

        Returns False if it stays outside, which is an option if only its size speaks for the inside; otherwise raises
        MixesTokens.
        """
        if qualified_name(node.target) in MAKERS:
            self.draft = self.draft.with_member(node).with_state(node, state)
            return True

        def include() -> None:
            self.draft = self.draft.with_asked(node, state)
            if self.include(node) != state:
                raise MixesTokens(node, "is read both by tokens and whole")

        ordered = isinstance(state, Sharded) and not state.crosses
        if ordered or border.after_members(self.frame, self.draft, node):
            include()
            return True
        return self.attempt(include)

    def attempt(self, step: Callable[[], None]) -> bool:
        """Take a step; if it raises MixesTokens, keep the draft as it was and return False."""
        before = self.draft
        try:
            step()
        except MixesTokens:
            self.draft = before
            return False
        return True

    def add(self, node: fx.Node) -> None:
        """Make a node a member: its rule gives its state.  Raises MixesTokens."""
        before = self.known(node)
        self.draft = border.entered(self.frame, self.draft, node)
        state = REPLICATED if node in self.frame.graph.dead else rule_of(node)(node, self)
        self._refuse_spread(node, state)
        if before is not None and before != state:
            raise MixesTokens(node, "is read both by tokens and whole")
        self.draft = self.draft.with_state(node, state)
        if border.spreads(self.frame, self.draft, node, state):
            self.draft = dataclasses.replace(self.draft, pending=self.draft.pending.union(node.users))

    def spread(self) -> None:
        """Make all pending readers members, and theirs in turn.  Raises MixesTokens."""
        while self.draft.pending:
            node = min(self.draft.pending, key=self.frame.graph.place.__getitem__)
            self.draft = dataclasses.replace(self.draft, pending=self.draft.pending - {node})
            if node in self.draft.members or node.op != "call_function":
                continue
            if self.frame.scores is not None and node in self.frame.graph.backward:
                self.attempt(functools.partial(self._add_alone, node))  # else the gradient that it reads is an output
            else:
                self.add(node)

    def _add_alone(self, node: fx.Node) -> None:
        """Make a node a member that asks for no other gradient as large as the scores.

        Raises MixesTokens: gradients of a bias that several layers share are added up outside.
        """
        before = self.draft.members
        self.add(node)
        for read in {read for member in self.draft.members - before for read in member.all_input_nodes}:
            given = read not in self.draft.members and read in self.frame.graph.backward
            if given and border.is_wide(self.frame, read):
                raise MixesTokens(node, f"reads {read.name} as well, which is as large as the scores")

    def _refuse_spread(self, node: fx.Node, state: State) -> None:
        """A value that is the same for some tokens may only meet values that each token has its own of."""
        for read in node.all_input_nodes:
            known = self.known(read)
            if isinstance(known, Sharded) and known.spread:
                dims = state.dims if isinstance(state, Sharded) else ()
                if family(node.target) != "pointwise" or tuple(shape_of(node)[dim] for dim in dims) != known.spread:
                    raise MixesTokens(node, f"reads {read.name}, which is not each token's own")

    def _is_gradient_of_weights(self, node: fx.Node) -> bool:
        """Whether a value of the backward has a number for each query and key of the attention that is looked at: the
        gradient of the output, times the values, views of it, and what is made of it entry by entry (dropout)."""
        frame, pending, seen = self.frame, [view_base(node)], set()
        while frame.scores is not None and pending:
            base = pending.pop()
            if self._is_product_of_gradients(base):
                return True
            if base in frame.graph.backward and base not in seen and family(base.target) == "pointwise":
                pending += [view_base(read) for read in tensors(base) if border.is_wide(frame, read)]
            seen.add(base)
        return False

    def _is_product_of_gradients(self, node: fx.Node) -> bool:
        """Whether a product of the backward has a number for each query and key of the attention that is looked at."""
        frame = self.frame
        if frame.scores is None or node.op != "call_function" or node not in frame.graph.backward:
            return False
        return qualified_name(node.target) == "aten::bmm" and border.is_wide(frame, node)

    # Defaults

    def _default(self, node: fx.Node) -> State:
        """Default: tokens lead if the leading dimensions multiply to their number and the value is not weights only.

        A single dimension may have several rows a token.
        """
        if node in self.frame.graph.weights or node.op == "get_attr":
            return REPLICATED
        if self.frame.scores is not None:
            meets_keys = any(self._is_product_of_gradients(user) and user.args[0] is node for user in node.users)
            return Sharded((1,)) if meets_keys else REPLICATED
        shape, product = shape_of(node), 1
        for end, size in enumerate(shape):
            product *= size
            if product == self.tokens or len(shape) == 1 and product % self.tokens == 0:
                return Sharded(without_ones(shape, range(end + 1)), product // self.tokens)
        return REPLICATED
