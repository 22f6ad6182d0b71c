"""Save and recompute change no bit: planned graphs run as they are, against Inductor's own split run as it is."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from memgraph.facts import kernel_scratch
from memgraph.facts.actions import Recompute, Save
from tests.support.harness import Eager, assert_bitwise, gradients
from tests.support.lanes import slow_but
from tests.support.models import build


def step(module, inputs, backend, seed=1):
    torch._dynamo.reset()
    module.zero_grad(set_to_none=True)
    compiled = torch.compile(module, backend=backend)
    torch.manual_seed(seed)
    loss = compiled(**inputs)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


@pytest.mark.parametrize("name", slow_but(["llama", "gemma3", "gpt2", "bert", "vit", "t5"], fast=["gpt2"]))
def test_hugging_face_models_are_exact_under_a_budget(name):
    # Of two images, the gradients at the end of the backward are the peak, whatever is saved.
    module, inputs = build(name, batch=8) if name == "vit" else build(name)
    # Kernels are tried, as in the backend: the bound of a convolution's scratch alone would be the peak of a small ViT.
    with kernel_scratch.looking_up(kernel_scratch.for_compilation(None, 0, cache=False)):
        plain = Eager()
        reference = step(module, inputs, plain)
        assert plain.planned[-1].plan.stock
        kinds = {plain.planned[-1].plan.saved}
        for fraction in (0.6, 0.05) if name == "gpt2" else (0.3,):
            backend = Eager(fraction=fraction)
            assert_bitwise(step(module, inputs, backend), reference)
            kinds.add(backend.planned[-1].plan.saved)
    assert len(kinds) > 1, "no budget changed anything: nothing was tested"


class Block(nn.Module):
    """Dropout, a buffer that the forward overwrites, tied weights, views and an in-place operator."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.norm = nn.BatchNorm1d(32)
        self.register_buffer("steps", torch.ones(32))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            h = layer(x * (self.steps * 2))
            h = (h * 0.5).add_(x).relu_()
            x = nn.functional.dropout(h.transpose(1, 2).contiguous().transpose(1, 2), 0.3, self.training)
            self.steps.add_(0.125)
        x = self.norm(x.flatten(0, 1)).tanh()
        return (x @ self.embed.weight.t()).logsumexp(-1).mean()


IDS = torch.arange(24).reshape(4, 6)


@pytest.mark.parametrize("fraction", [1.0, 0.7, 0.5, 0.1])
def test_mutation_ties_views_and_dropout(fraction):
    def run(backend):
        torch.manual_seed(0)
        module = Block()
        found = gradients(module, backend, IDS)
        return [*found, module.steps, module.norm.running_mean, module.norm.running_var]

    assert_bitwise(run(Eager(fraction=fraction)), run("eager"))


@pytest.mark.parametrize("parts", [1, 2])
def test_a_value_made_from_an_overwritten_buffer_is_saved(parts):
    class Overwrites(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)
            self.register_buffer("scale", torch.linspace(0, 1, 16))

        def forward(self, x):
            scale = self.scale if parts == 1 else torch.cat([part * 3 for part in self.scale.chunk(parts)][::-1])
            y = torch.sin(self.linear(x) * (scale * 2))
            self.scale.add_(1)
            return y.sum()

    def run(backend):
        torch.manual_seed(0)
        return gradients(Overwrites(), backend, torch.randn(4, 16))

    assert_bitwise(run(Eager()), run("eager"))
    assert_bitwise(run(Eager(fraction=0.1)), run("eager"))


def test_dropout_masks_of_forward_and_backward_agree():
    class Mask(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(64, 64))

        def forward(self, x):
            for _ in range(3):
                x = nn.functional.dropout(torch.tanh(x * self.scale), 0.5, True)
            return x.sum()

    for fraction in (1.0, 0.5, 0.05):
        module, x = Mask(), torch.randn(64, 64)
        found = gradients(module, Eager(fraction=fraction), x)
        assert_bitwise(found, gradients(module, Eager(), x))


@pytest.mark.slow
def test_gradient_accumulation_and_retain_graph():
    module, inputs = build("gpt2")
    reference, planned = [], []
    backends = (Eager(retain_graph=True), Eager(fraction=0.5, retain_graph=True))
    for backend, out in zip(backends, (reference, planned), strict=True):
        torch._dynamo.reset()
        module.zero_grad(set_to_none=True)
        compiled = torch.compile(module, backend=backend)
        for seed in range(3):
            torch.manual_seed(seed)
            loss = compiled(**inputs)
            loss.backward(retain_graph=seed == 1)
            if seed == 1:
                loss.backward()
        out += [p.grad.clone() for p in module.parameters()]
    assert_bitwise(planned, reference)


