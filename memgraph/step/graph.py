"""A compiled graph as its caller has it: on each launch the fastest of its plans that keeps the budget there.

launch -> the round is known?   yes: the plan that was chosen for this launch, together with the others'
                                no:  a plan that is valid at this entry; where there is none, one is made first, and
                                     where none can be made, BudgetError
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from typing import Any, Protocol

from memgraph.base import compat
from memgraph.base.errors import BudgetError, OffloadError, PlanWarning
from memgraph.step import telling
from memgraph.step.forecast import OptimizerForecast
from memgraph.step.launched import Launched
from memgraph.step.meter import Meter
from memgraph.step.outside import Inputs
from memgraph.step.recording import Moment
from memgraph.step.returned import Dropped, Returned
from memgraph.step.rounds import Rounds
from memgraph.step.variants import Entry, Offer, Sizes, Variant

# Plans that one graph keeps: another one pushes out the one that has not run for longest.
VARIANTS = 4
# Outputs smaller than the room divided by this are no reason for another plan.
WORTH_A_PLAN = 64
# Other graphs that are taken to stand between the forward and the backward of one whose round is not known yet.
OTHERS = 7


class Maker(Protocol):
    """Compiles a graph once more."""

    def make(self, entry: Entry, args: Any, dropped: Dropped = ()) -> Variant | None:
        """The graph by a plan for a launch with these arguments; None where it cannot be planned, which is warned of.

        dropped: the outputs that its caller drops before the backward.  Raises BudgetError.
        """

    def remember_followed(self) -> None:
        """Know the graph again, in later compilations, as one that does not end its rounds."""

    def realise(self, offer: Offer, entry: Entry) -> Variant | None:
        """By a plan that was offered; None as in `make`."""


class StepGraph:
    """A graph whose every launch keeps the budget.

    room: the budget in bytes, less what the options hold back.  ends: nothing but its backward is to come after its
    forward, which returns a loss; any other graph takes its tightest plan until a round is known. So it is taken to be
    until a round shows that something comes.
    name: as a user calls it.  reserve: bytes of the budget that the options hold back.  alike: other processes run it
    by the same plan, so no round of this one alone decides about it.
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
        alike: bool = False,
    ) -> None:
        self.room, self.meter, self.rounds, self.maker, self.ends = room, meter, rounds, maker, ends
        self.name, self.reserve, self.alike = name, reserve, alike
        self.first: Entry | None = None
        """The entry of its first launch."""
        self.retained = False
        """Whether its plans are for saved values that outlive a backward, which another one may follow."""
        self.refused: BudgetError | None = None
        """Why it may not run, where it was compiled before any graph of its step was launched."""
        self.gradients = 0
        """Bytes of the gradients that its backward makes, where it was compiled so."""
        self._forecasts: tuple[OptimizerForecast, ...] = ()
        """The forecasts that were last held against the budget."""
        self.variants = [first]
        """Its compiled plans; the one that ran last comes last."""
        self.made = 1
        """How many plans were compiled, those included that are not kept."""
        self.offers = list(first.offers)
        """Plans that it could have, and that are not compiled."""
        self.dropped: Dropped = ()
        """The outputs that the caller drops before the backward, as the last launch has shown."""
        self._inputs: dict[Sizes, Inputs] = {}
        self._last: tuple[Launched, Dropped] | None = None  # the last launch, and what its plan took for dropped
        self._trusts = True  # whether a plan may count on what is dropped
        self._tried: set[tuple[Sizes, Dropped]] = set()  # for which a plan without dropped outputs was asked for
        self._in_vain: set[tuple[int, Sizes, Dropped]] = set()  # for which none that fits can be made, by level

    def launch(self, *args: Any) -> Any:
        """Run the graph.

        Raises BudgetError before it runs, where no plan keeps the budget, and RanksError where ranks that must run it
        by one plan do not agree.
        """
        if compat.runs_on_fakes():  # DDPOptimizer asks what comes out, of a graph that it has compiled
            return self.variants[-1].call(*args)
        run = self.meter.run
        self._look_back()
        if self.first is None:  # Dynamo has just compiled it
            self.meter.tidy()
        entry = self.meter.entry(args)
        self.first = self.first or entry
        if self.meter.forecasts is not self._forecasts:
            self._forecasts = self.meter.forecasts
            telling.optimizers(entry.level - entry.others, self._forecasts, self.room + self.reserve, run.say_once)
        around = compat.checkpoint_around()
        again = None if around is None else run.checkpointed.plan_of(around, self, entry.sizes)
        if again is not None:  # no launch: what it saves is for the backward of the one that it repeats
            return again.call(*args)
        self.rounds.begins(self, entry)
        launch = run.begin(self, entry)
        if not self.ends and not self.alike:
            if entry.sizes not in self._inputs:
                self._inputs[entry.sizes] = Inputs.of(self.name, args)
            launch.inputs = self._inputs[entry.sizes]
        try:
            variant = self._together(args, launch) or self._alone(args, launch)
            self._use(variant)
            launch.variant, launch.envelope = weakref.ref(variant), variant.envelope(launch.entry.sizes)
            launch.larger = launch.entry.sizes not in variant.envelopes
            if len(run.round) == 1:
                self._record(launch, variant)
            run.mark(launch, Moment.FORWARD)
            outputs = variant.call(*args)
        except BaseException:
            run.withdraw(launch)
            raise
        if self.ends and not self.alike:  # what one rank's caller drops the others do not know
            launch.returned = Returned(outputs, self.room // WORTH_A_PLAN)
            launch.counted = sum(outputs[position].untyped_storage().nbytes() for position in variant.dropped)
            self._last = launch, variant.dropped
        if around is not None:
            run.checkpointed.ran(around, launch, variant, outputs)
        run.launched(launch, outputs)
        return outputs

    def _record(self, launch: Launched, variant: Variant) -> None:
        """Record the round that a launch begins, where it is not known, or its plan has not run in such a round.

        Of a graph that is a round by itself only the launches are recorded: what runs between them decides nothing.
        """
        run = self.meter.run
        circumstances = self.rounds.planned, run.generation
        learns = not self.ends and not launch.entry.once_more and self.rounds.learns(self, launch)
        new = circumstances not in variant.recorded or learns
        if new and run.record(self.meter.device, within=self.ends):
            variant.recorded.add(circumstances)

    def is_followed(self) -> None:
        """Another forward runs between its forward and its backward: it does not end its rounds."""
        if self.ends:
            self.ends = self.meter.ends = False
            self.dropped = ()  # what its caller drops is looked at in the last launch of a round alone

    def realised(self, offer: Offer, entry: Entry) -> Variant | None:
        """The plan of an offer, compiled and kept; None where it cannot be."""
        self.offers.remove(offer)
        made = self.maker.realise(offer, entry)
        if made is not None:
            self._keep(made)
        return made

    def _look_back(self) -> None:
        """Learn from the last launch what the caller drops, and whether it held what its plan counted as dropped."""
        if self._last is None:
            return
        (last, taken_for_dropped), self._last = self._last, None
        if last.given_up is None:
            return
        held = set(taken_for_dropped) - set(last.given_up)
        if held:
            self.dropped, self._trusts = (), False
            warnings.warn(
                f"the caller of a compiled graph held its outputs {sorted(held)} during the last backward, and had "
                "dropped them in earlier steps: the plan did not count them. It does from here on.",
                PlanWarning,
                stacklevel=3,
            )
        elif self._trusts:
            self.dropped = last.given_up

    def _together(self, args: Any, launch: Launched) -> Variant | None:
        """The plan that was chosen for the launch together with the others of its round; None where there is none.

        Raises BudgetError, once garbage is gone.
        """
        try:
            return self.rounds.chosen(self, launch)
        except BudgetError:
            exact = self.meter.exact(launch.entry, args)
            if exact.level >= launch.entry.level:
                raise
            launch.entry = exact
            return self.rounds.chosen(self, launch)

    def _alone(self, args: Any, launch: Launched) -> Variant:
        """The plan of a launch of which nothing but its entry is known, and what others took beside such a one."""
        if launch.inputs is not None:
            launch.entry = self.rounds.outside.beside(launch.entry, launch.inputs, self.room)
        entry = launch.entry
        found = self._fitting(entry)
        if found is None:
            entry = launch.entry = self.meter.exact(entry, args)
            found = self._fitting(entry) or self._made(entry, args)
        elif not found.plain and self._roomier(entry):
            with contextlib.suppress(BudgetError, OffloadError):  # the plan that there is keeps the budget
                self._made(entry, args)
            found = self._fitting(entry) or found
        return found

    def _roomier(self, entry: Entry) -> bool:
        """Whether the caller drops outputs that no plan for these sizes has taken for dropped yet."""
        if not self.dropped or (entry.sizes, self.dropped) in self._tried:
            return False
        self._tried.add((entry.sizes, self.dropped))
        return True

    def _fitting(self, entry: Entry) -> Variant | None:
        fitting = [variant for variant in self.variants if variant.fits(entry, self.room) and self.may_run(variant)]
        if self.ends or entry.once_more:  # it holds nothing that others must make room for
            return min(fitting, key=lambda variant: variant.seconds, default=None)
        return min(fitting, key=_least, default=None)

    def may_run(self, variant: Variant) -> bool:
        """Whether the caller drops all outputs that a plan takes for dropped."""
        return set(variant.dropped) <= set(self.dropped)

    def _made(self, entry: Entry, args: Any) -> Variant:
        """A plan that is made for the launch; where none can be made, the lightest there is, and it is not tried again.

        Raises BudgetError.
        """
        place = entry.lasting, entry.sizes, self.dropped
        made = None if place in self._in_vain else self.maker.make(entry, args, self.dropped)
        if made is None:
            self._in_vain.add(place)
            return min(filter(self.may_run, self.variants), key=_least, default=self.variants[-1])
        if not made.fits(entry, self.room):  # its code cannot be read: another one would be no better
            self._in_vain.add(place)
        self._keep(made)
        return made

    def _keep(self, variant: Variant) -> None:
        self.made += 1
        self.variants = [*self.variants[-(VARIANTS - 1) :], variant]
        self.meter.tidy()

    def _use(self, variant: Variant) -> None:
        if variant is not self.variants[-1] and variant in self.variants:
            self.variants.remove(variant)
            self.variants.append(variant)


def _least(variant: Variant) -> int:
    """A sort key: bytes that it reaches while OTHERS more launches like it are open."""
    return min(envelope.peak + OTHERS * envelope.held for envelope in variant.envelopes.values())
