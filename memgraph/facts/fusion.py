"""What fusion does to the price of saving and of recomputing a value.

A pointwise value that only fused operators read is never written to memory: to compute it again in the kernel that
needs it costs its transcendental functions and nothing else, but to save it costs a write in the forward and a read
in the backward that nobody would have paid. Without this, planning a small Llama saved the one-hot of its labels
(16 MiB).
"""

from __future__ import annotations

import dataclasses

from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import sweep
from memgraph.hardware import Hardware
from memgraph.planner.schedule import forward_program


def price_fusion(facts: JointFacts, hardware: Hardware) -> JointFacts:
    """The same facts with `seconds` and `hold` as they are when Inductor fuses."""
    program = forward_program(facts, ())
    swept = sweep(facts.values, program, fused=True)
    written = {value for slot, value in enumerate(program.values) if slot in swept.births}
    values = list(facts.values)
    for i in facts.forward:
        value = values[i]
        if value.kind != "pointwise" or i in written:
            continue
        traffic = value.bytes / hardware.memory_bandwidth
        values[i] = dataclasses.replace(value, seconds=max(0.0, value.seconds - traffic), hold=2 * traffic)
    return dataclasses.replace(facts, values=tuple(values))
