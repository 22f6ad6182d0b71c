"""The outputs of a graph held against those of the graph that it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from memgraph.verify.checks import show, signature
from memgraph.verify.frame import Storage
from memgraph.verify.operators import describe
from memgraph.verify.terms import Form, Term
from memgraph.verify.walk import Numbered


@dataclass(frozen=True)
class Outputs:
    """Some outputs of a graph."""

    graph: Numbered
    nodes: Sequence[Any]
    """Nodes, or constants."""
    values: Sequence[Any]
    """Their values at the end."""


def compare_outputs(label: str, old: Outputs, new: Outputs, known: Mapping[Term, fx.Node]) -> list[str]:
    """Breaches: outputs that are not as many, not the same values, do not look the same or share other storages.

    label: what one of them is called.  known: by value, the node of the graph before.
    """
    if len(old.values) != len(new.values):
        return [f"there are {len(new.values)} {label}s, not {len(old.values)}"]
    breaches = []
    for place, (want, got) in enumerate(zip(old.values, new.values, strict=True)):
        if want != got:
            breaches.append(
                f"{label} {place} ({new.nodes[place]}) is not the value {_text(old.nodes[place])} of the graph "
                f"before: {_why(new.graph, new.nodes[place], got, known)}"
            )
        if (before := signature(_held(old.nodes[place]))) != (after := signature(_held(new.nodes[place]))):
            breaches.append(f"{label} {place} is {show(after)}, not {show(before)}")
    for place, (want, got) in enumerate(zip(_shared(label, old), _shared(label, new), strict=True)):
        if want != got:
            breaches.append(f"{label} {place} shares its storage with {got}, not with {want}")
    return breaches


def _shared(label: str, outputs: Outputs) -> list[str]:
    """For each output, the input or the earlier output with which it shares its storage."""
    first: dict[Storage, str] = {}
    for node, term in outputs.graph.values.items():
        if node.op == "placeholder" and term.root.op is Form.INPUT:
            first[term.root] = f"input {term.root.args[0]}"
    return [
        first.setdefault(outputs.graph.storages[value], f"no input and no output before {label} {place}")
        if isinstance(value, fx.Node)
        else "nothing"
        for place, value in enumerate(outputs.nodes)
    ]


def _why(graph: Numbered, value: Any, term: Any, known: Mapping[Term, fx.Node]) -> str:
    """What an output is instead, or the first value on the way to it that the graph before does not have."""
    if not isinstance(value, fx.Node):
        return "it is a constant"
    if term in known:
        return f"it is the value {_text(known[term])}"
    pending, ancestors = [value], set()
    while pending:
        node = pending.pop()
        if node not in ancestors and graph.values[node] not in known:
            ancestors.add(node)
            pending += node.all_input_nodes
    for node in graph.module.graph.nodes:
        if node in ancestors:
            if graph.values[node].overwritten:
                return f"{node.name} is read after an op has overwritten it"
            return f"the first value on the way that is not there is {describe(node)}"
    return "it is read after an op has overwritten it"


def _text(value: Any) -> str:
    return describe(value) if isinstance(value, fx.Node) else repr(value)


def _held(value: Any) -> Any:
    return value.meta.get("val") if isinstance(value, fx.Node) else value
