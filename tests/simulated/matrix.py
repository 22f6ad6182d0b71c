"""The matrix of issue 13: kinds of training, each under several budgets, on the simulated device."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections import ChainMap
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from memgraph import BudgetError
from memgraph.backend import attempts
from memgraph.backend.training import TrainingJob
from memgraph.backend.unplanned import unplanned_timeline
from memgraph.planner.decisions import Timeline
from tests.simulated import launches
from tests.simulated.training import Trained, train

MIB = 1024**2
BOTH = (0.5, 0.3)
FEW = {"layers": 2, "words": 128}  # few words: the layers' values are what there is to save
SMALL = FEW | {"keys": 4, "masked": False}


@dataclasses.dataclass(frozen=True)
class Case:
    """One kind of training."""

    model: str
    """Of models.MODELS."""
    arguments: dict[str, Any] = dataclasses.field(default_factory=lambda: dict(SMALL))
    """Of the model and of `train`."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """memgraph's, beside the budget."""
    offload: tuple[str, ...] = ()
    """Tiers that values may go to."""
    shares: tuple[float, ...] = (0.5,)
    """Budgets as shares of what a plan can save."""
    way: str = ""
    """Of launches.WAYS, where a step has several graphs."""


CASES = {
    "plain": Case("llama", shares=BOTH),
    "dropout": Case("gpt2", FEW | {"dropout": 0.1}),
    "attention dropout": Case("llama", SMALL | {"dropout": 0.1}),
    "grouped": Case("llama", SMALL | {"keys": 2}, shares=BOTH),
    # So wide that Inductor computes a norm and the gradient of its weight in one kernel, with a workspace.
    "wide": Case("llama", FEW | {"heads": 32, "keys": 8, "masked": False, "batch": 1, "length": 8192}, shares=BOTH),
    "masked": Case("llama", FEW),  # flash attention, as the mask says no more than causal
    "padded": Case("padded", FEW),  # memory-efficient attention
    "autocast": Case("llama", SMALL | {"dtype": torch.float32}, shares=BOTH),
    "tiles": Case("llama", SMALL | {"words": 8192}, {"tile": True}, shares=BOTH),
    "mixture": Case("mixture", FEW),
    "host": Case("llama", options={"recompute": False}, offload=("host",)),
    "disk": Case("llama", options={"recompute": False}, offload=("nvme",)),
    "both": Case("llama", options={"recompute": False}, offload=("host", "nvme")),
    "outlined": Case("llama", SMALL | {"layers": 6}, {"outline": True}),
    "outlined to host": Case("llama", SMALL | {"layers": 6}, {"outline": True, "recompute": False}, offload=("host",)),
    # Products of one shape: each takes some twenty kernels to be chosen among.
    "max autotune": Case("perceptron", {}, {"mode": "max-autotune-no-cudagraphs"}),
    "lora": Case("lora"),  # the values of what is not trained are half of it: 0.5 is refused already
    "accumulation": Case("llama", SMALL | {"backwards": 2}, shares=BOTH),
    "regional": Case("llama", SMALL | {"layers": 4}, shares=BOTH, way="layer by layer"),
    # Each run of it is two processes that compile some graphs each: a share would bound each graph by itself.
    "distributed": Case("llama", SMALL, shares=(), way="distributed"),
    "flex": Case("flex", FEW, shares=BOTH),
}


SMOKE = ("plain",)
"""Where there is no time for all."""
ONLY_SIMULATED = ("distributed",)
"""What needs more cards than one."""
OLDER = ("plain", "dropout", "grouped", "masked", "padded", "tiles", "host", "disk", "accumulation")
"""With a torch that is not the newest known."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One training, or its refusal."""

    case: str
    asked: str
    """The budget, as it was asked for."""
    trained: Trained | launches.Launched | None
    minimum: int | None = None
    """The smallest budget that a refusal names, in bytes with the baseline."""


def rows(name: str) -> Iterator[Row]:
    """A case without a budget, under shares, and under bytes: the fewest that refusals name, else fewer than it takes.

    (Gradients that add up are no part of a share, and so of the fewest bytes that it names.)
    """
    found = []
    with _lowered_once():
        for share in (None, *CASES[name].shares):
            found.append(_row(name, str(share), share))
            yield found[-1]
    plain, least = found[0].trained, max((row.minimum or 0 for row in found), default=0)
    assert plain is not None
    budget = least or _between(plain)
    while (last := _row(name, f"{budget:,}", budget)).minimum is not None and last.minimum > budget:
        yield last
        budget = last.minimum
    yield last


@contextlib.contextmanager
def _lowered_once() -> Iterator[None]:
    """What plain Inductor takes for a graph, of which a budget may be a share, is read once for all shares.

    Users have it so by the plan store, which is off here, where nothing that another training left shall help.
    """
    known: dict[str, Timeline | None] = {}

    def timeline(job: TrainingJob) -> Timeline | None:
        key = str(job.gm.graph)
        if key not in known:
            known[key] = unplanned_timeline(job)
        return known[key]

    with mock.patch.object(attempts, "unplanned_timeline", timeline):
        yield


def _between(plain: Trained | launches.Launched) -> int:
    """A budget in bytes, below what a step takes without one: of one graph above what must be, of several below."""
    if isinstance(plain, launches.Launched):
        return plain.baseline + int(0.3 * (plain.highest.allocated - plain.baseline))
    return plain.report.baseline + int(0.6 * plain.predicted)


def _row(name: str, asked: str, budget: float | None) -> Row:
    case, options = CASES[name], {"budget": budget}
    with tempfile.TemporaryDirectory(prefix="memgraph-simulated-") as folder:
        tiers = {"host": {"host": "8MiB" if "nvme" in case.offload else "1GiB"}, "nvme": {"nvme": folder}}
        if case.offload:
            chosen = [tiers[tier] for tier in case.offload]
            options["offload"] = dict(ChainMap({"min_bytes": "256KiB"}, *chosen))
        work = launches.train_ranks if case.way == "distributed" else launches.train if case.way else train
        way = (case.way,) if case.way else ()
        try:
            return Row(name, asked, work(*way, case.model, options | case.options, **case.arguments))
        except BudgetError as problem:
            return Row(name, asked, None, problem.minimum)
