"""The partitioner that memgraph hands to Inductor: the place where one joint graph is planned.

Inductor pickles it into its cache keys. All that counts there is `uuid`, so that is all that is pickled: the plan is a
pure function of the graph (in the key anyway) and of what the uuid holds.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from memgraph import compat
from memgraph.facts import scratch
from memgraph.hardware import Hardware
from memgraph.options import Options
from memgraph.planner.offload import Tiers
from memgraph.planning import NO_TIERS, Bound, Planned, plan_partition
from memgraph.progress import Progress


@functools.lru_cache(maxsize=1)
def source_fingerprint() -> str:
    """A hash of memgraph's own source: another version of memgraph is another configuration."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    passes = Path(__import__("memgraph.passes", fromlist=["__file__"]).__file__).parent
    for folder in (package, passes):
        for file in sorted(folder.rglob("*.py")):
            digest.update(str(file.relative_to(folder)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _world_size() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


class Partitioner(compat.partitioner_base()):  # type: ignore[misc]
    """Plans each joint graph that Inductor hands over; `planned` keeps what it did, the outermost graph last."""

    def __init__(
        self,
        options: Options,
        hardware: Hardware,
        bound: Bound,
        progress: Progress,
        name: str,
        tiers: Tiers = NO_TIERS,
    ) -> None:
        self.options, self.hardware, self.bound, self.tiers = options, hardware, bound, tiers
        self.progress, self.name = progress, name
        self.planned: list[Planned] = []

    def __call__(self, gm: Any, joint_inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
        with self.progress.stage("planning", graph=self.name):
            forward, backward, planned = plan_partition(
                gm, joint_inputs, self.options, self.hardware, self.bound, self.tiers, **kwargs
            )
        self.planned.append(planned)
        return forward, backward

    def uuid(self) -> str:
        """All that the plan depends on besides the graph."""
        parts = (
            self.options.key(),
            self.hardware.to_json(),
            json.dumps(dataclasses.asdict(self.bound), sort_keys=True),
            repr(self.tiers),
            str(_world_size()),
            source_fingerprint(),
            scratch.fingerprint(),
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        return (str, (self.uuid(),))

    def __deepcopy__(self, memo: dict) -> Partitioner:
        return self  # Inductor deep-copies its configuration; a copy would lose what the original records
