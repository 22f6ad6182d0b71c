"""The room that tiers say they have: less what graphs of this process reserved, what others need, and other ranks'."""

from __future__ import annotations

import dataclasses
import gc
import json
import os

import pytest
import torch
from torch import nn

import memgraph
from memgraph import runtime
from memgraph.backend.budget import Bound
from memgraph.backend.destinations import for_launches, holding, ranks_here, reserve, settings, tier_bytes, tiers
from memgraph.backend.hook import Partitioner
from memgraph.backend.options import parse_options
from memgraph.backend.progress import Progress
from memgraph.machine import memory
from memgraph.machine.hardware import built_in
from memgraph.planner.leaving import Tiers
from memgraph.runtime.space import Calls, Space
from memgraph.step.graph import VARIANTS
from memgraph.step.variants import Envelope, Variant
from tests.step.toys import World
from tests.support.harness import Eager, assert_bitwise, gradients
from tests.support.offloading import options as told

KIB = 1 << 10
MIB = 1 << 20
CPU = built_in("cpu")


@pytest.fixture
def scratch(tmp_path):
    # What graphs of other tests in this process reserved goes with the graphs.
    torch._dynamo.reset()
    gc.collect()
    runtime.release()
    yield str(tmp_path)
    gc.collect()
    torch._dynamo.reset()
    runtime.release()
    statistics = runtime.statistics()
    assert (statistics.nvme_live, statistics.nvme_file, statistics.host_pool) == (0, 0, 0)


def parsed(**offload):
    return parse_options({"offload": {"min_bytes": 0, **offload}})


def found(**offload):
    return tiers(parsed(**offload), CPU).tiers[0]


