"""A report's figures as phrases."""

from __future__ import annotations

from memgraph.base.sizes import format_size
from memgraph.reporting.figures import Figures, Source


def summary(figures: Figures) -> str:
    """How much memory the plan saves, and at what price; and whether what was measured says otherwise."""
    text = saving(figures)
    if figures.slowdown is None:
        text += "; slow-down unknown"
    else:
        kind = "slow-down" if figures.slowdown >= 0 else "speed-up"
        text += f"; predicted {kind} {percent(abs(figures.slowdown))}"
    return text if figures.as_predicted else f"{text}; measured {off(figures)}"


def size_of(size: int, source: Source) -> str:
    """A size as text, marked where its source is an estimate."""
    return f"{about(source)}{format_size(size)}"


def saving(figures: Figures) -> str:
    peak, saved, above = figures.unplanned_peak, figures.saved, figures.unplanned_peak - figures.level
    near = about(figures.source_of_unplanned_peak)
    if saved < 0 and near:  # an estimate that is too low shows no need for more memory
        planned = size_of(figures.predicted_peak, figures.source_of_peak)
        return f"peaks at {planned}, where plain Inductor is estimated at {format_size(peak)}"
    if saved == 0:
        return f"saves nothing of a peak of {near}{format_size(peak)}"
    verb, words = (f"saves {near}", "of") if saved > 0 else ("needs ", "more than")
    text = f"{verb}{format_size(abs(saved))} {words} a peak of {near}{format_size(peak)}"
    if peak > 0 and above > 0:
        text += f" = {percent(abs(saved) / peak)} (above the baseline: {percent(abs(saved) / above)})"
    return text


def off(figures: Figures) -> str:
    """By how much the measured peak differs from the predicted one."""
    assert figures.measured_peak is not None
    more = figures.measured_peak - figures.predicted_peak
    share = f" = {percent(abs(more) / figures.predicted_peak)}" if figures.predicted_peak else ""
    return f"{format_size(abs(more))}{share} {'MORE' if more > 0 else 'less'} than predicted"


def about(source: Source) -> str:
    return "about " if source == Source.SWEEP else ""


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def duration(seconds: float) -> str:
    if seconds == 0 or abs(seconds) >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if abs(seconds) >= 1e-3 else f"{seconds * 1e6:.1f} us"
