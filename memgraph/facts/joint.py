"""The joint graph as numbers: values, storages, sizes, times, regions. What the planner sees instead of fx.

    joint graph (fx) + Inductor's own split of it  ->  JointFacts

Values are indexed in topological order. A view shares the `storage` of what it views.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from memgraph.base.sizes import round_up
from memgraph.facts import regions
from memgraph.facts.actions import CheckpointTag, Fixed, FixedKind, Pin, Recompute, RegionInput, Save
from memgraph.facts.bodies import NodeReader
from memgraph.facts.copied import copied_inputs, read_channels_last
from memgraph.facts.costs import logical_bytes, storage_span
from memgraph.facts.drawn_masks import drawn_masks, read_in_larger_kernels
from memgraph.facts.expanded import read_expanded
from memgraph.facts.forward_order import order_of_forward
from memgraph.facts.gradient_sums import early_products, gradient_sums
from memgraph.facts.labels import label_of, source_of
from memgraph.facts.operators import family, lies_on_the_host, twice_is_wrong
from memgraph.facts.parts import parts_of_gradients
from memgraph.facts.values import Value, is_backward_input
from memgraph.facts.views import is_view
from memgraph.machine.hardware import Hardware


@dataclasses.dataclass(frozen=True)
class JointFacts:
    """A joint graph without its fx nodes: everything else is an index into `values`."""

    values: tuple[Value, ...]
    """All values, in topological order."""
    forward: tuple[int, ...]
    """The values that need no tangent, in the order in which a plan runs them; a few serve the backward alone."""
    backward: tuple[int, ...]
    """The values that need a tangent, or have to run in the backward, in the order of Inductor's own split."""
    forward_outputs: tuple[int, ...]
    """What the forward returns to the user."""
    backward_outputs: tuple[int, ...]
    """The gradients."""
    stock_saved: frozenset[int]
    """What Inductor's own split saves."""
    region_names: tuple[str, ...]
    """By region, its name, in the order of the forward."""
    retained: bool = False
    """Whether saved values outlive the backward (`retain_graph=True`)."""
    dropped: tuple[int, ...] = ()
    """Those of `forward_outputs` that the user does not hold any more when the backward begins."""
    stock_forward: tuple[int, ...] = ()
    """Those of `forward` in the order of Inductor's own split; empty where that is the same."""
    copied: frozenset[int] = frozenset()
    """Inputs of which Inductor saves a copy in another layout, if the backward reads them."""
    alike: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Layers of the forward that are to be planned alike: by class, by layer, its values, which correspond by place."""

    @property
    def interpreted(self) -> JointFacts:
        """The same for the FX interpreter, which copies no input, and writes the whole of a gradient in any case."""
        values = tuple(dataclasses.replace(value, part=0) if value.part else value for value in self.values)
        return dataclasses.replace(self, copied=frozenset(), values=values)

    # What follows is asked for once for each of some hundred candidates.

    @functools.cached_property
    def held_outputs(self) -> frozenset[int]:
        """The storages that the user holds until the backward has run, by the values that own them."""
        return frozenset(self.values[i].storage for i in self.forward_outputs if i not in self.dropped)

    @functools.cached_property
    def primals(self) -> tuple[int, ...]:
        """The inputs of the forward, which the backward may read as well."""
        return tuple(i for i, value in enumerate(self.values) if value.kind == "primal")

    @functools.cached_property
    def tangents(self) -> tuple[int, ...]:
        """The inputs of the backward alone."""
        return tuple(i for i, value in enumerate(self.values) if value.kind == "tangent")

    @functools.cached_property
    def in_backward(self) -> frozenset[int]:
        """The values of `backward`, in no order."""
        return frozenset(self.backward)

    @functools.cached_property
    def inlinable_forward(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The values of the forward that a reader can make anew, with their inputs."""
        return tuple((i, self.values[i].inputs) for i in self.forward if self.values[i].inlinable)

    @functools.cached_property
    def sums_of_products(self) -> frozenset[int]:
        """The sums of a gradient that add what an operator that fuses with nothing has made, seen through views."""
        values = self.values

        def product(i: int) -> bool:
            return values[values[i].storage].kind == "extern"

        return frozenset(i for i, v in enumerate(values) if v.accumulates and any(map(product, v.inputs)))

    @functools.cached_property
    def settled(self) -> frozenset[int]:
        """Sums of a gradient, products that they add to what comes later, what an operator reads in a larger size,
        gradients that convolutions read channels last, and parts of gradients."""
        return frozenset(i for i, v in enumerate(self.values) if v.is_settled)

    @functools.cached_property
    def early(self) -> frozenset[int]:
        """Products that sums add to what is computed later."""
        return frozenset(i for i, value in enumerate(self.values) if value.early)

    @functools.cached_property
    def random_masks(self) -> frozenset[int]:
        """The masks that are made of random numbers alone."""
        return frozenset(i for i, value in enumerate(self.values) if value.masks)

    @functools.cached_property
    def always_run(self) -> frozenset[int]:
        """The values that the forward has or computes whatever it saves."""
        unread = [i for i in self.forward if (fixed := self.values[i].fixed) is not None and fixed.runs_unread]
        return frozenset(self.with_inputs([*self.forward_outputs, *unread]))

    def with_inputs(self, wanted: Iterable[int], known: Collection[int] = ()) -> set[int]:
        """Values with all that they are computed from, but for those that are known."""
        found: set[int] = set()
        pending = [i for i in wanted if i not in known]
        while pending:
            i = pending.pop()
            if i not in found:
                found.add(i)
                pending += [j for j in self.values[i].inputs if j not in known]
        return found


