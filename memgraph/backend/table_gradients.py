"""Joint graphs in which gradients of tables are made part by part: of the tables that tiles of attention add to."""

from __future__ import annotations

from collections.abc import Iterable

from memgraph import passes
from memgraph.backend.rewriting import check_apart, rewrite
from memgraph.facts.tokens.region import TokenRegion
from memgraph.facts.tokens.table_gradients import TableGradient, table_gradients
from memgraph.passes.graphs import Joint, TilePlan


class TableGradients:
    """One joint graph, with any of its tables' gradients made part by part."""

    def __init__(self, joint: Joint, *, verify: bool, wanted: bool) -> None:
        """verify: whether each graph is held against the joint graph.  wanted: if not, no gradient is looked for."""
        self.found = table_gradients(joint.module) if wanted else ()
        self._verify = verify
        self._made: dict[tuple[TableGradient, ...], Joint] = {(): joint}

    @property
    def all(self) -> Joint:
        """The graph in which all are: where tiles are looked for. Other nodes have the names that they had."""
        return self._with(self.found)

    def of(self, regions: Iterable[TokenRegion]) -> Joint:
        """The graph in which those are of which some regions of the graph with all of them make a part, or begin to."""
        inside = {name for region in regions for name in region.backward}
        return self._with(tuple(gradient for gradient in self.found if not inside.isdisjoint(gradient.made)))

    def _with(self, gradients: tuple[TableGradient, ...]) -> Joint:
        if gradients not in self._made:
            plan = TilePlan(apart=gradients)
            check = check_apart(plan) if self._verify else None
            self._made[gradients] = rewrite(self._made[()], passes.JOINT, plan, check).graphs
        return self._made[gradients]
