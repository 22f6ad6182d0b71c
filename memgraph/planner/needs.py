"""How the values that the backward needs depend on one another, views left out.

Only what is computed counts: inputs of the graph are there anyway, and a view costs nothing and is there with the value
that it views.
"""

from __future__ import annotations

import functools

from memgraph.facts.joint import JointFacts
from memgraph.planner.cut import needed_values


class Needs:
    """The computed forward values of which the backward's reads are made."""

    def __init__(self, facts: JointFacts) -> None:
        self.facts = facts
        needed = (v for v in needed_values(facts) if facts.values[v].kind != "view")
        self.inputs = {v: self._computed_inputs(v) for v in needed}
        """By needed value: the computed values that it reads, itself or through views."""

    @functools.cached_property
    def readers(self) -> dict[int, list[int]]:
        """By needed value: the needed values that read it, themselves or through views."""
        found: dict[int, list[int]] = {v: [] for v in self.inputs}
        for v, inputs in self.inputs.items():
            for u in inputs:
                found[u].append(v)
        return found

    @functools.cached_property
    def read_at(self) -> dict[int, int]:
        """By value that the backward reads, itself or through views: the first place that does.

        A value that the backward only returns has the place behind the last.
        """
        facts = self.facts
        found: dict[int, int] = {}
        for place, b in enumerate(facts.backward):
            for v in (v for i in facts.values[b].inputs for v in self.behind(i)):
                found.setdefault(v, place)
        for v in (v for i in facts.backward_outputs for v in self.behind(i)):
            found.setdefault(v, len(facts.backward))
        return found

    @functools.cached_property
    def ready(self) -> dict[int, int]:
        """By value: the first place of the backward that reads it or anything made of it."""
        found: dict[int, int] = {}
        for place, b in enumerate(self.facts.backward):
            pending = [v for i in self.facts.values[b].inputs for v in self.behind(i)]
            while pending:
                v = pending.pop()
                if v not in found:
                    found[v] = place
                    pending.extend(self.inputs[v])
        return found

    def behind(self, i: int) -> tuple[int, ...]:
        """The needed values that a view is made of; of any other needed value itself, of all others none."""
        if self.facts.values[i].kind == "view":
            return tuple(v for v in self._computed_inputs(i) if v in self.inputs)
        return (i,) if i in self.inputs else ()

    def before(self, v: int, place: int) -> bool:
        """Whether a value may have been computed again when an operator of the backward runs: it is needed by then."""
        return self.ready.get(v, place + 1) <= place

    def _computed_inputs(self, v: int) -> tuple[int, ...]:
        """The computed values that a value reads, itself or through views."""
        values, found, pending = self.facts.values, set(), list(self.facts.values[v].inputs)
        while pending:
            read = pending.pop()
            if values[read].kind == "view":
                pending.extend(values[read].inputs)
            elif values[read].kind not in ("primal", "tangent"):
                found.add(read)
        return tuple(sorted(found))
