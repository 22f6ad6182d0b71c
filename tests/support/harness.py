"""memgraph without a compiler: planned joint graphs run by FX's own Python, so that tests need no C++."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from memgraph.backend.budget import Bound
from memgraph.backend.joint_graph import NO_TIERS, plan_partition
from memgraph.backend.options import parse_options
from memgraph.backend.planned import Planned
from memgraph.base import compat
from memgraph.machine.hardware import built_in
from memgraph.planner.leaving import Tiers
from tests.support.models import build


class Eager:
    """A Dynamo backend that plans like memgraph and runs both graphs as they are; `planned` has its plans, in order."""

    around: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    """Makes what each run of a graph is done in."""
    device = "cpu"

    def __init__(self, fraction: float | None = None, last: bool = False, tiers: Tiers = NO_TIERS, **options) -> None:
        self.tiers = tiers
        self.bound = Bound(fraction=fraction, last=last)
        self.options = parse_options(options)
        self.planned: list[Planned] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: list) -> Callable:
        def nop(gm: torch.fx.GraphModule, inputs: list) -> Callable:
            if self.options.retain_graph:
                compat.donate_nothing()
            return make_boxed_func(run_of(gm))

        def run_of(gm: torch.fx.GraphModule) -> Callable:
            def run(*args: object) -> object:
                with self.around():
                    return gm.forward(*args)

            return run

        compiler = aot_autograd(fw_compiler=nop, bw_compiler=nop, inference_compiler=nop, partition_fn=self.partition)
        donated = not self.options.retain_graph and torch._functorch.config.donated_buffer
        with torch._functorch.config.patch(donated_buffer=donated, force_non_lazy_backward_lowering=True):
            return compiler(gm, inputs)

    def partition(self, joint, joint_inputs, **arguments):
        forward, backward, planned = plan_partition(
            joint, joint_inputs, self.options, built_in(self.device), self.bound, self.tiers, **arguments
        )
        self.planned.append(planned)
        return forward, backward


def gradients(module: torch.nn.Module, backend, *args, seed: int = 1) -> list[torch.Tensor]:
    """The loss and all gradients of one step of `module(*args)`, which returns a scalar, on a fresh compile."""
    return step(module, backend, *args, seed=seed)()


def step(module: torch.nn.Module, backend, *args, seed: int = 1) -> Callable[[], list[torch.Tensor]]:
    """A function that takes the step of `gradients`: compiled at its first call, not again at the next."""
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=backend)

    def taken() -> list[torch.Tensor]:
        module.zero_grad(set_to_none=True)
        torch.manual_seed(seed)
        loss = compiled(*args)
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]

    return taken


def assert_bitwise(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert len(left) == len(right)
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        assert torch.equal(a, b), f"value {i} differs by {(a - b).abs().max()}"


def step_of(name: str, backend, **options) -> Callable[[], list[torch.Tensor]]:
    """As `step`, of a model by its name."""
    module, inputs = build(name, **options)

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self):
            return self.module(**inputs)

    return step(Step(), backend)
