"""Will a step fit? As it is, or with a plan, at which cost; and where it does not, the nearest that does."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from memgraph.backend.capture import Target
from memgraph.backend.explore import Explorer, explored, size_of, with_size
from memgraph.backend.longest import longest_of
from memgraph.backend.options import OffloadOptions, Options
from memgraph.base.errors import MemgraphError, OptionsError
from memgraph.base.sizes import round_up
from memgraph.reporting.report import Report
from memgraph.step.forecast import OptimizerForecast

SEQUENCE, BATCH = 1, 0  # dimensions of an argument [batch, sequence]
# A budget is named in whole steps of this many bytes, and host memory in steps of GIB.
MIB, GIB = 1 << 20, 1 << 30
# Batches that are captured and planned one by one, from the guess down.
BATCHES = 2
# A room that no plan fills.
ENDLESS = 1 << 60


class Verdict(enum.Enum):
    """The answer."""

    PLAIN = "plain"
    """It fits as plain Inductor has it."""

    PLANNED = "planned"
    """It fits with a plan of memgraph's."""

    NO = "no"
    """It does not fit."""


@dataclasses.dataclass(frozen=True)
class Nearest:
    """A change after which the step fits, all else as it was asked for."""

    what: str
    """ "sequence" or "batch"; "budget" or "host", in bytes; "optimizer" (a value of 0: it updates one parameter at a
    time)."""
    value: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """The answer, and what it is made of. All sizes in bytes."""

    verdict: Verdict
    report: Report
    """The plan; where nothing fits, the one with the lowest peak."""
    trained: int
    """Elements of the parameters that are trained."""
    weights: int
    """Of all parameters."""
    gradients: int
    """Of all trained parameters, as they stand before the optimizer's step."""
    optimizer: OptimizerForecast | None
    """What the optimizer allocates; None where there is none."""
    batch: int | None
    sequence: int | None
    """The sizes that were asked about; None for those that the step does not have."""
    hardware: str
    """The name of the device whose figures the plan was made with."""
    capacity: int
    """Of the memory of this device."""
    nearest: tuple[Nearest, ...] = ()
    """What would fit; () where the step does, or nothing near was found."""

    @property
    def state(self) -> int:
        """Of the optimizer's state."""
        return 0 if self.optimizer is None else self.optimizer.state_bytes

    @property
    def inputs(self) -> int:
        """Of inputs and buffers."""
        return self.report.baseline - self.weights

    @property
    def step_peak(self) -> int:
        """What the step of the optimizer reaches: parameters, gradients, state and what it holds meanwhile."""
        held = 0 if self.optimizer is None else self.optimizer.step_bytes
        return self.report.level + self.gradients + held

    @property
    def peak(self) -> int:
        """What the whole training step reaches."""
        return max(self.report.predicted_peak, self.step_peak)


def fit(
    fn: Callable[..., Any],
    args: Sequence[Any],
    target: Target,
    *,
    sequence: bool = True,
    longest: bool = False,
    step: int = 128,
) -> Fit:
    """Whether the training step that `fn(*args)` begins fits.

    fn returns a loss; the first tensor of args has the batch as its first dimension. sequence: whether the second one
    is a sequence. longest: take the longest sequence that fits, instead of the one that args have.  step: sequences
    that are tried are multiples of it.
    Raises what `memgraph.plan` does, but for BudgetError: a step that does not fit is an answer. OptionsError for a
    budget that is a share or None. MemgraphError where the longest is asked for, and nothing fits.
    """
    if isinstance(target.options.budget, float) or target.options.budget is None:
        raise OptionsError(f"budget {target.options.budget!r} bounds nothing here; allowed: bytes, or 'auto'")
    batch, length = size_of(args, BATCH), size_of(args, SEQUENCE) if sequence else None
    dim = SEQUENCE if length is not None else None
    known: Fit | None = None
    if dim is not None and not longest:  # a graph of these sizes alone takes two thirds of the time of one with symbols
        known = explored(fn, args, {}, target, lambda explorer: _answer(explorer, None, batch, length))
        if known.verdict is not Verdict.NO:
            return known

    def ask(explorer: Explorer) -> Fit:
        size = length if explorer.symbols else None
        if longest:
            size = longest_of(explorer, _asked(length), step).size
        found = known or _answer(explorer, size, batch, size or length)
        if found.verdict is not Verdict.NO:
            return found
        return dataclasses.replace(found, nearest=tuple(_near(explorer, found, size, step)))

    found = explored(fn, args, {}, target, ask, dim)
    if longest or found.verdict is not Verdict.NO or batch is None or batch == 1 or _step_is_too_large(found):
        return found
    # A graph with a symbol for the batch is not quite that of a fixed one: its answer is checked with the latter.
    guess = explored(fn, args, {}, target, lambda explorer: _largest_batch(explorer, batch), BATCH)
    for smaller in range(guess, max(0, guess - BATCHES), -1):
        again = explored(fn, with_size(args, BATCH, smaller), {}, target, lambda explorer: _fits(explorer, length), dim)
        if again:
            return dataclasses.replace(found, nearest=(Nearest("batch", smaller), *found.nearest))
    return found


