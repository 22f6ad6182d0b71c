"""Reports of steps that nobody has planned, as large as one likes."""

from __future__ import annotations

import random

from memgraph.facts.actions import Offload, Recompute, Save
from memgraph.planner.decisions import Decision, Described, Doing, Event, Refusal, Timeline, Where, Work
from memgraph.reporting.figures import Source
from memgraph.reporting.report import Report

MIB = 1024**2
FILE = "/site-packages/transformers/models/llama/modeling_llama.py"
PARTS = ("input_layernorm", "self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
TICK = 1e-6  # seconds of one operator
EVERY = 8  # of a layer's values, one is kept and the next one computed again


def synthetic(layers: int, values: int, *, budget: float = 0.9, seed: int = 0) -> Report:
    """A report of equal layers with so many values each, and as many buffers in the backward.

    About one value in eight is kept, one is computed again, and the first layer's kept values are offloaded. The
    budget is a share of the peak of a step that drops nothing.
    """
    made = _Made(random.Random(seed))
    for layer in range(layers):
        for number in range(values):
            made.forward(layer, number)
    for layer in reversed(range(layers)):
        for number in reversed(range(values)):
            made.backward(layer, number)
    planned, unplanned = Timeline(tuple(made.events)), Timeline(tuple(made.unplanned))
    baseline, to_come = 900 * MIB, 200 * MIB
    level = baseline + to_come
    return Report(
        key=f"synthetic-{layers}-{values}",
        graph="step [0]",
        device="cuda:0",
        requested=str(budget),
        budget=level + int(budget * unplanned.peak),
        reserve=64 * MIB,
        baseline=baseline,
        to_come=to_come,
        standing=(("parameters", 800 * MIB), ("inputs and buffers", 60 * MIB)),
        unplanned_peak=level + unplanned.peak,
        predicted_peak=level + planned.peak,
        measured_above=planned.peak - MIB // 2,
        source_of_peak=Source.WRAPPER,
        predicted_time=made.now,
        unplanned_time=made.now * 0.96,
        recompute_time=made.now * 0.04,
        decisions=tuple(made.decisions),
        refusals=(Refusal("rule 'lm_head': 'tile:8'", "no <region> matches & none will"),),
        timeline=planned,
        unplanned_timeline=unplanned,
        described=tuple(made.described),
        works=tuple(made.works),
        notes=("made up",),
        versions=(("torch", "2.13.0"),),
        stages=(("planning", 1.25),),
    )


class _Made:
    def __init__(self, chance: random.Random) -> None:
        self.chance, self.now = chance, 0.0
        self.events: list[Event] = []
        self.unplanned: list[Event] = []
        self.decisions: list[Decision] = []
        self.described: list[Described] = []
        self.works: list[Work] = []
        self.sizes: dict[tuple[int, int], int] = {}

    def forward(self, layer: int, number: int) -> None:
        name, at = f"mul_{layer}_{number}", round(self.now, 9)
        size = self.sizes[layer, number] = 512 * self.chance.choice((1, 8, 96, 1024, 2048, 4096))
        module = f"model.layers.{layer}.{PARTS[number % len(PARTS)]}"
        self._run(Doing.FORWARD, layer)
        end = round(self.now, 9)
        self.events.append(Event("forward", name, size, at=at))
        self.unplanned.append(Event("forward", name, size, at=at))
        if number % EVERY == 0 and layer == 0:
            self._decide(name, size, Offload("host"), module)
            self.works.append(Work("host out", Doing.COPY, name, at, end))
        elif number % EVERY == 0:
            self._decide(name, size, Save(), module)
        elif number % EVERY == 1:
            self._decide(name, size, Recompute(), module)
        if number % EVERY or layer == 0:
            self.events.append(Event("forward", name, -size, at=end))
        if number % EVERY > 1:
            self.unplanned.append(Event("forward", name, -size, at=end))
        reads = (end, round(2 * 1e-1 + at, 9)) if number % EVERY == 0 else (end,)
        shape = (size // 512, 256)
        self.described.append(
            Described(name, "aten::mul", "bfloat16", shape, module, f"{FILE}:{100 + number % 300}", reads)
        )

    def backward(self, layer: int, number: int) -> None:
        name, size = f"mul_{layer}_{number}", self.sizes[layer, number]
        recomputed = number % EVERY == 1 or (number % EVERY == 0 and layer == 0)
        own = name if recomputed else f"grad_{layer}_{number}"
        at = round(self.now, 9)
        self._run(Doing.RECOMPUTE if recomputed else Doing.BACKWARD, layer)
        end = round(self.now, 9)
        self.events.append(Event("backward", own, size, Where.BACKWARD, at))
        if number % 40 == 39:
            for sign, time in ((1, at), (-1, end)):
                self.events.append(Event("backward", own, sign * 512 * 64, Where.KERNEL, time))
        if number % 25:  # the others are gradients, which stay
            self.events.append(Event("backward", own, -size, Where.BACKWARD, end))
        if number % EVERY == 0 and layer:
            self.events.append(Event("backward", name, -size, at=end))
        if number % EVERY < 2:
            self.unplanned.append(Event("backward", name, -size, at=end))

    def _decide(self, name: str, size: int, action: Save | Recompute | Offload, module: str) -> None:
        seconds = TICK if isinstance(action, Recompute) else 0.0
        others = () if isinstance(action, Recompute) else (("recompute", TICK), ("offload:nvme", size / 1e9))
        why = "dropped for the budget" if isinstance(action, Recompute) else "the backward reads it and it fits"
        self.decisions.append(Decision(name, size, action, module, f"{FILE}:77", seconds, why, alternatives=others))

    def _run(self, doing: Doing, layer: int) -> None:
        start, self.now = self.now, self.now + TICK
        region = f"model.layers.{layer}"
        last = self.works[-1] if self.works else None
        if last is not None and (last.lane, last.doing, last.name) == ("compute", doing, region):
            self.works[-1] = Work("compute", doing, region, last.start, round(self.now, 9))
        else:
            self.works.append(Work("compute", doing, region, round(start, 9), round(self.now, 9)))
