"""One decision for the corresponding values of many equal layers.

    layers     0   1   2   3   4   5   6   7        the first layers save what a small choice saves,
    saves      a   a   a   a   b   b   b   b        the others what a fast one saves

Problem: layers with the same decisions become one body (facts/layers.py), so few different strategies are worth a
little time. Which strategies, and how many layers take which?

Why not a library: of strategies for equal layers under one bound, the best mixture takes two of them (a linear program
with one constraint has a solution with two values that are not 0). What is left is to find two, and a number.

Algorithm: each uniform choice (uniform.py) saves the same in all layers of a class. The first layers take a slower one,
the others a faster one: interpolation finds how many must (search.py). Then values are saved again, those first whose
recomputation is dearest a byte: all that correspond in the layers of one strategy at once, and at the end of one group
as many as the bound allows. So a class has three strategies at most, where polish.py may leave one for each layer.

Oracle: tests/planner/test_alike.py compares it with the plan that is free to treat each layer by itself.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from memgraph.facts.joint import JointFacts
from memgraph.planner import polish
from memgraph.planner.candidates import Candidate, Candidates, by_time
from memgraph.planner.polish import worth_saving
from memgraph.planner.search import fewest_that_fit
from memgraph.planner.uniform import UniformChoices

# How many choices on either side of a bound are mixed with each other.
NEIGHBOURS = 2
# Evened out, a uniform choice that is larger than a bound by more than this share still is.
NEAR = 0.02
# How many strategies of a class are tried in all of its layers, those of most layers first.
TURNS = 2


class AlikePlanner:
    """Plans one joint graph for any bound, equal layers alike."""

    def __init__(self, candidates: Candidates, uniform: UniformChoices, facts: JointFacts) -> None:
        """facts: those of the candidates, with the layers that are planned alike."""
        self.candidates, self.uniform, self.facts = candidates, uniform, facts
        self.borders = tuple(sorted({min(layer) for layers in self.facts.alike for layer in layers}))
        """The first values of layers, in order."""
        self.place = places(self.facts)

    def best(self, bound: int) -> Candidate | None:
        """The fastest candidate found under the bound; None where no uniform choice fits, nor a mixture of two."""
        if all(candidate.peak > bound * (1 + NEAR) for _, candidate in self.uniform.found):
            return None
        start = self._mixed(bound)
        if start is None:
            return None
        return self._split(polish.with_all_that_fit(self.candidates, start, bound, self._units), bound)

    def _mixed(self, bound: int) -> Candidate | None:
        """The fastest uniform choice that fits, or mixture of one with a faster one that does not."""
        found = self._even
        fits = [candidate for candidate in found if candidate.peak <= bound]
        large = sorted((c for c in found if c.peak > bound), key=lambda c: -c.seconds)[:NEIGHBOURS]
        best = min(fits, key=by_time, default=None)
        pairs = [(s, f) for s in sorted(fits, key=by_time)[:NEIGHBOURS] for f in large if f.seconds < s.seconds]
        for slow, fast in sorted(pairs, key=lambda pair: _mixture_seconds(pair[0], pair[1], bound)):
            if best is not None and _mixture_seconds(slow, fast, bound) >= best.seconds:
                break  # peaks and times go about evenly from one to the other
            mixed = self._fewest(slow, fast, bound)
            best = mixed if best is None else min([best, *([mixed] if mixed else [])], key=by_time)
        return best

    @functools.cached_property
    def _even(self) -> tuple[Candidate, ...]:
        """The uniform choices with one strategy in all layers of a class, of which none beats another.

        The cut may take turns between two that cost the same.
        """
        found: dict[int, Candidate] = {}
        for _, candidate in self.uniform.found:
            taken = strategies(self.facts, candidate.schedule.saved)
            often = [Counter(layers).most_common(TURNS) for layers in taken]
            for turn in range(max(map(len, often))):
                chosen = [some[min(turn, len(some) - 1)][0] for some in often]
                even = self.candidates.of(self._everywhere(candidate, chosen), candidate.schedule.copies)
                if even is not None:
                    found[id(even)] = even
        best: list[Candidate] = []
        for candidate in sorted(found.values(), key=by_time):
            if all(candidate.peak < other.peak for other in best):
                best.append(candidate)
        return tuple(best)

    def _everywhere(self, base: Candidate, chosen: Sequence[frozenset[int]]) -> frozenset[int]:
        """What a candidate saves outside of all layers, and in each layer what is chosen for its class."""
        outside = {i for i in base.schedule.saved if i not in self.place}
        pairs = zip(self.facts.alike, chosen, strict=True)
        return frozenset(outside.union(layer[n] for layers, places in pairs for layer in layers for n in places))

    def _fewest(self, slow: Candidate, fast: Candidate, bound: int) -> Candidate | None:
        """What the slower choice saves in as few of the first layers as the bound allows, the faster in the rest."""
        copies = max(slow.schedule.copies, fast.schedule.copies)

        def split(layers: int) -> Candidate | None:
            border = self.borders[layers]
            saved = {i for i in slow.schedule.saved if i < border} | {i for i in fast.schedule.saved if i >= border}
            return self.candidates.of(frozenset(saved), copies)

        tried = fewest_that_fit(split, (-1, fast.peak), (len(self.borders), slow.peak), bound)
        return min((found for found in tried if found.peak <= bound), key=by_time, default=None)

    def _split(self, start: Candidate, bound: int) -> Candidate:
        """The candidate with as many of the last values of one group saved again as the bound allows."""
        best = start
        for unit in self._units(start)[:NEIGHBOURS]:
            members = sorted(unit, reverse=True)

            def without(first: int, members: Sequence[int] = members) -> Candidate | None:
                return self._with(start, [frozenset(members[: len(members) - first])])

            large = without(0)
            if large is None or large.peak <= bound:
                continue
            tried = fewest_that_fit(without, (0, large.peak), (len(members), start.peak), bound)
            best = min([best, *(found for found in tried if found.peak <= bound)], key=by_time)
        return best

    def _with(self, base: Candidate, units: Iterable[frozenset[int]]) -> Candidate | None:
        saved = frozenset(base.schedule.saved).union(*units)
        return self.candidates.of(saved, base.schedule.copies)

    def _units(self, base: Candidate) -> list[frozenset[int]]:
        """Recomputed values that may be saved instead, in groups that correspond, the dearest a byte first."""
        saved = strategies(self.facts, base.schedule.saved)
        units: defaultdict[object, list[int]] = defaultdict(list)
        for i in worth_saving(self.candidates, base):  # in the order of their price
            if i in self.place:
                number, layer, group = self.place[i]
                units[number, saved[number][layer], group].append(i)
            else:
                units[i].append(i)
        return [frozenset(unit) for unit in units.values()]


def _mixture_seconds(slow: Candidate, fast: Candidate, bound: int) -> float:
    """About the time of the mixture that keeps the bound, if peaks and times go evenly from one to the other."""
    share = (fast.peak - bound) / (fast.peak - slow.peak)
    return share * slow.seconds + (1 - share) * fast.seconds


def places(facts: JointFacts) -> dict[int, tuple[int, int, int]]:
    """By value of a layer: its class, its layer, its place among the layer's values."""
    return {
        i: (number, layer, group)
        for number, layers in enumerate(facts.alike)
        for layer, values in enumerate(layers)
        for group, i in enumerate(values)
    }


def strategies(facts: JointFacts, saved: Iterable[int]) -> list[list[frozenset[int]]]:
    """By class and layer, the places of the values that it saves."""
    held = set(saved)
    return [[frozenset(n for n, i in enumerate(layer) if i in held) for layer in layers] for layers in facts.alike]
