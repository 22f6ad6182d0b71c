"""What the fast lane leaves to the full one (`make test-fast`, `make test`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
from hypothesis import settings

USUAL = 100  # examples that Hypothesis draws where nothing is said


def examples(full: int) -> int:
    """As many examples as Hypothesis's default profile draws; in another one, as many percent of them as it draws."""
    return full if settings().max_examples == USUAL else max(2, full * settings().max_examples // USUAL)


def slow_but(names: Iterable[object], *, fast: Collection[object]) -> list:
    """Parameters, all of which are slow but the `fast` ones."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]
