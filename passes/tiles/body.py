"""Bodies: a region of a joint graph as a graph of its own, over some of its tokens.

A body takes slices of the region's inputs and the rest of them whole, and returns what one shard gives to each output.
Operators are those of the joint graph; only where one is told a size is that size changed. What the rules of
`facts/tokens/rules/` said about a value is compared with the shape that comes out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from memgraph.facts.operators import family, qualified_name
from memgraph.facts.tokens.kinds import COUNTERS, SIZED
from memgraph.facts.tokens.nodes import counts_from_zero, shape_of
from memgraph.facts.tokens.region import TokenRegion
from memgraph.facts.tokens.states import PARTIAL, MixesTokens, Sharded, State
from memgraph.facts.views import view_base
from memgraph.passes.insert import call
from memgraph.runtime.tile_ops import accumulator

aten = torch.ops.aten


@dataclasses.dataclass
class Body:
    """module: the graph, which returns a tuple.  values: by output, its place in that tuple.

    products: by output that is a sum over tokens of a matrix product, its two factors, as nodes of the body.  exposed:
    the nodes that the body returns, by place: from them, and from the inputs, the factors are views.
    """

    module: fx.GraphModule
    placeholders: tuple[fx.Node, ...]
    exposed: tuple[fx.Node, ...]
    values: dict[str, int]
    products: dict[str, tuple[fx.Node, fx.Node]]


def shard_shape(shape: Sequence[int], state: State, rows: int) -> list[int]:
    """The shape that a value has for a shard of so many tokens."""
    if not isinstance(state, Sharded):
        return list(shape)
    sizes = list(shape)
    for dim in state.dims[:-1]:
        sizes[dim] = 1
    sizes[state.dims[-1]] = rows * state.factor
    return sizes


def build_body(
    nodes: Mapping[str, fx.Node],
    region: TokenRegion,
    names: Sequence[str],
    inputs: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    rows: int,
    mode: Any,
) -> Body:
    """The body for a shard of `rows` tokens.

    names: the region's nodes that it runs, in order.  inputs: by name, what a shard gets, as fake tensors.
    Products that sum over tokens are left to the caller; of means over tokens it gives the shard's share.
    Raises MixesTokens where a value does not come out in the shape that the flow of tokens says.
    """
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for name, value in inputs.items():
        new[nodes[name]] = made = graph.placeholder(name)
        made.meta["val"] = value
    placeholders = tuple(new.values())
    for name in names:
        node = nodes[name]
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda read: new[read])
        state = region.states[name]
        args = _resized(node, list(args), state, rows)
        try:
            if state == PARTIAL and qualified_name(node.target) == "aten::mean":
                made = _share(graph, mode, node, args, kwargs)
            else:
                made = call(graph, mode, node.target, *args, name=name, **kwargs)
        except Exception as error:  # whatever an operator raises on arguments that do not fit
            raise MixesTokens(
                node, f"does not run on {rows} of {region.tokens} tokens: {type(error).__name__}"
            ) from error
        new[node] = made
        value = made.meta["val"]
        sliced = isinstance(state, Sharded) and isinstance(value, torch.Tensor)
        if sliced and list(value.shape) != shard_shape(shape_of(node), state, rows):
            raise MixesTokens(node, f"gives {list(value.shape)} for {rows} of {region.tokens} tokens")
    exposed: dict[fx.Node, int] = {}
    values, products = {}, {}
    for name in outputs:
        node, made = nodes[name], new[nodes[name]]
        if region.states[name] == PARTIAL and qualified_name(node.target) == "aten::mm":
            products[name] = (made.args[0], made.args[1])
            for factor in products[name]:
                base = view_base(factor)
                if base.op != "placeholder":
                    exposed.setdefault(base, len(exposed))
        else:
            if view_base(made).op == "placeholder":
                raise MixesTokens(node, "is an input of its region")
            values[name] = exposed.setdefault(made, len(exposed))
    graph.output(tuple(exposed))
    for node in reversed(graph.nodes):  # the products that are summed outside; their factors are views that stay known
        if node.op == "call_function" and not node.users and family(node.target) != "view":
            graph.erase_node(node)
    return Body(fx.GraphModule({}, graph), placeholders, tuple(exposed), values, products)


def _share(graph: fx.Graph, mode: Any, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> fx.Node:
    """What a shard adds to a mean over all tokens."""
    target = aten.sum.dim_IntList if len(args) > 1 else aten.sum.default
    total = call(graph, mode, target, *args, **kwargs | {"dtype": accumulator(node.meta["val"].dtype)})
    count = math.prod(shape_of(node.args[0])) // math.prod(shape_of(node))
    return call(graph, mode, aten.div.Tensor, total, count, name=node.name)


def _resized(node: fx.Node, args: list[Any], state: State, rows: int) -> list[Any]:
    """The arguments for one shard: an operator that is told its output's size is told another."""
    name = qualified_name(node.target)
    if not isinstance(state, Sharded):
        return args
    if name in COUNTERS:
        if not counts_from_zero(node):
            raise MixesTokens(node, "does not count from 0")
        return [rows * state.factor]
    if name == "aten::as_strided":
        if not args[0].meta["val"].is_contiguous():
            raise MixesTokens(node, "picks by strides")
        args[1] = shard_shape(shape_of(node), state, rows)
        args[2] = torch.empty(args[1], device="meta").stride()
    if name in SIZED:
        args[SIZED[name]] = shard_shape(shape_of(node), state, rows)
    return args


def sizes(tokens: int, shards: int) -> list[int]:
    """How many tokens each shard has: all the same but for the last, none empty, at most `shards` of them."""
    size = math.ceil(tokens / max(1, min(shards, tokens)))
    full, rest = divmod(tokens, size)
    return [size] * full + ([rest] if rest else [])
