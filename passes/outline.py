"""Compile equal layers once: one body for each class of equal layers, called for each of them.

    before:  h1 = mm(f(h0), W0);  h2 = mm(f(h1), W1);  h3 = mm(f(h2), W2);  ...      forward and backward alike

    after:   h1 = layers_0(h0, W0);  h2 = layers_0(h1, W1);  h3 = layers_0(h2, W2);  ...
    layers_0(h, W):  return mm(f(h), W)

A body is given what its layer reads: values of other layers, parameters, seeds of random numbers, constants, saved
values. It returns what others read of its layer, each once, and nothing that it was given: views of either are made by
the caller (docs/decisions/0008), and so are seeds. A value that is made of plain data alone is made again in the body,
and so is a size that is computed: where sizes are symbolic a body is given their symbols.

Left alone: layers that the plan does not name. Whether layers are equal is a fact (facts/layers.py), not checked here;
the verifier finds out where they are not.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.steps import follows_from_symbols, made_of_nothing
from memgraph.facts.views import is_view
from memgraph.passes.graphs import OutlinePlan, Rewritten, Split
from memgraph.passes.insert import provenance, size
from memgraph.passes.tiles.stored import CalledGraph


def outline(split: Split, plan: OutlinePlan) -> Rewritten[Split]:
    """Replace the plan's layers by calls of bodies.  Raises KeyError where a graph does not hold a layer's operator."""
    if not plan.forward and not plan.backward:
        return Rewritten(split, modified=False)
    forward = _outlined(split.forward, plan.forward) if plan.forward else split.forward
    backward = _outlined(split.backward, plan.backward) if plan.backward else split.backward
    return Rewritten(dataclasses.replace(split, forward=forward, backward=backward), modified=True)


@dataclasses.dataclass(frozen=True)
class _Layer:
    """One layer of a graph."""

    nodes: tuple[fx.Node, ...]
    label: str
    """The name of its body."""
    name: str
    """Of its call."""

    def operands(self) -> list[fx.Node]:
        """What the layer is given: the symbols of its sizes, and the rest in the order in which it is read first."""
        inside = set(self.nodes)
        read = dict.fromkeys(read for node in self.nodes for read in node.all_input_nodes)
        return [*self.symbols(read), *(node for node in read if node not in inside and not _is_made_in_body(node))]

    def symbols(self, read: Iterable[fx.Node]) -> list[fx.Node]:
        """The inputs of the graph that are the symbols of its sizes.  read: what it reads."""
        made = (inner for node in read if made_of_nothing(node) for inner in node.all_input_nodes)
        values = (node.meta.get("val") for node in (*self.nodes, *read, *made))
        needed = {symbol for value in values for symbol in compat.symbols_in(value)}
        found: dict[str, fx.Node] = {}
        for node in self.nodes[0].graph.find_nodes(op="placeholder") if needed else ():
            if (symbol := compat.bound_symbol(node.meta.get("val"))) in needed:
                found.setdefault(str(symbol), node)
        return [found[name] for name in sorted(found)]

    def read_outside(self) -> list[fx.Node]:
        """Its nodes that others read."""
        inside = set(self.nodes)
        return [node for node in self.nodes if any(user not in inside for user in node.users)]

    def returned(self) -> list[fx.Node]:
        """What its body returns: of the nodes that others read, those whose memory they show, if the layer makes it."""
        inside = set(self.nodes)
        found = (_source(node, inside) for node in self.read_outside())
        return list(dict.fromkeys(node for node in found if node in inside))


def _outlined(gm: fx.GraphModule, classes: Sequence[Sequence[Sequence[str]]]) -> fx.GraphModule:
    """A graph with calls in place of the layers of some classes."""
    nodes = {node.name: node for node in gm.graph.nodes}
    root = torch.nn.Module()
    for name, value in _attributes(gm).items():
        _set(root, name, value)
    ends: dict[fx.Node, _Layer] = {}
    inside: set[fx.Node] = set()
    for number, layers in enumerate(classes):
        label = _free(gm, f"layers_{number}")
        for place, names in enumerate(layers):
            layer = _Layer(tuple(nodes[name] for name in names), label, f"{label}_call_{place}")
            if place == 0:
                root.add_module(label, _Body(gm, layer).make())
            ends[layer.nodes[-1]] = layer
            inside.update(layer.nodes)
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node in ends:
            _call(graph, ends[node], new)
        elif node not in inside:
            new[node] = _outside(graph, node, inside, new)
    for node in reversed(graph.nodes):  # what only layers read, and is made again in their bodies
        if not node.users and node.op != "placeholder" and (node.op == "get_attr" or _is_made_in_body(node)):
            graph.erase_node(node)
    made = compat.graph_module(root, graph)
    made.meta = dict(gm.meta)
    made.graph.lint()
    return made


def _outside(graph: fx.Graph, node: fx.Node, inside: Set[fx.Node], new: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """Insert a node that is in no layer.  inside: those that are.

    A seed that layers alone read is a view of the seeds. Looked up, it would be computed by a kernel of its own, and as
    its number stands in that kernel's source, each layer would have one more to compile (docs/decisions/0014).
    """
    if not compat.looks_up_seed(node.target) or any(user not in inside for user in node.users):
        return graph.node_copy(node, new.__getitem__)
    seeds, number = node.args
    view = graph.create_node("call_function", torch.ops.aten.select.int, (new[seeds], 0, number), name=node.name)
    view.meta = provenance(node) | {"val": view.target(seeds.meta["val"], 0, number)}
    return view


class _Body:
    """The graph of a layer, as it is made."""

    def __init__(self, gm: fx.GraphModule, layer: _Layer) -> None:
        self.gm, self.layer = gm, layer
        self.graph, self.root = fx.Graph(), torch.nn.Module()
        self.new: dict[fx.Node, Any] = {}
        """By node of the layer's graph, what stands for it in the body."""

    def make(self) -> fx.GraphModule:
        for place, node in enumerate(self.layer.operands()):
            self.new[node] = self.graph.placeholder(f"given_{place}")
            self.new[node].meta["val"] = node.meta["val"]
        for node in self.layer.nodes:
            for read in node.all_input_nodes:
                self.make_again(read)
            self.new[node] = self.graph.node_copy(node, self.new.__getitem__)
        self.graph.output(tuple(self.new[node] for node in self.layer.returned()))
        return CalledGraph(self.root, self.graph)

    def make_again(self, read: fx.Node) -> None:
        """Make what is read and not given: a size, a value that is made of nothing, a body that is called."""
        if read in self.new:
            return
        if follows_from_symbols(read):
            mode, value = compat.fake_mode_of([node.meta["val"] for node in self.layer.nodes]), read.meta["val"]
            self.new[read] = size(self.graph, mode, value)
            return
        for inner in read.all_input_nodes:
            self.make_again(inner)
        self.new[read] = self.graph.node_copy(read, self.new.__getitem__)
        if _is_body(read):
            _set(self.root, read.target, operator.attrgetter(read.target)(self.gm))


