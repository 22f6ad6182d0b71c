"""Tiles through Inductor: compiled once, the peak known to the byte, gradients those of plain Inductor."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from torch import nn
from torch._functorch._aot_autograd import autograd_cache
from torch._inductor import codecache
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F

import memgraph
from memgraph.backend import memgraph as memgraph_backend
from memgraph.facts.actions import Tile
from memgraph.machine.measure import peak_above_start
from tests.support import models
from tests.support.processes import in_a_process

pytestmark = [pytest.mark.inductor, pytest.mark.slow]
WORDS = 1024


class Head(nn.Module):
    """An embedding, one gated MLP and a head; `shift` leaves the last token out of the loss."""

    def __init__(self, returns_logits: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, WORDS, bias=False)
        self.gate, self.up, self.down = nn.Linear(32, 128), nn.Linear(32, 128), nn.Linear(128, 32)
        self.returns_logits = returns_logits

    def forward(self, ids: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(ids)
        x = x + F.dropout(self.down(F.silu(self.gate(x)) * self.up(x)), 0.1, self.training)
        logits = self.head(x).float()
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, WORDS), ids[:, 1:].reshape(-1))
        return (loss, logits) if self.returns_logits else loss


class MeanSquare(nn.Module):
    """One part of a model, and a loss."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.part(x)).square().mean()


class Gated(nn.Module):
    """A gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(32, 128), nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def ids() -> torch.Tensor:
    return torch.randint(0, WORDS, (2, 200), generator=torch.Generator().manual_seed(3))


def step(call, module: nn.Module, *args, **kwargs) -> list[torch.Tensor]:
    module.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    returned = call(*args, **kwargs)
    loss = returned[0] if isinstance(returned, tuple) else returned
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def error(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(left, right, strict=True))


def compiled(module: nn.Module, **tile):
    torch._dynamo.reset()
    return torch.compile(module, backend="memgraph", options={"budget": None, "tile": tile, "cache": False})


def head(**options) -> Head:
    torch.manual_seed(0)
    return Head(**options)


@pytest.fixture
def model() -> Head:
    return head()


@functools.cache
def by_plain_inductor() -> list[torch.Tensor]:
    """A step of the model; returned logits change no bit of it."""
    torch._dynamo.reset()
    model = head()
    return step(torch.compile(model), model, ids())


def test_bodies_are_compiled_once_and_the_peak_is_known(model):
    call = compiled(model, mlp=3, loss=4)
    got, codes = run_and_get_code(step, call, model, ids())
    report = memgraph.report()
    assert {(d.module, d.action.shards) for d in report.decisions if isinstance(d.action, Tile)} == {
        ("", 3),
        ("head", 4),
    }
    source = "\n".join(codes)
    # One definition of each tile and of each of its two bodies, whatever the number of calls.
    for body in set(re.findall(r"def (tile_\w+)\(args\)", source)):
        assert len(re.findall(rf"def {body}\(args\)", source)) == 1
    assert len(re.findall(r"= tile_0_body_0\(", source)) in (2, 3)
    # Shards are put into place and added up where they are.
    assert "shard_put_.default" in source and "shard_add_.default" in source
    assert not re.search(r"shard_(put|add)\.default", source)
    model.zero_grad()  # a profiler does not know every block that was there before: what its release takes off differs
    peak = peak_above_start(lambda: step(call, model, ids()) and None, torch.device("cpu"))
    own = sum(p.nbytes for p in model.parameters())  # the copies of the gradients that `step` returns
    assert report.predicted_peak - report.baseline <= peak <= report.predicted_peak - report.baseline + own
    assert report.predicted_peak < report.unplanned_peak
    assert error(got, by_plain_inductor()) < 1e-6


def test_dropped_logits_are_poison():
    model = head(returns_logits=True)
    call = compiled(model, mlp=False, loss=4, logits="drop")
    got = step(call, model, ids())
    loss, logits = call(ids())
    assert logits.shape == (2, 200, WORDS) and logits.isnan().all() and not logits.requires_grad
    assert logits.untyped_storage().nbytes() == logits.element_size()
    assert any("was dropped" in note for note in memgraph.report().notes)
    with torch.no_grad():
        assert call(ids())[1].isfinite().all()  # an evaluation gets them
    assert error(got, by_plain_inductor()) < 1e-6
    # Returned whole, they cannot be cut before the head, and the loss reads all rows but the last.
    kept = memgraph.plan(model, ids(), options={"budget": None, "tile": {"mlp": False, "loss": 4}, "cache": False})
    assert any("slice" in refusal.reason for refusal in kept.refusals)


def test_experts():
    model, _ = models.build("qwen3_moe", layers=1)
    model = MeanSquare(model.model.model.layers[0].mlp)
    x = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(3))
    got = step(compiled(model, mlp=3, loss=False), model, x)
    assert {d.action.shards for d in memgraph.report().decisions if isinstance(d.action, Tile)} == {3}
    assert error(got, step(model, model, x)) < 1e-6


def test_bfloat16():
    """The graph's order puts a reader of single logits behind what overwrites them; that one does not wait for it."""
    model, inputs = models.build("gpt2", dropout=0.0, layers=1)
    model = model.bfloat16()
    got = step(compiled(model, mlp=False, loss=8), model, **inputs)
    assert error(got, step(model, model, **inputs)) < 3e-2


