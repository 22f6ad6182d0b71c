"""The linear program and what a bound says where it cannot be solved."""

import random

import numpy as np
import pytest
from scipy.optimize import linprog

from memgraph.planner.bound import LowerBounds
from memgraph.planner.linear import LinearProgram, NotSolved
from memgraph.planner.solve import Planner
from tests.support.facts import chain


def test_the_least_cost_and_the_price_of_a_row():
    program = LinearProgram()
    cheap, dear = program.variable(cost=1.0), program.variable(cost=3.0)
    row = program.row([(cheap, 1.0)], 0.0)
    program.extend(row, [(dear, 2.0)])
    asked = program.row([(cheap, 1.0), (dear, 1.0)], 1.5)
    found = program.solve(program.cost, program.most)
    assert found.cost == pytest.approx(1.0 + 0.5 * 3.0)
    assert list(found.values) == pytest.approx([1.0, 0.5])
    assert found.prices[asked] == pytest.approx(3.0) and found.prices[row] == pytest.approx(0.0)


def test_no_variables_satisfy_all_rows():
    program = LinearProgram()
    only = program.variable()
    program.row([(only, 1.0)], 2.0)
    assert program.solve(program.cost, program.most) is None


@pytest.mark.parametrize("seed", range(8))
def test_a_program_that_grows_between_solutions_has_the_optimum_of_all_its_rows(seed):
    draw = random.Random(seed)
    program, rows = LinearProgram(), []
    program.variable(cost=5.0, most=np.inf)  # it is in every row, so something always satisfies all
    for _ in range(6):
        for _ in range(draw.randint(1, 4)):
            program.variable(cost=draw.random(), most=draw.choice([1.0, 3.0, np.inf]))
        for _ in range(draw.randint(1, 3)):
            rows.append({0: 1.0})
            _add(program, rows, program.row([(0, 1.0)], draw.random()), draw)
        _add(program, rows, draw.randrange(len(rows)), draw)  # an old row, an old variable at times
        found = program.solve(program.cost, program.most, kind=draw.random() < 0.5)
        assert found.cost == pytest.approx(_from_nothing(program, rows), abs=1e-6)
        sums = [sum(found.values[column] * c for column, c in row.items()) for row in rows]
        assert all(total >= least - 1e-6 for total, least in zip(sums, program.least, strict=True))
        assert np.dot(found.prices, program.least) >= found.cost - 1e-6  # bounds of variables have prices below 0


def _add(program, rows, row, draw):
    """Terms of a row, of whatever variables."""
    for column in draw.sample(range(1, len(program.cost)), draw.randint(1, len(program.cost) - 1)):
        coefficient = draw.uniform(-0.3, 1.0)
        program.extend(row, [(column, coefficient)])
        rows[row][column] = rows[row].get(column, 0.0) + coefficient


def _from_nothing(program, rows):
    """The least cost by scipy, of all rows at once."""
    matrix = np.zeros((len(rows), len(program.cost)))
    for number, row in enumerate(rows):
        matrix[number, list(row)] = list(row.values())
    bounds = [(0.0, most) for most in program.most]
    found = linprog(program.cost, A_ub=-matrix, b_ub=-np.array(program.least), bounds=bounds, method="highs")
    return float(found.fun)


def test_where_the_last_optimum_leads_nowhere_it_begins_anew(monkeypatch):
    program = LinearProgram()
    only = program.variable(cost=2.0)
    program.row([(only, 1.0)], 0.25)
    assert program.solve(program.cost, program.most).cost == pytest.approx(0.5)

    def lost(cost, most):
        raise NotSolved("numbers")

    monkeypatch.setattr(program._solvers[None], "solution", lost)
    program.row([(only, 1.0)], 0.75)
    assert program.solve(program.cost, program.most).cost == pytest.approx(1.5)
    assert program.solve(program.cost, program.most).cost == pytest.approx(1.5)


def test_a_program_that_is_not_solved_bounds_by_what_is_known_anyway():
    planner = Planner(chain([((n,), 100, 1e-6, True, None) for n in range(12)]))
    bounds = LowerBounds(planner.candidates)

    class Given(LinearProgram):
        def solve(self, cost, most, kind=None):
            raise NotSolved("numbers")

    least = bounds.under(planner.stock.peak // 2)
    given, program = Given(), bounds.relaxation.program
    given.cost, given.most = program.cost, program.most
    bounds.relaxation.program = given
    assert bounds.smallest() == 0 and bounds.optimum(100) is None
    told = bounds.under(planner.stock.peak // 2)
    assert told.seconds == -bounds.stock_time and (least is None or told.seconds <= least.seconds)
