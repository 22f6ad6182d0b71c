"""The longest sequence, or the largest batch, that a budget has room for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from memgraph.backend.capture import Target
from memgraph.backend.explore import Answer, Explorer, explored, size_of
from memgraph.backend.largest import largest
from memgraph.backend.options import parse_options
from memgraph.base.errors import MemgraphError, OptionsError
from memgraph.base.sizes import format_size
from memgraph.machine.hardware import Hardware
from memgraph.reporting.report import Report
from memgraph.step.future_optimizer import Optimizer

# No size beyond is asked about: a dimension that costs nothing has no largest size.
MOST = 2**24


@dataclasses.dataclass(frozen=True)
class Longest:
    """The largest size of one dimension that fits, and the next one, which does not."""

    size: int
    """The largest size that fits, a multiple of `step`."""
    step: int
    """All sizes are multiples of it."""
    report: Report
    """The plan for that size."""
    excess: int | None
    """Bytes by which the lowest peak of the next size passes the budget; None where nothing larger was asked about."""
    asked: tuple[Answer, ...] = ()
    """The answers of the search, in the order of its questions."""

    def __str__(self) -> str:
        text = f"longest: {self.size:,} (in steps of {self.step:,})"
        if self.excess is None:
            return f"{text}, the largest that was asked about"
        return f"{text}; {self.size + self.step:,} passes the budget by about {format_size(self.excess)}"


def longest(
    fn: Callable[..., Any],
    *args: Any,
    dim: int = 1,
    step: int = 128,
    most: int = MOST,
    options: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    hardware: Hardware | str | None = None,
    optimizer: Optimizer | None = None,
    **kwargs: Any,
) -> Longest:
    """Return the largest size of a dimension for which the memgraph backend finds a plan within the budget.

    dim: the dimension of the arguments that may grow: 1 is that of a sequence in [batch, sequence], 0 that of the
    batch. It grows in every tensor among the arguments in which it has the size that it has in the first. step: sizes
    are multiples of it; that size fits, and the one a step larger does not. most: no larger size is asked about. All
    else as in `plan`.

    The function is captured once, with a symbol for the size, and planned for one size after another.

    Raises as `plan` does; BudgetError is never raised, but MemgraphError where not even one step fits; GraphError where
    the function is captured for one size alone.
    """
    parsed = parse_options(options)
    size = size_of((args, kwargs), dim)
    if size is None:
        raise OptionsError(f"no tensor among the arguments has a dimension {dim}")
    if isinstance(parsed.budget, float) or parsed.budget is None:
        raise OptionsError(f"budget {parsed.budget!r} bounds no size; allowed: bytes, or 'auto'")
    if parsed.plan is not None:
        raise OptionsError("option 'plan' is a plan of one size; allowed: leave it out, and each size is planned for")
    if step < 1:
        raise OptionsError(f"step {step} is none; allowed: 1 or more")

    def search(explorer: Explorer) -> Longest:
        return longest_of(explorer, size, step, most)

    return explored(fn, args, kwargs, Target.of(parsed, hardware, device, optimizer), search, dim)


def longest_of(explorer: Explorer, start: int, step: int, most: int = MOST) -> Longest:
    """The longest size of a captured step.  Raises MemgraphError where not even one step fits."""
    while True:
        found = largest(explorer.fits, start=start, step=step, most=most)
        refused = found.refused
        if found.size is None:
            over = format_size(refused.excess) if refused is not None else "?"
            raise MemgraphError(f"not even a size of {step} fits: its lowest peak passes the budget by about {over}")
        report, _ = explorer.plan(found.size)
        assert report.budget is not None  # a search asks for one in bytes
        if report.predicted_peak <= report.budget - report.reserve:
            break
        start = found.size  # a tile that it needs was refused when it was verified
    return Longest(found.size, step, report, None if refused is None else refused.excess, found.asked)
