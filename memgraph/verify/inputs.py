"""The inputs of a graph: which term each has, and which side of a split gets it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import fx

from memgraph.base import compat
from memgraph.verify.checks import show, signature
from memgraph.verify.operators import SYMBOLIC
from memgraph.verify.terms import Form, Term, Terms

_GENERATOR_STATE = re.compile(r"(?:fwd|bwd)_rng_state_(\d+)$")  # the partitioner adds these inputs under these names


def placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="placeholder"))


def split_inputs(joint: fx.GraphModule) -> tuple[list[fx.Node], list[fx.Node]]:
    """The joint graph's inputs: the forward's, and those that only the backward gets, in the backward's order."""
    late = compat.backward_inputs(joint)
    return [node for node in placeholders(joint) if node not in late], late


def is_generator_state(node: fx.Node) -> bool:
    """Whether an input is the state of a generator, which the joint graph does not have as an input."""
    return _GENERATOR_STATE.match(node.name) is not None


def input_term(terms: Terms, node: fx.Node) -> Term:
    """The value of an input. Forward and backward get the same state of a generator."""
    if isinstance(value := node.meta.get("val"), SYMBOLIC):
        return terms.make(Form.SYMBOLIC, type(value), value.node.expr)
    if match := _GENERATOR_STATE.match(node.name):
        return terms.make(Form.STATE, match[1])
    return terms.make(Form.INPUT, node.name)


def input_terms(terms: Terms, inputs: Sequence[fx.Node], values: Sequence[Term]) -> list[Term]:
    """The values of a graph's inputs: those that are given, in order, and the states of generators between them."""
    given = iter(values)
    return [input_term(terms, node) if is_generator_state(node) else next(given) for node in inputs]


def compare_inputs(where: str, old: Sequence[fx.Node], new: Sequence[fx.Node]) -> list[str]:
    """Breaches: inputs that are not as many as before, or do not look as before."""
    if len(old) != len(new):
        return [f"the {where} has {len(new)} inputs, not {len(old)}"]
    return [
        f"{where} input {node.name} is {show(got)}, not {show(want)}"
        for source, node in zip(old, new, strict=True)
        if (got := signature(node.meta.get("val"))) != (want := signature(source.meta.get("val")))
    ]


def compare_backward_inputs(new: Sequence[fx.Node], sources: Sequence[fx.Node]) -> list[str]:
    """Breaches: inputs of a backward that do not look as what they are given: saved values and tangents."""
    return [
        f"backward input {node.name} is {show(got)}, but takes {source.name}, which is {show(want)}"
        for node, source in zip(new, sources, strict=True)
        if (got := signature(node.meta.get("val"))) != (want := signature(source.meta.get("val")))
    ]


def crossing(saved: Sequence[Any]) -> list[str]:
    """Breaches: something else than a tensor or a symbolic number crosses from the forward to the backward."""
    breaches = []
    for place, value in enumerate(saved):
        if not isinstance(value, fx.Node):
            breaches.append(f"saved output {place} is {value!r}: only tensors and symbolic ints may cross")
        elif isinstance(held := value.meta.get("val"), (list, tuple, dict, type(None))):
            kind = "nothing known" if held is None else f"a {type(held).__name__}"
            breaches.append(f"saved output {place} ({value.name}) is {kind}: only tensors and symbolic ints may cross")
    return breaches


def in_backward_order(saved: Sequence[tuple[Any, Term]]) -> list[tuple[Any, Term]]:
    """Saved values as the backward takes them: symbolic numbers, the forward's last outputs, come first."""
    symbolic = 0
    while symbolic < len(saved) and _is_symbolic(saved[-1 - symbolic][0]):
        symbolic += 1
    tensors = len(saved) - symbolic
    return [*saved[tensors:], *saved[:tensors]]


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), SYMBOLIC)
