"""A forecast changes nothing, takes no notice of who asks, and says what it does not know."""

import copy
import gc
import random

import pytest
import torch
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_pre_hook

from memgraph.base import compat
from memgraph.machine.measure import allocated_bytes
from memgraph.step.forecast import Method, forecast, live_optimizers
from tests.step.optimizers import CPU, OPTIMIZERS, Lion, parameters

# Nothing changes


class Drawing(Lion):
    def step(self, closure=None):
        random.random()
        torch.rand(3)
        for p in self.param_groups[0]["params"]:
            p.data.add_(torch.randn_like(p))
        super().step()


def test_nothing_of_the_optimizer_or_the_process_changes():
    ran = []
    optimizer = Drawing(parameters([(50, 50)] * 3))
    optimizer.counts = {"steps": [0]}
    optimizer.register_step_pre_hook(lambda *_: ran.append("pre"))
    optimizer.register_step_post_hook(lambda *_: ran.append("post"))
    scheduler = optim.lr_scheduler.LambdaLR(optimizer, lambda _: ran.append("rate") or 1.0)
    ran.clear()
    attributes = copy.copy(vars(optimizer))
    values = [p.clone() for p in optimizer.param_groups[0]["params"]]
    seeds = random.getstate(), torch.get_rng_state()
    gc.collect()
    level = allocated_bytes("cpu")
    assert forecast(optimizer, CPU).state_to_come == 3 * 50 * 50 * 4
    assert allocated_bytes("cpu") == level and torch.is_grad_enabled()
    assert vars(optimizer) == attributes and not optimizer.state and not ran and scheduler.last_epoch == 0
    assert all(torch.equal(p, v) for p, v in zip(optimizer.param_groups[0]["params"], values, strict=True))
    assert random.getstate() == seeds[0] and torch.equal(torch.get_rng_state(), seeds[1])


def test_hooks_of_all_optimizers_do_not_run():
    ran = []
    adam, lion = optim.AdamW(parameters()), Lion(parameters())
    handle = register_optimizer_step_pre_hook(lambda *_: ran.append(1))
    try:
        assert forecast(adam, CPU).method is Method.FAKE_STEP
        told = forecast(lion, CPU)  # its step may call another's
    finally:
        handle.remove()
    assert not ran and told.method is Method.FORMULA and "hook" in told.note


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("name", ["adamw foreach", "lion"])
def test_modes_of_the_caller_do_not_matter(mode, name):
    optimizer = OPTIMIZERS[name](parameters())
    expected = forecast(optimizer, CPU)
    with mode(), torch._subclasses.FakeTensorMode(), torch.autocast("cpu", torch.bfloat16):
        assert forecast(optimizer, CPU) == expected


@pytest.mark.parametrize("name", ["adamw foreach", "lion", "nadam foreach"])
def test_within_a_backend(name):
    """Called by Dynamo, and by AOTAutograd where it splits the joint graph: `torch.compiler.is_compiling()` is True."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    layer = nn.Linear(40, 40)
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = OPTIMIZERS[name](layer.parameters())
    expected = forecast(optimizer, CPU)
    told = []

    def split(joint, inputs, **kwargs):
        told.append(forecast(optimizer, CPU))
        return compat.stock_partition(joint, inputs, **kwargs)

    def backend(gm, inputs):
        assert live_optimizers(layer.parameters()) == [optimizer]
        told.append(forecast(optimizer, CPU))
        return aot_autograd(fw_compiler=lambda gm, _: make_boxed_func(gm.forward), partition_fn=split)(gm, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=backend)
    compiled(torch.ones(2, 40)).sum().backward()
    assert told == [expected, expected] and not torch.compiler.is_compiling()
    optimizer.step()
    compiled(torch.ones(2, 40)).sum().backward()  # no guard has failed
    assert len(told) == 2


def test_a_compiled_helper_runs_as_it_is_written():
    def never(gm, inputs):
        raise AssertionError("compiled")

    class Compiled(Lion):
        helper = staticmethod(torch.compile(lambda x: x * 2, backend=never))

        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                self.state[p]["twice"] = self.helper(p.grad)

    told = forecast(Compiled(parameters([(10, 10)])), CPU)
    assert (told.method, told.state_bytes) == (Method.FAKE_STEP, 400)


# What cannot be rehearsed


class AdamW8bit(torch.optim.Optimizer):
    """As bitsandbytes': its kernel writes through addresses."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self):
        for p in self.param_groups[0]["params"]:
            p.data_ptr()


