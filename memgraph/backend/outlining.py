"""Equal layers of two graphs that are about to be lowered become bodies that are called."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import fx

from memgraph import passes
from memgraph.backend.rewriting import Check, rewrite
from memgraph.facts.alike import with_alike_layers
from memgraph.facts.joint import JointFacts
from memgraph.facts.layers import equal_layers
from memgraph.facts.steps import steps_of
from memgraph.passes.graphs import OutlinePlan, Split
from memgraph.planner.outlining import Asked, Outlining, decide, may_pay, pays


def with_layers(facts: JointFacts, joint: fx.GraphModule, asked: Asked, repeatable: Sequence[str]) -> JointFacts:
    """The facts of a joint graph; where its equal layers are likely to become bodies, with these: they are planned
    alike then."""
    if not may_pay(asked, len(joint.graph.nodes)):
        return facts
    found = equal_layers(steps_of(joint, repeatable))
    return with_alike_layers(facts, found) if pays(asked, found) else facts


def outlined(
    split: Split, asked: Asked, repeatable: Sequence[str], check: Check | None, *, alike: bool = False
) -> tuple[Split, Outlining]:
    """The graphs with bodies in place of equal layers, as that is asked for.

    repeatable: patterns of the operators that the user has declared to be so.  check: of the graphs after the rewrite;
    None where the options switch verification off.  alike: whether layers were planned alike for it.

    Raises VerifyError where a body does something else than its layers.
    """
    if not alike and not may_pay(asked, len(split.forward.graph.nodes) + len(split.backward.graph.nodes)):
        return split, Outlining()
    forward, backward = (equal_layers(steps_of(gm, repeatable)) for gm in (split.forward, split.backward))
    decided = decide(asked, forward, backward)
    if asked == "auto" and alike:
        decided = dataclasses.replace(decided, by_itself=True)
    plan = OutlinePlan(decided.forward.classes, decided.backward.classes)
    return rewrite(split, passes.LOWERED, plan, check).graphs, decided
