"""The values of a graph as numbers: what they share, how many bytes they own, how Inductor treats their operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import torch
from torch import fx

from memgraph.facts.actions import Action, Fixed, Pin
from memgraph.facts.costs import storage_span
from memgraph.facts.operators import family, short_name
from memgraph.machine.hardware import Hardware

# On the CPU Inductor materialises what has several readers and one of these in it (torch/_inductor/ir.py,
# should_realize_on_reuse).
HEAVY = frozenset(("exp", "sigmoid"))

# Lowered to write into their first argument.
WRITES_INTO = frozenset(("memgraph::shard_put", "memgraph::shard_add"))

Kind = Literal["primal", "tangent", "view", "pointwise", "reduction", "extern", "tuple", "symbol"]


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """One node. bytes: of its own storage, 0 where it shares another's; a tuple's: of all its elements together.
    seconds: to compute it once more.
    hold: seconds that it costs to save it, beyond its bytes.  heavy: Inductor does not inline it into several readers.

    storage: index of the value that owns the bytes. inputs: indices, each once. region: index of its region.
    fixed: why it must not run twice, None where it may. pin: what the planner may not change, None where it chooses.
    scratch: bytes that its operator holds beyond its outputs while it runs (a body's own values).
    accumulates: whether it is one of several sums of a gradient, each but the last read by the next alone.
    movable: whether its bytes may be copied to another tier and back: it owns them, they lie on the device, densely.
    """

    name: str
    kind: Kind
    inputs: tuple[int, ...]
    storage: int
    bytes: int
    seconds: float
    region: int
    savable: bool
    fixed: Fixed | None = None
    pin: Pin | None = None
    hold: float = 0.0
    heavy: bool = False
    movable: bool = False
    accumulates: bool = False
    scratch: int = 0
    module: str = ""
    source: str = ""

    def pinned(self, kind: type[Action]) -> bool:
        """Whether a pin asks for an action of this kind."""
        return self.pin is not None and isinstance(self.pin.action, kind)


def root(node: fx.Node, roots: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """The node that owns the storage: a getitem of an operator with several outputs owns its own."""
    if node.op != "call_function":
        return node
    kind = family(node.target)
    if kind == "view" and node.all_input_nodes or short_name(node.target) in WRITES_INTO:
        return roots[node.all_input_nodes[0]]
    if kind == "getitem":
        container = node.args[0]
        if family(container.target) == "view" and container.all_input_nodes:  # split, unbind: views in a list
            return roots[container.all_input_nodes[0]]
    return node


def kind_of(node: fx.Node, val: object, tangent: bool) -> Kind:
    if node.op == "placeholder":
        if tangent:
            return "tangent"
        return "primal"
    if node.op == "get_attr":
        return "primal" if isinstance(val, torch.Tensor) else "symbol"
    kind = family(node.target)
    if isinstance(val, list | tuple):
        return "view" if kind == "view" else "tuple"  # split, unbind: views in a list
    if not isinstance(val, torch.Tensor):
        return "symbol" if val is not None else "extern"
    if kind == "getitem" and family(node.args[0].target) == "view":
        return "view"
    return "extern" if kind in ("getitem", "symbol") else kind


def owned_bytes(node: fx.Node, owner: bool, granularity: int) -> int:
    """The bytes that a node's own storages take: of a tuple, those of all its elements."""
    val = node.meta.get("val")
    parts = [] if not owner else val if isinstance(val, list | tuple) else [val]
    return sum(-(-storage_span(t) // granularity) * granularity for t in parts if isinstance(t, torch.Tensor))


def fused_seconds(value: Value, hardware: Hardware) -> float:
    """What a pointwise value costs where it is not written to memory."""
    return max(0.0, value.seconds - value.bytes / hardware.memory_bandwidth)
