"""How long planning takes as graphs grow, and what it adds to a cold Inductor compile.

    python -m benchmarks.compile_time --layers 2 --cold 0

    targets:  3,000 joint nodes <= 3 s    7,400 <= 5 s    30,000 <= 20 s    at most 10 % of a cold Inductor compile

The joint graphs are those of Llamas of a tiny width: the time depends on the number of nodes, not their size. They are
captured, not compiled. They are planned by recomputation alone, and with all levers (tiles, and offload to the disk
that has the folder of temporary files). One is compiled with empty caches: by Inductor, and by memgraph under a share
and under as many bytes. Planning is one thread of Python: on a machine that others use, its CPU seconds say more than
those of the clock.

The stock split is Inductor's own partitioner, which runs anyway, so "added" is planning without it; it is timed on its
own, on a copy of the graph. The time of verification is its share of a second planning under cProfile, whose own cost
falls on all Python alike.
"""

from __future__ import annotations

import contextlib
import cProfile
import gc
import os
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from benchmarks import harness, table
from benchmarks.harness import Process, Result, Task
from tests.support.models.sized import Shape, make

SHAPE = Shape(layers=8, hidden=64, sequence=128, vocabulary=256)
FRACTION = 0.4
COLD_FRACTION = 0.6
# (joint nodes, seconds): a graph of at most so many nodes is planned in at most so many seconds.
TARGETS = ((3000, 3.0), (7400, 5.0), (30000, 20.0))
SHARE = 0.10
HEADS = ("layers", "joint nodes", "levers", "budget", "planning, clock", "planning, CPU", "verification in it")
HEADS += ("stock split in it", "bounds after it", "target")


