"""How a report is laid out as text and tables."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from memgraph.base.errors import Binding
from memgraph.base.sizes import format_size
from memgraph.planner.decisions import Decision
from memgraph.reporting.report import SWEEP, size_of

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from memgraph.reporting.report import Report

_TOP_MODULES = 24  # rows; what is left is summed up in one more
_TOP_VALUES = 10  # kept, and as many dropped
_TOP_BINDING = 5
_VALUES = "value|>bytes|>times|module|source|~why"
_SENTENCE = 40  # columns at the least for sentences, where there is room
_FUSED = "fused, never held"
_NEARLY = 0.1  # of a layer's bytes may differ where layers are shown as one
Rows = list[tuple[str, ...]]


def layout(report: Report, width: int) -> Group:
    """The report as rich text and tables, the most asked for first. Words are broken only where `width` needs it."""
    from rich.console import Group
    from rich.text import Text

    title = f"memgraph: {report.graph} on {report.device}" + (" (from a warm cache)" if report.cached else "")
    parts: list[Any] = [Text(title), Text(report.summary, style="bold")]
    for title, columns, rows in _sections(report):
        parts += [Text(f"\n{title}", style="bold")] * bool(title) + [_table(columns, rows, width)]
    return Group(*parts)


def needed_width(report: Report) -> int:
    """Columns in which no name of the report has to be broken."""
    return max(_needed(columns, rows) for _, columns, rows in _sections(report))


def _sections(report: Report) -> Iterator[tuple[str, str, Rows]]:
    """Title, columns (see `_table`) and rows of each table that has any."""
    yield "", "|~", list(_head(report))
    moves = any(decision.tier for decision in report.decisions)
    largest = sorted(report.binding, key=lambda tensor: -tensor.bytes)
    for title, columns, rows in (
        (
            "Modules (sums over equal layers)",
            f"module|>saved|>recomputed|{'>offloaded|' * moves}>in time|~why",
            (row if moves else (*row[:3], *row[4:]) for row in _module_rows(report.decisions)),
        ),
        ("Run in shards of their tokens", "module|>times|>shards|>longest value|~why", _tile_rows(report.decisions)),
        ("Largest values kept", _VALUES, _value_rows(report.decisions, "save")),
        ("Largest values dropped", _VALUES, _value_rows(report.decisions, "recompute")),
        ("Largest values offloaded", _VALUES, _value_rows(report.decisions, "offload")),
        ("Live at the predicted peak", ">bytes|value|module|source", _binding_rows(largest)),
        ("Refused", "what|~why", ((refusal.what, refusal.reason) for refusal in report.refusals)),
        ("Notes", "~", ((note,) for note in report.notes)),
        ("Compilation", "stage|>time", _stage_rows(report)),
    ):
        if rows := list(rows):
            yield title, columns, rows


def _head(report: Report) -> Iterator[tuple[str, str]]:
    asked = f"asked for: {report.requested}" + (" bytes" if report.requested.isdecimal() else "")
    if report.reserve:
        asked += f"; {format_size(report.reserve)} of it held back"
    yield "budget", f"{'none' if report.budget is None else format_size(report.budget)} ({asked})"
    yield "baseline", f"{format_size(report.baseline)} (allocated when the step starts)"
    source = report.source_of_unplanned_peak
    unplanned = f"{size_of(report.unplanned_peak, source)} (Inductor's own partition"
    yield "unplanned peak", unplanned + (f", estimated by the {SWEEP})" if source == SWEEP else ")")
    source = f"{'estimated ' * (report.source_of_peak == SWEEP)}by the {report.source_of_peak}"
    if report.budget is not None:
        spare = report.budget - report.reserve - report.predicted_peak
        left = size_of(abs(spare), report.source_of_peak)
        source += f"; {left} {'to spare' if spare >= 0 else 'OVER the budget'}"
    yield "predicted peak", f"{size_of(report.predicted_peak, report.source_of_peak)} ({source})"
    for tier, name in (("host", "host memory"), ("nvme", "the disk")):
        if moved := report.bytes_on(tier):
            yield f"offloaded to {name}", f"{format_size(moved)} a step, out and back"
    again = f"{_time(report.recompute_time)} of it recomputation"
    if report.stall_time:
        again += f", {_time(report.stall_time)} waiting for copies"
    yield "step time", f"{_time(report.unplanned_time)} -> {_time(report.predicted_time)} ({again})"
    built_in = "with built-in figures, not calibrated on this machine: run `memgraph calibrate`"
    yield "times", "with figures measured on this machine" if report.calibrated else built_in


def _module_rows(decisions: Iterable[Decision]) -> Iterator[tuple[str, ...]]:
    """One row for each set of layers that are equal or nearly so, and one for each part, in the order of the graph."""
    layers: dict[tuple[str, str], list[tuple[str, Decision]]] = {}
    for decision in decisions:
        if decision.action == "tile":
            continue
        stem, number, rest = _split(decision.module)
        layers.setdefault((stem, number), []).append((rest, decision))
    groups: list[_Layers] = []
    for (stem, number), members in layers.items():
        values = collections.Counter((rest, d.action, d.bytes) for rest, d in members)
        group = next((group for group in groups if group.stem == stem and group.nearly(values)), None)
        if group is None:
            groups.append(group := _Layers(stem, values))
        group.numbers.append(number)
        group.members += members
        group.equal &= group.values == values
    for group in groups[:_TOP_MODULES]:
        label, members, count = _join(group.stem, group.numbers) or "(no module)", group.members, len(group.numbers)
        if count > 1:
            label += f"  x{count}" + ("" if group.equal else ", nearly equal")
        yield _module_row(label, members)
        parts: dict[str, list[tuple[str, Decision]]] = {}
        for rest, decision in members:
            parts.setdefault(rest.split(".")[1] if rest else "", []).append((rest, decision))
        if len(parts) > 1:
            yield from (_module_row(f"  .{part}" if part else "  itself", some) for part, some in parts.items())
    if left := groups[_TOP_MODULES:]:
        yield _module_row(f"{len(left)} more", [member for group in left for member in group.members])


@dataclasses.dataclass
class _Layers:
    """Layers that are shown as one.  values: of the first: what each is, within the layer.  equal: all are as that."""

    stem: str
    values: collections.Counter[tuple[str, str, int]]
    numbers: list[str] = dataclasses.field(default_factory=list)
    members: list[tuple[str, Decision]] = dataclasses.field(default_factory=list)
    equal: bool = True

    def nearly(self, values: collections.Counter[tuple[str, str, int]]) -> bool:
        """Whether a layer of these values differs from the first one in a few bytes only."""
        differing = (self.values - values) + (values - self.values)
        return _bytes(differing) <= _NEARLY * _bytes(self.values)


def _bytes(values: collections.Counter[tuple[str, str, int]]) -> int:
    return sum(size * times for (_, _, size), times in values.items())


def _module_row(label: str, members: list[tuple[str, Decision]]) -> tuple[str, ...]:
    total, whys = collections.Counter[str](), collections.Counter[str]()
    for _, decision in members:
        if not decision.fused:
            total[decision.action] += decision.bytes
        why = f"{decision.why} ({_FUSED})" if decision.fused else decision.why
        whys[why] += decision.bytes
    seconds = sum(decision.seconds for _, decision in members)
    why = "; ".join(why for why, _ in whys.most_common(2) if why) + ("; ..." if len(whys) > 2 else "")
    sizes = [format_size(total[action]) if total[action] else "-" for action in ("save", "recompute", "offload")]
    return label, *sizes, _time(seconds) if seconds else "-", why


def _tile_rows(decisions: Iterable[Decision]) -> Iterator[tuple[str, ...]]:
    """The regions that run in shards; equal ones are one row."""
    alike: dict[Any, list[Decision]] = {}
    for d in decisions:
        if d.action == "tile":
            stem, _, rest = _split(d.module)
            alike.setdefault((stem, rest, d.shards, d.bytes, d.why), []).append(d)
    for (stem, rest, shards, size, why), same in alike.items():
        module = _join(stem, [_split(d.module)[1] for d in same]) + rest
        yield module or "(no module)", f"x{len(same)}", str(shards), format_size(size), why


def _value_rows(decisions: Iterable[Decision], action: str) -> Iterator[tuple[str, ...]]:
    """The largest values with this action, largest sum first; a value that every layer has is one row."""
    alike: dict[Any, list[Decision]] = {}
    for d in decisions:
        stem, _, rest = _split(d.module)
        if d.action == action and not d.fused:
            why = f"{d.tier}: {d.why}" if d.tier else d.why
            alike.setdefault((d.bytes, stem, rest, d.source, why), []).append(d)
    for (*_, why), same in sorted(alike.items(), key=lambda item: -len(item[1]) * item[0][0])[:_TOP_VALUES]:
        first, (stem, _, rest) = same[0], _split(same[0].module)
        module = _join(stem, [_split(d.module)[1] for d in same]) + rest
        times, source = f"x{len(same)}", os.path.basename(first.source)
        yield first.name, format_size(first.bytes), times, module, source, why


def _binding_rows(largest: list[Binding]) -> Iterator[tuple[str, ...]]:
    for tensor in largest[:_TOP_BINDING]:
        yield format_size(tensor.bytes), tensor.name, tensor.module, os.path.basename(tensor.source)
    if rest := largest[_TOP_BINDING:]:
        yield format_size(sum(tensor.bytes for tensor in rest)), f"{len(rest)} more", "", ""


def _stage_rows(report: Report) -> Iterator[tuple[str, str]]:
    stages: dict[str, list[float]] = {}
    for name, seconds in report.stages:
        stages.setdefault(name, []).append(seconds)
    for name, times in stages.items():
        yield name + (f"  x{len(times)}" if len(times) > 1 else ""), _time(sum(times))
    if report.attempts > 1:
        yield "attempts", str(report.attempts)
    yield from report.versions


def _split(module: str) -> tuple[str, str, str]:
    """`model.layers.3.mlp` -> (`model.layers`, `3`, `.mlp`); a path without a number is all stem."""
    from memgraph.facts.regions import element_of

    element = element_of(module)
    if not element:
        return module, "", ""
    stem, _, number = element.rpartition(".")
    return stem, number, module[len(element) :]


def _join(stem: str, numbers: Iterable[str]) -> str:
    """(`model.layers`, [0, 1, 2, 5]) -> `model.layers.0..2,5`."""
    runs: list[list[int]] = []
    for number in sorted({int(number) for number in numbers if number}):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    listed = ",".join(str(low) if low == high else f"{low}..{high}" for low, high in runs)
    return ".".join(part for part in (stem, listed) if part)


def _time(seconds: float) -> str:
    if seconds == 0 or abs(seconds) >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if abs(seconds) >= 1e-3 else f"{seconds * 1e6:.1f} us"


def _table(columns: str, rows: Rows, width: int) -> Table:
    """`columns` names them, one `|` between two; `>` aligns to the right, `~` holds sentences; no names, no header.

    Sentences are wrapped between words. All else is broken only where it does not fit into `width` otherwise.
    """
    from rich.box import Box
    from rich.table import Table
    from rich.text import Text

    names = columns.split("|")
    fits = _needed(columns, rows) <= width
    # A rule under the header and nothing else, in ASCII: a report is also printed where there is no UTF-8.
    box = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
    headed = any(name.strip("~") for name in names)
    table = Table(box=box, show_header=headed, show_edge=False, collapse_padding=True)
    for name in names:
        right, sentences = name.startswith(">"), name.startswith("~")
        whole = right or name == "source" or (fits and not sentences)
        table.add_column(name.strip(">~"), justify="right" if right else "left", no_wrap=whole, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # as it is: a name such as `[bold]` is no markup
    return table


def _needed(columns: str, rows: Rows) -> int:
    """Columns of text in which a table has to break no word."""
    names = columns.split("|")
    widths = [len(name.strip(">~")) for name in names]
    for row in rows:
        for n, text in enumerate(row):
            longest = len(text)
            if names[n].startswith("~"):
                longest = max(min(longest, _SENTENCE), *map(len, text.split()), 0)
            widths[n] = max(widths[n], longest)
    return sum(widths) + 3 * len(widths)  # what rich puts beside and between the columns
