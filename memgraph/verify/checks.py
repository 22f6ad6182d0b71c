"""What a legal graph is by itself: order, users, metadata, bodies, copies. Each breach is one sentence."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from memgraph.base import compat
from memgraph.facts.tokens.region import STANDS_FOR
from memgraph.verify.frame import owner_of
from memgraph.verify.operators import CALLED, RNG_WRAPPERS, SYMBOLIC, describe, schema_of, target_name
from memgraph.verify.terms import Term
from memgraph.verify.walk import Numbered


def structure(where: str, module: fx.GraphModule) -> list[str]:
    """Breaches: a node that stands before what it reads, wrong users, not one output at the end."""
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
    """What has to stay the same about a value besides its contents: shape, stride, dtype, device."""
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
    """A signature as a breach says it."""
    if of is None:
        return "without metadata"
    if isinstance(of, tuple) and len(of) == 4 and isinstance(of[2], torch.dtype):
        shape, stride, dtype, device = of
        return f"{str(dtype).removeprefix('torch.')}{list(shape)}, stride {list(stride)}, on {device}"
    return str(of)


def holders(graph: Numbered) -> dict[Term, fx.Node]:
    """For each value of a graph a node that holds it, one with metadata if there is one."""
    found: dict[Term, fx.Node] = {}
    for node, term in graph.values.items():
        if term not in found or "val" not in found[term].meta:
            found[term] = node
    return found


def metadata(graph: Numbered, known: Mapping[Term, fx.Node]) -> list[str]:
    """Breaches: `meta["val"]` is missing, or not what the same value had before, or not what fake propagation gives.

    known: by value, the node of the graph before.
    """
    breaches = []
    for node, term in graph.values.items():
        source = known.get(term)
        if source is not None and source.meta.get("val") is node.meta.get("val"):
            continue
        # torch gives the wrappers of generator states no metadata.
        if node.op == "call_function" and target_name(node.target) not in RNG_WRAPPERS:
            breaches += _metadata_of(graph.where, node, source)
    return breaches


def _metadata_of(where: str, node: fx.Node, source: fx.Node | None) -> list[str]:
    held = node.meta.get("val")
    if source is not None:
        if (want := source.meta.get("val")) is None:
            return []
        wanted = signature(want)
    elif "val" not in node.meta:
        return [f"the {where}'s {node.name} has no metadata: {describe(node)}"]
    else:
        try:
            wanted = _propagate(node)
        except Exception as error:  # whatever the operator raises on arguments that do not fit
            return [f"the {where}'s {describe(node)} cannot be run on fake tensors: {error}"]
    if held is None and wanted is not None:
        return [f"the {where}'s {node.name} has no metadata: {describe(node)}"]
    if wanted is not None and (got := signature(held)) != wanted:
        return [f"the {where}'s {node.name} is said to be {show(got)}, but is {show(wanted)}"]
    return []


def _propagate(node: fx.Node) -> Hashable:
    """The signature that the operator gives on the metadata of its inputs. None: it cannot be run by itself."""
    if not isinstance(node.target, compat.OpOverload) and node.target is not operator.getitem:
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
    """Breaches: a body called through invoke_subgraph returns one of its inputs, or memory that it returns already.

    torch 2.13 gets the gradients of such bodies wrong (docs/decisions/0008). Of every body but a tile's the metadata is
    checked as well, once, and for each call the shapes that it gives and gets.
    """
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
            calls = [user for user in node.users if target_name(user.target) == "invoke_subgraph"]
            if not calls:
                continue
            breaches += _returned_by(where, node.target, body)
            if not any(STANDS_FOR in call.meta for call in calls):  # tiles are run instead
                breaches += _called(where, node.target, body, calls)
    return breaches


def _returned_by(where: str, name: str, body: fx.GraphModule) -> list[str]:
    """Breaches: what a body may not return."""
    breaches = []
    owners: dict[fx.Node, fx.Node] = {}
    for value in body.graph.output_node().args[0]:
        if not isinstance(value, fx.Node):
            continue
        owner = owner_of(value)
        if value.op == "placeholder":
            breaches.append(f"the {where}'s body {name} returns its own input {value.name}")
        elif owner in owners:
            breaches.append(f"the {where}'s body {name} returns the memory of {owners[owner].name} again: {value.name}")
        owners.setdefault(owner, value)
    return breaches


def _called(where: str, name: str, body: fx.GraphModule, calls: Sequence[fx.Node]) -> list[str]:
    """Breaches: metadata in a body, or a call that does not fit it."""
    breaches = []
    for node in body.graph.nodes:
        if node.op == "call_function" and target_name(node.target) not in RNG_WRAPPERS:
            breaches += _metadata_of(f"{where}'s body {name}", node, None)
    taken = [signature(node.meta.get("val")) for node in body.graph.find_nodes(op="placeholder")]
    given_back = [signature(getattr(value, "meta", {}).get("val")) for value in body.graph.output_node().args[0]]
    for call in calls:
        operands = call.args[CALLED["invoke_subgraph"] :]
        given = [signature(operand.meta.get("val")) for operand in operands if isinstance(operand, fx.Node)]
        if len(given) == len(operands):
            if not all(map(_fits, given, taken)):
                breaches.append(f"the {where}'s {call.name} gives its body {name} other shapes than that takes")
            for symbol, sizes in _symbols(taken, given).items():
                if len(sizes) > 1:
                    told = f"{' and '.join(sorted(map(str, sizes)))} for the size {symbol}"
                    breaches.append(f"the {where}'s {call.name} gives its body {name} {told}")
        if not all(map(_fits, map(signature, call.meta.get("val", ())), given_back)):
            breaches.append(f"the {where}'s {call.name} is said to get other shapes than its body {name} returns")
    return breaches


def _symbols(taken: Sequence[Hashable], given: Sequence[Hashable]) -> dict[str, set[Any]]:
    """By symbol that a body takes as an input, what a call gives for it: by that input, and in the shapes of tensors.

    A body may be called with other symbols than its own. Its operators are told sizes by metadata, in its own.
    """
    pairs = [pair for pair in zip(taken, given, strict=False) if all(isinstance(side, tuple) for side in pair)]
    found = {own[1]: {theirs[1]} for own, theirs in pairs if own[0] == theirs[0] == torch.SymInt.__name__}  # type: ignore[index]
    for own, theirs in pairs:
        if len(own) == len(theirs) == 4:  # type: ignore[arg-type]
            for size, instead in zip(own[0], theirs[0], strict=False):  # type: ignore[index]
                if size in found:
                    found[size].add(instead)
    return found


def _fits(one: Hashable, other: Hashable) -> bool:
    """Whether two signatures are the same, where both are known and neither has a symbol in it."""
    known = all(isinstance(side, tuple) and len(side) == 4 for side in (one, other))
    if not known or any(type(size) is not int for side in (one, other) for size in (*side[0], *side[1])):  # type: ignore[index]
        return True
    return one == other


def copies(graph: Numbered) -> list[str]:
    """Breaches: a copy that is not started once and finished once, or a value that is read after it was given up."""
    breaches: list[str] = []
    place = {node: n for n, node in enumerate(graph.module.graph.nodes)}
    readers = _readers(graph)
    started: dict[Hashable, fx.Node] = {}
    for node in place:
        if not _is_transfer(node):
            continue
        name = _operator_name(node)
        if name in _FINISHES:
            breaches += _started(graph, node, started)
        elif name == "offload_finish":
            value = node.args[1]
            for user in readers[graph.storages[value]]:
                if user is not node and place[user] > place[node]:
                    text = f"{user.name} reads {value.name} after {node.name} has given it up"
                    breaches.append(f"the {graph.where}'s {text}")
    return breaches


_FINISHES = {"offload_start": "offload_finish", "reload_start": "reload_finish"}


def _is_transfer(node: fx.Node) -> bool:
    return node.op == "call_function" and schema_of(node.target).transfer


def _operator_name(node: fx.Node) -> str:
    return node.target._schema.name.removeprefix("memgraph::")


def _started(graph: Numbered, node: fx.Node, started: dict[Hashable, fx.Node]) -> list[str]:
    """Breaches of the start of a copy.  started: by operator and storage, the starts before it; it is added."""
    breaches = []
    name = _operator_name(node)
    finishes = [user for user in node.users if _is_transfer(user)]
    if [_operator_name(user) for user in finishes] != [_FINISHES[name]] or len(node.users) != 1:
        text = f"{node.name} is finished {len(finishes)} times, not once: {describe(node)}"
        breaches.append(f"the {graph.where}'s {text}")
    source = (name, graph.storages[node.args[0]])
    if source in started:
        breaches.append(f"the {graph.where}'s {node.name} starts a copy that {started[source].name} has started")
    started[source] = node
    return breaches


def _readers(graph: Numbered) -> dict[Hashable, set[fx.Node]]:
    """By storage, all nodes that read it, views of it included."""
    readers: dict[Hashable, set[fx.Node]] = {}
    for node, storage in graph.storages.items():
        readers.setdefault(storage, set()).update(node.users)
    return readers