def _fits(explorer: Explorer, length: int | None) -> bool:
    return explorer.fits(length if explorer.symbols else None).fits


def _asked(length: int | None) -> int:
    if length is None:
        raise OptionsError("the step has no sequence, so none is the longest")
    return length


def _answer(explorer: Explorer, size: int | None, batch: int | None, length: int | None) -> Fit:
    """The answer for one size."""
    step = explorer.step
    report, planned = explorer.plan(size)
    found = Fit(
        verdict=Verdict.PLAIN if planned.plain else Verdict.PLANNED,
        report=report,
        trained=sum(parameter.numel() for parameter in step.parameters),
        weights=step.gradients + step.frozen,
        gradients=step.gradients,
        optimizer=step.optimizer,
        batch=batch,
        sequence=length,
        hardware=step.hardware.name,
        capacity=step.hardware.capacity,
    )
    fits = found.peak <= _room(report)
    return found if fits else dataclasses.replace(found, verdict=Verdict.NO)


def _room(report: Report) -> int:
    assert report.budget is not None  # `fit` asks for one in bytes
    return report.budget - report.reserve


def _step_is_too_large(found: Fit) -> bool:
    """Whether the optimizer's own step does not fit, which no smaller size mends."""
    return found.step_peak > _room(found.report)


def _near(explorer: Explorer, found: Fit, size: int | None, step: int) -> Iterator[Nearest]:
    """What would fit, of one captured step."""
    report = found.report
    held = 0 if found.optimizer is None else found.optimizer.step_bytes
    if _step_is_too_large(found):
        if found.step_peak - held <= _room(report):
            yield Nearest("optimizer", 0)
    else:
        if size is not None:
            yield from _longest(explorer, size, step)
        yield from _host(explorer, size)
    yield Nearest("budget", round_up(found.peak + report.reserve, MIB))


def _longest(explorer: Explorer, size: int, step: int) -> Iterator[Nearest]:
    try:
        yield Nearest("sequence", longest_of(explorer, size, step, most=size - 1).size)
    except MemgraphError:  # not even one step fits
        return


def _host(explorer: Explorer, size: int | None) -> Iterator[Nearest]:
    """The host memory with which the step fits, where there is any."""
    options, on_cpu = explorer.step.options, explorer.step.hardware.device == "cpu"
    if on_cpu:  # its values are in host memory already
        return
    asked = _with_host(options, ENDLESS)
    report, planned = explorer.plan(size, asked)
    if report.predicted_peak > _room(report):
        return
    room = round_up(explorer.on_tier(planned, asked, "host"), GIB)
    if explorer.fits(size, _with_host(options, room)).fits:
        yield Nearest("host", room)


def _with_host(options: Options, room: int) -> Options:
    """The options with so many bytes of host memory."""
    offload = options.offload or OffloadOptions()
    return options.model_copy(update={"offload": offload.model_copy(update={"host": room})})


def _largest_batch(explorer: Explorer, batch: int) -> int:
    """The largest smaller batch that fits; 0 where there is none, or the graph is one of this batch alone."""
    try:
        return longest_of(explorer, batch - 1, 1, most=batch - 1).size
    except MemgraphError:
        return 0
