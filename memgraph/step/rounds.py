"""The plans of a round's launches, chosen together once a round has shown what it consists of."""

from __future__ import annotations

import dataclasses
import logging
import time
import weakref
from collections.abc import Iterator
from typing import Protocol

from memgraph.base.errors import BudgetError
from memgraph.step import telling
from memgraph.step.joint import Launch, Option, Unsolved, choose
from memgraph.step.launched import Launched
from memgraph.step.recording import Mark, Moment
from memgraph.step.run import Run
from memgraph.step.variants import Entry, Envelope, Offer, Sizes, Variant

# Plans of one graph in a round: each of them is compiled.
PLANS = 3
# Times that plans are compiled and the choice made anew, since the generated code takes more or less than the sweep.
TRIES = 3
# So many bytes below zero is below any level: that of a backward that does not run.
NOTHING = 1 << 50
# Rounds that are remembered: with gradients and without, of training and of a second loss.
KEPT = 8
# Added to the smallest budget that an error names: levels of another run may be a little higher.
MARGIN = 128 * 1024
# A round is planned for levels that are higher than they were by this share of the room, where that can be: the plans
# then stay valid when a level grows by a few bytes.
SLACK = 1 / 256

_logger = logging.getLogger(__name__)


class PlannedGraph(Protocol):
    """A graph with its plans: a StepGraph."""

    room: int
    reserve: int
    ends: bool
    alike: bool
    """Other processes run it by the same plan."""
    refused: BudgetError | None
    """Why it may not run, where it was compiled before any graph of its step was launched."""
    gradients: int
    """Bytes of the gradients that its backward makes, where it was compiled so."""
    variants: list[Variant]
    offers: list[Offer]

    def realised(self, offer: Offer, entry: Entry) -> Variant | None:
        """The plan of an offer, compiled and kept; None where it cannot be."""


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The plan of one launch."""

    graph: int
    """The identity of its StepGraph."""
    variant: weakref.ref[Variant]
    level: int
    """The highest lasting level of its entry for which it was chosen."""
    sizes: Sizes


Known = list[tuple[Launched, Envelope]]
"""The launches of a whole round that was recorded, with their envelopes."""


class Rounds:
    """What was chosen for the rounds of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._kept: list[tuple[Chosen, ...]] = []
        self._present: tuple[Chosen, ...] = ()
        self._tried: set[tuple[int, ...]] = set()
        self._learned: dict[tuple[int, Sizes], Known] = {}
        self._ahead: list[weakref.ref[PlannedGraph]] = []
        run.tell_recorded(self._warn_of_outside)

    @property
    def planned(self) -> bool:
        """Whether the plans of the present round were chosen together."""
        return bool(self._present)

    def learns(self, graph: PlannedGraph, launch: Launched) -> bool:
        """Whether the round that a launch begins is not known yet."""
        return not self._present and (id(graph), launch.entry.sizes) not in self._learned

    def compiled_ahead(self, graph: PlannedGraph) -> None:
        """A graph of a step was compiled before the first one of that step runs; in the order of the forwards."""
        self._ahead.append(weakref.ref(graph))

    def begins(self, graph: PlannedGraph, entry: Entry) -> None:
        """Refuse a step of graphs that were compiled ahead before its first launch, if one of them keeps no budget.

        Raises BudgetError with a minimum for all of them.
        """
        step = [other for reference in self._ahead if (other := reference()) is not None]
        if not any(other is graph for other in step):
            return
        self._ahead = []
        refused = [other.refused for other in step if other.refused is not None]
        if refused:
            hardest = max(refused, key=lambda error: error.minimum)
            launches = _one_after_another(step, entry)
            if not all(launch.menu for launch in launches):  # what one of them takes is not known
                raise hardest
            raise _refusal(launches, entry, graph, at_least=hardest.minimum, unfinished=True)

    def chosen(self, graph: PlannedGraph, launch: Launched) -> Variant | None:
        """The plan that was chosen for a launch; None where the round is not known, or goes another way now.

        Raises BudgetError where the round is known and no choice of plans keeps the room.
        """
        number = len(self.run.round) - 1
        if number == 0:
            self._learn()
            self._present = self._known(graph, launch) or self._planned(graph, launch)
        if number < len(self._present):
            found = self._present[number]
            same = found.graph == id(graph) and found.sizes == launch.entry.sizes
            variant = found.variant()
            if same and launch.entry.lasting <= found.level and variant is not None and variant in graph.variants:
                return variant
        self._forget()
        return None

    def _forget(self) -> None:
        """The present round is not what was planned: the next one like it is recorded again."""
        if self._present:
            self._kept = [chosen for chosen in self._kept if chosen is not self._present]
            self._learned.pop((self._present[0].graph, self._present[0].sizes), None)
            self._tried.clear()
            self._present = ()

    def _known(self, graph: PlannedGraph, launch: Launched) -> tuple[Chosen, ...]:
        """The round that begins with a graph at such a level: of several the one for the lowest level."""
        fitting = [
            chosen
            for chosen in self._kept
            if chosen[0].graph == id(graph)
            and chosen[0].sizes == launch.entry.sizes
            and launch.entry.lasting <= chosen[0].level
        ]
        return min(fitting, key=lambda chosen: chosen[0].level, default=())

    def _planned(self, graph: PlannedGraph, first: Launched) -> tuple[Chosen, ...]:
        """Choose the plans of a round like the last one; () where the last one tells nothing, or none were chosen."""
        known = self._learned.get((id(graph), first.entry.sizes), [])
        graphs: list[PlannedGraph] = [other for launch, _ in known if (other := launch.graph()) is not None]
        if not known or len(graphs) < len(known) or any(other.room != graph.room for other in graphs):
            return ()
        if any(launch.device != first.device for launch, _ in known):  # one room is of one device
            return ()
        if (len(known) == 1 and graph.ends) or any(other.alike for other in graphs):
            return ()
        name = (first.entry.lasting // max(1, int(graph.room * SLACK)), *map(id, graphs))
        if name in self._tried:  # it is not tried at every step
            return ()
        start = time.perf_counter()
        try:
            chosen = self._choose(known, graphs, first, graph)
        except Unsolved as problem:  # each launch keeps the budget by itself then
            _logger.debug("the plans of a round are not chosen together: %s", problem)
            chosen = ()
        self._tried.add(name)  # a refusal is said at every step
        _logger.debug("a round of %d launches: %.1f s to choose and compile", len(known), time.perf_counter() - start)
        if chosen:
            self._kept = [*self._kept[-(KEPT - 1) :], chosen]
        return chosen

    def _learn(self) -> None:
        """Remember the round that has ended, if all of it was recorded; forget a known one if other graphs ran now."""
        last = self.run.last
        if not last:
            return
        place = id(last[0].graph()), last[0].entry.sizes
        known = [launch.graph() for launch, _ in self._learned.get(place, [])]
        if known and known != [launch.graph() for launch in last]:
            del self._learned[place]
        if found := _recorded(last):
            self._learned[place] = found

    def _warn_of_outside(self, ended: list[Launched]) -> None:
        """Warn where what ran outside of the graphs of a round that was recorded passes the room by itself."""
        known = _recorded(ended)
        graphs: list[PlannedGraph] = [graph for launch, _ in known if (graph := launch.graph()) is not None]
        same = len({(graph.room, launch.device) for graph, (launch, _) in zip(graphs, known, strict=False)}) == 1
        if not known or len(graphs) < len(known) or not same or (len(known) == 1 and graphs[0].ends):
            return
        menus = _menus(graphs, known, offers=False)
        if all(menus.values()):
            first = known[0][0]
            self._outside_alone(known, _launches(known, graphs, menus, first), graphs[0])

    def _choose(
        self, known: Known, graphs: list[PlannedGraph], first: Launched, asked: PlannedGraph
    ) -> tuple[Chosen, ...]:
        """Choose plans, compile those that are offers, and choose anew with what their code takes.

        () where what runs outside of the graphs passes the room by itself.  Raises BudgetError.
        """
        room = asked.room
        for attempt in range(TRIES + 1):
            menus = _menus(graphs, known, offers=attempt < TRIES)
            launches = _launches(known, graphs, menus, first)
            slack = int(room * SLACK)
            places = choose(launches, room - slack, PLANS)
            if places is None:
                slack, places = 0, choose(launches, room, PLANS)
            if places is None:
                menus = _menus(graphs, known, offers=False)
                if not all(menus.values()):  # what a graph's plans take with these sizes is not known
                    return ()
                launches = _launches(known, graphs, menus, first)
                if self._outside_alone(known, launches, asked):
                    return ()
                raise _refusal(launches, first.entry, asked)
            picked = [menus[id(graph)][place] for graph, place in zip(graphs, places, strict=True)]
            compiled = [plan for plan in picked if isinstance(plan, Variant)]
            if len(compiled) == len(picked):
                levels = (level + slack for level in _levels(launches, places))
                sizes = (launch.entry.sizes for launch, _ in known)
                return tuple(map(Chosen, map(id, graphs), map(weakref.ref, compiled), levels, sizes))
            for graph, plan, (launch, _) in zip(graphs, picked, known, strict=True):
                if isinstance(plan, Offer) and plan in graph.offers:
                    graph.realised(plan, launch.entry)
        return ()  # not reached: the last try has compiled plans alone

    def _outside_alone(self, known: Known, launches: list[Launch], asked: PlannedGraph) -> bool:
        """Whether what runs outside of the graphs passes the room whatever they hold, which a warning says."""

        def enough() -> int:
            return _enough(launches, asked.room) + MARGIN

        return telling.outside_alone(_outside(known, launches), asked.room, enough, asked.reserve, self.run.say_once)


def _recorded(launches: list[Launched]) -> Known:
    """The launches of a round with their envelopes; [] where not all of it was recorded."""
    found = [(launch, launch.envelope) for launch in launches if launch.envelope is not None and launch.recorded]
    return found if len(found) == len(launches) else []


def _enough(launches: list[Launch], room: int) -> int:
    """A room that some choice of plans keeps, hardly more than the least."""
    low, high, surely = room, 2 * room, _all_at_once(launches)
    while high < surely and not _is_kept(launches, high):
        low, high = high, 2 * high
    while high - low > max(1, room // 1024):
        middle = (low + high) // 2
        low, high = (low, middle) if _is_kept(launches, middle) else (middle, high)
    return high


def _all_at_once(launches: list[Launch]) -> int:
    """A room that any choice of plans keeps: as if all launches held and reached their most at one time."""
    found = sum(max(option.envelope.peak for option in launch.menu) for launch in launches)
    return found + max(
        max(launch.before_forward, launch.before_backward, 0) + max(launch.outside_forward, launch.outside_backward, 0)
        for launch in launches
    )


def _is_kept(launches: list[Launch], room: int) -> bool:
    """Whether a choice of plans is found that keeps a room."""
    try:
        return choose(launches, room, PLANS) is not None
    except Unsolved:
        return False


def _one_after_another(graphs: list[PlannedGraph], entry: Entry) -> list[Launch]:
    """Graphs of which none was launched yet, as a round: forwards in their order, backwards in the other one.

    Offers are on the menus as well: what was compiled so far was made for one graph alone.  entry: of the first one.
    """
    later, found = sum(graph.gradients for graph in graphs), []
    for number, graph in enumerate(graphs):
        later -= graph.gradients
        plans = [(envelope, variant.seconds) for variant in graph.variants for envelope in variant.envelopes.values()]
        plans += [(offer.envelope, offer.seconds) for offer in graph.offers]
        menu = tuple(Option(envelope, seconds) for envelope, seconds in plans)
        level, others = entry.lasting + later, tuple(range(number))  # the check of a launch adds later ones as well
        found.append(Launch(id(graph), menu, level, level, others, others))
    return found


def _refusal(
    launches: list[Launch], entry: Entry, graph: PlannedGraph, *, at_least: int = 0, unfinished: bool = False
) -> BudgetError:
    """The error of a round that no choice of plans keeps within the room.

    launches: of a round that was recorded with compiled plans alone, so that the budget that it names is kept: offers
    are estimates.
    at_least: bytes below which a budget is too small anyway.  unfinished: nothing of the round has run yet.
    """
    return BudgetError(
        minimum=max(at_least, _enough(launches, graph.room) + MARGIN + graph.reserve),
        budget=graph.room + graph.reserve,
        baseline=entry.level,
        to_come=entry.to_come,
        reserve=graph.reserve,
        unfinished=unfinished,
    )


Menu = list["Variant | Offer"]
"""The plans that all launches of a graph in a round choose among."""


def _menus(graphs: list[PlannedGraph], known: Known, *, offers: bool) -> dict[int, Menu]:
    """The menu of each graph, by its identity.  offers: as of `_menu`."""
    return {id(graph): _menu(graph, known, offers=offers) for graph in graphs}


def _menu(graph: PlannedGraph, known: Known, *, offers: bool) -> Menu:
    """The plans of a graph, compiled ones first: those of which it is known what they take in each of its launches.

    offers: also those that are not compiled.
    """
    sizes = {launch.entry.sizes for launch, _ in known if launch.graph() is graph}
    compiled = [variant for variant in graph.variants if all(variant.envelope(each) is not None for each in sizes)]
    return [*compiled, *(graph.offers if offers else [])]


def _option(plan: Variant | Offer, sizes: Sizes) -> Option:
    """What a plan of a menu takes with the sizes of a launch; of an offer, with those that it was made for."""
    envelope = plan.envelope if isinstance(plan, Offer) else plan.envelope(sizes)
    assert envelope is not None  # or it were on no menu
    return Option(envelope, plan.seconds)


def _launches(known: Known, graphs: list[PlannedGraph], menus: dict[int, Menu], first: Launched) -> list[Launch]:
    """The round as `choose` takes it: levels without what the plans of the last round held."""
    higher = first.entry.lasting - known[0][0].entry.lasting
    held = [envelope.held for _, envelope in known]
    found = []
    for (launch, envelope), graph in zip(known, graphs, strict=True):
        forward = launch.marks[Moment.FORWARD]
        # Nothing that it has made is differentiated where it has no backward: that reaches nothing then.
        backward = launch.marks.get(Moment.BACKWARD, Mark(launch, Moment.BACKWARD, -NOTHING, -NOTHING))
        higher_later = higher + launch.entry.to_come
        others = sum(held[number] for number in launch.open_in_backward)
        found.append(
            Launch(
                id(graph),
                tuple(_option(plan, launch.entry.sizes) for plan in menus[id(graph)]),
                forward.level + higher_later - sum(held[number] for number in launch.open_in_forward),
                backward.level + higher_later - others - envelope.held,
                launch.open_in_forward,
                launch.open_in_backward,
                forward.peak - forward.level,
                backward.peak - backward.level,
            )
        )
    return found


def _outside(known: Known, launches: list[Launch]) -> Iterator[tuple[Mark, int]]:
    """What others reach before each forward and backward by themselves, whatever the plans hold."""
    for (launched, _), launch in zip(known, launches, strict=True):
        forward, backward = launched.marks[Moment.FORWARD], launched.marks.get(Moment.BACKWARD)
        yield forward, launch.before_forward + launch.outside_forward
        if backward is not None:
            yield backward, launch.before_backward + launch.outside_backward


def _levels(launches: list[Launch], places: tuple[int, ...]) -> list[int]:
    """The lasting level at which each forward begins under the chosen plans."""
    held = [launch.menu[place].envelope.held for launch, place in zip(launches, places, strict=True)]
    return [launch.before_forward + sum(held[number] for number in launch.open_in_forward) for launch in launches]
