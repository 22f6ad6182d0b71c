"""What a rule is, and what it may ask for.

A rule gets a node and a `Flow`. It asks for the states of the node's inputs, requires states of those inputs whose
state is not known yet, and returns the state of the output (a tuple of states for several outputs). It raises
MixesTokens if a token's output needs other tokens in any other way than as a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import fx

from memgraph.facts.tokens.nodes import tensors
from memgraph.facts.tokens.states import State


class Flow(Protocol):
    """What a rule may ask for."""

    tokens: int
    """How many tokens all shards have together."""

    def known(self, node: fx.Node) -> State | None:
        """The state of a node, None if nothing has decided it."""

    def asked(self, node: fx.Node) -> State | None:
        """The state that the reader of a node asks for, None if the node was not reached from a reader."""

    def read(self, node: fx.Node, reader: fx.Node) -> State:
        """The state of a node; if nothing has decided it, it gets its default.  Raises MixesTokens."""

    def computed(self, node: fx.Node) -> State:
        """The state of a node that each shard has to compute by itself.  Raises MixesTokens if a shard cannot."""

    def require(self, node: fx.Node, state: State, reader: fx.Node) -> State:
        """Give a node a state, and return that.  Raises MixesTokens if it has another one, or cannot have this one."""


Rule = Callable[[fx.Node, Flow], State]


def read_all(node: fx.Node, flow: Flow) -> list[State]:
    """The states of all tensors that a node reads."""
    return [flow.read(read, node) for read in tensors(node)]


def read_first(node: fx.Node, flow: Flow) -> State:
    """The state of a node's first argument."""
    return flow.read(node.args[0], node)
