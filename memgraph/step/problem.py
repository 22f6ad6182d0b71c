"""A round as a problem: which plans its launches choose among, at which levels, and what room some choice keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from memgraph.base.errors import BudgetError
from memgraph.step.joint import Launch, Option, Unsolved, choose
from memgraph.step.launched import Launched
from memgraph.step.recording import Mark, Moment
from memgraph.step.variants import Entry, Envelope, Offer, Sizes, Variant

# Plans of one graph in a round: each of them is compiled.
PLANS = 3
# More plans than PLANS are compiled of one graph where the round is predicted to take this share of its time less.
WORTH_MORE = 0.05
# So many bytes below zero is below any level: that of a backward that does not run.
NOTHING = 1 << 50
# Added to the smallest budget that an error names: levels of another run may be a little higher.
MARGIN = 128 * 1024


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
    made: int
    """How many plans of it were compiled."""

    def may_run(self, variant: Variant) -> bool:
        """Whether its caller does what a plan counts on."""

    def realised(self, offer: Offer, entry: Entry) -> Variant | None:
        """The plan of an offer, compiled and kept; None where it cannot be."""


Known = list[tuple[Launched, Envelope]]
"""The launches of a whole round that was recorded, with their envelopes."""


def recorded(launches: list[Launched]) -> Known:
    """The launches of a round with their envelopes; [] where not all of it was recorded, or a checkpoint runs one of
    them once more: such a one holds nothing that others could make room for."""
    told = [launch for launch in launches if launch.recorded and not launch.entry.once_more]
    found = [(launch, launch.envelope) for launch in told if launch.envelope is not None]
    return found if len(found) == len(launches) else []


def picked(launches: list[Launch], graphs: list[PlannedGraph], room: int) -> tuple[int, ...] | None:
    """The place in its menu of each launch's plan, at the least time; None where no choice stays within `room` bytes.

    No more than PLANS of a graph are compiled in all, unless that is worth it. Raises Unsolved.
    """
    every = choose(launches, room, PLANS)
    if every is None:
        return None
    few = choose(launches, room, PLANS, {id(graph): max(0, PLANS - graph.made) for graph in graphs})
    if few is None or _seconds(launches, few) > (1 + WORTH_MORE) * _seconds(launches, every):
        return every
    return few


def _seconds(launches: list[Launch], places: tuple[int, ...]) -> float:
    return sum(launch.menu[place].seconds for launch, place in zip(launches, places, strict=True))


def enough(launches: list[Launch], room: int) -> int:
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


def one_after_another(graphs: list[PlannedGraph], entry: Entry) -> list[Launch]:
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


def refusal(
    launches: list[Launch], entry: Entry, graph: PlannedGraph, *, at_least: int = 0, unfinished: bool = False
) -> BudgetError:
    """The error of a round that no choice of plans keeps within the room.

    launches: of a round that was recorded with compiled plans alone, so that the budget that it names is kept: offers
    are estimates.
    at_least: bytes below which a budget is too small anyway.  unfinished: nothing of the round has run yet.
    """
    return BudgetError(
        minimum=max(at_least, enough(launches, graph.room) + MARGIN + graph.reserve),
        budget=graph.room + graph.reserve,
        baseline=entry.level,
        to_come=entry.to_come,
        reserve=graph.reserve,
        unfinished=unfinished,
    )


Menu = list["Variant | Offer"]
"""The plans that all launches of a graph in a round choose among."""


def menus(graphs: list[PlannedGraph], known: Known, *, offers: bool) -> dict[int, Menu]:
    """The menu of each graph, by its identity.  offers: as of `_menu`."""
    return {id(graph): _menu(graph, known, offers=offers) for graph in graphs}


def _menu(graph: PlannedGraph, known: Known, *, offers: bool) -> Menu:
    """The plans of a graph, compiled ones first: those of which it is known what they take in each of its launches.

    offers: also those that are not compiled.
    """
    sizes = {launch.entry.sizes for launch, _ in known if launch.graph() is graph}
    may_run = filter(graph.may_run, graph.variants)
    compiled = [variant for variant in may_run if all(variant.envelope(each) is not None for each in sizes)]
    return [*compiled, *(graph.offers if offers else [])]


def _option(plan: Variant | Offer, sizes: Sizes) -> Option:
    """What a plan of a menu takes with the sizes of a launch; of an offer, with those that it was made for."""
    envelope = plan.envelope if isinstance(plan, Offer) else plan.envelope(sizes)
    assert envelope is not None  # or it were on no menu
    return Option(envelope, plan.seconds, compiled=isinstance(plan, Variant))


def as_launches(known: Known, graphs: list[PlannedGraph], menus: dict[int, Menu], first: Launched) -> list[Launch]:
    """The round as `choose` takes it: levels without what the plans of the last round held.

    Where a round begins lower than the recorded one, no level is lowered: what has gone since may have gone within that
    round already, after its first launch: with DDP 6.6 MiB did, in its second step.
    """
    higher = max(0, first.entry.lasting - known[0][0].entry.lasting)
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
                forward.level + forward.to_rise + higher_later - sum(held[number] for number in launch.open_in_forward),
                backward.level + backward.to_rise + higher_later - others - envelope.held - launch.given,
                launch.open_in_forward,
                launch.open_in_backward,
                forward.peak - forward.level,
                backward.peak - backward.level + launch.given,
            )
        )
    return found


def outside(known: Known, launches: list[Launch]) -> Iterator[tuple[Mark, int]]:
    """What others reach before each forward and backward by themselves, whatever the plans hold."""
    for (launched, _), launch in zip(known, launches, strict=True):
        forward, backward = launched.marks[Moment.FORWARD], launched.marks.get(Moment.BACKWARD)
        yield forward, launch.before_forward + launch.outside_forward
        if backward is not None:
            yield backward, launch.before_backward + launch.outside_backward


def levels(launches: list[Launch], places: tuple[int, ...]) -> list[int]:
    """The lasting level at which each forward begins under the chosen plans."""
    held = [launch.menu[place].envelope.held for launch, place in zip(launches, places, strict=True)]
    return [launch.before_forward + sum(held[number] for number in launch.open_in_forward) for launch in launches]
