"""The terms of one graph, or of a forward and then its backward, found as the graphs run.

What an operator's arguments do not decide is told apart as well:

- draws, effects and operators that may run only once (`effects.py`);
- copies to another tier and back (`copies.py`);
- a read of a storage that an operator wrote to, by that write: `primals_1` before and after `copy_(primals_1, x)`.

A body that is only called (`invoke_subgraph`, `control_deps`) is numbered as if its nodes stood in the caller. A tile
is not: it is large, and each call of it computes the same.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.tokens.region import STANDS_FOR
from memgraph.verify.copies import copy
from memgraph.verify.effects import draw, effect, replay, run_of_once
from memgraph.verify.frame import Frame, History, Storage, argument_at
from memgraph.verify.operators import (
    CALLED,
    RNG_WRAPPERS,
    SYMBOLIC,
    Kind,
    Schema,
    behaviour_of,
    schema_of,
    target_name,
)
from memgraph.verify.terms import Form, Term, Terms, freeze


@dataclass(frozen=True)
class Numbered:
    """A graph with the value of each of its nodes."""

    module: fx.GraphModule
    where: str
    """What the graph is called in breaches."""
    terms: Terms
    values: Mapping[fx.Node, Term]
    storages: Mapping[fx.Node, Storage]
    outputs: tuple[Any, ...]
    """What it returns: nodes and constants."""
    single: bool
    """Whether it returns one value and not a tuple."""

    def returned(self, writes: Mapping[Term, Term]) -> list[Any]:
        """The values of the outputs once `writes` are done; constants frozen."""
        return [
            self.terms.after(self.values[output], writes)
            if isinstance(output, fx.Node)
            else freeze(output, self.values)
            for output in self.outputs
        ]


def number(
    module: fx.GraphModule,
    inputs: Sequence[Term],
    history: History,
    *,
    where: str = "graph",
    claims: Mapping[str, Term] | None = None,
) -> Numbered:
    """The value of each node of a graph.

    inputs: of its placeholders, in order.  history: what ran before; the effects of this graph are added.
    claims: values of nodes, by name, that are taken as they are given.
    """
    return _number(Frame(module, history, where), inputs, claims or {})


def _number(frame: Frame, inputs: Sequence[Term], claims: Mapping[str, Term]) -> Numbered:
    terms, given = frame.terms, iter(inputs)
    returned: Any = None
    held: tuple[Term, Storage]
    for node in frame.module.graph.nodes:
        if node.op == "output":
            returned = node.args[0]
            continue
        if node.op == "placeholder":
            term = next(given, None)
            if term is None:  # the generator states that the partitioner threads into bodies later
                term = terms.make(Form.UNBOUND, node.name)
            held = term, term.root
        elif node.op == "get_attr":
            term = terms.attribute(frame.module, node.target)
            held = term, term
        elif node.name in claims:
            held = claims[node.name], node
        else:
            held = _call(frame, node)
        frame.values[node], frame.storages[node] = held
    single = not isinstance(returned, (list, tuple))
    outputs = (returned,) if single else tuple(returned)
    return Numbered(frame.module, frame.where, terms, frame.values, frame.storages, outputs, single)


def _call(frame: Frame, node: fx.Node) -> tuple[Term, Storage]:
    """The value of a call and who owns its storage."""
    value = node.meta.get("val")
    if isinstance(value, SYMBOLIC):
        return frame.terms.make(Form.SYMBOLIC, type(value), value.node.expr), node
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return _element(frame, node)
    if compat.looks_up_seed(node.target):
        return _seed(frame, node), node
    schema = schema_of(node.target)
    if schema.name in CALLED and isinstance(body := frame.body(node), fx.GraphModule):
        return _body(frame, node, body), node
    if schema.name in RNG_WRAPPERS:
        return replay(frame, node), node
    if schema.transfer:
        return copy(frame, node), node
    if node.target is torch.ops.aten.detach.default:  # no graph here has an autograd of its own: it is what it detaches
        return frame.values[node.args[0]], frame.storages[node.args[0]]
    if schema.copies and frame.stays(node.args[0]):
        return frame.values[node.args[0]], node
    return _operator(frame, node, schema)


def _seed(frame: Frame, node: fx.Node) -> Term:
    """A seed that is looked up by number: the value of that entry of the seeds, which a caller of bodies shows them."""
    seeds, number = node.args
    shown = frame.frozen((seeds, 0, number)), frame.frozen({})
    entry = frame.terms.make(torch.ops.aten.select.int, *shown, base=frame.values[seeds])
    return frame.terms.after(entry, frame.history.writes)


def _operator(frame: Frame, node: fx.Node, schema: Schema) -> tuple[Term, Storage]:
    terms = frame.terms
    arguments = _read(frame, node, schema)
    behaviour = behaviour_of(node, schema.kind, terms.declared)
    if not isinstance(node.target, compat.OpOverload):
        for operand in node.all_input_nodes:  # a body that the operator runs in its own way, such as a score_mod
            if operand.op == "get_attr":
                behaviour |= frame.values[operand].behaviour
    if behaviour.kind == Kind.RANDOM:
        return draw(frame, node, node.target, node.args, node.kwargs, arguments), node
    if behaviour.kind == Kind.EFFECT:
        return effect(frame, node, schema, arguments)
    base, storage = None, node
    for position, name in schema.views:
        if isinstance(viewed := argument_at(node, position, name), fx.Node):
            base, storage = frame.values[viewed], frame.storages[viewed]
    term = terms.make(node.target, *arguments, base=base)
    if behaviour.once:
        run_of_once(frame, node, term, (node.target, arguments), behaviour.once)
    return term, storage


def _read(frame: Frame, node: fx.Node, schema: Schema) -> tuple[Hashable, Hashable]:
    """The arguments as they are now. A view does not read the value that it shows: writes to it do not count."""
    if not (writes := frame.history.writes):
        return freeze(node.args, frame.values), freeze(node.kwargs, frame.values)
    now = {operand: frame.terms.after(frame.values[operand], writes) for operand in node.all_input_nodes}
    for position, name in schema.views:
        if isinstance(base := argument_at(node, position, name), fx.Node):
            now[base] = now[base].unwritten if now[base].overwritten else frame.values[base]
    return freeze(node.args, now), freeze(node.kwargs, now)


def _element(frame: Frame, node: fx.Node) -> tuple[Term, Storage]:
    """An element of a tuple: of a body's results, of `split`, of an operator with several outputs."""
    whole, index = node.args
    term, parts = frame.values[whole], frame.values[whole].parts
    if parts is not None and isinstance(index, int):
        part = parts[index]
        element = part if isinstance(part, Term) else frame.terms.make(Form.CONSTANT, part)
    else:  # an element of `split` shares the storage of its base
        shares = frame.storages[whole] is not whole or term.root is not term
        element = frame.terms.make(operator.getitem, term, frame.frozen(index), base=term if shares else None)
    if parts is None and element.root is not element:
        return element, frame.storages[whole]
    if element.root.op is Form.INPUT:
        return element, element.root
    if whole in frame.returned and isinstance(index, int):
        return element, frame.returned[whole][index]
    return element, node


