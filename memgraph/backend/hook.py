"""The partitioner that memgraph hands to Inductor: Inductor calls it with each joint graph.

Inductor pickles the partitioner into its cache keys. Only `uuid` is pickled: the plan is a pure function of the graph,
which is in the key anyway, and of what the uuid covers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import torch

from memgraph.backend.budget import Bound
from memgraph.backend.joint_graph import NO_TIERS, plan_partition
from memgraph.backend.options import Options
from memgraph.backend.planned import Planned
from memgraph.backend.planners import Planners
from memgraph.backend.progress import Progress
from memgraph.base import compat
from memgraph.base.fingerprint import source_fingerprint
from memgraph.facts import kernel_scratch
from memgraph.machine.hardware import Hardware
from memgraph.planner.leaving import Tiers


def _world_size() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


class Partitioner(compat.partitioner_base()):  # type: ignore[misc]
    """Plans each joint graph that Inductor hands over. `planned` lists what came of each, the outermost graph last."""

    def __init__(
        self,
        options: Options,
        hardware: Hardware,
        bound: Bound,
        progress: Progress,
        name: str,
        tiers: Tiers = NO_TIERS,
        planners: Planners | None = None,
    ) -> None:
        """planners: those of earlier attempts at the same graphs."""
        self.options, self.hardware, self.bound, self.tiers = options, hardware, bound, tiers
        self.progress, self.name, self.planners = progress, name, planners or Planners()
        self.planned: list[Planned] = []

    def __call__(self, gm: Any, joint_inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
        sizes = compat.reading_with(dict(self.bound.sizes))
        with self.progress.stage("planning", graph=self.name), sizes:
            forward, backward, planned = plan_partition(
                gm,
                joint_inputs,
                self.options,
                self.hardware,
                self.bound,
                self.tiers,
                self.name,
                self.planners,
                **kwargs,
            )
        self.planned.append(planned)
        return forward, backward

    @property
    def called(self) -> bool:
        """Whether Inductor has handed over a joint graph."""
        return bool(self.planned)

    def uuid(self) -> str:
        """A hash of everything that decides about the plan besides the graph."""
        parts = (
            self.options.key(),
            self.hardware.to_json(),
            json.dumps(dataclasses.asdict(self.bound), sort_keys=True),
            repr(self.tiers),
            str(_world_size()),
            source_fingerprint(),
            kernel_scratch.fingerprint(),
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        return (str, (self.uuid(),))

    def __deepcopy__(self, memo: dict) -> Partitioner:
        return self  # Inductor deep-copies its configuration; a copy would keep its own list `planned`
