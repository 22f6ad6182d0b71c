"""A gradient of a table that is made part by part, held against one that is made of the sum of the parts.

    before:  put(zeros, places, view(a + b))      after:  put(zeros, places, view(a)) + put(zeros, places, view(b))

Around these nothing may have changed. Of both, what is added up is compared: each summand with all that happens to it
on the way. Views, copies into a type that is no shorter, zeros in some places, and puts into zeros pass sums on, up to
rounding; so equal summands make equal sums. Nothing here knows which sums the pass looked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeAlias

import torch
from torch import fx

from memgraph.base.errors import VerifyError
from memgraph.verify.arguments import Arguments, name_of
from memgraph.verify.checks import signature
from memgraph.verify.frame import History
from memgraph.verify.inputs import input_term, placeholders
from memgraph.verify.rewrite import verify_graph
from memgraph.verify.terms import Term, Terms, freeze
from memgraph.verify.walk import number

Summands: TypeAlias = Counter[tuple[Term, tuple[Hashable, ...]]]
"""How often each value is added, with what happens to it before."""

_VIEWS = frozenset(f"aten::{name}" for name in "view _unsafe_view reshape permute squeeze unsqueeze clone".split())
_CONVERTS = frozenset(("prims::convert_element_type", "aten::_to_copy"))
_PUTS = frozenset(f"aten::{name}" for name in "index_put _unsafe_index_put _unsafe_masked_index_put_accumulate".split())
# Operators that make one number many times, with its place among the arguments.
_FILLED = {"aten::full": 1, "aten::scalar_tensor": 0}
# What stands in the arguments of an operator for the value that it passes on.
_HERE = "passed on"


def verify_apart(before: fx.GraphModule, after: fx.GraphModule, sums: Iterable[str], pass_name: str) -> None:
    """Raises VerifyError unless `after` computes what `before` does, up to the order in which some sums are added up.

    sums: the nodes, of the same names in both graphs, of which the order may differ.
    """
    claims = {name: name for name in sums}
    verify_graph(before, after, pass_name=pass_name, claims=claims)
    terms = Terms()
    given = [input_term(terms, node) for node in placeholders(before)]
    old, new = (number(graph, given, History(terms)).values for graph in (before, after))
    breaches = []
    for name in claims:
        one, other = (next(node for node in values if node.name == name) for values in (old, new))
        if signature(one.meta["val"]) != signature(other.meta["val"]):
            breaches.append(f"{name} has another layout than before")
        elif _summands(one, old) != _summands(other, new):
            breaches.append(f"{name} adds up other values than before")
    if breaches:
        raise VerifyError(pass_name, tuple(breaches))


def _summands(total: fx.Node, values: Mapping[fx.Node, Term]) -> Summands:
    """What a value is the sum of.  values: by node, its term."""
    found: Summands = Counter()
    pending: list[tuple[fx.Node, tuple[Hashable, ...]]] = [(total, ())]
    while pending:
        node, way = pending.pop()
        if _adds(node):
            pending += [(read, way) for read in node.args]
        elif (passed := _passed_on(node)) is not None:
            told = freeze((node.target, node.args, dict(node.kwargs)), {**values, passed: _HERE})
            pending.append((passed, (*way, told)))
        else:
            found[values[node], way] += 1
    return found


def _adds(node: fx.Node) -> bool:
    """Whether a node adds two values of its own shape and type."""
    if name_of(node.target) != "aten::add" or node.kwargs or not all(isinstance(arg, fx.Node) for arg in node.args):
        return False
    values = [item.meta["val"] for item in (node, *node.args)]
    return len({(tuple(map(str, value.shape)), value.dtype) for value in values}) == 1


def _passed_on(node: fx.Node) -> fx.Node | None:
    """The value of which a node makes something that sums pass through; None where there is none."""
    if node.op != "call_function":
        return None
    name, given = name_of(node.target), Arguments(node)
    if name in _VIEWS:
        return node.args[0]
    if name in _CONVERTS:
        old, new = node.args[0].meta["val"].dtype, node.meta["val"].dtype
        wider = old.is_floating_point and new.is_floating_point and new.itemsize >= old.itemsize
        return node.args[0] if wider else None
    if name == "aten::where" and _makes_zeros(node.args[1]):
        return node.args[2]
    if name in _PUTS and _makes_zeros(node.args[0]) and (name.endswith("accumulate") or given["accumulate"]):
        return given["values"] if node.meta["val"].dtype in (torch.float32, torch.float64) else None
    return None


def _makes_zeros(node: fx.Node) -> bool:
    name = name_of(node.target) if isinstance(node, fx.Node) and node.op == "call_function" else ""
    return name == "aten::zeros" or name in _FILLED and node.args[_FILLED[name]] == 0