class Exotic(AdamW8bit):
    pass


def test_formulas_by_name():
    told = forecast(AdamW8bit(parameters([(100, 100), (10,)])), CPU)
    assert told.method is Method.FORMULA and "8 bits" in told.note and "Cannot access data pointer" in told.note
    assert told.state_to_come == told.state_bytes == 2 * (10000 + 4 * 40) + 2 * 4 * 10
    exotic = forecast(Exotic(parameters([(10,)])), CPU)
    assert (exotic.method, exotic.state_to_come, exotic.step_bytes) == (Method.UNKNOWN, 0, 0)
    assert "`reserve`" in exotic.note


def test_a_closure_is_not_made_up():
    told = forecast(optim.LBFGS(parameters()), CPU)
    assert told.method is Method.UNKNOWN and "closure" in told.note and "`reserve`" in told.note


def test_never_raises():
    sparse = nn.Parameter(torch.eye(3).to_sparse())
    assert forecast(optim.SGD([sparse], momentum=0.9), CPU).method is Method.UNKNOWN

    class Broken(Lion):
        @property
        def param_groups(self):
            raise OSError("no")

        @param_groups.setter
        def param_groups(self, value):
            pass

        def add_param_group(self, group):
            pass

    assert "OSError: no" in forecast(Broken(parameters()), CPU).note
    assert live_optimizers(parameters()) == []


def test_processes_are_not_spoken_to():
    class Reducing(Lion):
        def step(self, closure=None):
            torch.ops.c10d.barrier(torch.empty(1), None, [0])

    if hasattr(torch.ops, "c10d"):
        assert forecast(Reducing(parameters()), CPU).method is not Method.FAKE_STEP


# Which optimizers


def test_owners_of_parameters():
    first, second, other = parameters([(3,), (4,), (5,)])
    later, earlier, stranger = optim.SGD([second]), optim.AdamW([first]), optim.AdamW([other])
    assert live_optimizers([first, second]) == [earlier, later]
    assert live_optimizers([second.detach()]) == [later]  # the same memory
    assert live_optimizers([]) == [] and stranger.param_groups


def test_garbage_does_not_count():
    (parameter,) = parameters([(3,)])
    optim.lr_scheduler.StepLR(optim.AdamW([parameter]), 1)  # a circle
    newer = optim.AdamW([parameter])
    assert live_optimizers([parameter]) == [newer]


def test_wrappers_count_once():
    class Passing(optim.Optimizer):  # as accelerate's
        def __init__(self, optimizer):
            self.optimizer = optimizer

        param_groups = property(lambda self: self.optimizer.param_groups)
        state = property(lambda self: self.optimizer.state)

    class Lookahead(optim.Optimizer):  # a state of its own
        def __init__(self, optimizer):
            self.inner = optimizer
            super().__init__(optimizer.param_groups, {})

        def step(self, closure=None):
            self.inner.step()
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p].setdefault("slow", p.detach().clone())

    (parameter,) = parameters([(30, 30)])
    inner = optim.AdamW([parameter])
    passing = Passing(inner)
    assert live_optimizers([parameter]) == [inner]
    assert forecast(passing, CPU) == forecast(inner, CPU)
    del passing
    around = Lookahead(inner)
    assert live_optimizers([parameter]) == [around]
    assert forecast(around, CPU).state_to_come == 3 * 30 * 30 * 4 + 4


def test_accelerate():
    accelerate = pytest.importorskip("accelerate")
    (parameter,) = parameters([(3,)])
    inner = optim.AdamW([parameter])
    wrapper = accelerate.Accelerator(cpu=True).prepare(inner)
    assert wrapper is not inner and live_optimizers([parameter]) == [inner]
