"""The figures of one planned graph, as a frozen value that survives JSON: what text, picture and trace are made of."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import TYPE_CHECKING, Any

from memgraph.base.errors import Binding
from memgraph.facts.actions import Offload
from memgraph.planner.decisions import Decision, Described, Doing, Refusal, Reuse, Timeline, Work
from memgraph.planner.step_plan import StepPlan

if TYPE_CHECKING:
    from typing_extensions import Self


# A measured peak is as predicted if it differs by this share of the predicted one at most.
TOLERANCE = 0.01


def within(measured: int, predicted: int) -> bool:
    """Whether a measured peak is what was predicted."""
    return abs(measured - predicted) <= TOLERANCE * predicted


class Source(str, enum.Enum):
    """How a peak is known; in JSON, its text."""

    WRAPPER = "inductor wrapper"
    """Read from the code that Inductor generated."""

    SWEEP = "graph sweep"
    """Estimated from the graph."""

    __str__ = str.__str__


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Figures:
    """What was planned for one graph, why, and what it is predicted to cost."""

    key: str
    """The graph under its configuration, as the plan store names it."""

    graph: str
    """The graph as a user calls it, such as `"loss_fn [0]"`."""

    device: str
    """Such as `"cuda:0"`."""

    requested: str
    """The budget that was asked for: bytes, a share, `"auto"` or `"None"`."""

    budget: int | None
    """Bytes that the step may reach, baseline included; None for no bound."""

    reserve: int
    """Bytes of the budget that are held back."""

    baseline: int
    """Bytes allocated when the step starts."""

    unplanned_peak: int
    """Bytes that Inductor's own partition reaches, baseline included."""

    predicted_peak: int
    """Bytes that this plan reaches, baseline included."""

    source_of_peak: Source
    """How `predicted_peak` is known."""

    predicted_time: float
    """Seconds of one step with this plan."""

    unplanned_time: float
    """Seconds of one step with Inductor's own partition."""

    recompute_time: float
    """Seconds of a step spent on recomputation beyond Inductor's own."""

    decisions: tuple[Decision, ...] = ()
    """One for each tiled region and for each forward value that the backward reads, in the order of the graph."""

    refusals: tuple[Refusal, ...] = ()
    """What was asked for and not done."""

    timeline: Timeline = Timeline()
    """Allocated bytes above the baseline, event by event."""

    unplanned_timeline: Timeline = Timeline()
    """The same with Inductor's own partition."""

    binding: tuple[Binding, ...] = ()
    """What is live at the predicted peak."""

    stages: tuple[tuple[str, float], ...] = ()
    """Name and seconds of each stage of the compilation, in the order in which they ended."""

    notes: tuple[str, ...] = ()
    """What a reader should know before trusting the figures."""

    versions: tuple[tuple[str, str], ...] = ()
    """Package and version."""

    attempts: int = 1
    """How many times the graph was planned and lowered."""

    cached: bool = False
    """Whether the graph came from a warm cache, and these figures from the store."""

    stall_time: float = 0.0
    """Seconds of a step spent waiting for copies to other tiers and back."""

    drag_time: float = 0.0
    """Seconds that copies take from the operators beside them: on a CPU, whose cores copy too."""

    source_of_unplanned_peak: Source = Source.SWEEP
    """How `unplanned_peak` is known. It is read only where the graph was lowered as plain Inductor has it: for a budget
    that is a share, and where the plan changes nothing."""

    to_come: int = 0
    """Bytes that the run allocates after its first step and keeps, such as the state of an optimizer: both peaks hold
    them."""

    calibrated: bool = False
    """Whether the seconds come from rates that were measured on the machine; else from built-in ones."""

    measured_above: int | None = None
    """Bytes above the level of its entry that a launch of this plan was measured to reach, the highest of those that
    were; None where none was."""

    standing: tuple[tuple[str, int], ...] = ()
    """What the baseline is made of, as far as that is known: a kind, such as "parameters", and its bytes."""

    described: tuple[Described, ...] = ()
    """What is known of the values that decisions and events name, beside their bytes."""

    works: tuple[Work, ...] = ()
    """What the device and the copies do in a step of this plan, and when."""

    buffers: tuple[tuple[str, str], ...] = ()
    """Inductor's buffers that events name, and the value that each holds."""

    least_time: float | None = None
    """Seconds of a step that no plan of this kind goes below, under this budget and with these tiles; None where it is
    not known, or nothing was bounded."""

    least_peak: int | None = None
    """Bytes that every plan of this kind with these tiles reaches, baseline included, by the sweep; None where that is
    not known."""

    byte_price: float | None = None
    """Seconds of a step that one more byte of the budget is worth, by the linear program that bounds all plans."""

    rank: int | None = None
    """Of the process, among those that train together; None where it trains alone."""

    plan: StepPlan | None = None
    """The plan as it can be kept in a file; None where there is none, or an earlier version made the figures."""

    def bytes_on(self, tier: str) -> int:
        """Bytes of one step's values on a tier, "host" or "nvme": written once a step there, and read once."""
        return sum(
            decision.bytes
            for decision in self.decisions
            if isinstance(decision.action, Offload) and decision.action.tier == tier
        )

    @property
    def level(self) -> int:
        """Bytes allocated when a step starts, once all that stays is there."""
        return self.baseline + self.to_come

    @property
    def stands(self) -> tuple[tuple[str, int], ...]:
        """What stands from the start to the end: kinds, and bytes that add up to the level."""
        found = [(what, size) for what, size in self.standing if size > 0]
        rest = self.baseline - sum(size for _, size in found)
        more = (("allocated before", rest), ("to come", self.to_come))
        return (*found, *((what, size) for what, size in more if size))

    @property
    def above(self) -> int:
        """Bytes that a step with this plan allocates by itself."""
        return self.predicted_peak - self.level

    @property
    def measured_peak(self) -> int | None:
        """What was measured, as a peak to be held beside the predicted one; None where nothing was."""
        return None if self.measured_above is None else self.level + self.measured_above

    @property
    def as_predicted(self) -> bool:
        """Whether no measurement says otherwise, by more than 1 %."""
        return self.measured_peak is None or within(self.measured_peak, self.predicted_peak)

    @property
    def saved(self) -> int:
        """Bytes by which the plan lowers the peak; negative where it raises it."""
        return self.unplanned_peak - self.predicted_peak

    @property
    def slowdown(self) -> float | None:
        """Predicted time added to a step, as a fraction of the unplanned time; None where that is 0."""
        return self.predicted_time / self.unplanned_time - 1 if self.unplanned_time > 0 else None

    @property
    def gap(self) -> float | None:
        """By how much the predicted step takes longer than any plan of this kind, at most, as a fraction; None where
        that is not known."""
        if self.least_time is None or self.least_time <= 0:
            return None
        return max(0.0, self.predicted_time / self.least_time - 1)

    def to_json(self) -> str:
        """All figures. Events, works and descriptions are rows of their fields: a large graph has tens of thousands."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["decisions"] = [decision.to_dict() for decision in self.decisions]
        for name in ("refusals", "binding"):
            data[name] = [vars(item) for item in data[name]]
        for name in ("timeline", "unplanned_timeline"):
            data[name] = data[name].rows()
        data["reuses"] = [(reuse.after, reuse.storage, reuse.value, reuse.phase) for reuse in self.timeline.reuses]
        columns = [field.name for field in dataclasses.fields(Described)]
        data["described"] = [[getattr(item, column) for column in columns] for item in data["described"]]
        data["works"] = [(work.lane, work.doing.value, work.name, work.start, work.end) for work in data["works"]]
        data["plan"] = None if self.plan is None else self.plan.to_dict()
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The figures that `to_json` wrote, with fewer fields in earlier versions. Raises ValueError for other text."""
        try:
            data: dict[str, Any] = json.loads(text)
            data["decisions"] = tuple(map(Decision.from_dict, data["decisions"]))
            for name, kind in (("refusals", Refusal), ("binding", Binding)):
                data[name] = tuple(kind(**item) for item in data[name])
            for name in ("timeline", "unplanned_timeline"):
                data[name] = Timeline.from_rows(data[name])
            reuses = tuple(Reuse(*row) for row in data.pop("reuses", ()))
            data["timeline"] = dataclasses.replace(data["timeline"], reuses=reuses)
            for name in ("stages", "versions", "standing", "buffers"):
                data[name] = tuple((key, value) for key, value in data.get(name, ()))
            data["described"] = tuple(_described(*row) for row in data.get("described", ()))
            data["works"] = tuple(Work(lane, Doing(doing), *rest) for lane, doing, *rest in data.get("works", ()))
            for name in ("source_of_peak", "source_of_unplanned_peak"):
                data[name] = Source(data[name])
            plan = data.pop("plan", None)
            data["plan"] = None if plan is None else StepPlan.from_dict(plan)
            return cls(**data | {"notes": tuple(data["notes"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a report of this version of memgraph: {error!r}") from error


def _described(name: str, operator: str, dtype: str, shape: list[int], *rest: Any) -> Described:
    module, source, reads = rest
    return Described(name, operator, dtype, tuple(shape), module, source, tuple(reads))
