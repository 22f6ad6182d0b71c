"""Planners that the attempts of one compilation share.

Each attempt is handed a joint graph of its own, traced anew. Its facts are those of the one before, so what was found
for another bound stands: swept candidates, and the linear programs.
"""

from __future__ import annotations

import dataclasses

from memgraph.facts.joint import JointFacts
from memgraph.planner.leaving import Tiers
from memgraph.planner.solve import Planner


class Planners:
    """By what a graph is and how it may be planned, what plans it."""

    def __init__(self) -> None:
        self._known: list[tuple[bool, bool, Planner]] = []
        self._sending: list[tuple[Planner, Tiers, Planner]] = []

    def of(self, facts: JointFacts, *, copies: bool, recompute: bool) -> Planner:
        """The planner of a graph; with layers that are planned alike it shares all else with the one without them.

        copies, recompute: as of `Planner`.
        """
        for *options, planner in self._known:
            if options == [copies, recompute] and planner.facts == facts:
                return planner
        if facts.alike:
            plain = dataclasses.replace(facts, alike=())
            made = self.of(plain, copies=copies, recompute=recompute).with_layers(facts.alike)
        else:
            made = Planner(facts, copies=copies, recompute=recompute)
        self._known.append((copies, recompute, made))
        return made

    def sending(self, planner: Planner, tiers: Tiers) -> Planner:
        """The planner with these tiers."""
        for known, to, found in self._sending:
            if known is planner and to == tiers:
                return found
        self._sending.append((planner, tiers, planner.sending(tiers)))
        return self._sending[-1][2]
