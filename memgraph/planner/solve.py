"""Choose what to save so that the peak stays under a bound at the least time.

1. Uniform (uniform.py): the cut at a handful of prices a byte, each as it is and with a handful of choices of borders,
   across which no chain of recomputation reaches.
2. Mixed (uniform.py): where one uniform choice is too large and a slower one fits, the first regions take the slower
   and the others the faster.
3. Polished (polish.py): single values are saved again while there is room.
4. Offloaded (offload.py), where there are tiers: saved values leave the device instead. Where copies take from the work
   beside them, that has to be worth it.

Where the facts say that layers are to be planned alike, alike.py mixes and polishes instead, if it finds a plan.

Problem: minimise seconds over all sets of saved values, under a bound on the peak of the whole step.

Why not a library: an integer program over summaries of regions was tried with HiGHS; it missed chains of recomputation
that cross regions (docs/decisions/0003). So every candidate is scheduled and swept as it stands (candidates.py): the
peak is that of the timeline, never the sum of saved bytes.

Algorithm: the stages above, in this order. The pool of candidates does not depend on the bound, so a lower bound finds
no plan that a higher one would have missed.

Oracle: tests/properties/test_plans.py: every saved set of small graphs (test_brute_force), and monotony in the bound
(test_any_bound, test_any_bound_with_copies).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable

from memgraph.facts.actions import Offload
from memgraph.facts.joint import JointFacts
from memgraph.planner import polish
from memgraph.planner.alike import AlikePlanner
from memgraph.planner.bound import LowerBounds
from memgraph.planner.candidates import LARGE, Candidate, Candidates, by_peak, by_time
from memgraph.planner.copies import Copies
from memgraph.planner.leaving import Tiers
from memgraph.planner.lowest import lowest
from memgraph.planner.offload import SMALL, Offloader
from memgraph.planner.relaxed import MOST_VALUES, TOLERANCE, Relaxed
from memgraph.planner.schedule import make_schedule
from memgraph.planner.uniform import Choice, UniformChoices

# How many choices on either side of a bound are mixed with each other.
NEIGHBOURS = 2
# How many of the linear program's candidates are polished.
FASTEST = 4
# Where a plan may be slower than the best one by more than this share of a step, it is looked for longer. GPT-2 (1,016
# values) at 25 % of its peak with a disk: 8.9 % above its bound before, 7.1 with it, for 3.6 s more.
FAR = 0.05
# Steps from the lowest peak to the unplanned one: at each, a candidate is offered to a choice with other graphs.
OFFERS = 6
# Tiers that bring less than this share of a step to the bound are of no use.
NEXT_TO_NOTHING = 0.001
# A plan that copies with the cores that compute has to be faster by this share of a step than one that does not copy. A
# Llama of 4 layers at 40 % of its peak: predicted 0.4 % faster with copies, measured 2.8 % slower.
HARDLY = 0.01
# Times that differ by less than this share of a step are equal: sums in another order.
ALIKE = 1e-9


class Planner:
    """Plans one joint graph for any bound; what does not depend on the bound is computed once."""

    def __init__(
        self,
        facts: JointFacts,
        *,
        fused: bool = True,
        copies: bool = True,
        recompute: bool = True,
        offload: Tiers | None = None,
    ) -> None:
        """fused: sweep as Inductor allocates, or as the FX interpreter does.  copies: whether a recomputed value may be
        computed anew for each region.  recompute: without it only Inductor's own choice is on offer.
        """
        self.facts = facts
        self.candidates = Candidates(facts, fused=fused, copies=Copies.OF_HELD if copies else Copies.NONE)
        self.stock = self.candidates.stock
        self.uniform = UniformChoices(self.candidates) if recompute else None
        self.relaxed = Relaxed(self.candidates) if recompute else None
        self.alike = self._with_alike_layers()
        self.offloader = (
            Offloader(self.candidates, offload, recompute=recompute) if offload is not None and offload.tiers else None
        )
        self.away = self._relaxed_with_tiers()
        self._is_thorough = False
        self._lowest_found: dict[bool, Candidate] = {}
        """What was found: by a thorough search, or not. Shared by copies of the planner."""
        self._bounds_found: dict[tuple[Tiers | None, float], LowerBounds] = {}
        """By tiers and tolerance. Shared by copies as well."""

    def sending(self, tiers: Tiers) -> Planner:
        """The same planner with these tiers; both share what depends on no tier."""
        found = copy.copy(self)
        found.offloader = Offloader(self.candidates, tiers, recompute=self.uniform is not None) if tiers.tiers else None
        found.away = found._relaxed_with_tiers()
        return found

    def with_layers(self, alike: tuple[tuple[tuple[int, ...], ...], ...]) -> Planner:
        """The same planner, which plans these layers alike.  alike: as of `JointFacts`."""
        found = copy.copy(self)
        found.facts = dataclasses.replace(self.facts, alike=alike)
        found.alike = found._with_alike_layers()
        return found

    def _with_alike_layers(self) -> AlikePlanner | None:
        if self.uniform is None or not self.facts.alike:
            return None
        return AlikePlanner(self.candidates, self.uniform, self.facts)

    def without_relaxed(self) -> Planner:
        """The same planner without candidates of the linear program: to see what they bring."""
        found = copy.copy(self)
        found.relaxed = found.away = None
        found._lowest_found = {}
        return found

    def _relaxed_with_tiers(self) -> Relaxed | None:
        offloader = self.offloader
        return None if offloader is None or self.relaxed is None else Relaxed(self.candidates, offloader.tiers)

    def best(self, bound: int | None) -> Candidate | None:
        """The fastest candidate whose peak is at most `bound` bytes above the baseline; None if there is none."""
        unplanned = self.unplanned()
        if bound is None or unplanned.peak <= bound:
            return unplanned
        if self._is_impossible(bound):
            return None
        if self.offloader is None:
            return None if self.uniform is None else self._kept(self.uniform, bound)
        if self.uniform is not None and self._goes_without_tiers_first(bound):
            kept = self._kept(self.uniform, bound)
            return self._worth_copying(self._moved(self.offloader, bound, kept), kept)
        moved = self._moved(self.offloader, bound)
        if self.uniform is None or self._beats_all_kept(moved, bound):
            return moved
        kept = self._kept(self.uniform, bound)
        if kept is not None:
            kept = self.offloader.pinned(kept)
            kept = kept if kept.peak <= bound else None
        return self._worth_copying(moved, kept)

    def _moved(self, offloader: Offloader, bound: int, known: Candidate | None = None) -> Candidate | None:
        """The fastest candidate with tiers that is found.  known: as of `Offloader.best`."""
        bases = self._bases(bound)
        moved = offloader.best(bound, *bases, self._least_seconds, known)
        return offloader.further(moved, bound, *bases) if moved is not None and self._is_thorough else moved

    def may_be_far(self, found: Candidate, bound: int) -> bool:
        """Whether a candidate with tiers may be much slower than the best one, of a graph where more can be tried."""
        if self.offloader is None or found.stock or self._sent_by_rules:
            return False
        if not SMALL < len(self.facts.values) <= LARGE:  # much has been tried; or too much is left to try
            return False
        least = self.bounds.under(bound)
        return least is not None and found.seconds - least.seconds > FAR * self.candidates.stock_step

    def _worth_copying(self, moved: Candidate | None, kept: Candidate | None) -> Candidate | None:
        """The faster of a plan with tiers and one without; one without that is hardly slower, where copies take time
        from the work beside them.
        """
        if moved is None or kept is None:
            return moved or kept
        hardly = HARDLY * self.candidates.stock_step if moved.drag > kept.drag else 0.0
        return moved if moved.seconds + hardly < kept.seconds else kept

    @property
    def _least_seconds(self) -> float:
        """Seconds that no candidate beats, whatever the bound: by more than sums in another order."""
        least = self.candidates.stock.seconds if self.uniform is None else self.uniform.least_seconds
        return least + ALIKE * self.candidates.stock_step

    def _beats_all_kept(self, moved: Candidate | None, bound: int) -> bool:
        """Whether no plan without tiers beats one with them, or their lack, under a bound: then none is looked for."""
        if moved is not None and moved.seconds <= self._least_seconds:
            return True
        if self._sent_by_rules:
            return False
        least = self._bounds_alone.under(bound)
        if least is None or moved is None:
            return least is None
        return least.seconds >= moved.seconds + (HARDLY * self.candidates.stock_step if moved.drag else 0.0)

    def _goes_without_tiers_first(self, bound: int) -> bool:
        """Whether the best plan without tiers is looked for first: what no plan with them can beat is then left out.

        That pays where it is looked for in any case, and where it is proven that tiers bring next to nothing.
        """
        values = len(self.facts.values)
        if self._sent_by_rules or values <= SMALL:
            return False
        if values > MOST_VALUES:  # the program takes longer than the search
            return True
        alone, least = self._bounds_alone.under(bound), self.bounds.under(bound)
        if alone is None or least is None:
            return False
        return alone.seconds - least.seconds <= NEXT_TO_NOTHING * self.candidates.stock_step

    def none_takes_less(self, seconds: float, bound: int) -> bool:
        """Whether it is proven that no plan under a bound takes less than `seconds` beyond Inductor's own choice."""
        if self._sent_by_rules:
            return False
        least = self.bounds.under(bound)
        return least is None or least.seconds >= seconds

    def _is_impossible(self, bound: int) -> bool:
        """Whether it is proven that no plan keeps a bound: then none is looked for."""
        if self.uniform is None or self._sent_by_rules:
            return False
        return all(c.peak > bound for _, c in self.uniform.found) and bound < self.bounds.smallest()

    @functools.cached_property
    def _sent_by_rules(self) -> bool:
        """Whether rules send values away. The linear program knows nothing of tiers that only rules may use."""
        return any(value.pinned(Offload) for value in self.facts.values)

    def unplanned(self) -> Candidate:
        """Inductor's own choice, less what the rules send to another tier."""
        return self.stock if self.offloader is None else self.offloader.pinned(self.stock)

    @functools.cached_property
    def stock_in_order(self) -> Candidate:
        """Inductor's own choice as a plan: in the order of plans, and with ends of kernels where it needs them."""
        return self.candidates.evaluate(make_schedule(self.candidates.facts, self.facts.stock_saved))

    def smallest(self) -> Candidate:
        """The candidate with the lowest peak that this planner can find."""
        if self.offloader is None:
            return self._lowest
        found = [self.offloader.pinned(self._lowest), self.offloader.smallest(*self._bases(0))]
        return min((candidate for candidate in found if candidate is not None), key=by_peak)

    def offered(self) -> tuple[Candidate, ...]:
        """Candidates to choose from where other graphs run between the forward and the backward, fastest first.

        Of two, one that is neither faster, nor smaller at its peak, nor leaves less in between is left out.
        """
        lowest = self.smallest()
        steps = ((self.unplanned().peak - lowest.peak) * n // OFFERS for n in range(1, OFFERS))
        swept = () if self.uniform is None else (candidate for _, candidate in self.uniform.swept)
        found = [self.unplanned(), lowest, *(self.best(lowest.peak + step) for step in steps), *swept]
        chosen: list[Candidate] = []
        for candidate in sorted((c for c in found if c is not None), key=by_time):
            if not any(c.peak <= candidate.peak and c.carried <= candidate.carried for c in chosen):
                chosen.append(candidate)
        return tuple(chosen)

    def lightest(self, others: int, beside: Callable[[int, int], int], bound: int | None) -> Candidate:
        """The offered candidate with the lowest peak while `others` more graphs like it hold their saved values.

        beside: from its peak and the bytes that it carries, as each of them does, what is surely reached above that
        peak beside it. Where no candidate keeps `bound`, in bytes above the baseline, with that, the one that reaches
        least.
        """

        def reached(candidate: Candidate) -> int:
            return candidate.peak + beside(candidate.peak, candidate.carried)

        def lightness(candidate: Candidate) -> tuple[float, float]:
            return candidate.peak + others * candidate.carried, candidate.seconds

        offered = self.offered()
        keeping = [candidate for candidate in offered if bound is None or reached(candidate) <= bound]
        return min(keeping, key=lightness) if keeping else min(offered, key=lambda c: (reached(c), *lightness(c)))

    @property
    def bounds(self) -> LowerBounds:
        """What no plan of this graph with these tiers can beat.

        Of a large graph it is a little lower than it could be: by 0.003 % of a step for a Llama of 32 layers, in a
        third of the time.
        """
        tolerance = TOLERANCE if len(self.facts.values) > MOST_VALUES else 0.0
        return self._bounds_with(None if self.offloader is None else self.offloader.tiers, tolerance)

    @property
    def _bounds_alone(self) -> LowerBounds:
        """The same of plans without tiers."""
        return self._bounds_with(None, 0.0)

    def _bounds_with(self, tiers: Tiers | None, tolerance: float) -> LowerBounds:
        if (tiers, tolerance) not in self._bounds_found:
            self._bounds_found[tiers, tolerance] = LowerBounds(self.candidates, tiers, tolerance)
        return self._bounds_found[tiers, tolerance]

    def _bases(self, bound: int) -> tuple[list[Candidate], tuple[Candidate, ...]]:
        """Candidates from which values may leave: uniform choices, and those of the linear program with the tiers."""
        return self._swept(), () if self.away is None else self.away.under(bound)

    def _swept(self) -> list[Candidate]:
        return [] if self.uniform is None else [candidate for _, candidate in self.uniform.found]

    def thorough(self) -> Planner:
        """The same planner, which looks longer for the lowest peak by save and recompute alone, and for what leaves."""
        if self._is_thorough or len(self.facts.values) <= SMALL:  # of a small graph much has been tried
            return self
        found = copy.copy(self)
        found._is_thorough = True
        return found

    @property
    def _lowest(self) -> Candidate:
        """The lowest peak by save and recompute alone."""
        if self._is_thorough not in self._lowest_found:
            found = self._searched(thorough=self._is_thorough)
            self._lowest_found[self._is_thorough] = min([found, *self._lowest_found.values()], key=by_peak)
        return self._lowest_found[self._is_thorough]

    def _searched(self, *, thorough: bool = False) -> Candidate:
        """The same.  thorough: as of `lowest`."""
        if self.uniform is None:
            return self.stock
        found = [self.stock, *(candidate for _, candidate in self.uniform.swept)]
        found += [] if self.relaxed is None else self.relaxed.under(0)
        starts: dict[Copies, Candidate] = {}  # the lowest with each kind of copies: each leads elsewhere
        for candidate in sorted(found, key=by_peak):
            starts.setdefault(candidate.schedule.copies, candidate)
        most = 1 if len(self.facts.values) > LARGE else len(starts)
        found_lowest = lowest(self.candidates, list(itertools.islice(starts.values(), most)), thorough=thorough)
        return polish.filled(self.candidates, found_lowest, found_lowest.peak)

    def _kept(self, uniform: UniformChoices, bound: int) -> Candidate | None:
        """The fastest candidate under the bound by save and recompute alone, with layers alike where that is asked."""
        alike = None if self.alike is None else self.alike.best(bound)
        if alike is not None:
            return polish.copied(self.candidates, alike, bound)
        starts = {id(c): c for c in (self._mixed(uniform, bound), *self._fastest(bound)) if c is not None}
        if not starts and self._lowest.peak <= bound:
            starts = {id(self._lowest): self._lowest}
        filled = (polish.fill(self.candidates, start, bound) for start in starts.values())
        found = min(filled, key=by_time, default=None)
        return None if found is None else polish.copied(self.candidates, found, bound)

    def _fastest(self, bound: int) -> list[Candidate]:
        """The fastest few of the linear program's candidates that fit: which one is filled best is not known before."""
        found = () if self.relaxed is None else self.relaxed.under(bound)
        return list(itertools.islice((candidate for candidate in found if candidate.peak <= bound), FASTEST))

    def _mixed(self, uniform: UniformChoices, bound: int) -> Candidate | None:
        """The fastest uniform choice that fits, or mixture of one with a faster one that does not."""
        fits = [(choice, candidate) for choice, candidate in uniform.found if candidate.peak <= bound]
        best = min((candidate for _, candidate in fits), key=by_time, default=None)
        for (slow, slower), (fast, faster) in itertools.product(fits[:NEIGHBOURS], self._too_large(uniform, bound)):
            if faster.seconds < slower.seconds and (best is None or faster.seconds < best.seconds):
                mixed = uniform.mixed(slow, fast, bound)
                if mixed is not None:
                    best = mixed if best is None else min(best, mixed, key=by_time)
        return best

    def _too_large(self, uniform: UniformChoices, bound: int) -> list[tuple[Choice, Candidate]]:
        """The slowest choices over the bound: a much faster one fits for few regions only."""
        found = [(choice, candidate) for choice, candidate in uniform.found if candidate.peak > bound]
        return sorted(found, key=lambda pair: -pair[1].seconds)[:NEIGHBOURS]
