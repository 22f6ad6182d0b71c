"""A linear program that grows row by row, solved by HiGHS.

It is solved many times, each time with more rows or another bound. HiGHS keeps the last optimum, and the next one is
found from there.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import highspy
import numpy as np
from scipy.sparse import coo_array, csc_array, csr_array

# HiGHS satisfies rows and finds costs to about this accuracy, where coefficients are about 1.
ACCURACY = 1e-6


class NotSolved(Exception):
    """HiGHS gave up on a program, for numerical reasons or at a limit of its own."""


@dataclasses.dataclass(frozen=True)
class Solution:
    """The optimum of a linear program."""

    values: np.ndarray
    """By variable."""
    cost: float
    prices: np.ndarray
    """By row: how much the cost grows when its `least` grows by 1."""


def columns_of(v: int, *kinds: Mapping[int, int]) -> list[tuple[int, float]]:
    """The variables of a value, of these kinds."""
    return [(kind[v], 1.0) for kind in kinds if v in kind]


class LinearProgram:
    """Rows `sum of coefficient * variable >= least`, and variables from 0 to `most`, at the least cost."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        """By variable: what 1 of it costs."""
        self.most: list[float] = []
        """By variable: the largest that it may be."""
        self.least: list[float] = []
        """By row: what its sum must reach."""
        self._terms: list[tuple[int, int, float]] = []
        """(row, variable, coefficient)"""
        self._solvers: dict[object, _Solver] = {}
        """By kind of question, the solver that has answered the last one."""

    def variable(self, cost: float = 0.0, most: float = 1.0) -> int:
        """Add a variable; returns its number."""
        self.cost.append(cost)
        self.most.append(most)
        return len(self.cost) - 1

    def row(self, terms: Iterable[tuple[int, float]], least: float) -> int:
        """Add a row of (variable, coefficient); returns its number."""
        self.least.append(least)
        self.extend(len(self.least) - 1, terms)
        return len(self.least) - 1

    def extend(self, row: int, terms: Iterable[tuple[int, float]]) -> None:
        """Add terms to a row."""
        self._terms += [(row, column, coefficient) for column, coefficient in terms]

    def solve(self, cost: Sequence[float], most: Sequence[float], kind: object = None) -> Solution | None:
        """The solution of the least cost; None where nothing satisfies all rows.

        cost, most: by variable.  kind: questions of one kind begin at the optimum of the last; one of another kind may
        be a worse place to begin than none.

        Raises NotSolved.
        """
        last = self._solvers.pop(kind, None)
        if last is not None and last.grown(len(self.cost), self.least, self._terms):
            with contextlib.suppress(NotSolved):  # the last optimum may be a bad place to begin
                return self._solved(last, cost, most, kind)
        new = _Solver()
        new.grown(len(self.cost), self.least, self._terms)
        return self._solved(new, cost, most, kind)

    def _solved(self, solver: _Solver, cost: Sequence[float], most: Sequence[float], kind: object) -> Solution | None:
        found = solver.solution(cost, most)
        self._solvers[kind] = solver
        return found


class _Solver:
    """HiGHS with the rows that it has been given so far."""

    def __init__(self) -> None:
        self.highs = highspy._Highs()  # type: ignore[attr-defined]  # highspy.Highs prints a headline when it is made
        self.highs.setOptionValue("output_flag", False)
        self.highs.setOptionValue("parallel", "off")
        # Devex: on these programs it takes three quarters of the time of steepest edge, which HiGHS begins with.
        self.highs.setOptionValue("simplex_dual_edge_weight_strategy", 1)
        self.rows = self.columns = self.terms = 0

    def grown(self, columns: int, least: Sequence[float], terms: Sequence[tuple[int, int, float]]) -> bool:
        """Take over what has been added since the last time.

        Returns false, with nothing taken over, where terms were added to an old row for an old variable.
        """
        new = np.array(terms[self.terms :], dtype=[("row", np.int32), ("column", np.int32), ("value", np.float64)])
        old_row, old_column = new["row"] < self.rows, new["column"] < self.columns
        if np.any(old_row & old_column):
            return False
        self._add_columns(columns, new[old_row])
        self._add_rows(columns, least, new[~old_row])
        self.rows, self.columns, self.terms = len(least), columns, len(terms)
        return True

    def _add_columns(self, columns: int, terms: np.ndarray) -> None:
        """New variables, with their terms of old rows."""
        if count := columns - self.columns:
            places = (terms["row"], terms["column"] - self.columns)
            matrix = csc_array(coo_array((terms["value"], places), shape=(self.rows, count)))
            none = np.zeros(count)
            self.highs.addCols(count, none, none, none, matrix.nnz, matrix.indptr[:-1], matrix.indices, matrix.data)

    def _add_rows(self, columns: int, least: Sequence[float], terms: np.ndarray) -> None:
        """New rows, with all of their terms."""
        if count := len(least) - self.rows:
            places = (terms["row"] - self.rows, terms["column"])
            matrix = csr_array(coo_array((terms["value"], places), shape=(count, columns)))
            lower, upper = np.array(least[self.rows :]), np.full(count, highspy.kHighsInf)
            self.highs.addRows(count, lower, upper, matrix.nnz, matrix.indptr[:-1], matrix.indices, matrix.data)

    def solution(self, cost: Sequence[float], most: Sequence[float]) -> Solution | None:
        """The optimum, or None where nothing satisfies all rows.  Raises NotSolved."""
        numbers = np.arange(self.columns, dtype=np.int32)
        self.highs.changeColsCost(self.columns, numbers, np.array(cost))
        self.highs.changeColsBounds(self.columns, numbers, np.zeros(self.columns), np.array(most))
        self.highs.run()
        status = self.highs.getModelStatus()
        # No cost is negative and no variable is below 0, so no program is unbounded.
        if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            return None
        if status != highspy.HighsModelStatus.kOptimal:
            raise NotSolved(self.highs.modelStatusToString(status))
        found = self.highs.getSolution()
        total = self.highs.getInfo().objective_function_value
        return Solution(np.array(found.col_value), float(total), np.array(found.row_dual))
