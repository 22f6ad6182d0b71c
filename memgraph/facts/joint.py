"""The joint graph as numbers: values, storages, sizes, times, regions. What the planner sees instead of fx.

    joint graph (fx) + Inductor's own split of it  ->  JointFacts

Values are indexed in topological order. A view shares the `storage` of what it views.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import fx

from memgraph.facts import kernel_scratch, regions
from memgraph.facts.actions import CheckpointTag, Fixed, FixedKind, Pin, Recompute, RegionInput, Save
from memgraph.facts.bodies import Inside
from memgraph.facts.costs import logical_bytes, seconds, storage_span
from memgraph.facts.gradient_sums import gradient_sums
from memgraph.facts.operators import family, short_name, twice_is_wrong
from memgraph.facts.values import HEAVY, Value, kind_of, owned_bytes, root
from memgraph.machine.hardware import Hardware


@dataclasses.dataclass(frozen=True)
class JointFacts:
    """A joint graph without its fx nodes.

    forward, backward: values in execution order; the backward's are those that need a tangent, in the order of
    Inductor's own split. between: values that either side may compute (neither forward outputs nor tangents need
    them alone). stock_saved: what Inductor's own split saves. region_names: by region, in the order of the forward.
    retained: saved values outlive the backward (`retain_graph=True`).
    """

    values: tuple[Value, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    forward_outputs: tuple[int, ...]
    backward_outputs: tuple[int, ...]
    stock_saved: frozenset[int]
    region_names: tuple[str, ...]
    retained: bool = False


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
) -> JointFacts:
    """Read a joint graph that Inductor's partitioner has split (and cleaned) into numbers.

    pins: by node name, those that are not the user's own tags.
    repeatable: patterns of the operators that the user has declared to be so.
    granularity: allocations are rounded up to it (512 on CUDA, 1 on the CPU), in bytes.
    """
    nodes = [node for node in joint.graph.nodes if node.op != "output"]
    position = {node: i for i, node in enumerate(nodes)}
    by_name = {node.name: node for node in nodes}
    outputs = _flat(next(iter(joint.graph.find_nodes(op="output"))).args[0])
    tangents = {n for n in nodes if n.op == "placeholder" and ("tangent" in n.name or "bwd_rng" in n.name)}
    needs_tangent = set(tangents)
    for node in nodes:
        if node not in needs_tangent and any(arg in needs_tangent for arg in node.all_input_nodes):
            needs_tangent.add(node)
    backward_only = {n for n in nodes if n in needs_tangent or n.meta.get("partitioner_tag") == "must_be_in_backward"}
    forward = [n for n in nodes if n.op != "placeholder" and n not in backward_only]
    backward = [
        by_name[n.name]
        for n in stock_backward.graph.nodes
        if n.op not in ("placeholder", "output") and n.name in by_name and by_name[n.name] in backward_only
    ]
    overwritten = overwritten_inputs(joint.graph.nodes)
    users = [node for node in forward if node.meta.get("partitioner_tag") != "is_backward"]
    paths = {node: regions.module_path(node.meta.get("nn_module_stack")) for node in forward}
    assigned, found = regions.forward_regions(users, [paths[node] for node in users])
    region_of = dict(zip(users, assigned, strict=True))
    served = [node for node in forward if node not in region_of]
    last = max(len(found) - 1, 0)
    region_of |= regions.gradient_regions(served, region_of, found, last) | regions.gradient_regions(
        backward, region_of, found, last
    )

    roots: dict[fx.Node, fx.Node] = {}
    sums = gradient_sums(backward)
    bodies = Inside(hardware, granularity)
    values = []
    for node in nodes:
        roots[node] = root(node, roots)
        val = node.meta.get("val")
        tensor = isinstance(val, torch.Tensor)
        kind = kind_of(node, val, node in tangents)
        owns = roots[node] is node and tensor
        path = paths.get(node, "")
        called = bodies.of(node)
        values.append(
            Value(
                name=node.name,
                kind=kind,
                inputs=tuple(position[arg] for arg in node.all_input_nodes),
                storage=position[roots[node]],
                bytes=owned_bytes(node, roots[node] is node, granularity),
                seconds=called.seconds if called else seconds(node, hardware) if node.op == "call_function" else 0.0,
                scratch=called.scratch if called else kernel_scratch.of_node(node, hardware.device),
                region=region_of.get(node, 0),
                savable=tensor and kind not in ("tangent",),
                fixed=_fixed(node, overwritten, repeatable) if node.op == "call_function" else None,
                pin=_pin(node, pins or {}),
                heavy=tensor and val.device.type == "cpu" and short_name(node.target) in HEAVY,
                accumulates=node in sums,
                movable=owns and kind != "primal" and _movable(val, hardware.device),
                module=path,
                source=_source(node),
            )
        )
    stock = {n.name for n in _flat(next(iter(stock_forward.graph.find_nodes(op="output"))).args[0])[num_fwd_outputs:]}
    stock = (stock & by_name.keys()) | _replayed(backward, stock, overwritten, repeatable)
    return JointFacts(
        values=tuple(values),
        forward=tuple(position[n] for n in forward),
        backward=tuple(position[n] for n in backward),
        forward_outputs=tuple(position[n] for n in outputs[:num_fwd_outputs] if isinstance(n, fx.Node)),
        backward_outputs=tuple(position[n] for n in outputs[num_fwd_outputs:] if isinstance(n, fx.Node)),
        stock_saved=frozenset(position[by_name[name]] for name in stock),
        region_names=tuple(region.name for region in found),
        retained=retained,
    )


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
        if node.op == "call_function" and family(node.target) == "view" and found.intersection(node.all_input_nodes):
            found.add(node)
    return found


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

    It draws them again from a saved state of the generator (fallback_random under a checkpoint). A plan of ours has no
    such replays: the planner takes these values for saved, in Inductor's split too.
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


def _flat(outputs: object) -> list:
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def _movable(value: torch.Tensor, device: str) -> bool:
    dense = value.layout is torch.strided and storage_span(value) == logical_bytes(value)
    return value.device.type == device and dense


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


def _source(node: fx.Node) -> str:
    """ "file:line" of the innermost user frame that made the node."""
    line = ""
    for text in (node.meta.get("stack_trace") or "").splitlines():
        text = text.strip()
        if text.startswith("File "):
            parts = text.split('"')
            number = parts[2].split(",")[1].replace("line", "").strip() if len(parts) > 2 else ""
            line = f"{parts[1]}:{number}"
    return line
