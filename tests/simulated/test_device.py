"""The simulated device itself: what torch sees of it, its memory, and what it costs."""

import ctypes
import resource
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from memgraph import simulator
from memgraph.base import compat
from tests.simulated.forked import on_the_device

GIB = 1024**3


def stats(name: str) -> int:
    return torch.cuda.memory_stats()[name]


def test_torch_sees_the_card():
    found = torch.cuda.get_device_properties(0)
    card = simulator.card("H100")
    assert (found.major, found.minor) == card.capability
    assert (found.multi_processor_count, found.L2_cache_size) == (card.multiprocessors, card.l2_cache)
    assert found.total_memory == card.memory == torch.cuda.mem_get_info()[1]
    assert "simulated" in found.name


def test_what_is_allocated_is_counted_and_costs_no_memory_of_the_host():
    before, allocated = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, torch.cuda.memory_allocated()
    tensor = torch.zeros(40 * GIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - allocated == 40 * GIB
    tensor.add_(1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


def test_beyond_the_card_there_is_no_memory():
    kept = torch.empty(60 * GIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 30.00 GiB"):
        torch.empty(30 * GIB, dtype=torch.uint8, device="cuda")
    del kept
    torch.empty(70 * GIB, dtype=torch.uint8, device="cuda")


def test_small_copies_bring_their_values():
    there = torch.tensor([3.0, 5.0]).cuda()
    assert there.cpu().tolist() == [3.0, 5.0]


def test_products_take_the_workspace_of_the_library_from_the_allocator():
    left = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _ = left @ left
    at_most, then = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
    assert at_most >= 32 * 1024**2  # of Hopper
    assert then == (at_most if compat.workspaces_are_kept() else left.nbytes)


def segments() -> list[int]:
    """In a process of its own: reserved bytes with blocks that come and go, and where the other devices stand."""
    import torch

    blocks = [torch.empty((5 << 20) + 512 * n, dtype=torch.uint8, device="cuda") for n in range(40)]
    del blocks[::2]
    torch.cuda.empty_cache()
    last = torch.empty(1 << 20, dtype=torch.uint8, device="cuda:1")
    reserved = torch.cuda.memory_stats()["reserved_bytes.all.current"]
    return [reserved, torch.cuda.device_count(), last.device.index, torch.cuda.memory_allocated(1)]


def test_segments_that_expand(monkeypatch):
    place = f"{__name__}:segments"
    plain = simulator.call(place, devices=2)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    expandable = simulator.call(place, devices=2)
    assert plain[1:] == expandable[1:] == [2, 1, 1 << 20]
    assert expandable[0] < plain[0]


def name_and_room() -> list:
    import torch

    found = torch.cuda.get_device_properties(0)
    return [found.name, found.major, found.minor, found.multi_processor_count, found.total_memory]


@pytest.mark.parametrize("name", ["H200", "A100 40GB", "RTX 4090"])
def test_other_cards(name):
    card = simulator.card(name, memory="10GiB")
    told = simulator.call(f"{__name__}:name_and_room", simulated=card)
    assert told == [f"{card.name} (simulated)", *card.capability, card.multiprocessors, 10 * GIB]


def fails() -> None:
    raise ValueError("as it should")


def test_what_fails_there_is_told_here():
    with pytest.raises(simulator.SimulatorError, match="as it should"):
        simulator.call(f"{__name__}:fails")


def two_streams() -> None:
    import torch

    side, work = torch.cuda.Stream(), torch.empty(1 << 20, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work.add_(1)
    torch.cuda.current_stream().wait_stream(side)


def test_the_log_has_the_order_of_work(tmp_path):
    on_the_device(two_streams, log=tmp_path / "log")
    words = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    order = [word[0] for word in words]
    launch = order.index("launch")
    side = words[launch][1]
    assert ["wait", side] == words[launch - 1][:2]  # the side stream waits for the event behind the allocation
    assert words[launch + 1][:2] == ["record", side]
    assert words[launch + 2][0] == "wait" and words[launch + 2][1] != side
    assert order.index("malloc") < launch


def copies_beside_allocations() -> int:
    """How many of two threads come to their end: one copies, one allocates and frees; both want memory and log."""
    device = ctypes.CDLL(None)
    device.cudaMemcpyAsync.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    host, ended = ctypes.create_string_buffer(8), []

    def copy() -> None:
        for _ in range(20_000):
            device.cudaMemcpyAsync(host, host, 8, 4, None)
        ended.append(copy)

    def allocate() -> None:
        place = ctypes.c_void_p()
        for _ in range(20_000):
            device.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(512))
            device.cudaFree(place)
        ended.append(allocate)

    threads = [threading.Thread(target=work, daemon=True) for work in (copy, allocate)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return len(ended)


def test_the_log_holds_up_nobody(tmp_path):
    assert on_the_device(copies_beside_allocations, log=tmp_path / "log") == 2


def one_rank(rank: int, store: str) -> list:
    """Of two on a card each: what a gather brings, what NCCL takes of torch's memory, and the operations on streams."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2)
    mine, all_of_them = torch.tensor([3.0, 5.0]).cuda(), torch.zeros(4).cuda()
    before = torch.cuda.memory_allocated(rank)
    dist.all_gather_into_tensor(all_of_them, mine)
    dist.all_reduce(mine)
    torch.cuda.synchronize()
    taken = torch.cuda.memory_allocated(rank) - before
    found = [dist.get_rank(), all_of_them.cpu().tolist(), taken]
    dist.destroy_process_group()
    return found


def test_ranks_gather_what_they_have_themselves(tmp_path):
    """NCCL takes its place on streams and none of torch's memory; ranks do not wait for each other."""
    logs = [tmp_path / "log0", tmp_path / "log1"]
    with ThreadPoolExecutor(2) as both:
        calls = [
            both.submit(on_the_device, one_rank, rank, str(tmp_path / "store"), devices=2, log=log)
            for rank, log in enumerate(logs)
        ]
    assert [call.result() for call in calls] == [[rank, [3.0, 5.0, 3.0, 5.0], 0] for rank in (0, 1)]
    said = logs[0].read_text()
    assert "ncclAllGather" in said and "ncclAllReduce" in said
