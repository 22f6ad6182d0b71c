"""The facts of one compilation of a graph that is trained."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

from memgraph.backend.alike import Means
from memgraph.backend.before_autograd import before_autograd
from memgraph.backend.budget import Bound, bound_of, budget_on, held_back
from memgraph.backend.destinations import for_launches, tiers
from memgraph.backend.inductor import Job, key_of
from memgraph.backend.options import Options
from memgraph.backend.progress import Progress
from memgraph.base import compat
from memgraph.base.sizes import round_up
from memgraph.machine.hardware import Hardware, load
from memgraph.machine.measure import allocated_bytes
from memgraph.passes.graphs import Captured
from memgraph.planner.decisions import Refusal
from memgraph.planner.leaving import Tiers
from memgraph.step.graph import OTHERS
from memgraph.step.ranks import Ranks
from memgraph.step.returned import Dropped
from memgraph.step.variants import Entry, Offer

# The level of an entry is rounded up to this share of the budget.
LEVELS = 128
# A graph that takes less than this share of the budget need not take its tightest plan before its round is known.
AMPLE = 64


@dataclasses.dataclass(frozen=True)
class Purpose:
    """What a plan is made for."""

    entry: Entry | None = None
    """The launch; None for one that finds the device as it is now."""
    budget: int | None = None
    """In bytes with the baseline, where it is known already: "auto" asks the device once."""
    tightest: bool = False
    """The plan that takes least beside others: nobody knows yet what else a step consists of."""
    offers: bool = False
    """List other plans, for a choice together with other graphs."""
    offer: Offer | None = None
    """A plan that was offered, and no other."""
    dropped: Dropped = ()
    """Outputs that the user does not hold any more when the backward begins."""
    launches: int = 1
    """How often the graph is taken to be launched in a step: so many times its values lie in the tiers."""
    again: int = 0
    """Launches like this one that are taken to come before the first backward. They decide about no plan, but about the
    smallest budget that an error names."""
    gradients: int = 0
    """Bytes of the gradients that each of them makes; 0 where it is not known that they make other ones than it."""
    ranks: Ranks | None = None
    """The processes that must make the same plan."""


@dataclasses.dataclass(frozen=True)
class TrainingJob(Job):
    """A job, and what its plans are made for."""

    hardware: Hardware
    entry: Entry
    """The launch that its plans are made for."""
    budget: int | None
    """In bytes, with the baseline; None where there is none, or it is a share of the unplanned peak."""
    tiers: Tiers
    start: float
    """When the compilation began, by `time.perf_counter`."""
    notes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    """What was refused before autograd saw the graph."""
    purpose: Purpose = Purpose()

    @property
    def baseline(self) -> int:
        """Bytes that are allocated on the device when the forward begins."""
        return self.entry.level

    @property
    def outside(self) -> int:
        """Bytes that are allocated beside what the step itself takes, at the worst moment of it."""
        return self.entry.lasting + self.entry.later

    @property
    def made_again(self) -> int:
        """Bytes of `outside` that are not allocated while launches like this one, which come, hold all their values.

        They are these launches' gradients: each is made when the values of its launch are gone.
        """
        return min(self.entry.later, self.purpose.again * self.purpose.gradients)

    @property
    def sizes(self) -> dict[Any, int] | None:
        """The launch's symbolic sizes, by symbol; None where they are those that the graph was captured with."""
        symbolic = [given for given in self.inputs if compat.is_size(given)]
        if self.entry.sizes in ((), tuple(map(compat.size_hint, symbolic))):
            return None
        return dict(zip((given.node.expr for given in symbolic), self.entry.sizes, strict=True))

    @property
    def bound(self) -> Bound:
        """What a plan is made for: what the options allow above the level of the entry, rounded up.

        Rounded, so that a run that was resumed finds the plans of the run before: a few bytes more or less are another
        name in the caches.
        """
        purpose, reserve = self.purpose, held_back(self.options, self.device)
        sizes = tuple(sorted((str(symbol), size) for symbol, size in (self.sizes or {}).items()))
        if purpose.offer is not None:
            return Bound(reserve=reserve, offer=(purpose.offer.peak, purpose.offer.carried), sizes=sizes)
        if self.budget is None:
            return bound_of(self.options, None, self.outside, self.device)
        step = max(1, self.budget // LEVELS)
        bound = bound_of(self.options, self.budget, -(-self.outside // step) * step, self.device)
        ample = self.budget // AMPLE if purpose.tightest else 0
        others = OTHERS if purpose.tightest else 0
        bound = dataclasses.replace(bound, others=others, ample=ample, offers=purpose.offers, sizes=sizes)
        if purpose.tightest:
            between = round_up(self.entry.between, max(1, self.entry.between // LEVELS))
            if (self.limit or 0) < between:  # no plan can help that
                between = 0
            bound = dataclasses.replace(bound, again=purpose.again, gradients=self.made_again, between=between)
        if not purpose.dropped:
            return bound
        outputs = len(self.gm.graph.output_node().args[0])
        return dataclasses.replace(bound, dropped=purpose.dropped, outputs=outputs)

    @property
    def limit(self) -> int | None:
        """Bytes above the level of the entry that a step may reach, not rounded; None without a budget in bytes, and
        for an offer: who chooses among the offers of a round keeps the budget."""
        if self.budget is None or self.purpose.offer is not None:
            return None
        return self.budget - self.outside - held_back(self.options, self.device)

    def key(self, bound: Bound | None, options: Options) -> str:
        """The name of this graph under a configuration, for the plan store."""
        return key_of(
            self, options.key(), repr(bound), self.hardware.to_json(), repr(self.tiers), repr(self.entry.sizes)
        )

    def stages(self) -> tuple[tuple[str, float], ...]:
        """Names and seconds of the stages so far, and of all of it."""
        return (*self.progress.stages, ("all", time.perf_counter() - self.start))

    def with_present_tiers(self) -> TrainingJob:
        """The same job with the room that the tiers have now."""
        present = tiers(self.options, self.hardware, device=self.device)
        return dataclasses.replace(self, tiers=for_launches(present, self.purpose.launches))


def training_job(job: Job, purpose: Purpose) -> TrainingJob:
    """A job with the figures of this machine, or of all ranks, its Dynamo graph made ready for tiles.

    Raises OffloadError where a tier cannot be used, and RanksError.
    """
    with contextlib.nullcontext() if purpose.ranks is None else purpose.ranks.telling():
        found = _of_this_process(job, purpose)
    if purpose.ranks is None:
        return found
    agreed = Means(found.budget, found.hardware, found.tiers).agreed(purpose.ranks)
    return dataclasses.replace(found, budget=agreed.budget, hardware=agreed.hardware, tiers=agreed.tiers)


def _of_this_process(job: Job, purpose: Purpose) -> TrainingJob:
    start = time.perf_counter()
    rewritten = before_autograd(Captured(job.gm, job.inputs), job.options.tile)
    hardware, entry = load(job.device), purpose.entry or Entry(allocated_bytes(job.device))
    known = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    return TrainingJob(
        **known | {"gm": rewritten.graphs.module, "progress": Progress(job.options.progress)},
        hardware=hardware,
        entry=entry,
        budget=purpose.budget or budget_on(job.device, job.options, hardware, entry.level),
        tiers=for_launches(tiers(job.options, hardware, device=job.device), purpose.launches),
        start=start,
        purpose=purpose,
        notes=rewritten.notes,
        refusals=rewritten.refusals,
    )
