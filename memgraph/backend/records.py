"""What the plan store keeps of a graph, so that a compilation that ends in warm caches knows its plan.

A record that another version wrote, or that is damaged, counts as none. With the option `"cache": False` nothing is
read or written.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Container, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from memgraph.backend.budget import Bound
from memgraph.backend.inductor import Job, key_of
from memgraph.backend.options import Options
from memgraph.backend.training import TrainingJob
from memgraph.base import compat
from memgraph.base.store import Store
from memgraph.planner.decisions import Timeline
from memgraph.reporting.report import Report
from memgraph.step.variants import Envelope, Offer


class Kept(Protocol):
    """What a record can hold."""

    def to_record(self) -> dict[str, Any]: ...

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Kept: ...


def _bound(record: Mapping[str, Any]) -> Bound:
    offer, dropped = record["offer"], tuple(record["dropped"])
    return Bound(**{**record, "offer": None if offer is None else tuple(offer), "dropped": dropped})


@dataclasses.dataclass(frozen=True)
class Accepted:
    """A plan that kept its budget."""

    bound: Bound
    """What the plan was made for."""
    report: Report
    tier_bytes: Mapping[str, int]
    """Bytes that one step keeps on each tier, by the tier's name: what a warm compilation reserves."""
    offers: tuple[Offer, ...] = ()
    """Other plans that the graph could have."""

    def to_record(self) -> dict[str, Any]:
        report, offers = self.report.to_json(), list(map(dataclasses.asdict, self.offers))
        record = {"bound": dataclasses.asdict(self.bound), "report": report, "tier_bytes": dict(self.tier_bytes)}
        return record | {"offers": offers}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Accepted:
        needed = {name: int(size) for name, size in record["tier_bytes"].items()}
        offers = (Offer(**offer | {"envelope": Envelope(**offer["envelope"])}) for offer in record["offers"])
        return cls(_bound(record["bound"]), Report.from_json(record["report"]), needed, tuple(offers))


@dataclasses.dataclass(frozen=True)
class Lowest:
    """The lowest peak that was found for a graph when a budget was refused."""

    bound: Bound
    """The bound of the plan that reaches it."""
    above: int
    """The peak, in bytes above the baseline."""

    def to_record(self) -> dict[str, Any]:
        return {"bound": dataclasses.asdict(self.bound), "above": self.above}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Lowest:
        return cls(_bound(record["bound"]), int(record["above"]))


@dataclasses.dataclass(frozen=True)
class Unplanned:
    """What a graph allocates as plain Inductor lowers it."""

    timeline: Timeline

    def to_record(self) -> dict[str, Any]:
        return {"unplanned": self.timeline.rows()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Unplanned:
        return cls(Timeline.from_rows(record["unplanned"]))


AnyKept = TypeVar("AnyKept", Accepted, Lowest, Unplanned)


class Record:
    """The place of one value in the plan store: of a graph, under a configuration and a bound."""

    def __init__(self, job: TrainingJob, bound: Bound | None, options: Options) -> None:
        self.job, self.bound, self.options = job, bound, options

    @functools.cached_property
    def key(self) -> str:
        """The record's name. It costs the text of the graph, so it is made where it is needed, and once."""
        return self.job.key(self.bound, self.options)

    def read(self, kind: type[AnyKept]) -> AnyKept | None:
        """What was kept here, or None."""
        record = Store().get(self.key) if self.job.options.cache else None
        try:
            return None if record is None else kind.from_record(record)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    def write(self, kept: Kept) -> None:
        """Keep a value here, in place of an earlier one."""
        if self.job.options.cache:
            Store().put(self.key, kept.to_record())


def record_of_lowest(job: TrainingJob) -> Record:
    """Where the lowest peak of a graph is kept, whatever the budget; it depends on which outputs are not held."""
    return Record(job, Bound(last=True, dropped=job.purpose.dropped), job.options.model_copy(update={"budget": None}))


@dataclasses.dataclass(frozen=True)
class Followed:
    """Whether a graph that returns a loss is known not to end its rounds: of two losses the first one, say.

    Nobody knows that before a round has shown it, and such a graph takes all the room that there is. Where the next one
    is refused for that, this process knows it from then on, of the graph for other sizes as well; later processes know
    it for as long as the plan store does.
    """

    key: str
    """Its place in the plan store."""
    operators: str
    """What it does, whatever the sizes."""
    cache: bool
    """Whether the plan store may be used."""

    @classmethod
    def of(cls, job: Job) -> Followed:
        """For the graph of a job, which is not kept."""
        operators = hashlib.sha256(compat.operators_text(job.gm).encode()).hexdigest()
        return cls(key_of(job, "followed"), operators, job.options.cache)

    def known(self, here: Container[str]) -> bool:
        """here: the operators of graphs of which this process knows it."""
        return self.operators in here or (self.cache and Store().get(self.key) is not None)

    def remember(self, here: set[str]) -> None:
        """Let this process, and later ones, know it."""
        here.add(self.operators)
        if self.cache:
            Store().put(self.key, {"followed": True})


@dataclasses.dataclass(frozen=True)
class Stored:
    """A report that a process has left in the plan store."""

    key: str
    used: float
    """When its plan was last used, in seconds since 1970."""
    report: Report


def stored(prefix: str = "") -> Iterator[Stored]:
    """The reports in the plan store whose keys begin with `prefix`, those last used first.

    What another version has written is left out.
    """
    store = Store()
    for key, used in store.entries():
        if not key.startswith(prefix):
            continue
        record = store.get(key, use=False)
        if record is None or "report" not in record:
            continue
        try:
            report = Report.from_json(record["report"])
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        yield Stored(key, used, report)
