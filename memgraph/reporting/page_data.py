"""What the page knows of a report, as plain data: columns of numbers, and each text once.

A column of places in a growing order is kept as differences. 100,000 buffers take about 1 MB of a page.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from memgraph.base.sizes import format_size
from memgraph.facts.actions import Offload, Recompute, Save, Tile
from memgraph.planner.decisions import Decision, Doing, Timeline
from memgraph.reporting import screen
from memgraph.reporting.figures import Figures
from memgraph.reporting.frontier import Frontier
from memgraph.reporting.layers import Layers, fold
from memgraph.reporting.lifetimes import Stuff, lifetimes
from memgraph.reporting.step_figures import OutsideFigures, StepFigures

STUFF = tuple(Stuff)
NANOSECONDS = 1e9


class _Texts:
    """Texts, each once."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self.places.setdefault(text, len(self.places))

    def column(self, texts: Iterable[str]) -> list[int]:
        return [self.place(text) for text in texts]


def part(
    figures: Figures, curve: Frontier | None = None, around: Sequence[OutsideFigures] | None = None
) -> dict[str, Any]:
    """One planned graph.

    curve: time against memory of its step, where that was planned.  around: what ran outside of the graphs of its step;
    None where nothing is known of a step.
    """
    texts = _Texts()
    planned = _track(figures.timeline, figures, texts)
    unplanned = _track(figures.unplanned_timeline, figures, texts)
    names = set(texts.places).union(decision.name for decision in figures.decisions)
    known = [item for item in figures.described if item.name in names]
    data: dict[str, Any] = {name: getattr(figures, name) for name in PLAIN}
    data |= {
        "source_of_peak": str(figures.source_of_peak),
        "source_of_unplanned_peak": str(figures.source_of_unplanned_peak),
        "measured_peak": figures.measured_peak,
        "answers": [list(pair) for pair in screen.answers(figures) if pair[0] != "next"],
        "standing": [list(pair) for pair in figures.stands],
        "stuff": [stuff.value for stuff in STUFF],
        "planned": planned,
        "unplanned": unplanned,
        "values": {
            "name": texts.column(item.name for item in known),
            "operator": texts.column(item.operator for item in known),
            "type": texts.column(f"{item.dtype}{list(item.shape)}" if item.dtype else "" for item in known),
            "module": texts.column(item.module for item in known),
            "source": texts.column(item.source for item in known),
            "reads": [_differences(round(at * NANOSECONDS) for at in item.reads) for item in known],
        },
        "decisions": _decisions(figures.decisions, texts),
        "works": _works(figures, texts),
        "model": list(_model(figures)),
        "refusals": [[refusal.what, refusal.reason] for refusal in figures.refusals],
        "notes": list(figures.notes),
        "stages": [[name, seconds] for name, seconds in figures.stages],
        "versions": [list(pair) for pair in figures.versions],
        "outside": None if around is None else outside(around, figures.graph),
        "frontier": None if curve is None else frontier(curve, figures),
    }
    return data | {"texts": list(texts.places)}


PLAIN = (
    "key graph device requested budget reserve baseline to_come level unplanned_peak predicted_peak predicted_time "
    "unplanned_time recompute_time stall_time drag_time calibrated cached attempts"
).split()


def _track(timeline: Timeline, figures: Figures, texts: _Texts) -> dict[str, Any]:
    """One timeline: its buffers as columns, and the times of its changes in nanoseconds."""
    lives = lifetimes(timeline, figures)
    made = lives.buffers
    sizes = _Texts()
    return {
        "events": len(lives.changes),
        "forward": lives.forward,
        "birth": _differences(buffer.birth for buffer in made),
        "life": [0 if buffer.death is None else buffer.death - buffer.birth for buffer in made],
        "size": sizes.column(str(buffer.bytes) for buffer in made),
        "sizes": [int(size) for size in sizes.places],
        "stuff": [STUFF.index(buffer.stuff) for buffer in made],
        "value": texts.column(buffer.value for buffer in made),
        "at": _differences(round(at * NANOSECONDS) for at in lives.times) if timeline.timed else [],
    }


def _differences(numbers: Iterable[int]) -> list[int]:
    """Each number less the one before it."""
    return [after - before for before, after in itertools.pairwise([0, *numbers])]


def _decisions(decisions: Sequence[Decision], texts: _Texts) -> dict[str, Any]:
    return {
        "name": texts.column(decision.name for decision in decisions),
        "action": texts.column(str(decision.action) for decision in decisions),
        "bytes": [decision.bytes for decision in decisions],
        "seconds": [decision.seconds for decision in decisions],
        "module": texts.column(decision.module for decision in decisions),
        "source": texts.column(decision.source for decision in decisions),
        "why": texts.column(decision.why for decision in decisions),
        "fused": [number for number, decision in enumerate(decisions) if decision.fused],
        "others": [[[texts.place(action), s] for action, s in decision.alternatives] for decision in decisions],
    }


def _works(figures: Figures, texts: _Texts) -> dict[str, Any]:
    works = figures.works
    return {
        "lane": texts.column(work.lane for work in works),
        "doing": texts.column(work.doing.value for work in works),
        "name": texts.column(work.name for work in works),
        "start": [round(work.start * NANOSECONDS) for work in works],
        "length": [round((work.end - work.start) * NANOSECONDS) for work in works],
    }