def test_a_budget_that_only_tiles_can_keep(model):
    torch._dynamo.reset()
    options = {"budget": 0.5, "tile": True, "cache": False}
    call = torch.compile(model, backend="memgraph", options=options)
    step(call, model, ids())
    report = memgraph.report()
    assert report.predicted_peak <= report.budget and any(isinstance(d.action, Tile) for d in report.decisions)
    torch._dynamo.reset()
    with pytest.raises(memgraph.BudgetError):
        step(torch.compile(model, backend="memgraph", options=options | {"tile": False}), model, ids())


def of_a_process() -> tuple[bool, list[str], list[list[float]]]:
    """Whether a process finds its plan, what torch's caches say, and a step."""
    said = []
    for module in (codecache, autograd_cache):
        module.log.addFilter(lambda record: said.append(record.getMessage()))
    torch.manual_seed(0)
    model, x = MeanSquare(Gated()), torch.randn(2, 200, 32)
    call = torch.compile(model, backend="memgraph", options={"budget": None, "tile": {"mlp": 3, "loss": False}})
    found = step(call, model, x)
    return memgraph.report().cached, said, [value.tolist() for value in found]


def test_a_warm_cache_gives_tiles_back(tmp_path):
    """A body within a body can be stored by torch, but not loaded: memgraph/passes/tiles/stored.py."""
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "MEMGRAPH_CACHE": str(tmp_path / "memgraph")}
    (cold, _, first), (warm, said, again) = (in_a_process(of_a_process, environment=folders) for _ in range(2))
    assert not cold and warm and first == again
    assert not [text for text in said if "unable to load" in text]


def test_symbolic_lengths(model):
    """One graph for all lengths; its code is right for those as well for which torch's guards have it made anew."""
    reference, kept = Head(), []
    reference.load_state_dict(model.state_dict())
    reference.eval()
    model.eval()  # nothing is drawn
    options = {"budget": None, "tile": {"mlp": 8, "loss": 7}, "cache": False, "strict": True}

    def backend(gm, inputs):
        kept.append((memgraph_backend(gm, inputs, options=options), list(inputs)))
        return kept[-1][0]

    torch._dynamo.reset()
    call = torch.compile(model, backend=backend, dynamic=True)
    call(ids()).backward()
    shards = {(d.module, d.action.shards) for d in memgraph.report().decisions if isinstance(d.action, Tile)}
    assert shards == {("", 8), ("head", 7)}
    for length in (150, 73, 39):
        batch = ids()[:, :length].contiguous()
        assert error(step(call, model, batch), step(reference, reference, batch)) < 1e-6, length
    ((compiled_graph, given),) = kept  # Dynamo did not ask again
    for few in (ids()[:1, :2], ids()[:1, :5], ids()[:, :3], ids()[:, :4]):  # from 2 to 8 tokens
        batch = few.contiguous()
        sizes = iter(batch.shape)
        args = [
            next(sizes) if not isinstance(item, torch.Tensor) else batch if item.dtype == torch.int64 else item
            for item in given
        ]
        got = step(lambda *args: compiled_graph(*args)[0], model, *args)
        assert error(got, step(reference, reference, batch)) < 1e-6, batch.shape
