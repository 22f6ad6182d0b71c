"""Tiles: a region of a joint graph as a graph that calls a body once a shard and puts the outputs together."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

import memgraph.runtime  # noqa: F401  registers the operators
from memgraph.base import compat
from memgraph.facts.tokens.nodes import shape_of
from memgraph.facts.tokens.region import TokenRegion
from memgraph.facts.tokens.states import PARTIAL, MixesTokens, Sharded, apart
from memgraph.passes.insert import call
from memgraph.passes.tiles.body import Body, build_body, shard_shape, sizes
from memgraph.passes.tiles.stored import CalledGraph
from memgraph.runtime.tile_ops import accumulator

aten = torch.ops.aten


def needed(nodes: Mapping[str, fx.Node], region: TokenRegion, outputs: Sequence[str]) -> tuple[list[str], list[str]]:
    """The nodes of a region that some outputs are computed from, and the inputs that they read, both in order."""
    inside, found, pending = region.nodes, set(), [nodes[name] for name in outputs]
    read: set[str] = set()
    while pending:
        node = pending.pop()
        if node.name in found:
            continue
        found.add(node.name)
        for source in node.all_input_nodes:
            if source.name in inside:
                pending.append(source)
            else:
                read.add(source.name)
    order = (*region.forward, *region.backward)
    place = {node.name: n for n, node in enumerate(nodes.values())}
    return sorted(found.intersection(order), key=place.__getitem__), [name for name in region.inputs if name in read]


def build_tile(
    nodes: Mapping[str, fx.Node],
    region: TokenRegion,
    names: Sequence[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    shards: int,
) -> fx.GraphModule:
    """The graph that runs a region's nodes shard by shard and puts the outputs together."""
    graph, root = fx.Graph(), torch.nn.Module()
    mode = compat.fake_mode_of([nodes[name].meta["val"] for name in inputs])
    whole = {}
    for name in inputs:
        whole[name] = graph.placeholder(name)
        whole[name].meta["val"] = nodes[name].meta["val"]
    flat = {name: _flat(graph, mode, whole[name], region.states[name]) for name in inputs}
    bodies: dict[int, tuple[str, Body]] = {}
    gathered: dict[str, fx.Node] = {}
    start = 0
    for rows in sizes(region.tokens, shards):
        slices = {
            name: _slice(graph, mode, flat[name], whole[name], region.states[name], start, rows) for name in inputs
        }
        if rows not in bodies:
            given = {name: node.meta["val"] for name, node in slices.items()}
            body = build_body(nodes, region, names, given, outputs, rows, mode)
            bodies[rows] = (f"body_{len(bodies)}", body)
            root.add_module(bodies[rows][0], body.module)
        label, body = bodies[rows]
        found = _run(graph, mode, label, body, slices)
        for name in outputs:
            before = gathered.get(name)
            if name in body.products:
                factors = [_again(graph, mode, factor, found) for factor in body.products[name]]
                gathered[name] = (
                    call(graph, mode, torch.ops.memgraph.shard_product.default, *factors)
                    if before is None
                    else call(graph, mode, torch.ops.memgraph.shard_add.default, before, *factors)
                )
            else:
                part = found[body.exposed[body.values[name]]]
                gathered[name] = _gather(graph, mode, before, part, nodes[name], region, name, start)
        start += rows
    results = [_finish(graph, mode, gathered[name], nodes[name], region.states[name]) for name in outputs]
    graph.output(tuple(results))
    return CalledGraph(root, graph)


def _flat(graph: fx.Graph, mode: Any, node: fx.Node, state: Any) -> fx.Node:
    """A sharded value with its tokens along one dimension."""
    if not isinstance(state, Sharded) or len(state.dims) == 1:
        return node
    if state.spread:
        sizes = dict(zip(state.dims, state.spread, strict=True))
        shape = [sizes.get(dim, size) for dim, size in enumerate(shape_of(node))]
        node = call(graph, mode, aten.expand.default, node, shape)
    if apart(state, shape_of(node)):
        order = _side_by_side(state, len(shape_of(node)))
        node = call(graph, mode, aten.permute.default, node, order)
        state = dataclasses.replace(state, dims=tuple(order.index(dim) for dim in state.dims))
    shape = list(shape_of(node))
    first, last = state.dims[0], state.dims[-1]
    merged = [*shape[:first], -1, *shape[last + 1 :]]
    if not _viewable(node.meta["val"], first, last):
        node = call(graph, mode, aten.clone.default, node, memory_format=torch.contiguous_format)
    return call(graph, mode, aten.view.default, node, merged)


def _side_by_side(state: Sharded, rank: int) -> list[int]:
    """An order of the dimensions in which the token dimensions follow one another, ending where the last of them is."""
    last = state.dims[-1]
    return [*(dim for dim in range(last) if dim not in state.dims), *state.dims, *range(last + 1, rank)]


def _dim(state: Sharded, shape: Sequence[int]) -> int:
    """The token dimension of what `_flat` returns."""
    return state.dims[-1] - len(state.dims) + 1 if apart(state, shape) else state.dims[0]


def _viewable(value: torch.Tensor, first: int, last: int) -> bool:
    """Whether a view can merge some dimensions into one."""
    dims = [dim for dim in range(first, last + 1) if value.shape[dim] != 1]
    steps = zip(dims, dims[1:], strict=False)
    return all(value.stride(one) == value.stride(other) * value.shape[other] for one, other in steps)


