"""What memgraph adds to a launch of a compiled graph, in microseconds.

    python -m benchmarks.launch_cost

The same tiny step, forward and backward, with its graph called as Inductor has it, and through memgraph: once the
levels are known and nothing is recorded, and while it is. Many repetitions, a step at a time in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

STEPS = 2000


def main() -> None:
    """Measure, and print."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    x = torch.randn(4, 8)
    loss_of = torch.compile(lambda x: model(x).square().mean(), backend="memgraph", options={"budget": "1GiB"})
    loss_of(x).backward()

    from memgraph.step import run

    (launch,) = run.current().round
    graph = launch.graph()
    variant = graph.variants[0]
    made, args = variant.call, None

    def keep(*given: object) -> object:
        nonlocal args
        args = given
        return made(*given)

    variant.call = keep
    loss_of(x).backward()
    variant.call = made

    def step(call: Callable) -> None:
        call(*args)[0].backward()

    def recorded(*given: object) -> object:
        variant.recorded.clear()
        return graph.launch(*given)

    ways = {"Inductor alone": made, "through memgraph": graph.launch, "recorded": recorded}
    for _ in range(100):  # every situation has been counted
        for call in ways.values():
            step(call)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(STEPS):
        for name, call in ways.items():
            start = time.perf_counter()
            step(call)
            times[name].append(time.perf_counter() - start)
    alone = sorted(times["Inductor alone"])
    for name, found in times.items():
        found.sort()
        middle = found[STEPS // 2]
        more = middle - alone[STEPS // 2]
        print(f"{name:18} {1e6 * middle:8.1f} us a step (median), {1e6 * found[0]:8.1f} at best; {1e6 * more:+.1f}")


if __name__ == "__main__":
    main()
