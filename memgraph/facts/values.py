"""The values of a graph as numbers: what they share, how many bytes they own, how Inductor treats their operators."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Literal

import torch
from torch import fx

from memgraph.base import compat
from memgraph.base.sizes import round_up
from memgraph.facts.actions import Action, Fixed, Pin
from memgraph.facts.costs import storage_span
from memgraph.facts.joined import is_joined, is_joined_by_torch
from memgraph.facts.operators import aten_names, family, qualified_name
from memgraph.facts.views import is_view
from memgraph.machine.hardware import Hardware

# Operators that Inductor runs in place: they write into their first argument (runtime/tile_ops.py).
WRITES_INTO = frozenset(("memgraph::shard_put", "memgraph::shard_add", "memgraph::shard_sum"))


@dataclasses.dataclass(frozen=True, slots=True)
class Label:
    """What the report shows of a value, beside its name and its line of the user's code."""

    operator: str = ""
    """What computes it, such as "aten::mm"; "" for an input of the graph."""
    dtype: str = ""
    """Of its entries, such as "bfloat16"; "" where it is no tensor."""
    shape: tuple[int, ...] = ()
    """Empty for a scalar, where it is no tensor, and where only data decide its sizes."""
    module: str = ""
    """The path of its module; of a value of the backward, that of the module whose gradient it serves."""


UNLABELLED = Label()

Kind = Literal["primal", "tangent", "view", "pointwise", "reduction", "extern", "tuple", "symbol"]


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """One node as numbers. Values are named by their index in the graph's order."""

    name: str
    kind: Kind
    inputs: tuple[int, ...]
    """The values that it reads, each once."""
    storage: int
    """The value that owns its bytes: itself, or what it views."""
    bytes: int
    """The bytes of its own storage, 0 if it shares another's; of a tuple, the bytes of all its elements together."""
    seconds: float
    """The time to compute it once more."""
    region: int
    """Its region, by place in `JointFacts.region_names`."""
    savable: bool
    """Whether a forward may hand it to the backward: a tensor that is no tangent."""
    fixed: Fixed | None = None
    """Why it must not run twice, None if it may."""
    pin: Pin | None = None
    """What a rule, a tag or the graph asks for; None if the planner chooses."""
    hold: float = 0.0
    """The seconds that it costs to save it, besides its bytes."""
    heavy: bool = False
    """Whether Inductor writes it to memory rather than inline it into several readers."""
    elsewhere: tuple[int, ...] = ()
    """By place in `inputs`, those of which it reads other entries than the one that it writes."""
    movable: bool = False
    """Whether its bytes may be copied to another tier and back: it owns them, they lie densely on the device, and it
    is no primal."""
    accumulates: bool = False
    """Whether it is one of a chain of additions that sum up a gradient: all but the last are read by the next alone."""
    early: bool = False
    """Whether it is a product that a sum adds to what is computed later: Inductor, by itself, computes both then."""
    masks: bool = False
    """Whether it is made of random numbers alone and takes fewer bytes than they do."""
    expanded: bool = False
    """Whether it is pointwise, and an operator that fuses with nothing reads it through a view with more entries;
    or it is a mask that is read for more entries."""
    called: bool = False
    """Whether it is what an operator with several outputs returns, which Inductor calls by itself."""
    entries: int = 0
    """How many it has; 0 where it is no tensor."""
    strided: bool = False
    """Whether it is a view by strides: Inductor writes what it views to memory."""
    regrouped: bool = False
    """Whether it is a gradient of which convolutions read a view, channels last."""
    twice: bool = False
    """Whether Inductor, by itself, writes such a gradient as it is, and a copy of it channels last."""
    part: int = 0
    """Of a slice of a gradient that is written by itself where it is settled: its bytes; else 0."""
    scratch: int = 0
    """The bytes that its operator holds beyond its outputs while it runs: kernel scratch, or a body's own values."""
    module: str = ""
    """The path of its module, "" if there is none."""
    source: str = ""
    """The user's line that made it, as "file:line"."""
    label: Label = UNLABELLED

    @property
    def inlinable(self) -> bool:
        """Whether a fused operator or a view makes it, which may run twice: a reader can make it anew."""
        return self.kind in ("view", "pointwise", "symbol") and not self.fixed

    @property
    def is_settled(self) -> bool:
        """Whether a plan has it written to memory in the backward, whatever reads it."""
        return self.accumulates or self.early or self.expanded or self.regrouped or self.part > 0

    def pinned(self, kind: type[Action]) -> bool:
        """Whether a pin asks for an action of this kind."""
        return self.pin is not None and isinstance(self.pin.action, kind)


@functools.cache
def heavy_names() -> frozenset[str]:
    """On the CPU Inductor writes a value with one of these in it to memory if it has several readers."""
    return aten_names(compat.heavy_functions())


def is_backward_input(node: fx.Node) -> bool:
    """Whether an input of a joint graph is for the backward alone: a tangent, or the state of a generator.

    AOTAutograd names the inputs by their role, whatever the user calls them. torch's own partitioner decides by the
    names as well (torch/_functorch/_aot_autograd/utils.py, _is_tangent).
    """
    return node.op == "placeholder" and ("tangent" in node.name or "bwd_rng" in node.name)


def root(node: fx.Node, roots: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """The node that owns a node's storage. Each output of an operator with several outputs owns its own.

    roots: by node before it, the node that owns its storage.
    """
    if is_view(node) or qualified_name(node.target) in WRITES_INTO:
        return roots[node.all_input_nodes[0]]
    if family(node.target) == "getitem" and is_view(node.args[0]):  # split, unbind: views in a list
        return roots[node.args[0].all_input_nodes[0]]
    return node


def kind_of(node: fx.Node, val: object, tangent: bool) -> Kind:
    """How a node's value behaves in memory.  val: what it computes.  tangent: whether it is one."""
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
    if is_joined(node):
        return "extern" if is_joined_by_torch(node) else "reduction"
    return "extern" if kind == "getitem" or kind == "symbol" else kind


def owned_bytes(node: fx.Node, owner: bool, granularity: int) -> int:
    """The bytes that a node's own storages take: of a tuple, those of all its elements."""
    val = node.meta.get("val")
    parts = [] if not owner else val if isinstance(val, list | tuple) else [val]
    return sum(round_up(storage_span(part), granularity) for part in parts if isinstance(part, torch.Tensor))


def fused_seconds(value: Value, hardware: Hardware) -> float:
    """The time of a pointwise value that is not written to memory."""
    return max(0.0, value.seconds - value.bytes / hardware.memory_bandwidth)
