"""How long planning takes as graphs grow, and what it adds to a cold Inductor compile.

    targets:  3,000 joint nodes <= 5 s    7,400 <= 12 s    at most 10 % of a cold Inductor compile

The joint graphs are those of Llamas of a tiny width: the time depends on the number of nodes, not their size.
They are captured, not compiled. One is compiled, by Inductor without memgraph and with empty caches. Planning
is one thread of Python: on a machine that others use, its CPU seconds say more than those of the clock.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import time
from collections.abc import Iterator
from typing import Annotated, Any

import machine
import typer
from models import Shape, make

SHAPE = Shape(layers=8, hidden=64, sequence=128, vocabulary=256)
FRACTION = 0.4
# (joint nodes, seconds): a graph of at most so many nodes is planned in at most so many seconds.
TARGETS = ((3000, 5.0), (7400, 12.0))
SHARE = 0.10


def main(
    layers: Annotated[str, typer.Option(help="Depths, by commas.")] = "8,12,32",
    cold: Annotated[int, typer.Option(help="Depth that Inductor compiles cold; 0 for none.")] = 8,
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "compile-time",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    rows = [row for depth in layers.split(",") for row in plan_times(int(depth))]
    seconds, cpu = cold_compile(cold) if cold else (None, None)
    where = machine.describe()
    text = f"# Compile time\n\n{machine.headline(where)}\n{table(rows)}\n"
    if seconds is not None:
        added = max(row["added"] for row in rows if row["layers"] == cold)
        text += (
            f"\nA cold Inductor compile of {cold} layers, without memgraph: {seconds:.1f} s, {cpu:.1f} s of CPU "
            f"with the C++ compiler's. Planning adds {added:.2f} s of CPU, {added / cpu:.1%} "
            f"(target: at most {SHARE:.0%}).\n"
        )
    folder = machine.results_folder(name)
    data = {"machine": where, "shape": vars(SHAPE), "rows": rows, "cold_inductor": (seconds, cpu)}
    (folder / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    (folder / "table.md").write_text(text)
    print(text)
    print(folder)


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
    try:
        torch.compile(case.loss, backend=backend)(*case.inputs)
    except Exception:  # Dynamo wraps it
        if not seen:
            raise
    return seen[0]


@contextlib.contextmanager
def stopwatch(spent: dict[str, float], owner: Any, *names: str) -> Iterator[None]:
    """Add the CPU seconds within functions of a module to `spent`, under their names."""
    originals = {name: getattr(owner, name) for name in names}

    def timed(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return originals[name](*args, **kwargs)
            finally:
                spent[name] = spent.get(name, 0.0) + time.thread_time() - start

        return call

    for name in names:
        setattr(owner, name, timed(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)


def plan_times(layers: int) -> Iterator[dict[str, Any]]:
    """Planning at a fraction, and at as many bytes as that fraction came to."""
    from memgraph.backend import joint_graph, rewriting
    from memgraph.backend.budget import Bound
    from memgraph.backend.options import parse_options
    from memgraph.base import compat
    from memgraph.machine.hardware import load
    from memgraph.verify.rewrite import snapshot

    joint, kwargs = capture(layers)
    nodes = len(joint.graph.nodes)
    nbytes = 0
    for kind in ("fraction", "bytes"):
        bound = Bound(fraction=FRACTION) if kind == "fraction" else Bound(bytes=nbytes)
        copy = snapshot(joint)  # planning rewrites what it is given
        spent: dict[str, float] = {}
        gc.collect()
        with (
            stopwatch(spent, joint_graph, "snapshot"),
            stopwatch(spent, rewriting, "verify_partition"),
            stopwatch(spent, compat, "stock_partition"),
        ):
            start, start_cpu = time.perf_counter(), time.thread_time()
            *_, planned = joint_graph.plan_partition(copy, None, parse_options({}), load("cpu"), bound, **kwargs)
            total, total_cpu = time.perf_counter() - start, time.thread_time() - start_cpu
        nbytes = planned.bound
        row = {
            "layers": layers,
            "nodes": nodes,
            "budget": f"{FRACTION:g}" if kind == "fraction" else "the same in bytes",
            "planning": total,
            "cpu": total_cpu,
            "verification": spent.get("snapshot", 0.0) + spent.get("verify_partition", 0.0),
            "inductor": spent.get("stock_partition", 0.0),
            "reached": planned.plan.peak / planned.stock.peak,
        }
        row["added"] = total_cpu - row["inductor"]
        print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
        yield row


def cold_compile(layers: int) -> tuple[float, float]:
    """Seconds of Inductor's first step by the clock and of CPU, caches empty, memgraph absent."""
    import torch
    from torch._inductor import config
    from torch._inductor.utils import fresh_cache

    case = make("llama", Shape(**(vars(SHAPE) | {"layers": layers})))
    torch._dynamo.reset()
    # One thread compiles: the C++ compilers are then children of this process, whose CPU time can be read.
    with fresh_cache(), config.patch(compile_threads=1):
        start, start_cpu = time.perf_counter(), os.times()
        torch.compile(case.loss, backend="inductor", fullgraph=True)(*case.inputs).backward()
        spent = zip(os.times()[:4], start_cpu[:4], strict=True)
        return time.perf_counter() - start, sum(after - before for after, before in spent)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown. The stock split is Inductor's own partitioner, which runs anyway; planning includes it."""
    columns = ["layers", "joint nodes", "budget", "planning, clock", "planning, CPU", "of which verification"]
    columns += ["stock split", "rest", "target"]
    lines = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    for row in rows:
        # The first graph size that covers this one, with a fifth to spare: 3,000 stands for "about 3,000".
        limit = next((seconds for nodes, seconds in TARGETS if row["nodes"] <= 1.2 * nodes), None)
        target = "" if limit is None else f"<= {limit:g} s: {'met' if row['cpu'] <= limit else 'missed'}"
        rest = row["added"] - row["verification"]
        lines.append(
            f"| {row['layers']} | {row['nodes']} | {row['budget']} | {row['planning']:.2f} | "
            f"{row['cpu']:.2f} | {row['verification']:.2f} | {row['inductor']:.2f} | {rest:.2f} | {target} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))
    typer.run(main)