def _slice(graph: fx.Graph, mode: Any, flat: fx.Node, whole: fx.Node, state: Any, start: int, rows: int) -> fx.Node:
    if not isinstance(state, Sharded):
        return flat
    dim, factor = _dim(state, shape_of(whole)), state.factor
    part = flat
    if rows * factor != shape_of(flat)[dim]:
        part = call(graph, mode, aten.slice.Tensor, flat, dim, start * factor, (start + rows) * factor)
    shape = shard_shape(shape_of(whole), state, rows)
    if list(shape_of(part)) != shape:
        if not part.meta["val"].is_contiguous():
            part = call(graph, mode, aten.clone.default, part, memory_format=torch.contiguous_format)
        part = call(graph, mode, aten.view.default, part, shape)
    return part


def _run(graph: fx.Graph, mode: Any, label: str, body: Body, slices: Mapping[str, fx.Node]) -> dict[fx.Node, fx.Node]:
    """Call a body; returns the caller's node for each placeholder and each returned node of the body."""
    known = next((node for node in graph.find_nodes(op="get_attr") if node.target == label), None)
    reference = known or graph.get_attr(label)
    arguments = [slices[placeholder.target] for placeholder in body.placeholders]
    values = tuple(node.meta["val"] for node in body.exposed)
    run = graph.call_function(compat.invoke_subgraph(), (reference, label, *arguments))
    run.meta["val"] = values
    found = dict(zip(body.placeholders, arguments, strict=True))
    for n, node in enumerate(body.exposed):
        found[node] = graph.call_function(operator.getitem, (run, n))
        found[node].meta["val"] = values[n]
    return found


def _again(graph: fx.Graph, mode: Any, factor: fx.Node, found: dict[fx.Node, fx.Node]) -> fx.Node:
    """A view inside of a body, made again by the caller, from the body's results and operands."""
    if factor not in found:
        reads = {read: _again(graph, mode, read, found) for read in factor.all_input_nodes}
        args, kwargs = fx.map_arg((factor.args, factor.kwargs), lambda read: reads[read])
        found[factor] = call(graph, mode, factor.target, *args, **kwargs)
    return found[factor]


def _gather(
    graph: fx.Graph,
    mode: Any,
    before: fx.Node | None,
    part: fx.Node,
    node: fx.Node,
    region: TokenRegion,
    name: str,
    start: int,
) -> fx.Node:
    """Put one more shard of an output into its place, or add it."""
    state = region.states[name]
    if state == PARTIAL:
        wide = accumulator(part.meta["val"].dtype)
        if wide != part.meta["val"].dtype:
            part = call(graph, mode, torch.ops.prims.convert_element_type.default, part, wide)
        return part if before is None else call(graph, mode, aten.add.Tensor, before, part)
    assert isinstance(state, Sharded)  # a region has no other outputs
    flat = _flat(graph, mode, part, state)
    dim = _dim(state, shape_of(node))
    if before is None:
        length = region.tokens * state.factor
        return call(graph, mode, torch.ops.memgraph.shard_whole.default, flat, dim, length)
    return call(graph, mode, torch.ops.memgraph.shard_put.default, before, flat, dim, start * state.factor)


def _finish(graph: fx.Graph, mode: Any, result: fx.Node, node: fx.Node, state: Any) -> fx.Node:
    """An output with the shape, dtype and strides that it had.  Raises MixesTokens where the strides differ."""
    old = node.meta["val"]
    if isinstance(state, Sharded) and apart(state, old.shape):
        order = _side_by_side(state, old.dim())
        result = call(graph, mode, aten.view.default, result, [old.shape[dim] for dim in order])
        result = call(graph, mode, aten.permute.default, result, [order.index(dim) for dim in range(old.dim())])
    if result.meta["val"].shape != old.shape:
        result = call(graph, mode, aten.view.default, result, list(old.shape))
    if result.meta["val"].dtype != old.dtype:
        result = call(graph, mode, torch.ops.prims.convert_element_type.default, result, old.dtype)
    if result.meta["val"].stride() != old.stride():
        raise MixesTokens(node, f"comes out with strides {result.meta['val'].stride()}, not {old.stride()}")
    return result


def signature(
    nodes: Mapping[str, fx.Node],
    region: TokenRegion,
    names: Sequence[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    shards: int,
) -> str:
    """A text that is equal if `build_tile` builds equal tiles; it costs less than to build them."""
    place = {nodes[name]: f"%{n}" for n, name in enumerate((*inputs, *names))}
    lines = [f"{shards} {region.tokens}"]
    for name in (*inputs, *names):
        node = nodes[name]
        does = "" if name in inputs else _line(node, place)
        lines.append(f"{does} {_look(node)} {region.states.get(name)}")
    return "\n".join([*lines, *(place[nodes[name]] for name in outputs)])


def _line(node: fx.Node, place: Mapping[fx.Node, str]) -> str:
    args = fx.map_arg((node.args, dict(node.kwargs)), place.__getitem__)
    return f"{node.op} {node.target} {args}"


def _look(node: fx.Node) -> str:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return ""
    return f"{tuple(value.shape)} {value.stride()} {value.dtype} {value.device}"
