"""What a compiled graph calls to move saved values to host memory or disk and back (DESIGN.md, section 8).

Importing this registers the operators `torch.ops.memgraph.{offload,reload}_{start,finish}`, and those of `shards`.
"""

from memgraph.runtime import ops, shards
from memgraph.runtime.sanitizer import sanitized
from memgraph.runtime.tiers import (
    Reservation,
    Statistics,
    Taken,
    gpudirect_refusal,
    host_pool,
    prepare,
    release,
    room,
    scratch_file,
    statistics,
    taken,
)
from memgraph.runtime.value import Layout, Settings, span

__all__ = [
    "Layout",
    "Reservation",
    "Settings",
    "Statistics",
    "Taken",
    "gpudirect_refusal",
    "host_pool",
    "ops",
    "prepare",
    "release",
    "room",
    "sanitized",
    "scratch_file",
    "shards",
    "span",
    "statistics",
    "taken",
]
