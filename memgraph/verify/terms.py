"""Terms: the value that a node of a graph holds, as an operator over terms.

    sin(x) * 2   is   Term(mul, (Term(sin, (Term(INPUT, "x"),)), 2))

Equal terms are one object, whichever graphs they come from ("hash consing"). So two nodes hold the same value if and
only if their terms are the same object. Names and places of nodes do not count.
"""

from __future__ import annotations

import enum
import operator
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from memgraph.base import compat
from memgraph.verify.operators import HARMLESS, SYMBOLIC, Behaviour, behaviour_of, schema_of


class Form(enum.Enum):
    """What a term is if it is not the result of an operator; its arguments stand behind it."""

    INPUT = "input"  # name
    UNBOUND = "unbound"  # name of a body's input that its caller does not give
    SYMBOLIC = "symbolic"  # type, expression
    CONSTANT = "constant"  # what it looks like and which of those, or the constant itself
    ATTRIBUTE = "attribute"  # type, path
    OPERAND = "operand"  # a constant that a body is called with
    BODY = "body"  # its nodes
    TUPLE = "tuple"  # its elements
    AFTER = "after"  # a value before any write, the newest write to its storage
    DRAW = "draw"  # the call, how often it was drawn before
    DEAD_DRAW = "dead draw"  # the call
    STATE = "generator state"  # the draw that begins with it, or the number of the generator
    EFFECT = "effect"  # the call, how often it happened before
    OFFLOADED = "offloaded"  # the name under which it leaves, value, layout
    COPY = "copy"  # how far the copy is, what is offloaded
    MISFIT = "misfit"  # the operator and its arguments: the ends of a copy that do not belong together


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Term:
    """A value. Made by `Terms.make` alone, once for equal operators and arguments; compared by identity."""

    op: Any
    """An operator, or a form."""
    args: tuple[Any, ...]
    """Terms, and constants as `freeze` makes them."""
    base: Term | None = None
    """The value whose storage this view shares. None: the value has a storage of its own."""
    behaviour: Behaviour = HARMLESS
    """Of a body: what a call of it does besides its outputs."""

    def __repr__(self) -> str:
        return f"Term({self.op}, {len(self.args)} arguments)"

    @property
    def root(self) -> Term:
        """The value that owns the storage."""
        return self if self.base is None else self.base

    @property
    def parts(self) -> tuple[Any, ...] | None:
        """The elements of a tuple."""
        return self.args if self.op is Form.TUPLE else None

    @property
    def overwritten(self) -> bool:
        """Whether this is what a storage holds after a write to it."""
        return self.op is Form.AFTER

    @property
    def unwritten(self) -> Term:
        """The value before any write to its storage."""
        before: Term = self.args[0] if self.overwritten else self
        return before

    @property
    def copy(self) -> tuple[int, Term] | None:
        """Of a copy to or from a tier: how far it is, and what is offloaded."""
        return (self.args[0], self.args[1]) if self.op is Form.COPY else None


class Terms:
    """All terms of several graphs, each made once."""

    def __init__(self, declared: Sequence[str] = ()) -> None:
        """declared: patterns of the operators that the user vouches for as repeatable."""
        self.declared = tuple(declared)
        self._made: defaultdict[Any, dict[tuple[Any, ...], Term]] = defaultdict(dict)
        self._constants: dict[Hashable, list[tuple[torch.Tensor, Term]]] = {}
        self._bodies: dict[int, tuple[fx.GraphModule, Term]] = {}  # by id; the module is kept, so that its id is

    def make(self, op: Any, *args: Any, base: Term | None = None, behaviour: Behaviour = HARMLESS) -> Term:
        """The term of an operator over arguments.

        base: for a view, the value that it shows. base and behaviour follow from op and args: the first ones stay.
        """
        made = self._made[op]
        term = made.get(args)
        if term is None:
            term = made[args] = Term(op, args, None if base is None else base.root, behaviour)
        return term

    def after(self, term: Term, writes: Mapping[Term, Term]) -> Term:
        """What `term` holds once `writes` (by storage, the newest write) are done."""
        before = term.unwritten
        write = writes.get(before.root)
        return term if write is None else self.make(Form.AFTER, before, write, base=before)

    def attribute(self, owner: fx.GraphModule, path: str) -> Term:
        """A constant or a body that a module holds."""
        value = operator.attrgetter(path)(owner)
        if isinstance(value, fx.GraphModule):
            return self.body(value)
        if not isinstance(value, torch.Tensor):
            return self.make(Form.ATTRIBUTE, type(value).__name__, path)
        key = (tuple(map(str, value.shape)), value.dtype, value.device, path if compat.is_fake(value) else "")
        known = self._constants.setdefault(key, [])
        for other, term in known:
            if compat.same_contents(value, other):
                return term
        known.append((value, self.make(Form.CONSTANT, key, len(known))))
        return known[-1][1]

    def forget_bodies(self) -> None:
        """Number each body anew when it is met again: it may have been rewritten since."""
        self._bodies.clear()

    def body(self, module: fx.GraphModule) -> Term:
        """The structure of a body, whatever its nodes are called."""
        if id(module) in self._bodies:
            return self._bodies[id(module)][1]
        places: dict[fx.Node, int] = {}
        lines: list[Hashable] = []
        behaviour = HARMLESS
        for place, node in enumerate(module.graph.nodes):
            places[node] = place
            if node.op == "get_attr":
                lines.append(("get_attr", inner := self.attribute(module, node.target)))
                behaviour |= inner.behaviour
            elif node.op == "placeholder":
                lines.append(("placeholder",))
            else:
                lines.append((node.target, freeze(node.args, places), freeze(node.kwargs, places)))
                if node.op == "call_function":
                    behaviour |= behaviour_of(node, schema_of(node.target).kind, self.declared)
        term = self.make(Form.BODY, *lines, behaviour=behaviour)
        self._bodies[id(module)] = (module, term)
        return term


_PLAIN = {bool, int, str, type(None), torch.dtype, torch.device}


def freeze(argument: Any, values: Mapping[fx.Node, Hashable]) -> Hashable:
    """An argument that can be hashed: nodes as their values, constants with their types (`1`, `1.0`, `True` differ)."""
    if isinstance(argument, fx.Node):
        return values[argument]
    if isinstance(argument, (list, tuple)):
        return ("list", *[values[x] if isinstance(x, fx.Node) else freeze(x, values) for x in argument])
    if type(argument) in _PLAIN:
        return (type(argument), argument)
    if isinstance(argument, dict):
        return ("dict", *[(name, freeze(value, values)) for name, value in argument.items()])
    if isinstance(argument, slice):
        bounds = (argument.start, argument.stop, argument.step)
        return ("slice", *[freeze(bound, values) for bound in bounds])
    if isinstance(argument, (float, complex, *SYMBOLIC)):
        return (type(argument), repr(argument))  # so that nan equals itself, and -0.0 is not 0.0
    try:
        hash(argument)
    except TypeError:
        return (type(argument), repr(argument))
    return (type(argument), argument)
