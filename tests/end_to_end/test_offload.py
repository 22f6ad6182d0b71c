"""Values that leave the device and return: gradients are the same bits, whatever happens in between."""

from __future__ import annotations

import errno
import gc
import os
import threading

import pytest
import torch
from torch import nn

import memgraph
from memgraph import runtime
from memgraph.backend.destinations import tiers
from memgraph.backend.options import parse_options
from memgraph.machine.hardware import built_in
from memgraph.planner.leaving import Tiers
from memgraph.planner.queues import Tier
from memgraph.runtime import sanitized
from memgraph.runtime.space import Calls
from tests.support.harness import Eager, assert_bitwise, gradients, step_of
from tests.support.lanes import slow_but
from tests.support.models import MORE

HOST = Tiers((Tier("host", 1e10, 1e10),))
# All families of the zoo with all levers: test_zoo.py with MEMGRAPH_ZOO=all.
PLACES = [*((name, "nvme") for name in ("gpt2", "bert", "vit", "t5", *MORE)), ("llama", "host")]
NVME = Tiers((Tier("nvme", 1e9, 1e9),))


def moving(scratch, tier="nvme", **options) -> Eager:
    given = {"host": True} if tier == "host" else {"nvme": scratch}
    options.setdefault("rules", {"*": f"offload:{tier}"})
    return Eager(tiers=HOST if tier == "host" else NVME, offload={**given, "min_bytes": 0, "verify": True}, **options)


@pytest.mark.slow
@pytest.mark.parametrize("place", slow_but(PLACES, fast=[("llama", "host")]), ids="-".join)
def test_the_same_bits(place, scratch):
    name, tier = place
    backend = moving(scratch, tier)
    reference = step_of(name, Eager())()
    step = step_of(name, backend)
    assert_bitwise(step(), reference)
    assert len(backend.planned[-1].plan.transfers) > 5
    with sanitized(0):
        assert_bitwise(step(), reference)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["llama", "t5"], fast=["llama"]))
def test_beside_recompute(name, scratch):
    backend = Eager(fraction=0.5, tiers=NVME, offload={"nvme": scratch, "min_bytes": 0})
    assert_bitwise(step_of(name, backend)(), step_of(name, Eager())())
    plan = backend.planned[-1].plan
    assert plan.transfers and not plan.stock


