"""A linear program that grows row by row, solved by HiGHS."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

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


class LinearProgram:
    """Rows `sum of coefficient * variable >= least`, and variables from 0 to `most`, at the least cost."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        """By variable: what 1 of it costs."""
        self.most: list[float] = []
        """By variable: the largest that it may be."""
        self.least: list[float] = []
        """By row: what its sum must reach."""
        self._coefficients: list[float] = []
        self._rows: list[int] = []
        self._columns: list[int] = []

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
        for column, coefficient in terms:
            self._coefficients.append(coefficient)
            self._rows.append(row)
            self._columns.append(column)

    def solve(self, cost: Sequence[float], most: Sequence[float]) -> Solution | None:
        """The solution of the least cost; None where nothing satisfies all rows.  cost, most: by variable.

        Raises NotSolved.
        """
        shape = (len(self.least), len(self.cost))
        matrix = csr_array((self._coefficients, (self._rows, self._columns)), shape=shape)
        bounds = np.column_stack([np.zeros(len(most)), most])
        found = linprog(cost, A_ub=-matrix, b_ub=-np.asarray(self.least), bounds=bounds, method="highs")
        if found.status == 2:
            return None
        if found.status != 0:
            raise NotSolved(found.message)
        return Solution(found.x, float(found.fun), -found.ineqlin.marginals)
