"""A legal graph but for its inputs and outputs: order, users, metadata, bodies, draws, effects."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from memgraph.base import compat
from memgraph.verify.values import SYMBOLIC, describe, is_transfer, target_name
from memgraph.verify.walk import RNG_WRAPPERS, Event, Numbered


def structure(where: str, module: fx.GraphModule) -> list[str]:
    """Each node after what it reads, users as they are, one output at the end."""
    breaches: list[str] = []
    nodes = list(module.graph.nodes)
    present, seen = set(nodes), set()
    for node in nodes:
        for read in node.all_input_nodes:
            if read not in present:
                breaches.append(f"the {where}'s {node.name} reads {read.name}, which is not in the graph")
            elif read not in seen:
                breaches.append(f"the {where}'s {node.name} reads {read.name} before it is defined")
            elif node not in read.users:
                breaches.append(f"the {where}'s {node.name} reads {read.name}, but is not among its users")
        for user in node.users:
            if user not in present:
                breaches.append(f"the {where}'s {node.name} has a user {user.name} that is not in the graph")
        seen.add(node)
    outputs = [node for node in nodes if node.op == "output"]
    if len(outputs) != 1 or nodes[-1] is not outputs[0]:
        breaches.append(f"the {where} has {len(outputs)} output nodes, not one at its end")
    elif not isinstance(outputs[0].args[0], (list, tuple)):
        breaches.append(f"the {where} returns no tuple")
    if not breaches:
        try:
            module.graph.lint()
        except Exception as error:  # lint raises RuntimeError, ValueError and AssertionError, by version
            breaches.append(f"the {where} does not pass lint: {error}")
    return breaches


def signature(value: Any) -> Hashable:
    """What must stay the same about a value: shape, stride, dtype, device."""
    if isinstance(value, torch.Tensor):
        strides = _sizes(value.stride()) if value.layout is torch.strided else str(value.layout)
        return (_sizes(value.shape), strides, value.dtype, value.device)
    if isinstance(value, (list, tuple)):
        return ("tuple", *map(signature, value))
    if isinstance(value, SYMBOLIC):
        return (type(value).__name__, str(value.node.expr))
    return None if value is None else (type(value).__name__,)


def _sizes(sizes: Any) -> tuple[Any, ...]:
    return tuple(size if type(size) is int else str(size) for size in sizes)


def show(of: Hashable) -> str:
    """A signature for a message."""
    if of is None:
        return "without metadata"
    if isinstance(of, tuple) and len(of) == 4 and isinstance(of[2], torch.dtype):
        shape, stride, dtype, device = of
        return f"{str(dtype).removeprefix('torch.')}{list(shape)}, stride {list(stride)}, on {device}"
    return str(of)


def values(graph: Numbered) -> dict[int, fx.Node]:
    """For each number of the graph before, a node that holds that value, if possible with metadata."""
    known: dict[int, fx.Node] = {}
    for node, number in graph.numbers.items():
        if number not in known or "val" not in known[number].meta:
            known[number] = node
    return known


def metadata(where: str, graph: Numbered, known: dict[int, fx.Node]) -> list[str]:
    """`meta["val"]` is there, and equal to that of the same value before, or to fake propagation."""
    breaches = []
    for node, number in graph.numbers.items():
        if node.op != "call_function" or target_name(node.target) in RNG_WRAPPERS:  # torch gives those none
            continue
        source, held = known.get(number), node.meta.get("val")
        if source is not None:
            want = source.meta.get("val")
            if want is held or want is None:
                continue
            wanted = signature(want)
        elif "val" not in node.meta:
            breaches.append(f"the {where}'s {node.name} has no metadata: {describe(node)}")
            continue
        else:
            try:
                wanted = _propagate(node)
            except Exception as error:  # whatever the op raises on arguments that do not fit
                breaches.append(f"the {where}'s {describe(node)} cannot be run on fake tensors: {error}")
                continue
        if held is None and wanted is not None:
            breaches.append(f"the {where}'s {node.name} has no metadata: {describe(node)}")
        elif wanted is not None and (got := signature(held)) != wanted:
            breaches.append(f"the {where}'s {node.name} is said to be {show(got)}, but is {show(wanted)}")
    return breaches


def _propagate(node: fx.Node) -> Hashable:
    """The signature that the op gives on its inputs' metadata; None where it cannot be told alone."""
    if not isinstance(node.target, torch._ops.OpOverload) and node.target is not operator.getitem:
        return None
    reads = [read.meta.get("val") for read in node.all_input_nodes]
    mode = compat.fake_mode_of(reads)
    if mode is None or any(value is None for value in reads):
        return None
    args = map_arg(node.args, lambda read: read.meta["val"])
    kwargs = map_arg(node.kwargs, lambda read: read.meta["val"])
    with compat.propagating(mode):
        return signature(node.target(*args, **kwargs))


