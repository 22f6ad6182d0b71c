"""Training whose step has several graphs, launch by launch: each against the plan that it ran.

forward of a graph ── requested above its entry ──> the forward's peak of its plan
its backward ── requested above where it begins, what it is given and what its forward holds ──> the backward's

A plan takes every output for held by its caller until the backward ends. Where another graph was the caller, it has let
go of its arguments by then; such an output goes within the backward if that alone holds it, so less is requested.
"""

from __future__ import annotations

import dataclasses
import gc
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import memgraph
from memgraph import BudgetError
from memgraph.backend import memgraph as memgraph_backend
from memgraph.base import compat
from memgraph.reporting.report import Report
from memgraph.step.run import current
from memgraph.step.variants import Envelope
from tests.simulated.forked import on_the_device
from tests.simulated.models import made
from tests.simulated.training import EXACT, bytes_of

Peak = tuple[int, int]
"""Bytes that are requested, and allocated."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """A forward or a backward of one graph. Bytes."""

    step: int
    graph: str
    phase: str
    predicted: int
    """Requested above the level of the forward's entry."""
    requested: int
    """The same, as it was."""
    level: int
    """Allocated when it began."""
    reached: int
    """The most that was requested, all included."""
    allocated: int
    """The most that was allocated, all included."""
    let_go: int = 0
    """Outputs that the backward alone held when it began."""

    @property
    def off(self) -> int:
        return self.requested - self.predicted


@dataclasses.dataclass(frozen=True)
class Launched:
    """Some steps of such a training."""

    report: Report
    """Of the newest plan."""
    budget: float | None
    """As it was asked for."""
    launches: tuple[Launch, ...]
    reserved: int
    """At the end."""

    @property
    def baseline(self) -> int:
        """Allocated when the first launch began."""
        return self.launches[0].level

    @property
    def highest(self) -> Launch:
        """The launch that reached most."""
        return max(self.launches, key=lambda launch: launch.allocated)

    def __str__(self) -> str:
        rows = "\n".join(map(str, self.launches))
        return f"budget {self.budget} reserved {self.reserved:,} notes {self.report.notes}\n{rows}"

    def check(self, *, exact: bool = True) -> None:
        """Assert that each launch requested what its plan says, from the first on, and that a budget was kept.

        exact: else a backward may request up to a tenth less where its caller has let outputs go.
        """
        assert {launch.phase for launch in self.launches} == {"forward", "backward"}
        for launch in self.launches:
            least = -EXACT - launch.let_go if exact or not launch.let_go else -launch.predicted // 10
            assert least <= launch.off <= EXACT, f"{launch}\n{self}"
        if isinstance(self.budget, int):
            assert self.highest.allocated <= self.budget, str(self)