def _model(figures: Figures) -> Iterator[dict[str, Any]]:
    """The rows of the model: sets of equal layers, each with its parts; and those parts with their decisions."""
    places = {id(decision): number for number, decision in enumerate(figures.decisions)}
    modules = {item.name: item.module for item in figures.described}
    modules |= {decision.name: decision.module for decision in figures.decisions}
    waits: dict[str, float] = {}
    for work in figures.works:
        if work.doing is Doing.WAIT:
            module = modules.get(work.name, "")
            waits[module] = waits.get(module, 0.0) + work.end - work.start
    tiles = [decision for decision in figures.decisions if isinstance(decision.action, Tile)]
    for group in fold(figures.decisions):
        parts = group.parts()
        yield {
            "label": group.label or "(no module)",
            "count": len(group.numbers),
            "equal": group.equal,
            "shards": _shards(group, tiles),
            **_amounts([decision for _, decision in group.members], waits),
            "parts": [
                {
                    "label": f".{part}" if part else "itself",
                    **_amounts(some, waits),
                    "decisions": [places[id(decision)] for decision in some],
                }
                for part, some in parts.items()
            ],
        }


def _amounts(decisions: Sequence[Decision], waits: dict[str, float]) -> dict[str, Any]:
    """Bytes by what happens to them, and seconds."""
    sizes = {"kept": 0, "dropped": 0, "host": 0, "nvme": 0}
    for decision in decisions:
        match decision.action:
            case Save():
                sizes["kept"] += decision.bytes
            case Recompute() if not decision.fused:
                sizes["dropped"] += decision.bytes
            case Offload(tier):
                sizes[tier] += decision.bytes
    modules = {decision.module for decision in decisions}
    waited = sum(seconds for module, seconds in waits.items() if module in modules)
    return sizes | {"seconds": sum(decision.seconds for decision in decisions), "waits": waited}


def _shards(group: Layers, tiles: Iterable[Decision]) -> str:
    """Of the token regions that lie in these layers.  tiles: the decisions of all of them."""
    stems = {f"{group.stem}.{number}" if number else group.stem for number in group.numbers}
    found = {
        decision.action.shards
        for decision in tiles
        if isinstance(decision.action, Tile)
        and any(decision.module == stem or decision.module.startswith(f"{stem}.") for stem in stems)
    }
    return ", ".join(map(str, sorted(count for count in found if count is not None)))


def frontier(curve: Frontier, figures: Figures) -> dict[str, Any]:
    """Time against memory: the points of many budgets, and which of them is nearest to that of a report."""
    usable = figures.predicted_peak if figures.budget is None else figures.budget - figures.reserve
    budget = min(usable + curve.reserve, curve.points[-1].budget)
    places = range(len(curve.points))
    own = figures.predicted_time / curve.unplanned_time - 1 if curve.unplanned_time > 0 else 0.0
    return {
        "about": f"{curve.graph} on {curve.device}",
        "least_peak": curve.least_peak,
        "knees": [place for place in places if curve.points[place] in curve.knees],
        "plan": {"budget": budget, "slowdown": own},
        "here": min(places, key=lambda place: abs(curve.points[place].budget - budget)),
        "points": [
            dataclasses.asdict(point)
            | {
                "slowdown": curve.slowdown(point),
                "least_slowdown": curve.least_slowdown(point),
            }
            for point in curve.points
        ],
    }


def outside(around: Sequence[OutsideFigures], graph: str) -> list[dict[str, Any]]:
    """What ran outside of a step's graphs right before or after one of them, and took memory: at each place the most.

    What ran from its backward to its next forward stands at both ends.
    """
    found: dict[str, OutsideFigures] = {}
    for item in sorted(around, key=lambda item: item.peak):
        sides = {"begin": item.before == f"forward of {graph}", "end": item.after == f"backward of {graph}"}
        sides["middle"] = item.after == f"forward of {graph}" or item.before == f"backward of {graph}"
        found |= {place: item for place, there in sides.items() if there and item.above > 0}
    return [{"place": place} | vars(item) for place, item in found.items()]


def step(figures: StepFigures) -> dict[str, Any]:
    """A step of training: its newest measured round, launch by launch, and what ran outside of the graphs."""
    shown = figures.measured or figures.newest
    return {
        "device": figures.device,
        "budget": figures.budget,
        "reserve": figures.reserve,
        "level": figures.level,
        "to_come": figures.to_come,
        "predicted_peak": figures.predicted_peak,
        "measured_peak": figures.measured_peak,
        "round": shown.number,
        "launches": [
            {
                "graph": launch.graph,
                "sizes": list(launch.sizes),
                "level": launch.level,
                "held": launch.held,
                "planned": [launch.predicted_forward, launch.predicted_backward],
                "measured": [launch.measured_forward, launch.measured_backward],
            }
            for launch in shown.launches
        ],
        "outside": [[item.after, item.before, item.level, item.peak] for item in figures.outside],
        "optimizers": [[item.name, item.peak, item.to_come, item.note] for item in figures.optimizers],
        "grown": [[what, format_size(size)] for what, size in figures.grown],
        "notes": list(figures.notes),
    }
