"""The linear program and what a bound says where it cannot be solved."""

import pytest

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


def test_a_program_that_is_not_solved_bounds_by_what_is_known_anyway():
    planner = Planner(chain([((n,), 100, 1e-6, True, None) for n in range(12)]))
    bounds = LowerBounds(planner.candidates)

    class Given(LinearProgram):
        def solve(self, cost, most):
            raise NotSolved("numbers")

    least = bounds.under(planner.stock.peak // 2)
    given, program = Given(), bounds.relaxation.program
    given.cost, given.most = program.cost, program.most
    bounds.relaxation.program = given
    assert bounds.smallest() == 0 and bounds.shares(100) == {}
    told = bounds.under(planner.stock.peak // 2)
    assert told.seconds == -bounds.stock_time and (least is None or told.seconds <= least.seconds)
