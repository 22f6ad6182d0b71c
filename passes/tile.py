"""Run regions of the joint graph one shard of the tokens at a time.

    before:  h = silu(x @ G) * (x @ U); y = h @ D          ...   dh = dy @ D.T; ...; dx = ...; dD = h.T @ dy; ...

    after:   y = tile_0(x, G, U, D)                        ...   dx, dD, dG, dU = tile_1(x, dy, G, U, D)

    tile_1:  for each shard:  x_i = x[a:b]; dy_i = dy[a:b]
                              dx_i, h_i, dg_i, du_i = body(x_i, dy_i, G, U, D)      runs the forward's part again
                              dx[a:b] = dx_i; dD += h_i.T @ dy_i; dG += ...; dU += ...

A tile and its bodies are graphs that `invoke_subgraph` calls. Equal regions call the same tile, so it is compiled once.
Sums over tokens are kept in float32 and added up in the order of the shards.

If the backward of a region depends on one scalar tangent alone (a loss), the region has one tile only: it runs in the
forward with a tangent of 1, and the backward multiplies its gradients by the tangent.

Of attention with a mask of its own the tokens are the queries. Its backward is given what its forward returned, and
makes no more of the forward again than the mask's rows:

    tile_2:  for each shard:  m_i = mask of the queries a:b; out_i, sums_i = attention(q[a:b], k, v, m_i)
    tile_3:  for each shard:  m_i again; dq[a:b], dk_i, dv_i = attention_backward(...); dk += dk_i; dv += dv_i
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import fx

import memgraph.runtime  # noqa: F401  registers the operators
from memgraph.base import compat
from memgraph.facts.tokens.region import STANDS_FOR, TokenRegion
from memgraph.passes.graphs import Joint, Rewritten, Tiled, TilePlan
from memgraph.passes.insert import call, erase, mode_of, provenance, sort
from memgraph.passes.tiles.shards import build_tile, needed, signature

aten = torch.ops.aten


def call_names(region: TokenRegion) -> tuple[str, str]:
    """The names of the calls of a region's tiles: in the forward, in the backward."""
    return f"tiled_{region.outputs[0]}_forward", f"tiled_{region.outputs[0]}_backward"


def sides(region: TokenRegion) -> list[tuple[str, ...]]:
    """The outputs of each of a region's tiles: of the forward's and the backward's, or of the only one."""
    if region.tangent:
        return [region.outputs]
    parts = [tuple(name for name in region.outputs if name in set(side)) for side in (region.forward, region.backward)]
    return [outputs for outputs in parts if outputs]


def unit_name(region: TokenRegion) -> str:
    """The name of the node that is 1 in place of a region's tangent."""
    return f"tiled_{region.outputs[0]}_one"


def tile(joint: Joint, plan: TilePlan) -> Rewritten[Joint]:
    """Replace the plan's regions by calls of tiles.

    Raises MixesTokens where the result of an operator for one shard is not what the region's token flow says.
    """
    if not plan.tiles:
        return Rewritten(joint, modified=False)
    gm = compat.copy_graph(joint.module)
    made: dict[str, str] = {}
    nodes = {node.name: node for node in gm.graph.nodes}
    # All calls before anything is replaced: one region may read what another makes.
    found = [(tiled.region, _call_region(gm, nodes, tiled, made)) for tiled in plan.tiles]
    for region, values in found:
        for name, value in values.items():
            _replace(nodes[name], value, region)
    for region, _ in found:
        for name in reversed((*region.forward, *region.backward)):
            erase(nodes[name])
    sort(gm.graph)
    gm.graph.lint()
    gm.recompile()
    return Rewritten(dataclasses.replace(joint, module=gm), modified=True)


def _call_region(
    joint: fx.GraphModule, nodes: Mapping[str, fx.Node], tiled: Tiled, made: dict[str, str]
) -> dict[str, fx.Node]:
    """Insert the calls of a region's tiles; returns, by output of the region, the node that replaces it."""
    region = tiled.region
    values: dict[str, fx.Node] = {}
    given = _with_unit_tangent(joint.graph, nodes, region) if region.tangent else {}
    for outputs in sides(region):
        values |= _call_tile(joint, nodes, tiled, outputs, made, given)
    for name in [name for name in region.outputs if region.tangent and name in set(region.backward)]:
        with joint.graph.inserting_before(nodes[name]):
            scaled = call(joint.graph, mode_of(values[name]), aten.mul.Tensor, values[name], nodes[region.tangent])
        scaled.meta |= provenance(nodes[name])
        values[name] = scaled
    return values


def _replace(old: fx.Node, new: fx.Node, region: TokenRegion) -> None:
    inside = region.nodes
    old.replace_all_uses_with(new, delete_user_cb=lambda user: user.name not in inside and user is not new)


def _with_unit_tangent(graph: fx.Graph, nodes: Mapping[str, fx.Node], region: TokenRegion) -> dict[str, fx.Node]:
    """The region's inputs that depend on the tangent, computed from a tangent of 1."""
    tangent = nodes[region.tangent]
    value = tangent.meta["val"]
    with graph.inserting_before(nodes[region.chain[0]] if region.chain else nodes[region.backward[0]]):
        options = {"dtype": value.dtype, "device": value.device}
        one = call(graph, mode_of(tangent), aten.full.default, [], 1.0, name=unit_name(region), **options)
        new = {tangent: one}
    for name in region.chain:
        node = nodes[name]
        with graph.inserting_before(node):
            copy = graph.node_copy(node, lambda read: new.get(read, read))
        copy.meta = {key: item for key, item in node.meta.items() if key != "partitioner_tag"}
        new[node] = copy
    return {node.name: copy for node, copy in new.items()}


def _call_tile(
    joint: fx.GraphModule,
    nodes: Mapping[str, fx.Node],
    tiled: Tiled,
    outputs: Sequence[str],
    made: dict[str, str],
    given: Mapping[str, fx.Node],
) -> dict[str, fx.Node]:
    """Insert a call of the tile that computes some outputs, before the first of them; returns its results by name."""
    region = tiled.region
    names, inputs = needed(nodes, region, outputs)
    key = signature(nodes, tiled, names, inputs, outputs)
    if key not in made:
        made[key] = f"tile_{len(made)}"
        joint.add_submodule(made[key], build_tile(nodes, tiled, names, inputs, outputs))
    graph, first = joint.graph, nodes[outputs[0]]
    values = _fresh(node.meta["val"] for node in joint.get_submodule(made[key]).graph.output_node().args[0])
    backward = not region.tangent and set(region.backward).intersection(names)
    place = provenance(nodes[min(backward, key=names.index)] if backward else first)
    with graph.inserting_before(first):
        body = graph.get_attr(made[key])
        called = graph.create_node(
            "call_function",
            compat.invoke_subgraph(),
            (body, made[key], *[given.get(name, nodes[name]) for name in inputs]),
            name=call_names(region)[bool(backward)],
        )
        called.meta = place | {"val": values, STANDS_FOR: tuple(outputs)}
        parts = {}
        for n, name in enumerate(outputs):
            parts[name] = graph.call_function(operator.getitem, (called, n))
            parts[name].meta = place | {"val": values[n]}
    return parts


def _fresh(values: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Fake tensors of the same shapes in storages of their own: two calls of one tile return different tensors."""
    values = list(values)
    with compat.propagating(compat.fake_mode_of(values)):
        return tuple(torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device) for v in values)
