"""Let saved values leave the device in the forward and bring them back in the backward.

    before:  forward   x = f(a); y = g(x); z = h(y)                     -> z, x
             backward  x, dz: dy = h'(dz); dx = g'(dy, x)

    after:   forward   x = f(a); t = offload_start(x); y = g(x); held = offload_finish(t, x); z = h(y)   -> z, held
             backward  held, dz: t = reload_start(held); dy = h'(dz); x = reload_finish(t, held); dx = g'(dy, x)

`held` owns the copy and takes the value's place among the forward's outputs and the backward's inputs. x is an argument
of offload_finish, so that its bytes stay until the copy is done. Where each of the four stands is the plan's choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

import memgraph.runtime  # noqa: F401  registers the operators
from memgraph.base import compat
from memgraph.planner.decisions import Plan, Transfer, node_name


def offload(
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    plan: Plan,
    *,
    num_fwd_outputs: int,
    settings: Mapping[str, str],
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return (forward, backward), rewritten in place.

    settings: for each tier, what its copies are told, as JSON.  Raises KeyError where the plan names an operator that
    is not there, ValueError where a transferred value is not among the saved outputs.
    """
    _leave(forward, plan.transfers, num_fwd_outputs, settings)
    _return(backward, plan.transfers)
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()
    return forward, backward


def _leave(
    forward: fx.GraphModule, transfers: Sequence[Transfer], num_fwd_outputs: int, settings: Mapping[str, str]
) -> None:
    graph = forward.graph
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
        held[x] = _call(graph, torch.ops.memgraph.offload_finish, arguments, f"{transfer.name}_held")

    for node in list(graph.nodes):
        if node.name not in starting and node.name not in finishing:
            continue
        with graph.inserting_before(node.next):  # each goes behind those put here before
            ended = finishing.pop(node.name, ())
            for transfer in ended:  # what has left by now makes room before the next one starts
                if transfer.name != node.name:
                    finish(transfer)
            if node.name in starting:
                transfer = starting.pop(node.name)
                arguments = (node, transfer.name, transfer.tier, settings[transfer.tier])
                tickets[node.name] = _call(graph, torch.ops.memgraph.offload_start, arguments)
                if transfer in ended:
                    finish(transfer)
    if starting or finishing:
        raise KeyError(f"the forward does not hold {', '.join(sorted({*starting, *finishing}))}")
    (output,) = graph.find_nodes(op="output")
    outputs = list(output.args[0])
    saved = [held.get(value, value) for value in outputs[num_fwd_outputs:]]
    if missing := set(held.values()).difference(saved):
        raise ValueError(f"not among the saved outputs of the forward: {', '.join(node.name for node in missing)}")
    output.args = ([*outputs[:num_fwd_outputs], *saved],)


def _return(backward: fx.GraphModule, transfers: Sequence[Transfer]) -> None:
    graph = backward.graph
    nodes = {node.name: node for node in graph.nodes}
    place = {node: n for n, node in enumerate(graph.nodes)}
    for transfer in sorted(transfers, key=lambda t: place[nodes[node_name(*t.use)]]):
        x = nodes[transfer.name]
        value = x.meta["val"]
        load, use = nodes[node_name(*transfer.load)], nodes[node_name(*transfer.use)]
        with graph.inserting_after(x):
            held = graph.placeholder(f"{transfer.name}_held")
        with compat.propagating(compat.fake_mode_of([value])):
            held.meta["val"] = torch.empty(1, dtype=torch.int64)
        with graph.inserting_before(load):
            sizes = [[compat.size_node(size, graph) for size in sizes] for sizes in (value.shape, value.stride())]
            like = (*sizes, value.dtype, value.device, transfer.tier)
            ticket = _call(graph, torch.ops.memgraph.reload_start, (held, *like))
        with graph.inserting_before(use):
            arguments = (ticket, held, *like)
            y = _call(graph, torch.ops.memgraph.reload_finish, arguments, f"{transfer.name}_reloaded")
        x.replace_all_uses_with(y)
        graph.erase_node(x)


def _call(graph: fx.Graph, packet: Any, arguments: tuple, name: str | None = None) -> fx.Node:
    """A call where the graph inserts, with its metadata."""
    node = graph.create_node("call_function", packet.default, arguments, name=name)
    mode = compat.fake_mode_of([read.meta["val"] for read in node.all_input_nodes])
    with compat.propagating(mode):
        node.meta["val"] = packet(*fx.map_arg(node.args, lambda read: read.meta["val"]))
    return node