class Layers(nn.Module):
    """Saves a value of 64 KiB for each layer."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


def planned(given, module, x, owner):
    """A step of `module` with as much as possible in the tiers of `given`: the plan, its tiers, its room, its bits."""
    here = tiers(given, CPU)
    backend = Eager(fraction=0.01, last=True, tiers=here, offload=given.offload.model_dump(), recompute=False)
    bits = gradients(module, backend, x)
    needed = tier_bytes([backend.planned[-1].plan], here)
    return backend.planned[-1], here, needed, reserve(needed, given, here, "cpu", owner), bits


@pytest.mark.slow
def test_two_graphs_under_one_limit(scratch):
    """The first takes what it needs, the second plans with the rest, the third is told by the plan who has it all."""
    torch.manual_seed(0)
    module, x = Layers(), torch.randn(256, 64)
    reference = gradients(module, Eager(), x)
    given = parsed(nvme={"path": scratch, "limit": 400 * KIB})

    first, here, needed, kept, bits = planned(given, module, x, "first [0]")
    assert_bitwise(bits, reference)
    assert here.tiers[0].capacity == 400 * KIB
    assert needed["nvme"] == sum(here.tiers[0].room(t.bytes) for t in first.plan.transfers) > 200 * KIB

    second, here, rest, more, bits = planned(given, module, x, "second [0]")
    assert_bitwise(bits, reference)
    assert here.tiers[0].capacity <= 400 * KIB - needed["nvme"]
    assert 0 < rest["nvme"] <= here.tiers[0].capacity and len(second.plan.transfers) < len(first.plan.transfers)
    assert runtime.statistics().nvme_file <= 400 * KIB

    third, here, none, _, bits = planned(given, module, x, "third [0]")
    assert_bitwise(bits, reference)
    assert not none and not third.plan.transfers
    reason = next(refusal.reason for refusal in third.refusals if refusal.what == "offload to nvme")
    assert "its limit is 400.0 KiB; reserved in this process" in reason
    assert "by first [0]" in reason and "by second [0]" in reason and "need" in reason

    for reservation in kept:
        reservation.close()
    assert tiers(given, CPU).tiers[0].capacity > 200 * KIB
    for reservation in more:
        reservation.close()


def test_the_host_tier_is_one_pool_for_all_graphs(scratch):
    assert found(host=MIB).capacity == MIB
    kept = reserve({"host": 300 * KIB}, parsed(host=MIB), tiers(parsed(host=MIB), CPU), "cpu", "f [0]")
    left = found(host=MIB)
    assert MIB - 300 * KIB - MIB // 64 < left.capacity <= MIB - 300 * KIB and left.limit == MIB
    assert "reserved in this process: 300.0 KiB by f [0]" in left.why
    assert found(host=256 * KIB).capacity == 0
    assert json.loads(settings(parsed(host=MIB), tiers(parsed(host=MIB), CPU))["host"])["cap"] == MIB
    more = reserve({"host": left.capacity}, parsed(host=MIB), tiers(parsed(host=MIB), CPU), "cpu", "g [0]")
    assert runtime.statistics().host_pool <= MIB
    for reservation in kept + more:
        reservation.close()


def test_all_free_memory_is_what_is_free_beside_what_is_reserved(scratch, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 80 * MIB)
    before = found(host=True)
    assert before.limit == before.capacity <= 72 * MIB
    room = runtime.prepare("cpu", told(), host_bytes=16 * MIB, owner="f [0]")
    after = found(host=True)
    assert after.capacity == before.capacity and after.limit == before.capacity + 16 * MIB
    more = reserve({"host": after.capacity}, parsed(host=True), tiers(parsed(host=True), CPU), "cpu", "g [0]")
    room.close()
    for reservation in more:
        reservation.close()


def test_other_graphs_that_differ_by_little_leave_the_same_room(scratch):
    """What a neighbour reserved is in no key to the byte: else a warm cache would be cold for it."""
    keys = set()
    for size in (300 * KIB, 301 * KIB):
        kept = runtime.prepare("cpu", told(scratch), nvme_bytes=size, owner=f"{size}")
        given = parsed(nvme={"path": scratch, "limit": MIB})
        here = tiers(given, CPU)
        keys.add(Partitioner(given, CPU, Bound(), Progress(False), "f", here).uuid())
        kept.close()
        assert str(size) in here.tiers[0].why
    assert len(keys) == 1
    here = tiers(given, CPU)
    assert Partitioner(given, CPU, Bound(), Progress(False), "f", here).uuid() not in keys


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, "3MiB"])
def test_a_tier_without_room_is_named_with_room_and_need(scratch, limit, monkeypatch):
    monkeypatch.setattr(Space, "of", classmethod(lambda cls, place: cls(4 * MIB, 4 * MIB if limit else 64 * KIB)))
    torch.manual_seed(0)
    module, x = Layers(8), torch.randn(4096, 64)  # values of 1 MiB
    given = parsed(nvme={"path": scratch, "limit": limit, "margin": 0})
    here = tiers(given, CPU)
    backend = Eager(fraction=0.3, tiers=here, offload=given.offload.model_dump(), recompute=False)
    gradients(module, backend, x)
    (refusal,) = [refusal for refusal in backend.planned[-1].refusals if refusal.what == "offload to nvme"]
    assert f"there is room for {here.tiers[0].capacity} bytes" in refusal.reason and "need 8.0 MiB" in refusal.reason
    said = "its limit is 3.0 MiB" if limit else "has 64.0 KiB free (65536 bytes), of which 0 B (0 bytes) stay free"
    assert said in refusal.reason
    fits = Eager(fraction=1.0, tiers=here, offload=given.offload.model_dump(), recompute=False)
    gradients(module, fits, x)
    assert not fits.planned[-1].refusals, "nothing had to leave, so nothing was refused"


def test_the_disk_bounds_a_larger_limit(scratch, monkeypatch):
    monkeypatch.setattr(Space, "of", classmethod(lambda cls, place: cls(100 * MIB, 69 * MIB)))
    assert found(nvme={"path": scratch, "limit": "1GiB"}).capacity == 64 * MIB  # 5 MiB are the margin
    assert found(nvme={"path": scratch, "limit": "32MiB"}).capacity == 32 * MIB
    assert found(nvme={"path": scratch, "margin": "37MiB"}).capacity == 32 * MIB
    assert found(nvme={"path": scratch, "margin": 0.9}).capacity == 0
    runtime_told = json.loads(
        settings(given := parsed(nvme={"path": scratch, "margin": 0.9}), tiers(given, CPU))["nvme"]
    )
    assert runtime_told["margin"] == 0.9


def test_ranks_of_one_machine_share_it(scratch, monkeypatch):
    monkeypatch.setattr(Space, "of", classmethod(lambda cls, place: cls(100 * MIB, 69 * MIB)))
    monkeypatch.setattr(memory, "free_memory", lambda: 80 * MIB)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert ranks_here() == 1 and found(host=True).capacity == 72 * MIB
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert ranks_here() == 4
    assert found(host=True).capacity == 18 * MIB and "shared by 4 processes" in found(host=True).why
    assert found(host="40MiB").capacity == 40 * MIB, "a limit is that of one process"
    assert found(nvme={"path": scratch}).capacity == 16 * MIB
    assert "shared by 4 processes" in found(nvme={"path": scratch}).why
    for odd in ("", "0", "many"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", odd)
        assert ranks_here() == 1


def test_ranks_without_a_launcher(scratch, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    distributed = torch.distributed
    if not distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        assert ranks_here() == 1
        monkeypatch.setattr(distributed, "get_world_size", lambda: 3)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        assert ranks_here() == 3
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert ranks_here() == 2
    finally:
        monkeypatch.undo()
        distributed.destroy_process_group()


def test_a_folder_that_is_none_is_refused_though_nothing_may_ever_go_there(tmp_path):
    (file := tmp_path / "file").write_text("")
    for folder, reason in ((file, "Not a directory"), (tmp_path / "gone", "No such file or directory")):
        with pytest.raises(memgraph.OffloadError, match=f"the scratch folder cannot be used: {reason}") as caught:
            found(nvme=str(folder))
        assert (caught.value.tier, caught.value.path) == ("nvme", str(folder))
    with pytest.raises(memgraph.OffloadError, match="Not a directory"):
        torch.compile(Layers(), backend="memgraph", options={"offload": {"nvme": str(file)}})(torch.randn(4, 64))
    torch._dynamo.reset()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(memgraph.OffloadError, match="no file can be written in it"):
        found(nvme=str(tmp_path))


def test_nothing_stays_reserved_where_one_tier_refuses(scratch):
    given = parsed(host=MIB, nvme=scratch)
    here = tiers(given, CPU)

    class Full(Calls):
        def space(self, file):
            return Space(MIB, 0)

    runtime.scratch_file(scratch, "cpu", Full())
    with pytest.raises(memgraph.OffloadError, match="cannot be reserved") as caught:
        reserve({"host": MIB, "nvme": MIB}, given, here, "cpu", "f")
    assert caught.value.tier == "nvme" and runtime.statistics().host_pool == 0, "though its traceback lives"


@pytest.fixture
def compiled_graph(scratch, monkeypatch, tmp_path):
    """A step through the whole backend, on a cache of this test's own: its loss, gradients and report."""
    monkeypatch.setenv("MEMGRAPH_CACHE", str(tmp_path.parent / f"{tmp_path.name}-cache"))
    torch.manual_seed(0)
    x = torch.randn(256, 64)

    def step(module, limit):
        given = {"nvme": {"path": scratch, "limit": limit}, "min_bytes": 0}
        call = torch.compile(
            module, backend="memgraph", options={"budget": None, "offload": given, "rules": {"*": "offload:nvme"}}
        )
        module.zero_grad(set_to_none=True)
        loss = call(x)
        loss.backward()
        return call, [loss.detach(), *(p.grad.clone() for p in module.parameters())], memgraph.report()

    yield step
    torch._dynamo.reset()


