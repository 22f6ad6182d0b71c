"""Choose a plan for each launch of a round, so that all of them keep the budget at the least time.

Problem: a round is what runs from the first forward until its backward has returned: F1 F2 F3 B3 B2 B1. Each launch has
a menu of plans. A plan of launch j holds bytes from its forward to its backward, and so raises the level at which every
launch in between begins. Minimise the sum of seconds such that each launch's level and peak stay within the room.

Library: HiGHS through scipy. Levels are sums of what the open launches hold, so the problem is a linear one with a yes
or no for each launch and plan; a step of 64 launches with 6 plans each takes some milliseconds.

Algorithm: one row for each forward and each backward, and one for what others reach before it. A second group of
variables counts the plans that a graph uses, since each has to be compiled.

Oracle: tests/step/test_joint.py tries all choices of small rounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from memgraph.step.variants import Envelope

INFEASIBLE = 2  # the status of scipy's `milp` where no choice keeps all rows
SECONDS = 5.0  # that the solver may take


@dataclasses.dataclass(frozen=True)
class Option:
    """One plan that a launch may run."""

    envelope: Envelope
    seconds: float
    """Predicted time of a step of its graph."""
    compiled: bool = True


@dataclasses.dataclass(frozen=True)
class Launch:
    """One forward and its backward in a round."""

    graph: Hashable
    """Launches of the same graph choose among the same plans."""
    menu: tuple[Option, ...]
    before_forward: int
    """Bytes that are allocated when the forward begins, besides what open launches hold."""
    before_backward: int
    """The same for the backward."""
    open_in_forward: tuple[int, ...]
    """The launches that hold their values while the forward runs, by their numbers in the round."""
    open_in_backward: tuple[int, ...]
    """The others that hold their values while the backward runs."""
    outside_forward: int = 0
    """Bytes above the level at which the forward begins that others reached since the launch before."""
    outside_backward: int = 0
    """The same for the backward."""


class Unsolved(Exception):
    """The solver has found no choice in its time, and does not know that there is none."""


def choose(
    launches: Sequence[Launch], room: int, plans: int, anew: Mapping[Hashable, int] | None = None
) -> tuple[int, ...] | None:
    """The place in its menu of each launch's plan; None where no choice stays within `room` bytes.

    plans: the most that one graph may use.  anew: the most of these that are not compiled yet, for each graph.
    Raises Unsolved.
    """
    starts = np.cumsum([0, *(len(launch.menu) for launch in launches)])
    graphs = list(dict.fromkeys(launch.graph for launch in launches))
    menus = {launch.graph: launch.menu for launch in launches}
    used_from = dict(zip(graphs, starts[-1] + np.cumsum([0, *(len(menus[g]) for g in graphs)]), strict=False))
    width = int(starts[-1] + sum(map(len, menus.values())))

    rows: list[Terms] = []
    upper: list[float] = []

    def row(terms: Terms, most: float) -> None:
        rows.append(terms)
        upper.append(most)

    def options(number: int) -> list[tuple[int, Option]]:
        return [(int(starts[number]) + place, option) for place, option in enumerate(launches[number].menu)]

    for number, launch in enumerate(launches):
        held = {x: float(o.envelope.held) for j in launch.open_in_forward for x, o in options(j)}
        row(held | {x: float(o.envelope.forward) for x, o in options(number)}, room - launch.before_forward)
        row(held, room - launch.before_forward - launch.outside_forward)
        held = {x: float(o.envelope.held) for j in launch.open_in_backward for x, o in options(j)}
        row(held | {x: float(o.envelope.backward) for x, o in options(number)}, room - launch.before_backward)
        held |= {x: float(o.envelope.held) for x, o in options(number)}
        row(held, room - launch.before_backward - launch.outside_backward)
        for place, (x, _) in enumerate(options(number)):  # a plan that runs is one of the graph's
            row({x: 1.0, int(used_from[launch.graph]) + place: -1.0}, 0.0)
    for graph in graphs:
        used = range(int(used_from[graph]), int(used_from[graph]) + len(menus[graph]))
        row({x: 1.0 for x in used}, float(plans))
        if anew is not None:
            options_of = zip(used, menus[graph], strict=True)
            row({x: 1.0 for x, option in options_of if not option.compiled}, float(anew[graph]))

    plan_of_each = [{x: 1.0 for x, _ in options(number)} for number in range(len(launches))]
    seconds = np.zeros(width)
    for number in range(len(launches)):
        for x, option in options(number):
            seconds[x] = option.seconds
    solution = _solved(seconds, rows, upper, plan_of_each)
    if solution is None:
        return None
    share = [[solution[x] for x, _ in options(number)] for number in range(len(launches))]
    return tuple(place.index(max(place)) for place in share)


Terms = dict[int, float]
"""A row of the problem: the factor of each variable that is in it."""


def _solved(seconds: np.ndarray, rows: list[Terms], upper: list[float], sums: list[Terms]) -> np.ndarray | None:
    """The values, 0 or 1, of least `seconds` such that each row is at most its `upper` and each of `sums` is 1.

    None where there are none.  Raises Unsolved.
    """
    matrix = lil_array((len(rows) + len(sums), len(seconds)))
    for index, terms in enumerate([*rows, *sums]):
        for column, value in terms.items():
            matrix[index, column] = value
    ones = [1.0] * len(sums)
    solved = milp(
        seconds,
        integrality=np.ones(len(seconds)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix.tocsr(), [-np.inf] * len(rows) + ones, [*upper, *ones]),
        options={"time_limit": SECONDS},
    )
    if solved.x is None and solved.status != INFEASIBLE:
        raise Unsolved(solved.message)
    found: np.ndarray | None = solved.x
    return found