@dataclasses.dataclass(frozen=True)
class _Sides:
    """The nodes of a joint graph, by the side that runs them."""

    tangents: frozenset[fx.Node]
    forward: tuple[fx.Node, ...]
    backward: tuple[fx.Node, ...]


def read_joint(
    joint: fx.GraphModule,
    stock_forward: fx.GraphModule,
    stock_backward: fx.GraphModule,
    *,
    num_fwd_outputs: int,
    hardware: Hardware,
    pins: Mapping[str, Pin] | None = None,
    granularity: int = 1,
    retained: bool = False,
    repeatable: Sequence[str] = (),
    dropped: Sequence[int] = (),
) -> JointFacts:
    """Read a joint graph that Inductor's partitioner has split (and cleaned) into numbers.

    num_fwd_outputs: how many of the joint graph's outputs, the first ones, are the forward's.
    pins: by node name, those that are not the user's own tags.
    repeatable: patterns of the operators that the user has declared to be so.
    granularity: allocations are rounded up to it (512 on CUDA, 1 on the CPU), in bytes.
    dropped: positions of outputs of the forward that the user drops before the backward begins.
    Raises GraphError for a size that only data decide.
    """
    nodes = [node for node in joint.graph.nodes if node.op != "output"]
    sides = _sides(nodes, stock_backward)
    region_of, found = _regions(sides)
    reader, overwritten = NodeReader(nodes, hardware, granularity), overwritten_inputs(joint.graph.nodes)
    device = _device(nodes, hardware.device)

    def decided(node: fx.Node) -> Mapping[str, Any]:
        fixed = _fixed(node, overwritten, repeatable) if node.op == "call_function" else None
        return {"region": region_of.get(node, 0), "fixed": fixed, "pin": _pin(node, pins or {})}

    values = tuple(_values(nodes, sides, reader, device, decided))
    stock = {node.name for node in _outputs(stock_forward)[num_fwd_outputs:]} & {node.name for node in nodes}
    saved = stock | _replayed(sides.backward, stock, overwritten, repeatable)
    place, outputs = reader.position, _outputs(joint)

    def places(of: Iterable[Any]) -> tuple[int, ...]:
        return tuple(place[node] for node in of if isinstance(node, fx.Node))

    order = places(sides.forward)
    forward = order_of_forward(values, order, places(filter(_is_of_autograd, sides.forward)))
    return JointFacts(
        values=values,
        forward=forward,
        backward=places(sides.backward),
        forward_outputs=places(outputs[:num_fwd_outputs]),
        backward_outputs=places(outputs[num_fwd_outputs:]),
        stock_saved=frozenset(place[node] for node in nodes if node.name in saved),
        region_names=tuple(region.name for region in found),
        retained=retained,
        dropped=places(outputs[i] for i in dropped),
        stock_forward=() if forward == order else order,
        copied=frozenset(place[node] for node in copied_inputs(joint, stock_forward)),
    )