def test_values_that_two_layers_share(scratch):
    """One value read in several regions of the backward, as the keys that Gemma4's layers share."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.key, self.layers = nn.Linear(16, 16), nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

        def forward(self, x):
            key = self.key(x).tanh()
            for layer in self.layers:
                x = nn.functional.dropout(layer(x).sigmoid() * key, 0.2, self.training)
            return x.square().mean()

    torch.manual_seed(0)
    module, x = Shared(), torch.randn(8, 16)
    backend = moving(scratch)
    assert_bitwise(gradients(module, backend, x), gradients(module, Eager(), x))
    transfers = {transfer.name for transfer in backend.planned[-1].plan.transfers}
    assert any(name.startswith("tanh") for name in transfers)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.dropout(layer(x.transpose(0, 1)).tanh(), 0.2, self.training).transpose(0, 1)
        return x.square().mean(), x


def small(scratch, **options):
    torch.manual_seed(0)
    module = Small()
    torch._dynamo.reset()
    backend = moving(scratch, **options)
    return module, torch.compile(module, backend=backend), backend


def test_a_value_that_is_returned_stays(scratch):
    module, compiled, backend = small(scratch)
    loss, x = compiled(torch.randn(16, 16))
    (loss + x.sum()).backward()
    plan, refusals = backend.planned[-1].plan, backend.planned[-1].refusals
    assert plan.transfers
    for refusal in refusals:
        assert "returns it" in refusal.reason or "input of the graph" in refusal.reason or "view" in refusal.reason


def test_twice_backward(scratch):
    module, compiled, _ = small(scratch, retain_graph=True)
    loss, _ = compiled(torch.randn(16, 16))
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in module.parameters()]
    assert runtime.statistics().nvme_live > 0, "the values have to stay for the second backward"
    loss.backward()
    for gradient, p in zip(first, module.parameters(), strict=True):
        assert torch.equal(2 * gradient, p.grad)


def test_two_forwards_then_their_backwards(scratch):
    module, compiled, _ = small(scratch)
    reference = Small()
    reference.load_state_dict(module.state_dict())
    batches = [torch.randn(16, 16) for _ in range(2)]
    torch.manual_seed(3)
    losses = [compiled(batch)[0] for batch in batches]
    sum(losses).backward()
    again = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    torch.manual_seed(3)
    for loss in [compiled(batch)[0] for batch in batches][::-1]:
        loss.backward()
    for one, other in zip(again, module.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad, rtol=1e-6, atol=1e-7)


def test_no_backward_and_an_exception_leave_nothing(scratch):
    module, compiled, _ = small(scratch)
    for _ in range(3):
        loss, _ = compiled(torch.randn(16, 16))
        del loss, _
        with pytest.raises(RuntimeError, match="between"):
            loss, _ = compiled(torch.randn(16, 16))
            assert runtime.statistics().nvme_live > 0
            raise RuntimeError("between forward and backward")
        del loss, _
        assert runtime.statistics().nvme_live == 0


def test_hooks_that_copy_what_is_saved_are_named(scratch):
    module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.GELU())
    torch._dynamo.reset()
    call = torch.compile(module, backend=moving(scratch))
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda packed: packed):
        y = call(torch.randn(16, 32))
    with pytest.raises(memgraph.OffloadError, match="saved_tensors_hooks around the call"):
        y.sum().backward()
    del y
    gc.collect()


def test_backward_on_another_thread(scratch):
    module, compiled, _ = small(scratch)
    loss, _ = compiled(torch.randn(16, 16))
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert all(p.grad is not None for p in module.parameters())


def test_sizes_that_change(scratch):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Sigmoid())
    torch._dynamo.reset()
    backend = moving(scratch)
    compiled = torch.compile(lambda x: module(x.flatten(0, 1)).square().mean(), backend=backend, dynamic=True)
    for length in (8, 24, 40):
        x = torch.randn(2, length, 16)
        module.zero_grad()
        compiled(x).backward()
        found = [p.grad.clone() for p in module.parameters()]
        module.zero_grad()
        module(x.flatten(0, 1)).square().mean().backward()
        assert_bitwise(found, [p.grad for p in module.parameters()])
    assert len(backend.planned) == 1 and backend.planned[0].plan.transfers


class Failing(Calls):
    """A disk on which every write, or every read, fails."""

    def __init__(self, call: str, error: int):
        self.call, self.error = call, error

    def _fail(self, call: str) -> None:
        if call == self.call:
            raise OSError(self.error, os.strerror(self.error))

    def pwrite(self, file: int, data: memoryview, offset: int) -> int:
        if offset or len(data) > 4096:  # not the first page, with which the file is tried out
            self._fail("pwrite")
        return super().pwrite(file, data, offset)

    def pread(self, file: int, data: memoryview, offset: int) -> int:
        self._fail("pread")
        return super().pread(file, data, offset)

    def fallocate(self, file: int, offset: int, size: int) -> None:
        self._fail("fallocate")
        super().fallocate(file, offset, size)


@pytest.mark.parametrize(
    ("call", "error"),
    [("pwrite", errno.EIO), ("pread", errno.EIO), ("pwrite", errno.ENOSPC), ("fallocate", errno.ENOSPC)],
)
def test_a_fault_is_named_in_its_step_and_the_next_step_goes_on(scratch, call, error):
    module, compiled, _ = small(scratch)
    x = torch.randn(16, 16)
    torch.manual_seed(3)
    compiled(x)[0].backward()
    wanted = [p.grad.clone() for p in module.parameters()]
    runtime.scratch_file(scratch, "cpu", calls=Failing(call, error))
    with pytest.raises(memgraph.OffloadError) as caught:
        compiled(x)[0].backward()
    assert caught.value.value and caught.value.tier == "nvme" and caught.value.path == scratch
    assert os.strerror(error) in str(caught.value)
    del caught
    runtime.scratch_file(scratch, "cpu", calls=Calls())
    module.zero_grad()
    torch.manual_seed(3)
    compiled(x)[0].backward()
    assert_bitwise([p.grad for p in module.parameters()], wanted)


def test_an_interrupt_in_the_forward(scratch):
    interrupts = [True]

    class Interrupted(Calls):
        def fallocate(self, file, offset, size):
            if interrupts:
                interrupts.pop()
                raise KeyboardInterrupt
            super().fallocate(file, offset, size)

    module, compiled, _ = small(scratch)
    runtime.scratch_file(scratch, "cpu", calls=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        compiled(torch.randn(16, 16))
    assert runtime.statistics().nvme_live == 0
    compiled(torch.randn(16, 16))[0].backward()
    assert all(p.grad is not None for p in module.parameters())


def test_many_steps_hold_nothing_more(scratch):
    module, compiled, _ = small(scratch)
    held = []
    for _ in range(50):
        module.zero_grad()
        compiled(torch.randn(16, 16))[0].backward()
        statistics = runtime.statistics()
        held.append((statistics.nvme_live, statistics.nvme_file, statistics.host_pool))
    assert len(set(held[1:])) == 1 and held[-1][0] == 0


def test_the_host_tier_of_a_cpu_is_for_rules_only(tmp_path):
    found = tiers(parse_options({"offload": {"host": "1GiB", "nvme": str(tmp_path)}}), built_in("cpu"))
    assert [(tier.name, tier.only_rules) for tier in found.tiers] == [("host", True), ("nvme", False)]
    with pytest.raises(memgraph.OffloadError, match="no-such"):
        tiers(parse_options({"offload": {"nvme": str(tmp_path / "no-such")}}), built_in("cpu"))


def bytes_on(plan, tier: str) -> int:
    return sum(transfer.bytes for transfer in plan.transfers if transfer.tier == tier)


def test_a_tier_without_room(scratch):
    """What does not fit goes to the next tier, else stays."""
    torch.manual_seed(0)
    module, x = Small(), torch.randn(16, 16)
    small_host = Tiers((Tier("host", 1e10, 1e10, capacity=8192, page=4096), Tier("nvme", 1e9, 1e9)))
    backend = Eager(last=True, tiers=small_host, offload={"host": 8192, "nvme": scratch, "min_bytes": 0})
    torch._dynamo.reset()
    torch.compile(module, backend=backend)(x)[0].backward()
    plan = backend.planned[-1].plan
    assert 0 < sum(transfer.tier == "host" for transfer in plan.transfers) <= 2
    assert bytes_on(plan, "nvme") > 0
    backend = moving(scratch)
    backend.tiers = Tiers((Tier("nvme", 1e9, 1e9, capacity=1024),))
    torch._dynamo.reset()
    torch.compile(module, backend=backend)(x)[0].backward()
    assert bytes_on(backend.planned[-1].plan, "nvme") <= 1024
    assert any("no room" in refusal.reason for refusal in backend.planned[-1].refusals)
