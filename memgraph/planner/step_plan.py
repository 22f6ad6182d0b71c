"""The plans of all graphs of a step, as one value and as a file.

    {"kind": "memgraph plan", "format": 1, "versions": ..., "requested": ..., "hardware": ..., "graphs": [...]}

A graph is found by its identity (facts/identity.py), so a file may hold as many as a step has. Nothing in it names this
machine: no address, no path of a file; the lines of the user's code are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from memgraph.base.errors import PlanError
from memgraph.facts.identity import Identity
from memgraph.planner.decisions import Plan

KIND, FORMAT = "memgraph plan", 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphPlan:
    """The plan of one joint graph."""

    graph: str
    """As a user calls it, such as "loss_fn [0]"."""

    identity: Identity
    """Which graph it is a plan of."""

    plan: Plan

    peak: int
    """Bytes above the level at which a step begins, as lowered; by the sweep where nothing was lowered."""

    seconds: float
    """Predicted seconds of a step."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return vars(self) | {"identity": self.identity.to_rows(), "plan": self.plan.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GraphPlan:
        """The plan that `to_dict` wrote. Raises KeyError, TypeError or ValueError for any other data."""
        told = {"identity": Identity.from_rows(data["identity"]), "plan": Plan.from_dict(data["plan"])}
        return cls(**{**data, **told})


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class StepPlan:
    """The plans of all graphs of a step: frozen, hashable, and a file gives it back as it was. `memgraph.Plan`."""

    graphs: tuple[GraphPlan, ...]
    """In the order in which they were planned."""

    requested: str = "None"
    """The budget that was asked for: bytes, a share, `"auto"` or `"None"`."""

    budget: int | None = None
    """The same in bytes; None for no bound."""

    device: str = ""
    """The kind of device, such as "cuda"."""

    hardware: str = ""
    """The name of the device whose figures the plan was made with."""

    options: str = "{}"
    """The options that decide which graphs there are and what may be done to them, as JSON. A plan is used under these
    alone."""

    versions: tuple[tuple[str, str], ...] = ()
    """Package and version."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan into a file, which `load` and the option `plan` read.  Raises OSError."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> StepPlan:
        """The plan that `save` wrote. Raises PlanError for a file that cannot be read, or is none of this format."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except PlanError as error:
            raise PlanError(f"{os.fspath(path)}: {error}") from None
        except (OSError, UnicodeDecodeError) as problem:
            reason = "there is no such file" if isinstance(problem, FileNotFoundError) else f"cannot be read: {problem}"
            raise PlanError(f"{os.fspath(path)}: {reason}") from problem

    @classmethod
    def joined(cls, plans: Iterable[StepPlan]) -> StepPlan:
        """The plans of several graphs as one; of two for the same graph, the one with the lower peak.

        What is told of budget and hardware is that of the first. Raises PlanError where there is none, or where they
        were made under options that do not go together.
        """
        given = list(plans)
        if not given:
            raise PlanError("there is no plan to join")
        if len({plan.options for plan in given}) > 1:
            raise PlanError("plans that were made with other options do not make one step")
        kept: list[GraphPlan] = []
        for found in (graph for plan in given for graph in plan.graphs):
            same = next((n for n, other in enumerate(kept) if other.identity.same(found.identity)), None)
            if same is None:
                kept.append(found)
            elif found.peak < kept[same].peak:
                kept[same] = found
        return dataclasses.replace(given[0], graphs=tuple(kept))

    def of(self, here: Identity, graph: str = "this graph") -> GraphPlan:
        """The plan of a graph.  Raises PlanError, with the first difference from the graph that is most like it."""
        for found in self.graphs:
            if found.identity.same(here):
                return found
        nearest = max(self.graphs, key=lambda found: found.identity.equal_lines(here))
        several = f"none of the {len(self.graphs)} graphs of the plan is {graph}; the nearest is {nearest.graph}"
        what = f"the plan is that of another graph than {graph}" if len(self.graphs) == 1 else several
        made = "".join(f" (it was made with torch {version})" for name, version in self.versions if name == "torch")
        raise PlanError(f"{what}: {nearest.identity.first_difference(here)}{made}")

    @property
    def tiers(self) -> frozenset[str]:
        """The tiers to which values go."""
        return frozenset(transfer.tier for graph in self.graphs for transfer in graph.plan.transfers)

    @functools.cached_property
    def digest(self) -> str:
        """A hash of all of it, for the keys of caches."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        told = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        told |= {"graphs": [graph.to_dict() for graph in self.graphs], "options": json.loads(self.options)}
        return {"kind": KIND, "format": FORMAT} | told

    @classmethod
    def from_dict(cls, data: Any) -> StepPlan:
        """The plan that `to_dict` wrote. Raises PlanError for any other data."""
        if not isinstance(data, dict) or data.get("kind") != KIND:
            raise PlanError("it is no plan of memgraph's: `report.plan.save` writes one")
        if data.get("format") != FORMAT:
            raise PlanError(f"its format is {data.get('format')!r}, and this version of memgraph reads {FORMAT}")
        told = {key: value for key, value in data.items() if key not in ("kind", "format")}
        try:
            told["graphs"] = tuple(map(GraphPlan.from_dict, told["graphs"]))
            told["options"] = json.dumps(told["options"], sort_keys=True)
            told["versions"] = tuple((str(name), str(version)) for name, version in told["versions"])
            found = cls(**told)
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise PlanError(f"it is damaged: {type(problem).__name__}: {problem}") from problem
        if not found.graphs:
            raise PlanError("it holds the plan of no graph")
        return found

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> StepPlan:
        """The plan that `to_json` wrote. Raises PlanError for any other text."""
        try:
            data = json.loads(text)
        except ValueError as problem:
            raise PlanError(f"it is no JSON: {problem}") from problem
        return cls.from_dict(data)

    def __repr__(self) -> str:
        names = ", ".join(graph.graph for graph in self.graphs)
        return f"<Plan of {names} for {self.hardware or self.device}, budget {self.requested}>"
