"""What a graph allocates as plain Inductor lowers it: a budget that is a fraction is a share of that."""

from __future__ import annotations

import dataclasses

from memgraph.backend.budget import Bound
from memgraph.backend.hook import Partitioner
from memgraph.backend.inductor import lower, read_step
from memgraph.backend.options import parse_options
from memgraph.backend.records import Record, Unplanned
from memgraph.backend.training import TrainingJob
from memgraph.lower.wrapper import NotReadable
from memgraph.planner.decisions import Timeline

# Options that change what plain Inductor allocates.
_ASKED = ("retain_graph", "inductor", "mode", "verify")


def unplanned_timeline(job: TrainingJob) -> Timeline | None:
    """The timeline of a graph without a plan. It costs a lowering, and is kept in the plan store.

    None where nothing is differentiated, or the wrapper cannot be read.
    """
    plain = parse_options({"budget": None, "outline": False} | {name: getattr(job.options, name) for name in _ASKED})
    place = Record(job, Bound(), plain)
    kept = place.read(Unplanned)
    if kept is not None:
        return kept.timeline
    found = _lowered(dataclasses.replace(job, options=plain, name=f"{job.name}, unplanned"), cache=job.options.cache)
    if found is not None:
        place.write(Unplanned(found))
    return found


def _lowered(job: TrainingJob, *, cache: bool) -> Timeline | None:
    partitioner = Partitioner(job.options, job.hardware, Bound(), job.progress, job.name)
    for cached in (cache, False):  # a warm cache answers without the partitioner
        _, graphs = lower(job, partitioner, cache=cached, loaded=False)
        if graphs:
            break
    if not partitioner.planned:
        return None
    try:
        return read_step(graphs, job.device.type, retained=job.options.retain_graph)
    except NotReadable:
        return None
