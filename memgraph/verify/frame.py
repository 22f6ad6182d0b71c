"""One graph while it is numbered, and the effects of all graphs that run one after another."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from memgraph.verify.operators import Kind, schema_of
from memgraph.verify.terms import Term, Terms, freeze

Storage = Hashable
"""Who owns memory: the node that allocated it, the term of an input or constant, or a call and what its body owns."""


@dataclass(frozen=True)
class Effect:
    """What a call does besides its outputs: a draw, a write or another effect, or a run of what may run only once."""

    term: Term
    call: Hashable
    """The operator and its arguments."""
    node: fx.Node
    """Of an effect in a body, the call of the body."""
    where: str
    """The graph that it happens in: "graph", "forward" or "backward"."""
    side: str | None = None
    """Where AOTAutograd wants it: "forward", "backward", or None where either will do."""
    once: str = ""
    """The operator that may run only once."""


@dataclass
class History:
    """What happens while graphs run one after another: one graph, or a forward and then its backward."""

    terms: Terms
    draws: list[Effect] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    once: list[Effect] = field(default_factory=list)
    repeated: set[Hashable] = field(default_factory=set)
    """Calls that a checkpoint of the user's own repeats in the backward."""
    writes: dict[Term, Term] = field(default_factory=dict)
    """By storage, the newest write to it."""
    forward_writes: dict[Term, Term] = field(default_factory=dict)
    """The same, of effects that belong to the forward."""
    saved_draws: dict[Term, tuple[Term, Hashable]] = field(default_factory=dict)
    """By state of a generator, the draw and the call that began with it."""
    _seen: Counter[Hashable] = field(default_factory=Counter)

    def count(self, call: Hashable) -> int:
        """How often a call happened before this time."""
        self._seen[call] += 1
        return self._seen[call] - 1


@dataclass
class Frame:
    """One graph while it is numbered: what the nodes up to here hold, and where."""

    module: fx.GraphModule
    history: History
    where: str
    caller: fx.Node | None = None
    """Of a body: the node of the outermost graph that calls it."""
    values: dict[fx.Node, Term] = field(default_factory=dict)
    storages: dict[fx.Node, Storage] = field(default_factory=dict)
    returned: dict[fx.Node, list[Storage]] = field(default_factory=dict)
    """By call of a body, the storages of what it returns."""

    @functools.cached_property
    def terms(self) -> Terms:
        return self.history.terms

    @functools.cached_property
    def live(self) -> set[fx.Node]:
        """Nodes that an output or an effect needs."""
        live: set[fx.Node] = set()
        for node in reversed(self.module.graph.nodes):
            bound = node.op == "output"
            bound |= node.op == "call_function" and schema_of(node.target).kind == Kind.EFFECT
            if bound or any(user in live for user in node.users):
                live.add(node)
        return live

    @functools.cached_property
    def overwrites(self) -> bool:
        """Whether an operator writes to memory that is no input's."""
        calls = (node for node in self.module.graph.nodes if node.op == "call_function")
        written = ((call, *argument) for call in calls for argument in schema_of(call.target).writes)
        return any(owner_of(operand).op != "placeholder" for write in written for operand in operands_at(*write))

    def stays(self, node: fx.Node) -> bool:
        """Whether the graph itself allocates what a node shows, and nothing writes to it later: a copy is the same."""
        return isinstance(self.storages[node], fx.Node) and not self.overwrites

    def body(self, node: fx.Node) -> Any:
        """The body that a call is given, None if it is given none."""
        for argument in node.args[:2]:
            if isinstance(argument, fx.Node) and argument.op == "get_attr":
                return operator.attrgetter(argument.target)(self.module)
        return None

    def frozen(self, argument: Any) -> Hashable:
        return freeze(argument, self.values)


def argument_at(node: fx.Node, position: int, name: str) -> Any:
    """An argument of a call, wherever it is given."""
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def operands_at(node: fx.Node, position: int, name: str) -> list[fx.Node]:
    """The nodes that an argument of a call is, or that it lists."""
    given = argument_at(node, position, name)
    return [each for each in (given if isinstance(given, (list, tuple)) else [given]) if isinstance(each, fx.Node)]


def owner_of(node: fx.Node) -> fx.Node:
    """The node whose memory a node shows, by the schemas of its operators."""
    while node.op == "call_function" and (views := schema_of(node.target).views):
        shown = argument_at(node, *views[0])
        if not isinstance(shown, fx.Node):
            return node
        node = shown
    return node
