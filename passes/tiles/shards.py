"""Tiles: a region of a joint graph as a graph that calls a body once a shard and puts the outputs together."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

import memgraph.runtime  # noqa: F401  registers the operators
from memgraph.base import compat
from memgraph.facts.tokens.nodes import shape_of
from memgraph.facts.tokens.region import TokenRegion
from memgraph.facts.tokens.states import PARTIAL, REPLICATED, MixesTokens, Sharded, apart
from memgraph.passes.graphs import Tiled
from memgraph.passes.insert import call, size
from memgraph.passes.tiles.body import (
    Body,
    Size,
    build_body,
    contiguous_strides,
    fits,
    is_contiguous,
    rows_of,
    same_shape,
    shard_shape,
    sizes,
)
from memgraph.passes.tiles.keys import add_keys, cut_keys, with_keys
from memgraph.passes.tiles.stored import CalledGraph
from memgraph.runtime.tile_ops import accumulator

aten = torch.ops.aten


def needed(nodes: Mapping[str, fx.Node], region: TokenRegion, outputs: Sequence[str]) -> tuple[list[str], list[str]]:
    """The nodes of a region that some outputs are computed from, and what these are given, both in order.

    The symbols of their sizes are inputs as well, the first ones.  Raises MixesTokens where the graph is not given one.
    """
    inside, found, pending = region.nodes.difference(region.handed), set(), [nodes[name] for name in outputs]
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
    names = sorted(found.intersection(order), key=place.__getitem__)
    inputs = [name for name in (*region.inputs, *region.handed) if name in read]
    return names, [*_symbols(nodes, [*inputs, *names]), *inputs]


def _symbols(nodes: Mapping[str, fx.Node], names: Sequence[str]) -> list[str]:
    """The inputs of the graph that are symbols in the sizes of some nodes.  Raises MixesTokens for any other symbol."""
    taken = {name: node.meta.get("val") for name, node in nodes.items() if node.op == "placeholder"}
    given = {compat.bound_symbol(value): name for name, value in taken.items()}
    found: dict[str, None] = {}
    for name in names:
        for symbol in sorted(compat.symbols_in(nodes[name].meta.get("val")), key=str):
            if symbol not in given:
                raise MixesTokens(nodes[name], f"has a size with {symbol}, which is no input of the graph")
            found[given[symbol]] = None
    return list(found)


def tokens_of(nodes: Mapping[str, fx.Node], region: TokenRegion) -> Size:
    """The number of tokens in all shards, as the sizes of the graph's values say it."""
    for name in (*region.inputs, *region.forward):
        state = region.states.get(name)
        if isinstance(state, Sharded) and state.factor == 1 and not state.spread and state.multiple == 1:
            return math.prod(shape_of(nodes[name])[dim] for dim in state.dims)
    return region.tokens


