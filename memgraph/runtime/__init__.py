"""The operators that a compiled graph calls, for copies to host memory or disk and back, and for shards.

Importing this registers the operators `torch.ops.memgraph.{offload,reload}_{start,finish}`, those of `tile_ops`,
`kernel_end` and `part`.
"""

from memgraph.runtime import kernel_end, part, tile_ops, transfer_ops
from memgraph.runtime.layout import Layout, span
from memgraph.runtime.process import (
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
from memgraph.runtime.sanitizer import sanitized
from memgraph.runtime.settings import Settings

__all__ = [
    "Layout",
    "Reservation",
    "Settings",
    "Statistics",
    "Taken",
    "gpudirect_refusal",
    "host_pool",
    "kernel_end",
    "part",
    "prepare",
    "release",
    "room",
    "sanitized",
    "scratch_file",
    "span",
    "statistics",
    "taken",
    "tile_ops",
    "transfer_ops",
]
