"""Equal layers of two graphs that are about to be lowered become bodies that are called."""

from __future__ import annotations

from memgraph import passes
from memgraph.backend.options import Options
from memgraph.backend.rewriting import Check, rewrite
from memgraph.facts.layers import equal_layers
from memgraph.facts.steps import steps_of
from memgraph.passes.graphs import OutlinePlan, Split
from memgraph.planner.outlining import Outlining, decide


def outlined(split: Split, options: Options, check: Check | None) -> tuple[Split, Outlining]:
    """The graphs with bodies in place of equal layers, as the options ask for it.

    check: of the graphs after the rewrite; None where the options switch verification off.  Raises VerifyError where a
    body does something else than its layers.
    """
    if options.outline is False:
        return split, Outlining()
    forward, backward = (equal_layers(steps_of(gm, options.repeatable)) for gm in (split.forward, split.backward))
    decided = decide(options.outline, forward, backward)
    plan = OutlinePlan(decided.forward.classes, decided.backward.classes)
    return rewrite(split, passes.LOWERED, plan, check).graphs, decided
