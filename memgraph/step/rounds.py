"""The plans of a round's launches, chosen together once a round has shown what it consists of."""

from __future__ import annotations

import dataclasses
import logging
import time
import weakref

from memgraph.base.errors import BudgetError
from memgraph.step import problem, telling
from memgraph.step.joint import Launch, Unsolved
from memgraph.step.launched import Launched
from memgraph.step.outside import Outside
from memgraph.step.problem import Known, PlannedGraph
from memgraph.step.run import Run
from memgraph.step.variants import Entry, Offer, Sizes, Variant

# Times that plans are compiled and the choice made anew, since the generated code takes more or less than the sweep.
TRIES = 3
# Rounds that are remembered: with gradients and without, of training and of a second loss.
KEPT = 8
# A round is planned for levels that are higher than they were by this share of the room, where that can be: the plans
# then stay valid when a level grows by a few bytes.
SLACK = 1 / 256

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The plan of one launch."""

    graph: int
    """The identity of its StepGraph."""
    variant: weakref.ref[Variant]
    level: int
    """The highest lasting level of its entry for which it was chosen."""
    sizes: Sizes


class Rounds:
    """What was chosen for the rounds of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._kept: list[tuple[Chosen, ...]] = []
        self._present: tuple[Chosen, ...] = ()
        self._tried: set[tuple[int, ...]] = set()
        self._learned: dict[tuple[int, Sizes], Known] = {}
        self._ahead: list[weakref.ref[PlannedGraph]] = []
        self.outside = Outside()
        run.tell_recorded(self._look_outside)

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
            launches = problem.one_after_another(step, entry)
            if not all(launch.menu for launch in launches):  # what one of them takes is not known
                raise hardest
            raise problem.refusal(launches, entry, graph, at_least=hardest.minimum, unfinished=True)

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
        place = id(graph), first.entry.sizes
        known = self._learned.get(place, [])
        graphs: list[PlannedGraph] = [other for launch, _ in known if (other := launch.graph()) is not None]
        if not known or len(graphs) < len(known) or any(other.room != graph.room for other in graphs):
            return ()
        if any(launch.device != first.device for launch, _ in known):  # one room is of one device
            return ()
        if (len(known) == 1 and graph.ends) or any(other.alike for other in graphs):
            return ()
        slack, fallen = int(graph.room * SLACK), known[0][0].entry.lasting - first.entry.lasting
        if fallen > slack:  # what has gone since may have gone within the recorded round: that says nothing of this one
            del self._learned[place]
            return ()
        name = (first.entry.lasting // max(1, slack), *map(id, graphs))
        if name in self._tried:  # it is not tried at every step
            return ()
        start = time.perf_counter()
        try:
            chosen = self._choose(known, graphs, first, graph)
        except BudgetError:
            if fallen <= 0:
                raise
            del self._learned[place]  # at the level of this round there may be a choice
            return ()
        except Unsolved as unsolved:  # each launch keeps the budget by itself then
            _logger.debug("the plans of a round are not chosen together: %s", unsolved)
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
        if found := problem.recorded(last):
            self._learned[place] = found

    def _look_outside(self, ended: list[Launched]) -> None:
        """Learn what ran outside of the graphs of a recorded round, and warn where it has passed the budget."""
        known = problem.recorded(ended)
        graphs: list[PlannedGraph] = [graph for launch, _ in known if (graph := launch.graph()) is not None]
        if known and len(graphs) == len(known):
            no_plans: dict[int, problem.Menu] = {id(graph): [] for graph in graphs}
            self.outside.learn(known, problem.as_launches(known, graphs, no_plans, known[0][0]))
        if not self._no_plan_helps(ended):
            telling.outside_unknown(ended, self.run.say_once)

    def _no_plan_helps(self, ended: list[Launched]) -> bool:
        """Whether what ran outside of the graphs of a round passes the room by itself, which a warning says."""
        known = problem.recorded(ended)
        graphs: list[PlannedGraph] = [graph for launch, _ in known if (graph := launch.graph()) is not None]
        same = len({(graph.room, launch.device) for graph, (launch, _) in zip(graphs, known, strict=False)}) == 1
        if not known or len(graphs) < len(known) or not same or (len(known) == 1 and graphs[0].ends):
            return False
        menus = problem.menus(graphs, known, offers=False)
        first = known[0][0]
        return all(menus.values()) and self._outside_alone(
            known, problem.as_launches(known, graphs, menus, first), graphs[0]
        )

    def _choose(
        self, known: Known, graphs: list[PlannedGraph], first: Launched, asked: PlannedGraph
    ) -> tuple[Chosen, ...]:
        """Choose plans, compile those that are offers, and choose anew with what their code takes.

        () where what runs outside of the graphs passes the room by itself.  Raises BudgetError.
        """
        room = asked.room
        for attempt in range(TRIES + 1):
            menus = problem.menus(graphs, known, offers=attempt < TRIES)
            launches = problem.as_launches(known, graphs, menus, first)
            slack = int(room * SLACK)
            places = problem.picked(launches, graphs, room - slack)
            if places is None:
                slack, places = 0, problem.picked(launches, graphs, room)
            if places is None:
                menus = problem.menus(graphs, known, offers=False)
                if not all(menus.values()):  # what a graph's plans take with these sizes is not known
                    return ()
                launches = problem.as_launches(known, graphs, menus, first)
                if self._outside_alone(known, launches, asked):
                    return ()
                raise problem.refusal(launches, first.entry, asked)
            plans = [menus[id(graph)][place] for graph, place in zip(graphs, places, strict=True)]
            compiled = [plan for plan in plans if isinstance(plan, Variant)]
            if len(compiled) == len(plans):
                levels = (level + slack for level in problem.levels(launches, places))
                sizes = (launch.entry.sizes for launch, _ in known)
                return tuple(map(Chosen, map(id, graphs), map(weakref.ref, compiled), levels, sizes))
            for graph, plan, (launch, _) in zip(graphs, plans, known, strict=True):
                if isinstance(plan, Offer) and plan in graph.offers:
                    graph.realised(plan, launch.entry)
        return ()  # not reached: the last try has compiled plans alone

    def _outside_alone(self, known: Known, launches: list[Launch], asked: PlannedGraph) -> bool:
        """Whether what runs outside of the graphs passes the room whatever they hold, which a warning says."""

        def minimum() -> int:
            return problem.enough(launches, asked.room) + problem.MARGIN

        reached = problem.outside(known, launches)
        return telling.outside_alone(reached, asked.room, minimum, asked.reserve, self.run.say_once)
