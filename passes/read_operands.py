"""Let callers of a body read their own operands instead of getting them back from the body.

    before:  h, x_again, h_seen = body(x, W)        the body returns h, its own input x, and a view of h
             y = x_again + h_seen

    after:   h = body(x, W)
             y = x + view(h)

Torch cuts a user's nested regions (`torch.compiler.nested_compile_region`) into such bodies: the forward of a region
returns everything that its backward needs, inputs and views included. Inductor (2.13) does not know that two values
of a caller share memory, and overwrites one of them while the other is still to be read: gradients come out wrong.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

from torch import fx

from memgraph.base import compat
from memgraph.base.errors import GraphError
from memgraph.facts.views import is_view, view_base
from memgraph.passes.graphs import Joint, Rewritten, TilePlan
from memgraph.passes.insert import provenance
from memgraph.passes.tiles.stored import CalledGraph


def read_operands(joint: Joint, plan: TilePlan) -> Rewritten[Joint]:
    """Have bodies return none of their inputs and no value twice. The plan is not read: every plan needs that.

    Bodies that return too much are left as they are, and others take their place.  Raises GraphError where what a call
    returns is read in another way than part by part.
    """
    gm = _with_other_bodies(joint.module)
    if gm is joint.module:
        return Rewritten(joint, modified=False)
    return Rewritten(dataclasses.replace(joint, module=gm), modified=True)


def _with_other_bodies(gm: fx.GraphModule) -> fx.GraphModule:
    """A graph whose bodies, and the bodies that those call, return no input and no value twice.

    The graph itself where they do not anyway.
    """
    bodies = {call.args[0].target: gm.get_submodule(call.args[0].target) for call in _calls(gm)}
    others = {label: _with_other_bodies(body) for label, body in bodies.items()}
    changed = [
        label
        for label, body in others.items()
        if body is not bodies[label] or _kept(_returned(body)) != _returned(body)
    ]
    if not changed:
        return gm
    copy = compat.copy_graph(gm)
    for label in changed:
        body = others[label]
        returned = _returned(body)
        kept = _kept(returned)
        if kept != returned:
            for call in [call for call in _calls(copy) if call.args[0].target == label]:
                _replace(copy.graph, call, body, returned, kept)
            body = _returning(body, kept)
        setattr(copy, label, body)
    copy.graph.lint()
    copy.recompile()
    return copy


def _calls(gm: fx.GraphModule) -> list[fx.Node]:
    """The calls of bodies in a graph, in order."""
    return gm.graph.find_nodes(op="call_function", target=compat.invoke_subgraph())


def _returned(body: fx.GraphModule) -> list[Any]:
    return list(body.graph.output_node().args[0])


def _kept(returned: Sequence[Any]) -> list[Any]:
    """The values that a body still has to return. The others are inputs, views of inputs, or views of these values."""
    groups: dict[fx.Node, int] = {}
    for value in returned:
        if isinstance(value, fx.Node):
            groups[_source(value)] = groups.get(_source(value), 0) + 1
    kept: list[Any] = []
    for value in returned:
        if not isinstance(value, fx.Node):
            kept.append(value)
            continue
        base = _source(value)
        if base.op != "placeholder":
            alone = value if groups[base] == 1 else base
            if alone not in kept:
                kept.append(alone)
    return kept


def _source(value: fx.Node) -> fx.Node:
    """The value that a view is made of, through all views that the caller can make itself: it must know their sizes."""
    return view_base(value, _views_by_callers_sizes)


def _views_by_callers_sizes(node: fx.Node) -> bool:
    """Whether a node is a view whose sizes are inputs."""
    return is_view(node) and all(size.op == "placeholder" for size in node.all_input_nodes[1:])


def _replace(
    graph: fx.Graph, call: fx.Node, body: fx.GraphModule, returned: Sequence[Any], kept: Sequence[Any]
) -> None:
    """Rewrite the readers of a call for the shorter list of values that it returns from now on."""
    elements = list(call.users)
    if other := next((user.name for user in elements if user.target is not operator.getitem), ""):
        raise GraphError(f"{other} reads all that {call.name} returns at once, and one of that is an input of the call")
    found = dict(zip(body.graph.find_nodes(op="placeholder"), call.args[2:], strict=True))
    constants = iter([n for n, value in enumerate(kept) if not isinstance(value, fx.Node)])
    moved = {n: next(constants) for n, value in enumerate(returned) if not isinstance(value, fx.Node)}
    with graph.inserting_before(call.next):
        for n, value in enumerate(kept):
            if isinstance(value, fx.Node):
                found[value] = graph.call_function(operator.getitem, (call, n))
                found[value].meta = provenance(call) | {"val": value.meta["val"]}
        read = [returned[element.args[1]] for element in elements]
        made = [_again(graph, value, found) if isinstance(value, fx.Node) else None for value in read]
    for element, instead in zip(elements, made, strict=True):
        if instead is None:
            element.args = (call, moved[element.args[1]])
        else:
            element.replace_all_uses_with(instead)
            graph.erase_node(element)
    for value in kept:
        if isinstance(value, fx.Node) and not found[value].users:
            graph.erase_node(found[value])
    call.meta["val"] = tuple(value.meta["val"] if isinstance(value, fx.Node) else value for value in kept)


def _again(graph: fx.Graph, value: fx.Node, found: dict[fx.Node, fx.Node]) -> fx.Node:
    """A view inside of a body, made by its caller."""
    if value not in found:
        reads = {read: _again(graph, read, found) for read in value.all_input_nodes}
        found[value] = graph.node_copy(value, reads.__getitem__)
    return found[value]


def _returning(body: fx.GraphModule, kept: Sequence[Any]) -> fx.GraphModule:
    """The same body with other outputs."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(body.graph, copies)
    output = graph.output(fx.map_arg(tuple(kept), copies.__getitem__))
    output.meta = dict(body.graph.output_node().meta)
    graph.eliminate_dead_code()
    made = (CalledGraph if isinstance(body, CalledGraph) else fx.GraphModule)(body, graph)
    made.meta = dict(body.meta)
    return made