def _body(frame: Frame, node: fx.Node, body: fx.GraphModule) -> Term:
    """What a call of a body returns."""
    terms = frame.terms
    given = node.args[CALLED[target_name(node.target)] :]
    operands = [_operand(frame, operand) for operand in given]
    if STANDS_FOR in node.meta and terms.body(body).behaviour.kind == Kind.PURE:
        return terms.make(node.target, terms.body(body), *operands)
    inner = _number(Frame(body, frame.history, frame.where, frame.caller or node), operands, {})
    frame.returned[node] = _returned_storages(frame, node, given, inner)
    values = inner.returned({})
    return values[0] if inner.single else terms.make(Form.TUPLE, *values)


def _operand(frame: Frame, operand: Any) -> Term:
    if isinstance(operand, fx.Node):
        return frame.values[operand]
    return frame.terms.make(Form.OPERAND, frame.frozen(operand))


def _returned_storages(frame: Frame, call: fx.Node, operands: Sequence[Any], inner: Numbered) -> list[Storage]:
    """Of each value that a body returns: the caller's storage if it is an operand's, else one that this call owns."""
    inputs = inner.module.graph.find_nodes(op="placeholder")
    outside = {
        inner.storages[placeholder]: frame.storages[operand]
        for placeholder, operand in zip(inputs, operands, strict=False)
        if isinstance(operand, fx.Node)
    }
    inside = [inner.storages[value] if isinstance(value, fx.Node) else None for value in inner.outputs]
    return [outside.get(storage, (call, storage)) for storage in inside]