def build_tile(
    nodes: Mapping[str, fx.Node],
    tiled: Tiled,
    names: Sequence[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> fx.GraphModule:
    """The graph that runs a region's nodes shard by shard and puts the outputs together.

    names, inputs: as `needed` gives them for the outputs.  Raises MixesTokens where a shard cannot be cut out or
    computed, or an output would come out with other strides.
    """
    graph, root, region = fx.Graph(), torch.nn.Module(), tiled.region
    mode = compat.fake_mode_of([nodes[name].meta["val"] for name in inputs])
    whole, tokens = {}, tokens_of(nodes, region)
    for name in inputs:
        whole[name] = graph.placeholder(name)
        whole[name].meta["val"] = _filled(nodes[name].meta["val"], region.states.get(name), tokens, mode)
    along = _spread_along(nodes, region)
    flat = {name: _flat(graph, mode, whole[name], region.states.get(name), along) for name in inputs}
    bodies: dict[str, tuple[str, Body]] = {}
    gathered: dict[str, fx.Node] = {}
    start: Size = 0
    counts = sizes(tokens, tiled.shards, region.multiple)
    parts = {name: _cut(graph, mode, flat[name], whole[name], region.states.get(name), counts) for name in inputs}
    shares = with_keys(counts, region, tiled.keys)
    if all(shard.has_all_keys for shard in shares):
        region = dataclasses.replace(region, reach=None, keys={})
    for shard in shares:
        slices = {
            name: _shaped(graph, mode, part, whole[name], region.states.get(name), shard.rows)
            for name, part in cut_keys(graph, mode, parts, region, shard)
        }
        if shard.kind not in bodies:
            given = {name: node.meta["val"] for name, node in slices.items()}
            body = build_body(nodes, region, names, given, outputs, shard, mode)
            bodies[shard.kind] = (f"body_{len(bodies)}", body)
            root.add_module(bodies[shard.kind][0], body.module)
        label, body = bodies[shard.kind]
        found = _run(graph, mode, label, body, slices)
        for name in outputs:
            before = gathered.get(name)
            if name in body.products:
                factors = [_again(graph, mode, factor, found) for factor in body.products[name]]
                gathered[name] = _multiply(graph, mode, before, factors)
            elif name in region.keys:
                part, order = found[body.exposed[body.values[name]]], _inward(nodes[name].meta["val"])
                gathered[name] = add_keys(graph, mode, before, part, order, region.keys[name], shard)
            else:
                part = found[body.exposed[body.values[name]]]
                gathered[name] = _gather(graph, mode, before, part, nodes[name], region, tokens, start)
        start += shard.rows
    results = [
        _finish(graph, mode, gathered[name], nodes[name], region.states[name], along_keys=name in region.keys)
        for name in outputs
    ]
    graph.output(tuple(results))
    return CalledGraph(root, graph)


def _filled(value: Any, state: Any, tokens: Size, mode: Any) -> Any:
    """The value of an input; if its rows are filled up, and a symbol, with a size that can be computed from it.

    torch writes such sizes with fractions, which a graph cannot compute.
    """
    if not isinstance(state, Sharded) or state.multiple == 1 or isinstance(tokens, int):
        return value
    shape = [rows_of(state, tokens) if dim in state.dims else entry for dim, entry in enumerate(value.shape)]
    with compat.propagating(mode):
        return torch.empty_strided(shape, contiguous_strides(shape), dtype=value.dtype, device=value.device)


def _spread_along(nodes: Mapping[str, fx.Node], region: TokenRegion) -> dict[int, list[Size]]:
    """By number of dimensions of tokens, the sizes of these dimensions, as each token's own values have them."""
    found: dict[int, list[Size]] = {}
    for name, state in region.states.items():
        if name in nodes and isinstance(state, Sharded) and state.factor == 1 and not state.spread:
            found.setdefault(len(state.dims), [shape_of(nodes[name])[dim] for dim in state.dims])
    return found


def _flat(graph: fx.Graph, mode: Any, node: fx.Node, state: Any, along: Mapping[int, Sequence[Size]]) -> fx.Node:
    """A sharded value with its tokens along one dimension.  along: as `_spread_along` gives it."""
    if not isinstance(state, Sharded) or len(state.dims) == 1:
        return node
    if state.spread:
        if len(state.dims) not in along:
            raise MixesTokens(node, "is repeated along tokens that no other value tells")
        lengths = dict(zip(state.dims, along[len(state.dims)], strict=True))
        shape = [lengths.get(dim, length) for dim, length in enumerate(shape_of(node))]
        node = call(graph, mode, aten.expand.default, node, _sized(graph, mode, shape))
    if apart(state, shape_of(node)):
        order = _side_by_side(state, len(shape_of(node)))
        node = call(graph, mode, aten.permute.default, node, order)
        state = dataclasses.replace(state, dims=tuple(order.index(dim) for dim in state.dims))
    shape = list(shape_of(node))
    first, last = state.dims[0], state.dims[-1]
    merged = math.prod(shape[first : last + 1])
    row = -1 if isinstance(merged, int) else size(graph, mode, merged)
    if not _viewable(node.meta["val"], first, last):
        node = call(graph, mode, aten.clone.default, node, memory_format=torch.contiguous_format)
    shape = [*_sized(graph, mode, shape[:first]), row, *_sized(graph, mode, shape[last + 1 :])]
    return call(graph, mode, aten.view.default, node, shape)


def _side_by_side(state: Sharded, rank: int) -> list[int]:
    """An order of the dimensions in which the token dimensions follow one another, ending where the last of them is."""
    last = state.dims[-1]
    return [*(dim for dim in range(last) if dim not in state.dims), *state.dims, *range(last + 1, rank)]


def _inward(value: torch.Tensor) -> list[int]:
    """The dimensions of a value, from the outermost in memory to the innermost; empty where that is their order."""
    if same_shape(value.stride(), contiguous_strides(value.shape)):
        return []
    # Of two dimensions with one stride, that of length 1 is inside.
    return sorted(
        range(value.dim()),
        key=lambda dim: (-compat.size_hint(value.stride(dim)), compat.same_size(value.shape[dim], 1), dim),
    )


def _dim(state: Sharded, shape: Sequence[int]) -> int:
    """The token dimension of what `_flat` returns."""
    return state.dims[-1] - len(state.dims) + 1 if apart(state, shape) else state.dims[0]


def _viewable(value: torch.Tensor, first: int, last: int) -> bool:
    """Whether a view can merge some dimensions into one."""
    dims = [dim for dim in range(first, last + 1) if not compat.same_size(value.shape[dim], 1)]
    steps = zip(dims, dims[1:], strict=False)
    return all(compat.same_size(value.stride(one), value.stride(other) * value.shape[other]) for one, other in steps)


def _sized(graph: fx.Graph, mode: Any, shape: Sequence[Size]) -> list[int | fx.Node]:
    """A shape as an argument of a call."""
    return [size(graph, mode, entry) for entry in shape]


def _cut(
    graph: fx.Graph, mode: Any, flat: fx.Node, whole: fx.Node, state: Any, counts: Sequence[Size]
) -> Iterator[fx.Node]:
    """For each shard, its part of an input.  counts: tokens of each."""
    if not isinstance(state, Sharded):
        yield from [flat] * len(counts)
        return
    dim, lengths = _dim(state, shape_of(whole)), [rows_of(state, rows) for rows in counts]
    if compat.same_size(lengths[0], shape_of(flat)[dim]):
        yield flat
    elif all(isinstance(length, int) for length in lengths):
        for end, length in zip(itertools.accumulate(lengths), lengths, strict=True):
            yield call(graph, mode, aten.slice.Tensor, flat, dim, end - length, end)
    else:  # a slice ends where the whole does: of symbolic ends it is not known that they lie within
        lengths[-1] = shape_of(flat)[dim] - sum(lengths[:-1])
        split = call(graph, mode, aten.split_with_sizes.default, flat, _sized(graph, mode, lengths), dim)
        for n in range(len(lengths)):
            yield _element(graph, split, n)


def _element(graph: fx.Graph, several: fx.Node, place: int) -> fx.Node:
    made = graph.call_function(operator.getitem, (several, place))
    made.meta["val"] = several.meta["val"][place]
    return made


def _shaped(graph: fx.Graph, mode: Any, part: fx.Node, whole: fx.Node, state: Any, rows: Size) -> fx.Node:
    """A part of an input with as many dimensions as the input has."""
    if not isinstance(state, Sharded):
        return part
    shape = shard_shape(shape_of(whole), state, rows)
    if not fits(shape_of(part), shape, state):
        if not is_contiguous(part.meta["val"]):
            part = call(graph, mode, aten.clone.default, part, memory_format=torch.contiguous_format)
        part = call(graph, mode, aten.view.default, part, _sized(graph, mode, shape))
    return part


def _run(graph: fx.Graph, mode: Any, label: str, body: Body, slices: Mapping[str, fx.Node]) -> dict[fx.Node, fx.Node]:
    """Call a body; returns the caller's node for each placeholder and each returned node of the body."""
    known = next((node for node in graph.find_nodes(op="get_attr") if node.target == label), None)
    reference = known or graph.get_attr(label)
    arguments = [slices[placeholder.target] for placeholder in body.placeholders]
    run = graph.call_function(compat.invoke_subgraph(), (reference, label, *arguments))
    run.meta["val"] = tuple(node.meta["val"] for node in body.exposed)
    found = dict(zip(body.placeholders, arguments, strict=True))
    for n, node in enumerate(body.exposed):
        found[node] = _element(graph, run, n)
    return found


def _again(graph: fx.Graph, mode: Any, factor: fx.Node, found: dict[fx.Node, fx.Node]) -> Any:
    """A view inside of a body, made again by the caller, from the body's results and operands."""
    if isinstance(factor.meta["val"], torch.SymInt):
        return size(graph, mode, factor.meta["val"])
    if factor not in found:
        reads = {read: _again(graph, mode, read, found) for read in factor.all_input_nodes}
        args, kwargs = fx.map_arg((factor.args, factor.kwargs), lambda read: reads[read])
        found[factor] = call(graph, mode, factor.target, *args, **kwargs)
    return found[factor]


def _multiply(graph: fx.Graph, mode: Any, before: fx.Node | None, factors: Sequence[fx.Node]) -> fx.Node:
    """Add one more shard's product, or begin with it."""
    if before is None:
        return call(graph, mode, torch.ops.memgraph.shard_product.default, *factors)
    return call(graph, mode, torch.ops.memgraph.shard_add.default, before, *factors)


def _gather(
    graph: fx.Graph,
    mode: Any,
    before: fx.Node | None,
    part: fx.Node,
    node: fx.Node,
    region: TokenRegion,
    tokens: Size,
    start: Size,
) -> fx.Node:
    """Put one more shard of an output into its place, or add it.  tokens: in all shards.  start: tokens before it."""
    state = region.states[node.name]
    if state == PARTIAL and before is not None and region.kind == "attention":
        # As large as the keys or the values: not added up where they are, there would be three of each.
        return call(graph, mode, torch.ops.memgraph.shard_sum.default, before, part)
    if state == PARTIAL:
        wide = accumulator(part.meta["val"].dtype)
        if wide != part.meta["val"].dtype:
            part = call(graph, mode, torch.ops.prims.convert_element_type.default, part, wide)
        return part if before is None else call(graph, mode, aten.add.Tensor, before, part)
    if state == REPLICATED:  # one shard's is all shards'
        return part if before is None else before
    assert isinstance(state, Sharded)  # a region has no other outputs
    flat = _flat(graph, mode, part, state, {})
    dim = _dim(state, shape_of(node))
    order = _inward(node.meta["val"]) if len(state.dims) == 1 else []  # else `_flat` puts them in order
    if order:
        flat, dim = call(graph, mode, aten.permute.default, flat, order), order.index(dim)
    if before is None:
        length = size(graph, mode, rows_of(state, tokens))
        return call(graph, mode, torch.ops.memgraph.shard_whole.default, flat, dim, length)
    place = size(graph, mode, start * state.factor)
    return call(graph, mode, torch.ops.memgraph.shard_put.default, before, flat, dim, place)


def _finish(
    graph: fx.Graph, mode: Any, result: fx.Node, node: fx.Node, state: Any, *, along_keys: bool = False
) -> fx.Node:
    """An output with the shape, dtype and strides that it had.  Raises MixesTokens where the strides differ.

    along_keys: whether it was put together by `add_keys`.
    """
    old = node.meta["val"]
    if isinstance(state, Sharded) and apart(state, old.shape):
        order = _side_by_side(state, old.dim())
        shape = _sized(graph, mode, [old.shape[dim] for dim in order])
        result = call(graph, mode, aten.view.default, result, shape)
        result = call(graph, mode, aten.permute.default, result, [order.index(dim) for dim in range(old.dim())])
    elif (along_keys or isinstance(state, Sharded) and len(state.dims) == 1) and (order := _inward(old)):
        result = call(graph, mode, aten.permute.default, result, [order.index(dim) for dim in range(old.dim())])
    if not fits(shape_of(result), old.shape, state):
        result = call(graph, mode, aten.view.default, result, _sized(graph, mode, old.shape))
    elif not same_shape(shape_of(result), old.shape) and result.meta["val"].dtype == old.dtype:
        # Rows that are filled up: for all who read it, it has the size that torch writes.
        with compat.propagating(mode):
            result.meta["val"] = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=old.device)
    if result.meta["val"].dtype != old.dtype:
        result = call(graph, mode, torch.ops.prims.convert_element_type.default, result, old.dtype)
    if not fits(result.meta["val"].stride(), old.stride(), state):
        raise MixesTokens(node, f"comes out with strides {result.meta['val'].stride()}, not {old.stride()}")
    return result


def signature(
    nodes: Mapping[str, fx.Node],
    tiled: Tiled,
    names: Sequence[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> str:
    """A text: where it is equal, `build_tile` builds equal tiles. It costs less than to build them."""
    region = tiled.region
    place = {nodes[name]: f"%{n}" for n, name in enumerate((*inputs, *names))}
    along = [region.keys.get(name) for name in (*inputs, *names)]
    lines = [f"{tiled.shards} {tiled.keys} {region.tokens} {region.reach} {along}"]
    for name in (*inputs, *names):
        node = nodes[name]
        does = "" if name in inputs else _line(node, place)
        lines.append(f"{does} {_look(node)} {region.states.get(name)}")
    return "\n".join([*lines, *(place[nodes[name]] for name in outputs)])


def _line(node: fx.Node, place: Mapping[fx.Node, str]) -> str:
    args = fx.map_arg((node.args, dict(node.kwargs)), lambda read: place.get(read) or f"<{read.meta['val']}>")
    return f"{node.op} {node.target} {args}"


def _look(node: fx.Node) -> str:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return ""
    return f"{tuple(value.shape)} {value.stride()} {value.dtype} {value.device}"
