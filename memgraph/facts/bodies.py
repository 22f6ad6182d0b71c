"""What a body that is called by `invoke_subgraph` costs: its time, and the bytes that it holds while it runs."""

from __future__ import annotations

import dataclasses

import torch
from torch import fx

from memgraph.facts import kernel_scratch
from memgraph.facts.costs import seconds
from memgraph.facts.liveness import Program, sweep, written
from memgraph.facts.operators import short_name
from memgraph.facts.values import HEAVY, Value, fused_seconds, kind_of, owned_bytes, root
from memgraph.machine.hardware import Hardware


@dataclasses.dataclass(frozen=True)
class Called:
    """seconds: of one call.  scratch: bytes at its peak beyond its outputs."""

    seconds: float
    scratch: int


class Inside:
    """Bodies by what they cost; each is looked into once, however often it is called."""

    def __init__(self, hardware: Hardware, granularity: int) -> None:
        self.hardware, self.granularity = hardware, granularity
        self._known: dict[int, Called] = {}

    def of(self, node: fx.Node) -> Called | None:
        """What a call costs; None for a node that calls no body."""
        if node.op != "call_function" or short_name(node.target) != "higher_order::invoke_subgraph":
            return None
        body = node.graph.owning_module.get_submodule(node.args[0].target)
        if id(body) not in self._known:
            self._known[id(body)] = self._look(body)
        return self._known[id(body)]

    def _look(self, body: fx.GraphModule) -> Called:
        nodes = [node for node in body.graph.nodes if node.op != "output"]
        inputs = [node for node in nodes if node.op in ("placeholder", "get_attr")]
        order = inputs + [node for node in nodes if node not in set(inputs)]
        place = {node: n for n, node in enumerate(order)}
        roots: dict[fx.Node, fx.Node] = {}
        values: list[Value] = []
        for node in order:
            roots[node] = root(node, roots)
            val = node.meta.get("val")
            called = self.of(node)
            spent = called.seconds if called else seconds(node, self.hardware) if node.op == "call_function" else 0.0
            values.append(
                Value(
                    name=node.name,
                    kind=kind_of(node, val, False),
                    inputs=tuple(place[read] for read in node.all_input_nodes),
                    storage=place[roots[node]],
                    bytes=owned_bytes(node, roots[node] is node, self.granularity),
                    seconds=spent,
                    region=0,
                    savable=False,
                    heavy=isinstance(val, torch.Tensor)
                    and val.device.type == "cpu"
                    and short_name(node.target) in HEAVY,
                    scratch=called.scratch if called else kernel_scratch.of_node(node, self.hardware.device),
                )
            )
        outputs = [node for node in body.graph.output_node().all_input_nodes]
        program = Program(
            values=tuple(range(len(order))),
            reads=tuple(() if n < len(inputs) else value.inputs for n, value in enumerate(values)),
            inputs=len(inputs),
            outputs=frozenset(place[node] for node in outputs),
            owned=frozenset(),
        )
        here = written(values, program)
        fused = [value.kind == "pointwise" and n not in here for n, value in enumerate(values)]
        time = sum(
            fused_seconds(value, self.hardware) if inlined else value.seconds
            for value, inlined in zip(values, fused, strict=True)
        )
        swept = sweep(values, program, fused=True)
        left = sum(values[i].bytes for i in {values[place[node]].storage for node in outputs} if i >= len(inputs))
        return Called(time, max(0, swept.peak - left))