def _values(
    nodes: Sequence[fx.Node],
    sides: _Sides,
    reader: NodeReader,
    device: str,
    decided: Callable[[fx.Node], Mapping[str, Any]],
) -> Iterator[Value]:
    """The values of a graph's nodes, in order.  decided: of a node, its region, its pin and what fixes it."""
    sums, masks, expanded = gradient_sums(sides.backward), drawn_masks(nodes), read_expanded(nodes)
    expanded |= read_in_larger_kernels(masks)
    early, (regrouped, twice) = early_products(sides.backward), read_channels_last(sides.backward)
    parts = parts_of_gradients(sides.backward)
    forward = frozenset(sides.forward)
    for place, node in enumerate(nodes):
        value, val = reader.value(node, tangent=node in sides.tangents), node.meta.get("val")
        tensor = isinstance(val, torch.Tensor)
        movable = tensor and value.storage == place and value.kind != "primal" and _movable(node, val, device)
        yield dataclasses.replace(
            value,
            savable=tensor and value.kind != "tangent",
            accumulates=node in sums,
            early=node in early,
            masks=node in masks,
            expanded=node in expanded,
            regrouped=node in regrouped,
            twice=node in twice,
            part=round_up(logical_bytes(val), reader.granularity) if node in parts else 0,
            movable=movable,
            module=_path(node) if node in forward else "",
            source=source_of(node),
            label=label_of(node, forward=node in forward),
            **decided(node),
        )


def _sides(nodes: Sequence[fx.Node], stock_backward: fx.GraphModule) -> _Sides:
    """Sort nodes by side, the backward's in the order of Inductor's own split, without those that the split dropped."""
    tangents = {node for node in nodes if is_backward_input(node)}
    late = set(tangents)
    for node in nodes:
        if not late.isdisjoint(node.all_input_nodes):
            late.add(node)
    late |= {node for node in nodes if node.meta.get("partitioner_tag") == "must_be_in_backward"}
    by_name = {node.name: node for node in late}
    order = [node.name for node in stock_backward.graph.nodes if node.op not in ("placeholder", "output")]
    return _Sides(
        tangents=frozenset(tangents),
        forward=tuple(node for node in nodes if node.op != "placeholder" and node not in late),
        backward=tuple(by_name[name] for name in order if name in by_name),
    )


def _is_of_autograd(node: fx.Node) -> bool:
    """Whether a node of the forward is no operator of the user's: autograd's formulas need it."""
    return node.meta.get("partitioner_tag") == "is_backward"


def _regions(sides: _Sides) -> tuple[dict[fx.Node, int], list[regions.Region]]:
    """By node of either side, the number of its region; and the regions."""
    users = [node for node in sides.forward if not _is_of_autograd(node)]
    assigned, found = regions.forward_regions(users, [_path(node) for node in users])
    region_of = dict(zip(users, assigned, strict=True))
    served = [node for node in sides.forward if node not in region_of]
    last = max(len(found) - 1, 0)
    region_of |= regions.gradient_regions(served, region_of, found, last) | regions.gradient_regions(
        sides.backward, region_of, found, last
    )
    return region_of, found


