"""The plans of one graph that is trained: the first one within Dynamo, others before the launches that need them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from memgraph.backend.alike import ranks_of
from memgraph.backend.attempts import Attempts
from memgraph.backend.budget import held_back
from memgraph.backend.inductor import Job
from memgraph.backend.records import Followed
from memgraph.backend.training import Purpose
from memgraph.base import compat
from memgraph.base.errors import BudgetError, OffloadError, PlanError, PlanWarning, RanksError
from memgraph.base.sizes import format_size
from memgraph.machine import cuda_libraries
from memgraph.step import run
from memgraph.step.graph import StepGraph
from memgraph.step.meter import Arguments, Meter
from memgraph.step.outside import Inputs
from memgraph.step.ranks import SharedMeter
from memgraph.step.returned import Dropped
from memgraph.step.rounds import Rounds
from memgraph.step.variants import Entry, Offer, Sizes, Variant

# So many times the budget that a graph was refused for leaves it the choice among all of its plans.
AMPLE_ROOM = 4

_logger = logging.getLogger(__name__)


class Launching:
    """Compiles one Dynamo graph, now and later.  attempts: what plans it."""

    def __init__(self, job: Job, attempts: Callable[..., Attempts]) -> None:
        self.job, self.attempts = job, attempts
        self.meter = Meter(job.device, Arguments.of(job.inputs), run.current())
        self.ranks = ranks_of(job.gm, job.inputs)
        if self.ranks is not None:
            self.meter = SharedMeter(self.meter, self.ranks)
        self.known: compat.Captured | None = None
        """The graph without the user's tensors, to compile it again; None where it is compiled once only."""
        self.first_entry = Entry(0)
        self.budget: int | None = None
        self.sizes: list[Sizes] = []
        """The sizes that plans were made for."""
        self.bounds: tuple[int | None, ...] = ()
        """How large each symbolic size gets, where that is known."""
        self.graph: StepGraph | None = None
        self.ends = True
        """Whether nothing but the backward comes after the forward, since that returns a loss, as far as is known."""
        self.followed: Followed | None = None
        """Where it is remembered that something does come; None for a graph that does not return a loss."""

    def first(self) -> Callable[..., Any]:
        """What Dynamo calls in place of its graph.

        Raises BudgetError, OffloadError, and whatever stands in the way of a plan.
        """
        with self.meter.run.compiling():
            return self._first()

    def _first(self) -> Callable[..., Any]:
        cuda_libraries.take_workspaces(self.job.device)
        if self.job.options.budget is None or isinstance(self.job.options.budget, float):
            # Such a plan does not depend on the bytes that are allocated when a launch begins.
            return self.attempts(self.job, Purpose(ranks=self.ranks)).run().call
        self.known = compat.captured(self.job.gm, self.job.inputs)
        if compat.returns_a_loss(self.job.gm):
            self.followed = Followed.of(self.job)
        self.ends = self.meter.ends = self.followed is not None and not self.followed.known(self.meter.run.followed)
        entry = self.first_entry = self.meter.entry(self.job.inputs)
        if not self.ends and self.ranks is None:
            entry = _rounds().outside.beside(entry, Inputs.of(self.job.name, self.job.inputs))
        told = self.job.options.largest_size
        bounds = ((compat.largest(given), told) for given in self.job.inputs if compat.is_size(given))
        self.bounds = tuple(min(filter(None, known), default=None) for known in bounds)
        largest = tuple(max(size, bound or size) for size, bound in zip(entry.sizes, self.bounds, strict=True))
        if largest != entry.sizes:  # the user has said how large they get: one plan for all of them, if that can be
            try:
                return self._started(dataclasses.replace(entry, sizes=largest))
            except BudgetError as error:
                self._warn(largest, error)
        with self._refused_beside_others(entry):
            return self._started(entry)

    def _warn(self, sizes: Sizes, error: BudgetError) -> None:
        """Say that the largest sizes cannot be planned for."""
        warnings.warn(
            f"no plan of {self.job.name} keeps the budget with its largest sizes {sizes}: the smallest budget for "
            f"those is {format_size(error.minimum)}. Sizes are planned for as they come, and one that cannot be is "
            "refused before it runs.",
            PlanWarning,
            stacklevel=2,
        )

    def _started(self, entry: Entry) -> Callable[..., Any]:
        assert self.known is not None
        together = not self.ends or self.meter.run.depth() > 0
        purpose = self._purpose(entry, self.job.inputs, offers=together)
        attempts, refused = self.attempts(self.job, purpose), None
        leaves = self.meter.arguments.leaves(self.job.inputs)
        ahead = any(map(compat.is_fake, leaves[:1]))  # DDP has all graphs of its step compiled before the first runs
        try:
            first = attempts.run()
        except BudgetError as error:
            if not ahead:
                raise
            refused = error.with_traceback(None)  # which would keep what the compilation has left
            # The lightest of all plans is what tells most of a step of several graphs: with so much room it is chosen.
            purpose = dataclasses.replace(purpose, budget=AMPLE_ROOM * error.minimum)
            first = self.attempts(dataclasses.replace(self.job, gm=self.known.copy()), purpose).run()
        self.budget = attempts.job.budget
        if self.budget is None:
            return first.call
        self.job = dataclasses.replace(self.job, gm=self.known.graph, inputs=self.known.inputs)
        self.sizes.append(entry.sizes)
        reserve, alike = held_back(self.job.options, self.job.device), self.ranks is not None
        self.graph = StepGraph(
            first,
            self.budget - reserve,
            self.meter,
            _rounds(),
            self,
            ends=self.ends,
            name=self.job.name,
            reserve=reserve,
            alike=alike,
        )
        self.graph.retained = self.job.options.retain_graph
        if ahead:
            self.graph.refused, self.graph.gradients = refused, sum(leaf.nbytes for leaf in leaves)
            self.graph.rounds.compiled_ahead(self.graph)
        return called(self.graph)

    def make(self, entry: Entry, args: Sequence[Any], dropped: Dropped = ()) -> Variant | None:
        """The graph compiled for a launch; None where it cannot be planned anew, which a warning says.

        dropped: the outputs that the caller drops before the backward.
        A size beyond all that were seen is taken for one of many to come: the plan is made for twice as much, where
        that can be. Raises BudgetError where no plan keeps the budget there, and OffloadError.
        """
        if (roomy := self._for_more(entry)) != entry:
            with contextlib.suppress(BudgetError):
                return self._planned(roomy, args, dropped)
        with self._refused_beside_others(entry):
            return self._planned(entry, args, dropped)

    def remember_followed(self) -> None:
        """Know the graph again, in later compilations, as one that does not end its rounds."""
        if self.followed is not None:
            self.followed.remember(self.meter.run.followed)

    @contextlib.contextmanager
    def _refused_beside_others(self, entry: Entry) -> Iterator[None]:
        """A refusal tells of what is expected beside a launch, and of open ones that have taken all the room as if
        nothing came after, which it remembers as well."""
        try:
            yield
        except BudgetError as error:
            greedy = [graph for graph in self.meter.run.waiting() if graph.ends]
            for graph in greedy:
                graph.is_followed()
                graph.maker.remember_followed()
            guesses = [
                f"{graph.name} was planned as if nothing came after it: when it is compiled again it leaves room, and "
                "a smaller budget may do."
                for graph in greedy
            ]
            if (repeats := self._repeats()) and not entry.once_more:
                guesses.append(
                    f"Launches of this graph are counted that nobody has seen yet, as many as are open ({repeats}): if "
                    "fewer come, less is enough."
                )
            if entry.between:
                guesses.append(
                    "What runs outside of the graphs until its backward is expected to take "
                    f"{format_size(entry.between)}, as it did with other inputs."
                )
            if not guesses:
                raise
            raise error.with_guesses(guesses) from error.__cause__

    def _for_more(self, entry: Entry) -> Entry:
        """The same entry with twice the size, where a size is beyond those that plans were made for."""
        largest = tuple(max(sizes) for sizes in zip(entry.sizes, *self.sizes, strict=True))
        if largest in self.sizes:
            return entry
        grown = (
            size if any(size <= known[place] for known in self.sizes) else max(size, min(2 * size, bound or 2 * size))
            for place, (size, bound) in enumerate(zip(largest, self.bounds, strict=True))
        )
        return dataclasses.replace(entry, sizes=tuple(grown))

    def realise(self, offer: Offer, entry: Entry) -> Variant | None:
        """The graph compiled by a plan that was offered; None where it cannot be, which a warning says.

        What is offered was planned for the sizes of the first plan, and is found again with those alone.
        """
        entry = dataclasses.replace(entry, sizes=self.sizes[0])
        return self._compiled(Purpose(entry, self.budget, offer=offer, launches=self.meter.sets))

    def _planned(self, entry: Entry, args: Sequence[Any], dropped: Dropped) -> Variant | None:
        try:
            made = self._compiled(self._purpose(entry, args, budget=self.budget, dropped=dropped))
        except BudgetError as error:
            names = ", ".join(sorted({forecast.name for forecast in self.meter.forecasts}))
            raise error.since_it_was_planned(entry.grown_since(self.first_entry, names)) from error.__cause__
        self.sizes.append(entry.sizes)
        return made

    def _purpose(self, entry: Entry, args: Sequence[Any], **known: Any) -> Purpose:
        """The purpose of a plan for a launch with these arguments.  known: fields that the caller decides."""
        launches = self.meter.sets
        begun = self.meter.run.depth() if self.graph is not None else self.meter.run.depth() + 1
        like_it, repeats = launches - begun, self._repeats()
        gradients = 0 if repeats > like_it else sum(compat.local(leaf).nbytes for leaf in self.meter.parameters(args))
        again = 0 if entry.once_more else max(0, like_it, repeats)  # such launches hold nothing
        known |= {"launches": launches, "again": again, "gradients": gradients, "ranks": self.ranks}
        ends = self.ends if self.graph is None else self.graph.ends
        return Purpose(entry, tightest=not ends and not entry.once_more, **known)

    def _repeats(self) -> int:
        """Launches of the graph that are taken to come, since it is launched more often than anything has told."""
        ran = 0 if self.graph is None else self.meter.run.repeated(self.graph)
        return ran if ran >= self.meter.sets else 0

    def _compiled(self, purpose: Purpose) -> Variant | None:
        assert self.known is not None and purpose.entry is not None
        job = dataclasses.replace(self.job, gm=self.known.copy())
        try:
            with self.meter.run.compiling(), compat.compiling_again(self.known):
                return self.attempts(job, purpose).run()
        except (BudgetError, OffloadError, PlanError, RanksError):
            raise
        except Exception as error:
            if self.job.options.strict:
                raise
            _logger.debug("%s is not planned anew", job.name, exc_info=True)
            warnings.warn(
                f"{job.name} starts with {format_size(purpose.entry.level)} allocated, which its plans were not made "
                f"for, and cannot be planned anew: {type(error).__name__}: {error}. The budget is not promised from "
                "here on. "
                "(Option 'strict': True raises the error instead.)",
                PlanWarning,
                stacklevel=2,
            )
            return None


@functools.cache
def _rounds() -> Rounds:
    """The rounds of this process, which all of its graphs share."""
    return Rounds(run.current())


def called(graph: StepGraph) -> Callable[..., Any]:
    """A graph as the function that Dynamo calls; it takes boxed arguments if the first compiled graph does."""

    @functools.wraps(graph.variants[0].call)
    def call(*args: Any) -> Any:
        return graph.launch(*args)

    marked: Any = call
    if getattr(graph.variants[0].call, "_boxed_call", False):
        marked._boxed_call = True
    return call
