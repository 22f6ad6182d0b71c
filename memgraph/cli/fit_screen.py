"""The answer of `memgraph fit` on one screen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memgraph.base.sizes import format_size
from memgraph.facts.actions import Offload, Recompute, Save, Tile

if TYPE_CHECKING:
    from memgraph.backend.fit import Fit, Nearest
    from memgraph.cli.models import Made
    from memgraph.reporting.report import Report

NOTES = 3  # those that a reader needs before trusting the figures
TILES = 3  # kinds of regions
UNMEASURED = "predicted from the graph and the GPU's figures; nothing was compiled, run or measured"


def screen(found: Fit, made: Made, options: Mapping[str, Any], *, lora: int | None, dtype: str) -> RenderableType:
    """The answer: at most 40 lines at 100 columns.  options: as `torch.compile` takes them."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold")
    rows.add_column(justify="right")
    rows.add_column(overflow="fold")
    blocks = (_memory(found), _plan(found.report), _nearest(found))
    for n, block in enumerate(filled for block in blocks if (filled := list(block))):
        for row in [("", "", "")] * bool(n) + block:
            rows.add_row(*row)
    title = f"memgraph fit: {_asked(found, made, lora, dtype)}"
    notes = [Padding(Text(note, style="dim"), (0, 0, 0, 2)) for note in (UNMEASURED, *_notes(found, made))]
    parts: list[RenderableType] = [
        Text(title, style="bold"),
        Text(verdict(found), style="bold " + _colour(found)),
        Text(),
        rows,
        Text(),
    ]
    if found.verdict.value == "planned":
        parts += [Text(f"  options={json.dumps(dict(options))}"), Text()]
    return Group(*parts, *notes)


def verdict(found: Fit) -> str:
    """The answer in one sentence."""
    report, budget = found.report, _budget(found)
    peak = f"{format_size(found.peak)} of {budget}"
    if found.verdict.value == "plain":
        return f"It fits plainly: about {peak}, {_seconds(report.predicted_time)} a step."
    if found.verdict.value == "planned":
        slower = report.slowdown or 0.0
        cost = f"{_seconds(report.predicted_time)} a step, {slower:+.1%} for the plan"
        return f"It fits with a plan: about {peak}, {cost}."
    if found.step_peak > found.report.predicted_peak:
        name = found.optimizer.name if found.optimizer is not None else "the optimizer"
        return f"It does not fit: the step of {name} reaches about {peak}."
    return f"It does not fit: the smallest peak of any plan is about {peak}."


def _colour(found: Fit) -> str:
    return "red" if found.verdict.value == "no" else "green"


def _asked(found: Fit, made: Made, lora: int | None, dtype: str) -> str:
    """The question."""
    parts = [made.name, dtype]
    if lora is not None:
        parts.append(f"LoRA {lora}")
    if found.optimizer is not None:
        parts.append(found.optimizer.name)
    if found.batch is not None:
        parts.append(f"batch {found.batch:,}")
    if found.sequence is not None:
        parts.append(f"sequence {found.sequence:,}")
    return f"{', '.join(parts)} on {found.hardware} ({format_size(found.capacity)})"


def _budget(found: Fit) -> str:
    assert found.report.budget is not None  # `fit` asks for one in bytes
    return format_size(found.report.budget - found.report.reserve)


def _memory(found: Fit) -> Iterator[tuple[str, str, str]]:
    """What takes the memory."""
    report = found.report
    activations = report.predicted_peak - report.level
    unplanned = report.unplanned_peak
    yield "parameters", format_size(found.weights), f"{found.trained / 1e6:,.0f} million of them trained"
    yield "optimizer state", format_size(found.state), _how(found)
    yield "inputs", format_size(found.inputs), "and buffers"
    yield "the step itself", format_size(activations), f"gradients ({format_size(found.gradients)} at its end), values"
    yield "peak", format_size(report.predicted_peak), f"plain Inductor: about {format_size(unplanned)}"
    if found.optimizer is not None:
        held = format_size(found.optimizer.step_bytes)
        yield "optimizer.step()", format_size(found.step_peak), f"of it {held} that it holds meanwhile"
    yield "budget", _budget(found), f"asked for: {report.requested}"


def _how(found: Fit) -> str:
    if found.optimizer is None:
        return "no optimizer"
    return f"of {found.optimizer.name}: {found.optimizer.method.value}"


def _plan(report: Report) -> Iterator[tuple[str, str, str]]:
    """What the plan does."""
    decisions = report.decisions
    saved = sum(d.bytes for d in decisions if isinstance(d.action, Save))
    dropped = sum(d.bytes for d in decisions if isinstance(d.action, Recompute) and not d.fused)
    yield "saved", format_size(saved), "for the backward"
    again = f"; {_seconds(report.recompute_time)} more than plain Inductor" if report.recompute_time > 0 else ""
    yield "recomputed", format_size(dropped), f"in the backward{again}"
    for tier, name in (("host", "host memory"), ("nvme", "the disk")):
        if any(isinstance(d.action, Offload) and d.action.tier == tier for d in decisions):
            yield f"to {name}", format_size(report.bytes_on(tier)), f"the step waits {_seconds(report.stall_time)}"
    tiles: dict[tuple[str, int | None], int] = {}
    for decision in decisions:
        if isinstance(decision.action, Tile):
            kind = decision.module.rpartition(".")[2] or "a region"
            key = (kind, decision.action.shards)
            tiles[key] = tiles.get(key, 0) + 1
    for (kind, shards), number in list(tiles.items())[:TILES]:
        yield "in shards", f"{shards}", f"{kind}, {number} of them" if number > 1 else kind
    yield "time of a step", _seconds(report.predicted_time), f"plain Inductor: {_seconds(report.unplanned_time)}"


def _nearest(found: Fit) -> Iterator[tuple[str, str, str]]:
    for near in found.nearest:
        yield "would fit", *_change(near, found)


def _change(near: Nearest, found: Fit) -> tuple[str, str]:
    """A change as a figure, and how to ask for it."""
    if near.what in ("sequence", "batch"):
        return f"{near.value:,}", f"--{near.what} {near.value}"
    if near.what == "optimizer":
        name = (found.optimizer.name if found.optimizer is not None else "adamw").lower()
        return "", f'an optimizer that updates one parameter at a time: --optimizer "{name}(fused=True)"'
    size = f"{near.value >> 20}MiB" if near.what == "budget" else f"{near.value >> 30}GiB"
    more = ": on a larger GPU" if near.what == "budget" and near.value > found.capacity else ""
    return format_size(near.value), f"--{near.what} {size}{more}"


def _notes(found: Fit, made: Made) -> Iterator[str]:
    wanted = ("this torch was built without CUDA", "scratch memory of ", "the function makes several graphs")
    known = [note for note in found.report.notes if note.startswith(wanted)]
    unknown = [] if found.optimizer is None or not found.optimizer.note else [found.optimizer.note]
    yield from [*made.notes, *unknown, *known][:NOTES]


def _seconds(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:,.1f} ms"
