"""A compiled graph as its caller has it: on each launch the fastest of its plans that keeps the budget there.

launch -> the round is known?   yes: the plan that was chosen for this launch, together with the others'
                                no:  a plan that is valid at this entry; where there is none, one is made first, and
                                     where none can be made, BudgetError
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from memgraph.step import telling
from memgraph.step.forecast import OptimizerForecast
from memgraph.step.launched import Launched
from memgraph.step.meter import Meter
from memgraph.step.recording import Moment
from memgraph.step.rounds import Rounds
from memgraph.step.variants import Entry, Offer, Sizes, Variant

# Plans that one graph keeps: another one pushes out the one that has not run for longest.
VARIANTS = 4
# Other graphs that are taken to stand between the forward and the backward of one whose round is not known yet.
OTHERS = 7


class Maker(Protocol):
    """Compiles a graph once more."""

    def make(self, entry: Entry, args: Any) -> Variant | None:
        """For a launch. Raises BudgetError; None where it cannot be planned, which a warning has said."""

    def realise(self, offer: Offer, entry: Entry) -> Variant | None:
        """By a plan that was offered; None as in `make`."""


class StepGraph:
    """A graph whose every launch keeps the budget.

    room: the budget in bytes, less what the options hold back.  ends: nothing but the backward can come after its
    forward; another one leaves room for what nobody knows yet, and takes its tightest plan until a round is known.
    name: as a user calls it.  reserve: bytes of the budget that the options hold back.
    """

    def __init__(
        self,
        first: Variant,
        room: int,
        meter: Meter,
        rounds: Rounds,
        maker: Maker,
        *,
        ends: bool,
        name: str = "a graph",
        reserve: int = 0,
    ) -> None:
        self.room, self.meter, self.rounds, self.maker, self.ends = room, meter, rounds, maker, ends
        self.name, self.reserve = name, reserve
        self.first: Entry | None = None
        """How its first launch found the world."""
        self._forecasts: tuple[OptimizerForecast, ...] = ()
        """What was last said of optimizers."""
        self.variants = [first]
        """The newest run last."""
        self.made = 1
        """How many were compiled."""
        self.offers = list(first.offers)
        self._in_vain: set[tuple[int, Sizes]] = set()

    def launch(self, *args: Any) -> Any:
        """Run the graph.  Raises BudgetError before it runs, where no plan keeps the budget."""
        run = self.meter.run
        entry = self.meter.entry(args)
        self.first = self.first or entry
        if self.meter.forecasts is not self._forecasts:
            self._forecasts = self.meter.forecasts
            telling.optimizers(entry.level - entry.others, self._forecasts, self.room + self.reserve, run.say_once)
        launch = run.begin(self, entry)
        try:
            variant = self.rounds.chosen(self, launch) or self._alone(entry, args, launch)
            self._use(variant)
            launch.variant, launch.envelope = weakref.ref(variant), variant.envelope(entry.sizes)
            if len(run.round) == 1:
                self._record(launch, variant)
            run.mark(launch, Moment.FORWARD)
            outputs = variant.call(*args)
        except BaseException:
            launch.closed = True
            run.stop_recording()
            raise
        run.launched(launch, outputs)
        return outputs

    def _record(self, launch: Launched, variant: Variant) -> None:
        """Record the round that a launch begins, where it is not known, or its plan has not run in such a round.

        Whoever ends a round alone has nothing to agree upon with others: what is between its launches is not asked for.
        """
        run = self.meter.run
        circumstances = self.rounds.planned, run.generation
        new = circumstances not in variant.recorded or (not self.ends and self.rounds.learns(self, launch))
        if new and run.record(self.meter.device, within=self.ends):
            variant.recorded.add(circumstances)

    def realised(self, offer: Offer, entry: Entry) -> Variant | None:
        """The plan of an offer, compiled; None where it cannot be."""
        self.offers.remove(offer)
        made = self.maker.realise(offer, entry)
        if made is not None:
            self._keep(made)
        return made

    def _alone(self, entry: Entry, args: Any, launch: Launched) -> Variant:
        """The plan of a launch of which nothing but its entry is known."""
        found = self._fitting(entry)
        if found is None:
            entry = launch.entry = self.meter.exact(entry, args)
            found = self._fitting(entry) or self._made(entry, args)
        return found

    def _fitting(self, entry: Entry) -> Variant | None:
        fitting = [variant for variant in self.variants if variant.fits(entry, self.room)]
        if self.ends:
            return min(fitting, key=lambda variant: variant.seconds, default=None)
        return min(fitting, key=_least, default=None)

    def _made(self, entry: Entry, args: Any) -> Variant:
        """A plan that is made for the launch; the lightest there is, where none can be made, which is tried once."""
        place = entry.lasting, entry.sizes
        made = None if place in self._in_vain else self.maker.make(entry, args)
        if made is None:
            self._in_vain.add(place)
            return min(self.variants, key=_least)
        if not made.fits(entry, self.room):  # its code cannot be read: another one would be no better
            self._in_vain.add(place)
        self._keep(made)
        return made

    def _keep(self, variant: Variant) -> None:
        self.made += 1
        self.variants = [*self.variants[-(VARIANTS - 1) :], variant]

    def _use(self, variant: Variant) -> None:
        if variant is not self.variants[-1] and variant in self.variants:
            self.variants.remove(variant)
            self.variants.append(variant)


def _least(variant: Variant) -> int:
    """What it takes beside others like it."""
    return min(envelope.peak + OTHERS * envelope.held for envelope in variant.envelopes.values())