class Watch:
    """A backend that is memgraph's, and notes what each launch of its graphs takes."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.step = 1
        self.found: list[Launch] = []
        self._running: Callable[[], None] | None = None
        """What notes the end of the backward that runs."""

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        made = memgraph_backend(graph, inputs, options={"cache": False, **self.options})
        report = memgraph.report()

        def call(*args: Any) -> Any:
            if compat.fake_mode_of(()) is not None:  # DDP asks what comes out
                return made(*args)
            return self._forward(made, report, args)

        return call

    def _forward(self, made: Callable[..., Any], compiled: Report, args: Any) -> Any:
        known, level = len(memgraph.reports()), bytes_of("current")
        torch.cuda.reset_peak_memory_stats()
        outputs = made(*args)
        held = [_Held.of(output, outputs) for output in outputs if isinstance(output, Tensor)]
        peak = bytes_of("peak")
        report = self._report(compiled)
        envelope = Envelope.of(report.timeline)
        if len(memgraph.reports()) == known:  # else it compiled another plan first
            self._note(report, "forward", envelope.forward, peak[0] - level[0], level[1], peak)
        node = compat.compiled_node(outputs)
        if node is not None:
            self._watch_backward(node, report, envelope, held)
        return outputs

    def _watch_backward(self, node: Any, report: Report, envelope: Envelope, held: list[_Held]) -> None:
        begun: list[Peak] = []
        let_go: list[int] = []
        given: list[int] = []

        def begins(gradients: Sequence[Tensor | None]) -> None:
            if self._running is not None:
                self._over(self._running)
            self._running = ends
            let_go.append(sum({each.storage: each.bytes for each in held if each.let_go}.values()))
            come = {compat.storage_id(each): each.untyped_storage().nbytes() for each in gradients if each is not None}
            given.append(sum(come.values()))
            begun.append(bytes_of("current"))
            torch.cuda.reset_peak_memory_stats()

        def ends() -> None:
            level, peak = begun[-1], bytes_of("peak")
            taken = envelope.held + given[-1] + peak[0] - level[0]
            self._note(report, "backward", envelope.backward, taken, level[1], peak, let_go[-1])

        node.register_prehook(begins)
        # A hook behind the node would have autograd hold the tangents.
        compat.on_next(node, lambda: self._over(ends))

    def _over(self, ends: Callable[[], None]) -> None:
        """A backward is over, if it is the one that runs."""
        if self._running is ends:
            self._running = None
            ends()

    def _report(self, compiled: Report) -> Report:
        """Of the plan that the newest launch runs: a graph under a budget in bytes may have several."""
        run = current()
        variant = run.round[-1].variant if run.round else None
        found = None if variant is None else variant()
        return compiled if found is None or found.report is None else found.report

    def _note(
        self, report: Report, phase: str, predicted: int, requested: int, level: int, peak: Peak, let_go: int = 0
    ) -> None:
        self.found.append(Launch(self.step, report.graph, phase, predicted, requested, level, *peak, let_go))


@dataclasses.dataclass(frozen=True)
class _Held:
    """An output of a graph, which this does not keep alive."""

    storage: int
    bytes: int
    holders: int
    """How many held it when the forward returned, beside the outputs themselves."""
    reference: compat.StorageReference

    @classmethod
    def of(cls, output: Tensor, outputs: Sequence[Any]) -> _Held:
        storage, reference = compat.storage_id(output), compat.StorageReference(output)
        alike = sum(isinstance(other, Tensor) and compat.storage_id(other) == storage for other in outputs)
        return cls(storage, output.untyped_storage().nbytes(), reference.holders() - alike, reference)

    @property
    def let_go(self) -> bool:
        """Whether its caller does not hold it any more, and the backward does."""
        return 0 < self.reference.holders() <= self.holders


def layer_by_layer(name: str, watch: Watch, **arguments: Any) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A model whose layers are compiled one by one, and its loss; all of them share a graph."""
    model, loss, batch = made(name, **arguments)
    for layer in model.model.layers:
        layer.compile(backend=watch)
    return model, lambda: loss(*batch)


def distributed(name: str, watch: Watch, **arguments: Any) -> tuple[nn.Module, Callable[[], Tensor]]:
    """One of several equal models whose gradients are added up: DDP makes a graph of each bucket."""
    model, _, batch = made(name, **arguments)
    model.compile(backend=watch)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1)
    return wrapped, lambda: wrapped(input_ids=batch[0], labels=batch[0]).loss


WAYS = {"layer by layer": layer_by_layer, "distributed": distributed}


def train(way: str, name: str, options: dict[str, Any], *, steps: int = 3, **arguments: Any) -> Launched:
    """Train a model of `models.MODELS` in one of `WAYS`."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    watch = Watch(options)
    model, loss = WAYS[way](name, watch, **arguments)
    for number in range(1, steps + 1):
        watch.step = number
        loss().backward()
        torch.cuda.synchronize()
        model.zero_grad(set_to_none=True)
    return Launched(memgraph.report(), options["budget"], tuple(watch.found), torch.cuda.memory_reserved())


# Two ranks, each in a process of its own, on a card of its own.
RANKS = 2


def train_ranks(way: str, name: str, options: dict[str, Any], **arguments: Any) -> Launched:
    """The same by two ranks: what the first one found, once both have ended.

    Raises BudgetError as the first rank did.
    """
    with tempfile.TemporaryDirectory(prefix="memgraph-ranks-") as folder, ThreadPoolExecutor(RANKS) as pool:
        told = (str(Path(folder) / "store"), way, name, options, arguments)
        calls = [pool.submit(on_the_device, one_rank, rank, *told, devices=RANKS) for rank in range(RANKS)]
        first, *others = (call.result() for call in calls)
    assert all(other.keys() == first.keys() for other in others), (first, others)
    if "minimum" in first:
        raise BudgetError(minimum=max(found["minimum"] for found in (first, *others)))
    first["report"] = Report.from_json(first["report"])
    return Launched(**first | {"launches": tuple(Launch(**launch) for launch in first["launches"])})


def one_rank(rank: int, store: str, way: str, name: str, options: dict[str, Any], arguments: Any) -> dict[str, Any]:
    """What `train` finds in this process, as JSON; or the smallest budget of a refusal."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    try:
        found = train(way, name, options, **arguments)
    except BudgetError as problem:
        return {"minimum": problem.minimum}
    finally:
        dist.destroy_process_group()
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    launches = [dataclasses.asdict(launch) for launch in found.launches]
    return fields | {"report": found.report.to_json(), "launches": launches}
