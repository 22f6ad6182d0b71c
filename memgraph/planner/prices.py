"""What fusion does to the price of saving and of recomputing a value.

Problem: a pointwise value that only fused operators read is never written to memory. To compute it again in the kernel
that needs it costs its transcendental functions and nothing else, but to save it costs a write in the forward and a
read in the backward that nobody pays otherwise. Without these prices, a plan of a small Llama saved the one-hot of its
labels (16 MiB). Truth values cost a CPU more (`Hardware.truth_time`), whether a plan writes them by saving them or
the graph writes them by itself, for a tile or a product to read.

Why not a library: Inductor decides what it fuses when it lowers the graph, and the plan has to be made before.

Algorithm: sweep the forward with nothing saved, and the backward of Inductor's own split; pointwise values that neither
writes get the price of fused ones.

Oracle: tests/planner/test_prices.py: small graphs whose kernels one can count.
"""

from __future__ import annotations

import dataclasses

from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import written
from memgraph.facts.values import fused_seconds
from memgraph.machine.hardware import Hardware
from memgraph.planner.schedule import forward_program, make_schedule


def price_fusion(facts: JointFacts, hardware: Hardware) -> JointFacts:
    """The facts with `seconds` and `hold` of values that Inductor fuses. In the backward: of its own split."""
    values = list(facts.values)

    def entries(i: int) -> float:
        return values[i].bytes * hardware.truth_time if values[i].label.dtype == "bool" else 0.0

    def fuse(i: int, hold: float) -> None:
        values[i] = dataclasses.replace(values[i], seconds=fused_seconds(values[i], hardware), hold=hold)

    def write(i: int) -> None:
        if store := entries(i):
            values[i] = dataclasses.replace(values[i], seconds=values[i].seconds + store)

    forward = written(facts.values, forward_program(facts, ()))
    for i in facts.forward:
        if values[i].kind == "pointwise" and i not in forward:
            fuse(i, hold=2 * values[i].bytes / hardware.memory_bandwidth + entries(i))
        elif values[i].kind == "pointwise":
            write(i)
    backward = written(facts.values, make_schedule(facts, facts.stock_saved, settle=False).backward)
    for i in facts.backward:
        if values[i].kind == "pointwise" and i not in backward:
            fuse(i, hold=values[i].hold)
        elif values[i].kind == "pointwise":
            write(i)
        elif values[i].part:  # where its whole is written as well
            values[i] = dataclasses.replace(values[i], hold=2 * values[i].part / hardware.memory_bandwidth)
    return dataclasses.replace(facts, values=tuple(values))
