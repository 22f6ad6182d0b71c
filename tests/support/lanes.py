"""What the fast lane leaves to the full one (`make test-fast`, `make test`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
from hypothesis import settings


def examples(full: int) -> int:
    """As many examples as the full lane draws, or as many as the profile of the fast one allows (tests/conftest.py)."""
    return min(full, settings().max_examples)


def slow_but(names: Iterable[object], *, fast: Collection[object]) -> list:
    """Parameters, all of which are slow but the `fast` ones."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]
