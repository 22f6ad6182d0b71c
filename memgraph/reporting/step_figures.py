"""The figures of a step of training: launches in their order, what ran outside of them, optimizers."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, ClassVar

from memgraph.reporting.figures import Figures, Source, within

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchFigures:
    """One forward and its backward, in bytes. Peaks hold all that is allocated; None where one is not known."""

    graph: str
    """As a user calls it."""
    sizes: tuple[int, ...]
    """The values of its symbolic sizes."""
    level: int
    """Bytes allocated when the forward began."""
    held: int | None
    """Bytes that the plan holds from the forward to the backward."""
    predicted_forward: int | None
    """The peak of the forward."""
    predicted_backward: int | None
    """The peak of the backward; also None where that has not begun."""
    measured_forward: int | None
    measured_backward: int | None
    predicted_above: int | None
    """Bytes above `level` that the launch takes by itself, as planned."""
    measured_above: int | None
    """Bytes above `level` that it took by itself."""
    larger: bool = False
    """Whether its plan is that of larger sizes, and what is predicted is what those take: it is to take no more."""

    @property
    def predicted_peak(self) -> int | None:
        return _most(self.predicted_forward, self.predicted_backward)

    @property
    def measured_peak(self) -> int | None:
        return _most(self.measured_forward, self.measured_backward)

    @property
    def as_predicted(self) -> bool:
        """Whether it took what was planned, as far as that was measured: within 1 % of the peak."""
        return self.off == 0

    @property
    def off(self) -> int:
        """Bytes that it took more than planned, negative for less; 0 where that is within 1 % of the peak, and for less
        than larger sizes take."""
        if self.measured_above is None or self.predicted_above is None:
            return 0
        measured, predicted = self.level + self.measured_above, self.level + self.predicted_above
        fine = within(measured, predicted) or (self.larger and measured < predicted)
        return 0 if fine else measured - predicted


@dataclasses.dataclass(frozen=True)
class OutsideFigures:
    """What was allocated between two launches, by code that memgraph does not compile."""

    after: str
    """What ran before it, such as "forward of loss_fn [0]"."""
    before: str
    """What ran next."""
    level: int
    """Bytes allocated when that began."""
    peak: int
    """The most bytes that were allocated since what ran before it."""

    @property
    def above(self) -> int:
        """Bytes that it took for a moment."""
        return self.peak - self.level


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundFigures:
    """One round: from a forward that finds no launch open until the last backward."""

    number: int
    """Rounds are counted from 1."""
    launches: tuple[LaunchFigures, ...]
    outside: tuple[OutsideFigures, ...]
    """Empty where nothing between the launches was recorded."""
    recorded: bool = False
    """Whether all of its launches were."""

    @property
    def graphs(self) -> tuple[str, ...]:
        """The graphs in the order of their launches."""
        return tuple(launch.graph for launch in self.launches)

    @property
    def predicted_peak(self) -> int | None:
        return _most(*(launch.predicted_peak for launch in self.launches))

    @property
    def measured_peak(self) -> int | None:
        """Of the launches; None where not all of them were recorded."""
        return _most(*(launch.measured_peak for launch in self.launches)) if self.recorded else None

    @property
    def outside_peak(self) -> int | None:
        return _most(*(outside.peak for outside in self.outside))

    @property
    def as_predicted(self) -> bool:
        """Whether all launches took what was planned, as far as they were measured."""
        return all(launch.as_predicted for launch in self.launches)

    @property
    def took_more(self) -> bool:
        """Whether one of the launches took more than was planned, by more than 1 % of the peak."""
        return any(launch.off > 0 for launch in self.launches)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphFigures:
    """One compiled graph of a step."""

    graph: str
    launches: int
    """How many there are in the newest round."""
    plans: int
    """How many are kept."""
    made: int
    """How many plans were compiled, those included that are not kept."""
    unplanned_above: int | None
    """Bytes that Inductor's own partition takes above the level of the entry."""
    source_of_unplanned_peak: Source | None
    off: int
    """How many plans were measured to take more or less than predicted, by more than 1 % of the peak."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerFigures:
    """One optimizer, as forecast."""

    name: str
    """Of its class."""
    made: int
    """Bytes of its state that are allocated."""
    to_come: int
    """Bytes of its state that are not allocated yet."""
    temporaries: int
    """Bytes that `step()` holds for a moment."""
    peak: int
    """Bytes that are allocated then in all, with all gradients and the state of all optimizers of the step."""
    method: str
    """How this is known."""
    note: str = ""
    """What lowers it, or why something is not known."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class StepFigures:
    """What a step of training takes on one device."""

    part: ClassVar[type[Figures]] = Figures
    """What `from_json` makes of each of the parts."""

    device: str
    """Such as "cuda:0"."""
    budget: int
    """Bytes that a step may reach, with all that is allocated."""
    reserve: int
    """Bytes of the budget that are held back."""
    level: int
    """Bytes allocated when the newest round began."""
    to_come: int
    """Bytes that the run will allocate later, and keep: state of optimizers."""
    rounds: tuple[RoundFigures, ...]
    """The last rounds and, before them, some that were recorded; oldest first. The last one may not be at its end."""
    graphs: tuple[GraphFigures, ...] = ()
    """Those of the newest round, in the order of their launches."""
    optimizers: tuple[OptimizerFigures, ...] = ()
    grown: tuple[tuple[str, int], ...] = ()
    """What stands when a step begins, and did not when it was first planned: kinds, and their bytes."""
    highest: int | None = None
    """The allocator's peak since its statistics were last reset, whatever ran; None where the device has none."""
    notes: tuple[str, ...] = ()
    """What a reader should know before trusting the figures."""
    rank: int | None = None
    """Of the process, among those that train together; None where it trains alone."""
    parts: tuple[Figures, ...] = ()
    """What was planned for each of the graphs, where that is known."""

    @property
    def newest(self) -> RoundFigures:
        return self.rounds[-1]

    @property
    def alike(self) -> tuple[RoundFigures, ...]:
        """The rounds of the same graphs as the newest, newest first."""
        return tuple(some for some in reversed(self.rounds) if some.graphs == self.newest.graphs)

    @property
    def measured(self) -> RoundFigures | None:
        """The newest round of the same graphs as the newest that was measured; None where none was."""
        return next((some for some in self.alike if some.measured_peak is not None), None)

    @property
    def outside(self) -> tuple[OutsideFigures, ...]:
        """What ran between the launches of the newest round of the same graphs of which that was recorded."""
        return next((some.outside for some in self.alike if some.outside), ())

    @property
    def predicted_peak(self) -> int | None:
        """Of the launches of the newest round, in bytes."""
        return self.newest.predicted_peak

    @property
    def measured_peak(self) -> int | None:
        """Of the launches of the newest round that was measured, in bytes."""
        return None if self.measured is None else self.measured.measured_peak

    @property
    def as_predicted(self) -> bool:
        """Whether all launches of rounds like the newest took what was planned, as far as they were measured."""
        return all(some.as_predicted for some in self.alike)

    @property
    def took_more(self) -> bool:
        """Whether one of them took more than was planned, by more than 1 % of the peak."""
        return any(some.took_more for some in self.alike)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        without = dataclasses.asdict(dataclasses.replace(self, parts=()))
        return without | {"parts": [json.loads(part.to_json()) for part in self.parts]}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The figures that `to_json` wrote. Raises ValueError for any other text."""
        try:
            data: dict[str, Any] = json.loads(text)
            data["rounds"] = tuple(map(_round, data["rounds"]))
            data["graphs"] = tuple(map(_graph, data["graphs"]))
            data["optimizers"] = tuple(OptimizerFigures(**item) for item in data["optimizers"])
            data["grown"] = tuple((what, size) for what, size in data["grown"])
            data["parts"] = tuple(cls.part.from_json(json.dumps(part)) for part in data.get("parts", ()))
            return cls(**data | {"notes": tuple(data["notes"])})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a step report of this version of memgraph: {error!r}") from error


def _round(data: dict[str, Any]) -> RoundFigures:
    return RoundFigures(
        number=data["number"],
        launches=tuple(LaunchFigures(**item | {"sizes": tuple(item["sizes"])}) for item in data["launches"]),
        outside=tuple(OutsideFigures(**item) for item in data["outside"]),
        recorded=data["recorded"],
    )


def _graph(data: dict[str, Any]) -> GraphFigures:
    source = data["source_of_unplanned_peak"]
    return GraphFigures(**data | {"source_of_unplanned_peak": None if source is None else Source(source)})


def _most(*sizes: int | None) -> int | None:
    return max((size for size in sizes if size is not None), default=None)
