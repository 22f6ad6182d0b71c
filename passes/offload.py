"""Copy saved values to another tier in the forward, and back to the device in the backward.

    before:  forward   x = f(a); y = g(x); z = h(y)                     -> z, x
             backward  x, dz: dy = h'(dz); dx = g'(dy, x)

    after:   forward   x = f(a); t = offload_start(x); y = g(x); held = offload_finish(t, x); z = h(y)   -> z, held
             backward  held, dz: t = reload_start(held); dy = h'(dz); x = reload_finish(t, held); dx = g'(dy, x)

`held` owns the copy and takes the value's place among the forward's outputs and the backward's inputs. x is an argument
of offload_finish, so that its bytes stay until the copy is done. The plan chooses where each of the four calls stands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import fx

import memgraph.runtime  # noqa: F401  registers the operators
from memgraph.base import compat
from memgraph.passes.graphs import Rewritten, Split
from memgraph.passes.insert import call, mode_of, size
from memgraph.planner.decisions import Plan, Transfer, node_name

ops = torch.ops.memgraph


def offload(split: Split, plan: Plan) -> Rewritten[Split]:
    """Insert the copies of the plan's transfers, out in the forward and back in the backward.

    Raises KeyError where the plan names an operator that is not there, ValueError where a transferred value is not
    among the saved outputs.
    """
    if plan.stock or not plan.transfers:
        return Rewritten(split, modified=False)
    forward, backward = compat.copy_graph(split.forward), compat.copy_graph(split.backward)
    held = _copy_out(forward.graph, plan.transfers, split.settings)
    _hold(forward.graph, held, split.joint.num_fwd_outputs)
    _copy_back(backward.graph, plan.transfers)
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()
    return Rewritten(dataclasses.replace(split, forward=forward, backward=backward), modified=True)


def _copy_out(graph: fx.Graph, transfers: Sequence[Transfer], settings: Mapping[str, str]) -> dict[fx.Node, fx.Node]:
    """Insert starts and ends of the copies out; returns, by value, what holds its copy."""
    starting = {transfer.name: transfer for transfer in transfers}
    finishing: dict[str, list[Transfer]] = {}
    for transfer in transfers:
        finishing.setdefault(transfer.finish, []).append(transfer)
    nodes = {node.name: node for node in graph.nodes}
    tickets: dict[str, fx.Node] = {}
    held: dict[fx.Node, fx.Node] = {}

    def finish(transfer: Transfer) -> None:
        x = nodes[transfer.name]
        arguments = (tickets[transfer.name], x, transfer.tier)
        held[x] = call(graph, mode_of(x), ops.offload_finish.default, *arguments, name=f"{transfer.name}_held")

    for node in list(graph.nodes):
        if node.name not in starting and node.name not in finishing:
            continue
        with graph.inserting_before(node.next):  # each goes behind those put here before
            ended = finishing.pop(node.name, ())
            for transfer in ended:  # copies that end here make room before the next one starts
                if transfer.name != node.name:
                    finish(transfer)
            if node.name in starting:
                transfer = starting.pop(node.name)
                arguments = (node, transfer.name, transfer.tier, settings[transfer.tier])
                tickets[node.name] = call(graph, mode_of(node), ops.offload_start.default, *arguments)
                if transfer in ended:
                    finish(transfer)
    if starting or finishing:
        raise KeyError(f"the forward does not hold {', '.join(sorted({*starting, *finishing}))}")
    return held


def _hold(graph: fx.Graph, held: Mapping[fx.Node, fx.Node], num_fwd_outputs: int) -> None:
    """Have the forward return what holds a copy in the place of each value that has left."""
    (output,) = graph.find_nodes(op="output")
    outputs = list(output.args[0])
    saved = [held.get(value, value) for value in outputs[num_fwd_outputs:]]
    if missing := set(held.values()).difference(saved):
        raise ValueError(f"not among the saved outputs of the forward: {', '.join(node.name for node in missing)}")
    output.args = ([*outputs[:num_fwd_outputs], *saved],)


def _copy_back(graph: fx.Graph, transfers: Sequence[Transfer]) -> None:
    """Insert starts and ends of the copies back, and have the backward take what holds the copies."""
    nodes = {node.name: node for node in graph.nodes}
    place = {node: n for n, node in enumerate(graph.nodes)}
    for transfer in sorted(transfers, key=lambda t: place[nodes[node_name(*t.use)]]):
        x = nodes[transfer.name]
        value, mode = x.meta["val"], mode_of(x)
        load, use = nodes[node_name(*transfer.load)], nodes[node_name(*transfer.use)]
        with graph.inserting_after(x):
            held = graph.placeholder(f"{transfer.name}_held")
        with compat.propagating(mode):
            held.meta["val"] = torch.empty(1, dtype=torch.int64)
        with graph.inserting_before(load):
            shape, stride = ([size(graph, mode, n) for n in sizes] for sizes in (value.shape, value.stride()))
            layout = (shape, stride, value.dtype, value.device, transfer.tier)
            name = f"{transfer.name}_reload_start"
            ticket = call(graph, mode, ops.reload_start.default, held, *layout, name=name)
        with graph.inserting_before(use):
            name = f"{transfer.name}_reloaded"
            y = call(graph, mode, ops.reload_finish.default, ticket, held, *layout, name=name)
        x.replace_all_uses_with(y)
        graph.erase_node(x)
