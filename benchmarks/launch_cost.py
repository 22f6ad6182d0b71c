"""What memgraph adds to a launch of a compiled graph, in microseconds.

    python -m benchmarks.launch_cost
    python -m memgraph.simulator --card H100 -- -m benchmarks.launch_cost

The second is on the simulated GPU: what the host does there is real, and what the GPU does takes no time.
The same tiny step, forward and backward, with its graph called as Inductor has it, and through memgraph: once the
levels are known and nothing is recorded, and while it is. Many repetitions, a step at a time in turn. Then the entry
of a launch alone, the allocator's counters included, of a graph of 8 parameters and of one of 300. Then, on the CPU,
what two ranks take to agree upon a launch, which they do for each launch of a graph with collectives.
"""

from __future__ import annotations

import functools
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS = 2000
WAIT = 120.0  # seconds for both ranks


def main() -> None:
    """Measure, and print."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).to(device)
    x = torch.randn(4, 8, device=device)
    graph, args = launched(lambda x: model(x).square().mean(), x)
    variant = graph.variants[0]

    def step(call: Callable) -> None:
        call(*args)[0].backward()

    def recorded(*given: object) -> object:
        variant.recorded.clear()
        return graph.launch(*given)

    ways = {"Inductor alone": variant.call, "through memgraph": graph.launch, "recorded": recorded}
    for _ in range(100):  # every situation has been counted
        for call in ways.values():
            step(call)
    found = timed({name: lambda call=call: step(call) for name, call in ways.items()})
    alone = found["Inductor alone"]
    for name, times in found.items():
        more = times[STEPS // 2] - alone[STEPS // 2]
        print(f"{name:18} {told(times)} a step; {1e6 * more:+.1f}")
    weights = [nn.Parameter(torch.ones(8, device=device)) for _ in range(300)]
    many, given = launched(lambda x: functools.reduce(torch.mul, weights, x).sum(), x)
    entries = {"8 parameters": lambda: graph.meter.entry(args), "300 parameters": lambda: many.meter.entry(given)}
    for call in (*entries.values(), *entries.values()):
        call()
    for name, times in timed(entries).items():
        print(f"entry, {name:14} {told(times)} a launch")
    if device == "cpu":  # it has no device, and a process that is spawned would not find the simulated one
        print(f"agreement of two ranks {1e6 * agreement():.1f} us a launch (median)")


def launched(loss_of: Callable, x: torch.Tensor) -> tuple[Any, tuple]:
    """The graph of a loss as memgraph launches it, and the arguments of a launch."""
    compiled = torch.compile(loss_of, backend="memgraph", options={"budget": "1GiB"})
    compiled(x).backward()

    from memgraph.step import run

    (launch,) = run.current().round
    graph = launch.graph()
    variant = graph.variants[0]
    made, args = variant.call, ()

    def keep(*given: object) -> object:
        nonlocal args
        args = given
        return made(*given)

    variant.call = keep
    compiled(x).backward()
    variant.call = made
    return graph, args


def timed(ways: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds that each way takes, in turn, STEPS times; ascending."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(STEPS):
        for name, call in ways.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: sorted(found) for name, found in times.items()}


def told(times: list[float]) -> str:
    """The median and the least of ascending seconds, to read."""
    return f"{1e6 * times[len(times) // 2]:8.1f} us (median), {1e6 * times[0]:8.1f} (best)"


def agreement() -> float:
    """Seconds that a launch takes to be agreed upon by two processes on this machine, through a TCP store."""
    start = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        port, answer = str(Path(folder) / "port"), start.Queue()
        ranks = [start.Process(target=agree, args=(rank, port, answer)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        median = answer.get(timeout=WAIT)  # a rank that has failed answers nothing
        for rank in ranks:
            rank.join()
    return median


def agree(rank: int, port: str, answer: Any) -> None:
    """One of the two ranks.  port: the file by which the first one tells the other its store's port."""
    from memgraph.step.ranks import Ranks, tightest

    limit, told = timedelta(seconds=WAIT / 2), dist.FileStore(port, 2)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=limit, wait_for_workers=False)
        told.set("port", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", int(told.get("port")), 2, is_master=False, timeout=limit)
    ranks, times = Ranks(store, (0, 1), rank), []
    for level in range(STEPS):
        start = time.perf_counter()
        ranks.agree("a launch", [level, 0, [], 0, 0], tightest)
        times.append(time.perf_counter() - start)
    if rank == 1:
        answer.put(sorted(times)[STEPS // 2])
        store.set("done", "")
    store.wait(["done"], limit)  # the store goes with the first rank


if __name__ == "__main__":
    main()