@pytest.mark.inductor
@pytest.mark.slow
def test_two_compiled_graphs_and_a_warm_cache_under_one_limit(scratch, compiled_graph):
    torch.manual_seed(0)
    one, two = Layers(), Layers(3)
    limit = 400 * KIB
    call, bits, report = compiled_graph(one, limit)
    held = runtime.taken("nvme", "cpu", scratch)
    assert held.reserved > 200 * KIB and "by " in str(held)
    other, other_bits, other_report = compiled_graph(two, limit)
    assert 0 < runtime.statistics().nvme_file <= limit
    assert 0 < other_report.bytes_on("nvme") <= limit - held.reserved
    assert_bitwise(compiled_graph(one, limit)[1], bits)

    # The same two again, from warm caches: the room is that of the plan in the store, not of its report.
    del call, other
    torch._dynamo.reset()
    assert runtime.taken("nvme", "cpu", scratch).reserved == 0
    call, again, warm = compiled_graph(one, limit)
    assert warm.cached and runtime.taken("nvme", "cpu", scratch).reserved == held.reserved
    assert_bitwise(again, bits)
    # The second graph now comes first: the plan kept for it was made for less room, and is not taken.
    del call
    torch._dynamo.reset()
    _, alone, first = compiled_graph(two, limit)
    assert not first.cached and first.bytes_on("nvme") > other_report.bytes_on("nvme")
    assert_bitwise(alone, other_bits)
    # And the first comes second: what was kept for it wants more than is left.
    _, again, second = compiled_graph(one, limit)
    assert not second.cached and second.bytes_on("nvme") < report.bytes_on("nvme")
    assert_bitwise(again, bits)
    assert runtime.statistics().nvme_file <= limit