def _call(graph: fx.Graph, layer: _Layer, new: dict[fx.Node, fx.Node]) -> None:
    """Insert the call of a layer's body, and what others read of its layer.  new: nodes by those of the old graph."""
    returned = layer.returned()
    place = provenance(layer.nodes[0])
    reference = next(iter(graph.find_nodes(op="get_attr", target=layer.label)), None) or graph.get_attr(layer.label)
    operands = [new[node] for node in layer.operands()]
    call = graph.create_node(
        "call_function", compat.invoke_subgraph(), (reference, layer.label, *operands), name=layer.name
    )
    call.meta = place | {"val": tuple(node.meta["val"] for node in returned)}
    for number, node in enumerate(returned):
        new[node] = graph.create_node("call_function", operator.getitem, (call, number), name=node.name)
        new[node].meta = provenance(node) | {"val": node.meta["val"]}
    for node in layer.read_outside():
        _again(graph, node, new)


def _again(graph: fx.Graph, node: fx.Node, new: dict[fx.Node, fx.Node]) -> fx.Node:
    """A view of a layer, made by the caller of its body."""
    if node not in new:
        for read in node.all_input_nodes:
            _again(graph, read, new)
        new[node] = graph.node_copy(node, new.__getitem__)
    return new[node]


def _source(node: fx.Node, inside: Iterable[fx.Node]) -> fx.Node:
    """The node that owns the memory that a node shows; the walk ends at what the layer is given."""
    while node in inside and (is_view(node) or (node.target is operator.getitem and is_view(node.args[0]))):
        node = node.all_input_nodes[0]
    return node


def _is_made_in_body(node: fx.Node) -> bool:
    return _is_body(node) or made_of_nothing(node) or follows_from_symbols(node)


def _is_body(node: fx.Node) -> bool:
    return node.op == "get_attr" and isinstance(
        operator.attrgetter(node.target)(node.graph.owning_module), fx.GraphModule
    )


def _attributes(gm: fx.GraphModule) -> Mapping[str, Any]:
    """What a graph takes of its module, by path."""
    return {node.target: operator.attrgetter(node.target)(gm) for node in gm.graph.find_nodes(op="get_attr")}


def _set(root: torch.nn.Module, path: str, value: Any) -> None:
    """Have a module hold something under a path."""
    *parents, name = path.split(".")
    for parent in parents:
        if not hasattr(root, parent):
            root.add_module(parent, torch.nn.Module())
        root = getattr(root, parent)
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        root.register_buffer(name, value)
    else:
        setattr(root, name, value)


def _free(gm: fx.GraphModule, name: str) -> str:
    """A name that a module does not use yet."""
    while hasattr(gm, name):
        name += "_"
    return name