@pytest.mark.slow
def test_two_forwards_before_the_backwards_and_a_backward_on_another_thread():
    module, inputs = build("llama")

    def run(backend, threaded):
        torch._dynamo.reset()
        module.zero_grad(set_to_none=True)
        compiled = torch.compile(module, backend=backend)
        first, second = compiled(**inputs), compiled(**inputs)
        work = [second.backward, first.backward]
        for call in work:
            if threaded:
                thread = threading.Thread(target=call)
                thread.start()
                thread.join()
            else:
                call()
        return [p.grad.clone() for p in module.parameters()]

    assert_bitwise(run(Eager(fraction=0.5), True), run(Eager(), False))


def test_evaluation_and_no_grad_are_not_planned():
    module, inputs = build("llama")
    backend = Eager(fraction=0.5)
    torch._dynamo.reset()
    compiled = torch.compile(module.eval(), backend=backend)
    with torch.no_grad():
        assert torch.equal(compiled(**inputs), module(**inputs))
    assert backend.planned == []


@pytest.mark.slow
def test_autocast():
    module, inputs = build("llama")

    def run(backend):
        with torch.autocast("cpu", torch.bfloat16):
            return step(module, inputs, backend)

    assert_bitwise(run(Eager(fraction=0.5)), run(Eager()))


@pytest.mark.slow
def test_several_models_in_one_process():
    models = [build(name) for name in ("llama", "bert")]
    references = [step(module, inputs, Eager()) for module, inputs in models]
    torch._dynamo.reset()
    backends = [Eager(fraction=0.6), Eager(fraction=0.3)]
    compiled = [torch.compile(m, backend=b) for (m, _), b in zip(models, backends, strict=True)]
    for module, _ in models:
        module.zero_grad(set_to_none=True)
    losses = []
    for call, (_, inputs) in zip(compiled, models, strict=True):
        torch.manual_seed(1)
        losses.append(call(**inputs))
    for loss in losses:
        loss.backward()
    for loss, (module, _), reference in zip(losses, models, references, strict=True):
        assert_bitwise([loss.detach(), *(p.grad for p in module.parameters() if p.grad is not None)], reference)


@pytest.mark.slow
def test_an_exception_between_forward_and_backward_leaves_nothing_held():
    import gc

    from memgraph.machine.measure import allocated_bytes, peak_above_start

    module, inputs = build("llama")
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=Eager(fraction=0.5))
    compiled(**inputs).backward()
    module.zero_grad(set_to_none=True)

    def fails():
        loss = compiled(**inputs)
        assert loss.requires_grad
        raise KeyboardInterrupt

    gc.collect()
    before = allocated_bytes("cpu")
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            peak_above_start(fails, "cpu")
    gc.collect()
    assert allocated_bytes("cpu") == before


def test_checkpoint_tags_of_the_user_are_pins():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3)
            )

        def forward(self, x):
            for block in self.blocks:
                x = x + checkpoint(block, x, use_reentrant=False)
            return x.square().mean()

    torch.manual_seed(0)
    module, x = Checkpointed(), torch.randn(8, 32)
    backend = Eager()
    found = gradients(module, backend, x)
    assert_bitwise(found, gradients(module, "eager", x))
    again = {d.name for d in backend.planned[-1].plan.decisions if isinstance(d.action, Recompute)}
    assert any("addmm" in name or "gelu" in name or "erf" in name for name in again), again


@pytest.mark.slow
def test_rules_pin_what_they_name():
    module, inputs = build("llama")
    backend = Eager(rules={"model.model.layers.*.mlp": "recompute"})
    found = step(module, inputs, backend)
    assert_bitwise(found, step(module, inputs, Eager()))
    plan = backend.planned[-1].plan
    inside = [d for d in plan.decisions if ".mlp." in f"{d.module}." and isinstance(d.action, Save)]
    assert all("rule" in d.why or "enters" in d.why for d in inside), inside
    assert any(".mlp" in d.module and isinstance(d.action, Recompute) and "rule" in d.why for d in plan.decisions)
    unmatched = Eager(rules={"no.such.module": "save"})
    step(module, inputs, unmatched)
    assert "no module path" in unmatched.planned[-1].refusals[0].reason