def main(
    layers: Annotated[str, typer.Option(help="Depths, by commas.")] = "8,12,32",
    cold: Annotated[int, typer.Option(help="Depth that Inductor compiles cold; 0 for none.")] = 8,
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "compile-time",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads()
    record, rows, compiled = harness.Record(name), [], []
    for depth in map(int, layers.split(",")):
        for row in Process("benchmarks.compile_time:plan_times", {"layers": depth}).results():
            harness.say("  ".join(f"{key} {cell(value)}" for key, value in row.items()))
            rows.append(row)
    budget: Any = None
    for budget in (None, COLD_FRACTION, "bytes") if cold else ():
        asked = compiled[-1].get("budget") if budget == "bytes" else budget
        (row,) = Process("benchmarks.compile_time:cold_compile", {"layers": cold, "budget": asked}).results()
        harness.say("  ".join(f"{key} {cell(value)}" for key, value in row.items()))
        compiled.append(row)
    if failed := [row["failure"] for row in (*rows, *compiled) if "failure" in row]:
        raise RuntimeError("; ".join(failed))
    data = {"shape": vars(SHAPE), "rows": rows, "cold": compiled}
    print(record.write("Compile time", data, body(rows, cold, compiled)))
    print(record.folder)


def body(rows: list[Result], cold: int, compiled: list[Result]) -> str:
    """The page below its headline."""
    text = table.markdown(HEADS, map(cells, rows))
    planned = [row["added"] for row in rows if row["layers"] == cold and row["levers"] == "recompute"]
    if not compiled:
        return text
    inductor, *ours = compiled
    text += (
        f"\n\nA cold Inductor compile of {cold} layers, without memgraph: {inductor['seconds']:.1f} s, "
        f"{inductor['cpu']:.1f} s of CPU with the C++ compiler's."
    )
    if planned:
        added = max(planned)
        text += f" Planning adds {added:.2f} s of CPU, {added / inductor['cpu']:.1%} (target: at most {SHARE:.0%})."
    for row, kind in zip(ours, (f"a budget of {COLD_FRACTION:g}", "as many bytes"), strict=True):
        text += (
            f" memgraph under {kind}: {row['seconds']:.1f} s, {row['cpu']:.1f} s of CPU, {row['attempts']} attempts, "
            f"{row['seconds'] / inductor['seconds']:.2f} times Inductor's."
        )
    return text


def cells(row: Result) -> list[str]:
    """A row as text, in the order of HEADS."""
    # The first graph size that covers this one, with a fifth to spare: 3,000 stands for "about 3,000".
    limit = next((seconds for nodes, seconds in TARGETS if row["nodes"] <= 1.2 * nodes), None)
    target = "" if limit is None else f"<= {limit:g} s: {'met' if row['cpu'] <= limit else 'missed'}"
    figures = (row["planning"], row["cpu"], row["verification"], row["inductor"], row["bounds"])
    return [str(row["layers"]), str(row["nodes"]), row["levers"], row["budget"], *map(cell, figures), target]


def cell(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


# Within a process


def plan_times(task: Task) -> Iterator[Result]:
    """Planning at a fraction, and at as many bytes as that fraction came to: by recomputation, and with all levers."""
    from memgraph.backend.options import parse_options
    from memgraph.base import compat
    from memgraph.verify.rewrite import snapshot

    joint, arguments = capture(task["layers"])
    with planned_as_in_lowering():
        stock = snapshot(joint)  # planning rewrites what it is given, and so does the stock split
        _, inductor = cpu_seconds(lambda: compat.stock_partition(stock, None, **arguments))
    known = {"layers": task["layers"], "nodes": len(joint.graph.nodes), "inductor": inductor}
    with tempfile.TemporaryDirectory() as folder:
        every = {"tile": True, "offload": {"nvme": folder, "min_bytes": 4096}}
        for levers, options in (("recompute", {}), ("all", every)):
            for row in planned_twice(joint, arguments, parse_options(options)):
                yield known | {"levers": levers} | row | {"added": row["cpu"] - inductor}


def planned_twice(joint: Any, arguments: dict[str, Any], options: Any) -> Iterator[Result]:
    """Planning of a joint graph with one set of options."""
    from memgraph.backend.budget import Bound
    from memgraph.backend.destinations import tiers
    from memgraph.backend.joint_graph import plan_partition
    from memgraph.machine.hardware import load
    from memgraph.verify.rewrite import snapshot, verify_partition

    hardware = load("cpu")
    found, bound = tiers(options, hardware, here=False), Bound(fraction=FRACTION)

    def planning(bound: Bound) -> Callable[[], Any]:
        with planned_as_in_lowering():  # as Inductor hands it over: its code is made when it runs
            graph = snapshot(joint)
        return lambda: plan_partition(graph, None, options, hardware, bound, found, **arguments)

    for budget in (f"{FRACTION:g}", "the same in bytes"):
        call = planning(bound)
        gc.collect()
        with planned_as_in_lowering():
            start = time.perf_counter()
            (*_, planned), cpu = cpu_seconds(call)
            total = time.perf_counter() - start
            _, bounds = cpu_seconds(planned.least)
            verification = share(planning(bound), snapshot, verify_partition)
        bound = Bound(bytes=planned.bound)
        yield {
            "budget": budget,
            "planning": total,
            "cpu": cpu,
            "bounds": bounds,
            "verification": cpu * verification,
            "reached": planned.plan.peak / planned.stock.peak,
        }


@contextlib.contextmanager
def planned_as_in_lowering() -> Iterator[None]:
    """As within `compile_fx`: a graph's Python code is made when it runs, and no garbage is collected meanwhile."""
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    from memgraph.base.garbage import without_collections

    with _use_lazy_graph_module(True), without_collections():
        yield


def cpu_seconds(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its CPU seconds."""
    start = time.thread_time()
    result = call()
    return result, time.thread_time() - start


def share(call: Callable[[], Any], *functions: Any) -> float:
    """Of the time of a call, the share that passes within functions."""
    with cProfile.Profile() as profile:
        call()
    stats = pstats.Stats(profile)
    within = 0.0
    for function in functions:
        code = function.__code__
        _, _, _, seconds, _ = stats.stats.get((code.co_filename, code.co_firstlineno, code.co_name), (0, 0, 0, 0.0, {}))
        within += seconds
    return within / stats.total_tt


class Captured(Exception):
    """Thrown out of the compiler once the joint graph is there."""


def capture(layers: int) -> tuple[Any, dict[str, Any]]:
    """The joint graph of a Llama as Inductor hands it to a partitioner, and the other arguments."""
    import torch
    from torch._inductor.compile_fx import compile_fx

    from memgraph.base import compat

    case = make("llama", Shape(**(vars(SHAPE) | {"layers": layers})))
    seen: list[tuple[Any, dict[str, Any]]] = []

    class Catch(compat.partitioner_base()):  # type: ignore[misc]
        def __call__(self, joint: Any, joint_inputs: Any, **kwargs: Any) -> Any:
            seen.append((joint, kwargs))
            raise Captured

        def uuid(self) -> str:
            return "capture"

        def __reduce__(self) -> tuple[Any, ...]:
            return (str, (self.uuid(),))

    def backend(gm: Any, inputs: Any) -> Any:
        patches = {"custom_partitioner_fn": Catch(), "force_disable_caches": True}
        return compile_fx(gm, inputs, config_patches=patches)

    torch._dynamo.reset()
    with contextlib.suppress(Exception):  # Dynamo wraps it
        torch.compile(case.loss, backend=backend)(*case.inputs)
    if not seen:
        raise RuntimeError("the compiler did not come as far as the partitioner")
    return seen[0]


def cold_compile(task: Task) -> Iterator[Result]:
    """Seconds of the first step by the clock and of CPU, caches empty; by Inductor where there is no budget."""
    import torch
    from torch._inductor import config
    from torch._inductor.utils import fresh_cache

    import memgraph

    budget = task["budget"]
    asked = {"backend": "memgraph", "options": {"budget": budget, "cache": False}} if budget else {}
    case = make("llama", Shape(**(vars(SHAPE) | {"layers": task["layers"]})))
    torch._dynamo.reset()
    # One thread compiles: the C++ compilers are then children of this process, whose CPU time can be read.
    with fresh_cache(), config.patch(compile_threads=1):
        start, start_cpu = time.perf_counter(), os.times()
        torch.compile(case.loss, fullgraph=True, **asked)(*case.inputs).backward()
        spent = zip(os.times()[:4], start_cpu[:4], strict=True)
        found = {"seconds": time.perf_counter() - start, "cpu": sum(after - before for after, before in spent)}
    if budget:
        report = memgraph.report()
        found |= {"budget": report.budget, "attempts": report.attempts}
    yield found


if __name__ == "__main__":
    typer.run(main)
