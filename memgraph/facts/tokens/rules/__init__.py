"""How operators pass tokens on: one table in each file, by subject, merged here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import fx

from memgraph.facts.operators import qualified_name
from memgraph.facts.tokens.kinds import MIXERS
from memgraph.facts.tokens.rules import entrywise, parts, picks, products, reductions, shapes
from memgraph.facts.tokens.rules.flow import Flow, Rule
from memgraph.facts.tokens.states import MixesTokens

__all__ = ["RULES", "Flow", "Rule", "merged", "rule_of"]


def merged(tables: Iterable[Mapping[Any, Rule]]) -> dict[Any, Rule]:
    """One table of several, by the operators' qualified names.  Raises ValueError if an operator has two rules."""
    found: dict[Any, Rule] = {}
    for table in tables:
        for target, rule in table.items():
            key = qualified_name(target) or target
            if key in found:
                raise ValueError(f"{key} has two rules for how tokens pass through it")
            found[key] = rule
    return found


RULES = merged(file.RULES for file in (entrywise, shapes, reductions, parts, picks, products))


def rule_of(node: fx.Node) -> Rule:
    """The rule of a node's operator.  Raises MixesTokens if there is none."""
    name = qualified_name(node.target)
    rule = RULES.get(name or node.target)
    if rule is not None:
        return rule
    if entrywise.is_pointwise(node.target):
        return entrywise.pointwise
    raise MixesTokens(node, "mixes tokens" if name in MIXERS else "has no rule for how tokens pass through it")
