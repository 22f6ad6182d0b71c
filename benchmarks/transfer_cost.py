"""What the host does for one value that leaves a GPU and comes back, in microseconds.

    python -m memgraph.simulator --card H100 -- -m benchmarks.transfer_cost

On the simulated GPU: what the host does there is real (Python, torch's allocator, the operators, streams and events),
and what the GPU does takes no time, so that no copy is waited for. The four operators of one value, one after another,
as a compiled graph calls them, and the end of what they hand on; without the thread that copies between host memory
and a disk.
"""

from __future__ import annotations

import json
import time

import torch

import memgraph.runtime  # noqa: F401  (the operators)

TRIPS, WARM = 2000, 100
ELEMENTS = 2**20


def main() -> None:
    """Measure, and print."""
    settings = json.dumps({"graph": "benchmark"})
    like = ([ELEMENTS], [1], torch.float32, torch.device("cuda:0"), "host")
    value = torch.zeros(ELEMENTS, device="cuda")
    names = ("offload_start", "offload_finish", "reload_start", "reload_finish")
    offload_start, offload_finish, reload_start, reload_finish = (
        getattr(torch.ops.memgraph, name).default for name in names
    )
    times: dict[str, list[float]] = {name: [] for name in (*names, "dropped", "in all")}
    for trip in range(WARM + TRIPS):
        moments = [time.perf_counter()]
        leaving = offload_start(value, "value", "host", settings)
        moments.append(time.perf_counter())
        held = offload_finish(leaving, value, "host")
        moments.append(time.perf_counter())
        coming = reload_start(held, *like)
        moments.append(time.perf_counter())
        reload_finish(coming, held, *like)
        moments.append(time.perf_counter())
        del leaving, held, coming
        moments.append(time.perf_counter())
        if trip >= WARM:
            for name, start, end in zip(times, moments, moments[1:], strict=False):
                times[name].append(end - start)
            times["in all"].append(moments[-1] - moments[0])
    for name, found in times.items():
        found.sort()
        print(f"{name:15} {1e6 * found[TRIPS // 2]:7.1f} us (median), {1e6 * found[0]:7.1f} (best)")


if __name__ == "__main__":
    main()