@pytest.mark.inductor
@pytest.mark.slow
def test_room_that_others_took_while_a_graph_was_compiled(scratch, compiled_graph):
    """Between the count of the room and the reservation another graph takes nearly all: planned anew, not refused."""
    limit, rival = 400 * KIB, []

    class Rival(Calls):
        def open(self, path, flags, mode):
            if not rival:
                rival.append(file.reservations.add("a rival", 300 * KIB))  # the file's lock is held here
            return super().open(path, flags, mode)

    file = runtime.scratch_file(scratch, "cpu", Rival())
    torch.manual_seed(0)
    module = Layers()
    _, bits, report = compiled_graph(module, limit)
    assert report.bytes_on("nvme") <= 100 * KIB
    assert dict(runtime.taken("nvme", "cpu", scratch).holders)["a rival"] == 300 * KIB
    file.release(rival[0])


def test_launches_of_a_graph_share_the_room(scratch):
    """Eight layers of one graph hold the values of eight at once."""
    here = tiers(parsed(host=MIB, nvme={"path": scratch}), CPU)
    (host, nvme), alone = for_launches(here, 8).tiers, for_launches(here, 1)
    assert alone is here and host.capacity == MIB // 8 and nvme.capacity == here.tiers[1].capacity // 8
    assert host.limit == MIB and "8 launches share it" in host.why
    unbounded = Tiers((dataclasses.replace(here.tiers[0], capacity=None),))
    assert for_launches(unbounded, 8) == unbounded


@pytest.mark.slow
def test_variants_of_a_graph_share_a_limit_and_one_that_is_pushed_out_leaves_its_room(scratch):
    """Each reserves for itself, all under the limit of the process; a graph keeps few of them."""
    given = parsed(host=MIB)

    def variant(size):
        taken = reserve({"host": size}, given, tiers(given, CPU), "cpu", "f [0]")
        return Variant(holding(lambda x: (x,), taken), 1.0, {(): Envelope()})

    world = World(MIB)
    graph = world.graph([(Envelope(), 1.0)], ends=True)
    for number in range(VARIANTS):
        graph._keep(variant(200 * KIB))
        gc.collect()
        assert runtime.taken("host", "cpu").reserved == (number + 1) * 200 * KIB
    assert found(host=MIB).capacity <= MIB - VARIANTS * 200 * KIB
    with pytest.raises(memgraph.OffloadError, match="its cap is"):
        variant(300 * KIB)
    graph._keep(variant(100 * KIB))  # the oldest goes
    gc.collect()
    assert runtime.taken("host", "cpu").reserved == (VARIANTS - 1) * 200 * KIB + 100 * KIB
    del graph, world
    gc.collect()
    assert runtime.taken("host", "cpu").reserved == 0