def _path(node: fx.Node) -> str:
    return regions.module_path(node.meta.get("nn_module_stack"))


def overwritten_inputs(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Inputs that the forward writes to, in the graph or right after it, and their views: they cannot be read again."""
    nodes = list(nodes)
    found, by_description = set(), {}
    for node in nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            found |= {arg for arg in node.all_input_nodes[:1] if arg.op == "placeholder"}
        elif node.op == "placeholder" and "desc" in node.meta:
            by_description[node.meta["desc"]] = node
        elif node.op == "output":
            # AOTAutograd copies these outputs into their inputs when the compiled forward has returned.
            for description in node.meta.get("desc") or ():
                target = getattr(description, "mutated_input", None)
                if target in by_description:
                    found.add(by_description[target])
    for node in nodes:
        if found.intersection(node.all_input_nodes) and (is_view(node) or _is_part_of_view(node)):
            found.add(node)
    return found


def _is_part_of_view(node: fx.Node) -> bool:
    """Whether a node takes one of several views, such as those of a split."""
    return family(node.target) == "getitem" and isinstance(node.args[0], fx.Node) and is_view(node.args[0])


def _fixed(node: fx.Node, overwritten: set[fx.Node], repeatable: Sequence[str]) -> Fixed | None:
    if family(node.target) == "getitem" and node.args[0].op == "call_function":
        return _fixed(node.args[0], overwritten, repeatable)
    fixed = twice_is_wrong(node, repeatable)
    if fixed is None and overwritten.intersection(node.all_input_nodes):
        return Fixed(FixedKind.READS_OVERWRITTEN, "reads an input that the forward overwrites")
    return fixed


def _replayed(
    backward: Iterable[fx.Node], saved: set[str], overwritten: set[fx.Node], repeatable: Sequence[str]
) -> set[str]:
    """Values that must not be computed twice and that Inductor's split does not save, though its backward needs them.

    That split draws them again from a saved state of the generator (fallback_random under a checkpoint). A plan of ours
    has no such replays: the planner takes these values for saved, in Inductor's split too.
    """
    found: set[str] = set()
    pending = [read for node in backward for read in node.all_input_nodes]
    seen = set(backward)
    while pending:
        node = pending.pop()
        if node in seen or node.name in saved or node.op != "call_function":
            continue
        seen.add(node)
        if _fixed(node, overwritten, repeatable):
            found.add(node.name)
        else:
            pending += node.all_input_nodes
    return found


def _outputs(graph: fx.GraphModule) -> list[Any]:
    outputs = graph.graph.output_node().args[0]
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def _device(nodes: Iterable[fx.Node], wanted: str) -> str:
    """The kind of device that a graph computes on: the wanted one, or the CPU where that stands for it (a dry run)."""
    found = {val.device.type for node in nodes if isinstance(val := node.meta.get("val"), torch.Tensor)}
    return wanted if wanted in found else "cpu"


def _movable(node: fx.Node, value: torch.Tensor, device: str) -> bool:
    dense = value.layout is torch.strided and storage_span(value) == logical_bytes(value)
    return value.device.type == device and dense and not lies_on_the_host(node)


def _pin(node: fx.Node, pins: Mapping[str, Pin]) -> Pin | None:
    """What the planner may not change, and who says so. The partitioner turns a region's inputs into MUST_SAVE."""
    tag = getattr(node.meta.get("recompute"), "name", "")
    if not tag:  # a rule that could not be followed: the value is fixed
        return pins.get(node.name)
    if tag in ("MUST_RECOMPUTE", "PREFER_RECOMPUTE"):
        return pins.get(node.name, Pin(Recompute(), CheckpointTag()))
    if tag == "MUST_SAVE":
        pin = pins.get(node.name, Pin(Save(), CheckpointTag()))
        return Pin(Save(), RegionInput(pin.origin)) if isinstance(pin.action, Recompute) else pin
    return None