def bodies(where: str, module: fx.GraphModule) -> list[str]:
    """A body called through invoke_subgraph returns none of its inputs: torch 2.13 gets gradients wrong."""
    breaches: list[str] = []
    pending, done = [module], set()
    while pending:
        owner = pending.pop()
        for node in owner.graph.find_nodes(op="get_attr"):
            body = operator.attrgetter(node.target)(owner)
            if not isinstance(body, fx.GraphModule) or id(body) in done:
                continue
            done.add(id(body))
            pending.append(body)
            if not any(target_name(user.target) == "invoke_subgraph" for user in node.users):
                continue
            output = next(iter(body.graph.find_nodes(op="output")))
            for value in output.all_input_nodes:
                if value.op == "placeholder":
                    breaches.append(f"the {where}'s body {node.target} returns its own input {value.name}")
    return breaches


def handles(where: str, graph: Numbered) -> list[str]:
    """Each copy started once and finished once, and a value that was given up not read again."""
    breaches: list[str] = []
    module = graph.module
    place = {node: n for n, node in enumerate(module.graph.nodes)}
    ends = {"offload_start": "offload_finish", "reload_start": "reload_finish"}
    seen: dict[Hashable, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op != "call_function" or not is_transfer(node.target):
            continue
        what = node.target._schema.name.removeprefix("memgraph::")
        if what in ends:
            finishes = [user for user in node.users if user.op == "call_function" and is_transfer(user.target)]
            names = [user.target._schema.name.removeprefix("memgraph::") for user in finishes]
            if names != [ends[what]] or len(node.users) != 1:
                breaches.append(f"the {where}'s {node.name} is finished {len(names)} times, not once: {describe(node)}")
            source = (what, graph.storages[node.args[0]])
            if source in seen:
                breaches.append(f"the {where}'s {node.name} starts a copy that {seen[source].name} has started")
            seen[source] = node
        elif what == "offload_finish":
            x = node.args[1]
            for user in _readers(graph, x):
                if user is not node and place[user] > place[node]:
                    breaches.append(f"the {where}'s {user.name} reads {x.name} after {node.name} has given it up")
    return breaches


def _readers(graph: Numbered, x: fx.Node) -> set[fx.Node]:
    """Everything that reads the storage of a value, through views as well."""
    storage = graph.storages[x]
    return {user for node, held in graph.storages.items() if held == storage for user in node.users}


def compare_draws(old: Sequence[Event], new: Sequence[tuple[str, Event]]) -> list[str]:
    wanted = {event.number for event in old}
    calls = {event.call for event in old}
    done = {event.number for _, event in new}
    breaches = []
    for where, event in new:
        if event.number not in wanted:
            what = "drawn again" if event.call in calls else "drawn, but not in the graph before,"
            breaches.append(f"a random op is {what} in the {where}: {describe(event.node)}")
    lost = [event.node for event in old if event.number not in done]
    return breaches + [f"a random op is not drawn any more: {describe(node)}" for node in lost]


def compare_calls(old: Sequence[Event], new: Sequence[tuple[str, Event]], again: Collection[Hashable]) -> list[str]:
    """What may run only once runs no more often than before, but where the user's own checkpoint repeats it.

    Equal calls count as one: Inductor merges them.
    """
    left = Counter(event.call for event in old)
    breaches = []
    for where, event in new:
        left[event.call] -= 1
        if left[event.call] < 0 and event.call not in again:
            told = "is not declared repeatable, and runs"
            breaches.append(f"{event.what} {told} once more than before in the {where}: {describe(event.node)}")
    return breaches


def compare_effects(
    old: Sequence[Event], first: Sequence[Event], where: str, second: Sequence[Event] | None = None
) -> list[str]:
    """Each effect once, in the old order, and in the graph where it belongs."""
    breaches = []
    place = {event.number: place for place, event in enumerate(old)}
    done = {event.number for event in [*first, *(second or ())]}
    for event in old:
        if event.number not in done:
            breaches.append(f"an effect is missing: {describe(event.node)}")
    for side, events in ((where, first), ("backward", second or ())):
        last = -1
        for event in events:
            if event.number not in place:
                breaches.append(f"an effect in the {side} is repeated or new: {describe(event.node)}")
                continue
            source = old[place[event.number]]
            if second is not None and source.side not in (None, side):
                moved = f"from the {source.side} to the {side}"
                breaches.append(f"an effect moved {moved}: {describe(event.node)}")
            if place[event.number] < last:
                breaches.append(f"an effect in the {side} is out of order: {describe(event.node)}")
            last = max(last, place[event.number])
    return breaches
