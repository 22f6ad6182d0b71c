"""Nodes read as values, and the cost of bodies that nodes call by `invoke_subgraph`.

A body costs the time of its own values, and it holds bytes beyond its outputs while it runs: scratch for its caller.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts import kernel_scratch
from memgraph.facts.costs import seconds
from memgraph.facts.joined import is_joined
from memgraph.facts.liveness import Program, sweep, written
from memgraph.facts.moves import read_beside, read_elsewhere
from memgraph.facts.operators import qualified_name
from memgraph.facts.values import Value, fused_seconds, heavy_names, kind_of, owned_bytes, root
from memgraph.machine.hardware import Hardware


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one run of a node costs."""

    seconds: float
    scratch: int
    """Bytes at its peak beyond its outputs."""


def _elsewhere(node: fx.Node, on_cpu: bool, roots: Mapping[fx.Node, fx.Node]) -> tuple[int, ...]:
    """By place among the inputs of a node, those that its output cannot replace: read at other entries, or joined.

    Where Inductor writes logarithms, the softmax that a loss keeps waits for that of the sums, in a loop of its own.
    roots: by node before it, the node that owns its storage.
    """
    found = set(read_elsewhere(node))
    if on_cpu:
        found.update(n for n, read in enumerate(node.all_input_nodes) if is_joined(roots[read]))
        if "aten::log" not in heavy_names():
            found.update(read_beside(node))
    return tuple(sorted(found))


class NodeReader:
    """Reads the nodes of one graph as values, in order."""

    def __init__(
        self, nodes: Sequence[fx.Node], hardware: Hardware, granularity: int, bodies: dict[int, Cost] | None = None
    ) -> None:
        """bodies: by id of a graph module, what one call of it costs: each body is read once, however often called."""
        self.hardware, self.granularity = hardware, granularity
        self.position = {node: n for n, node in enumerate(nodes)}
        self._roots: dict[fx.Node, fx.Node] = {}
        self._bodies = {} if bodies is None else bodies

    def value(self, node: fx.Node, *, tangent: bool = False) -> Value:
        """A node as a value, as far as that follows from it and the nodes before it: no region yet, and not savable."""
        base = self._roots[node] = root(node, self._roots)
        val, cost = node.meta.get("val"), self._cost(node)
        on_cpu = isinstance(val, torch.Tensor) and val.device.type == "cpu"
        return Value(
            name=node.name,
            kind=kind_of(node, val, tangent),
            inputs=tuple(self.position[read] for read in node.all_input_nodes),
            storage=self.position[base],
            bytes=owned_bytes(node, base is node, self.granularity),
            seconds=cost.seconds,
            region=0,
            savable=False,
            elsewhere=_elsewhere(node, on_cpu, self._roots),
            heavy=on_cpu and qualified_name(node.target) in heavy_names(),
            called=isinstance(val, list | tuple) and kernel_scratch.is_called(node, self.hardware.device),
            entries=math.prod(map(compat.size_hint, val.shape)) if isinstance(val, torch.Tensor) else 0,
            strided=qualified_name(node.target) == "aten::as_strided",
            scratch=cost.scratch,
        )

    def _cost(self, node: fx.Node) -> Cost:
        if node.op != "call_function":
            return Cost(0.0, kernel_scratch.of_node(node, self.hardware.device))
        if node.target is not compat.invoke_subgraph():
            return Cost(seconds(node, self.hardware), kernel_scratch.of_node(node, self.hardware.device))
        body = node.graph.owning_module.get_submodule(node.args[0].target)
        if id(body) not in self._bodies:
            self._bodies[id(body)] = self._read_body(body)
        return self._bodies[id(body)]

    def _read_body(self, body: fx.GraphModule) -> Cost:
        nodes = [node for node in body.graph.nodes if node.op != "output"]
        inputs = [node for node in nodes if node.op in ("placeholder", "get_attr")]
        order = inputs + [node for node in nodes if node.op not in ("placeholder", "get_attr")]
        reader = NodeReader(order, self.hardware, self.granularity, self._bodies)
        values = [reader.value(node) for node in order]
        outputs = frozenset(reader.position[node] for node in body.graph.output_node().all_input_nodes)
        return _cost_of_body(values, len(inputs), outputs, self.hardware)


def _cost_of_body(values: Sequence[Value], inputs: int, outputs: frozenset[int], hardware: Hardware) -> Cost:
    """The cost of a body.  inputs: how many of its values, the first ones, are inputs.  outputs: places of outputs."""
    program = Program(
        values=tuple(range(len(values))),
        reads=tuple(() if n < inputs else value.inputs for n, value in enumerate(values)),
        inputs=inputs,
        outputs=outputs,
        owned=frozenset(),
    )
    in_memory = written(values, program)
    time = sum(
        fused_seconds(value, hardware) if value.kind == "pointwise" and n not in in_memory else value.seconds
        for n, value in enumerate(values)
    )
    left = sum(values[i].bytes for i in {values[n].storage for n in outputs} if i >= inputs)
    return Cost(time, max(0, sweep(values, program, fused=True).peak - left))
