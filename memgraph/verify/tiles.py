"""A tiled joint graph held against the one that it was made from.

Around the tiles nothing may have changed: values are numbered, and what a tile returns is taken for the value that it
stands for. Inside, operators that were told other sizes cannot be compared by number, so both are run on small random
data (`trial.py`): the tile as it stands in the graph, with the graphs that it calls, and the operators of the joint
graph that make the same values of what the tile is given. How a tile is built is not known here: its call says only
which values it stands for, and that is shown.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import operator
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.tokens.region import STANDS_FOR, TokenRegion
from memgraph.verify.checks import show, signature
from memgraph.verify.rewrite import named_input, verify_graph
from memgraph.verify.smaller import name_of
from memgraph.verify.trial import ROOM, Differs, Trial
from memgraph.verify.values import Table
from memgraph.verify.walk import Numbered, Run

# Operators that put shards together; the first argument of the last two is written into.
_TOGETHER = ("memgraph::shard_whole", "memgraph::shard_product", "memgraph::shard_put", "memgraph::shard_add")
_ADDING = ("memgraph::shard_product", "memgraph::shard_add", "aten::add", "aten::mm", "aten::addmm", "aten::bmm")


class TileError(Exception):
    """A tile that does not do what its region does.  region: which."""

    def __init__(self, region: TokenRegion, reason: str) -> None:
        self.region = region
        super().__init__(reason)


@dataclasses.dataclass(frozen=True)
class _Call:
    """A tile where it is called.  stands_for: by place among its outputs, the node of the graph before."""

    node: fx.Node
    region: TokenRegion
    stands_for: tuple[str, ...]

    @property
    def scaled(self) -> frozenset[int]:
        """Which outputs are multiplied by the tangent afterwards."""
        backward = set(self.region.backward) if self.region.tangent else ()
        return frozenset(place for place, name in enumerate(self.stands_for) if name in backward)


@dataclasses.dataclass(frozen=True)
class _Operand:
    """What a tile is given.  names: nodes of the graph before that hold that value; with a tangent of 1 if `unit`."""

    names: tuple[str, ...]
    unit: bool = False


def verify_tiles(
    before: fx.GraphModule,
    after: fx.GraphModule,
    tiles: Sequence[tuple[TokenRegion, int]],
    tried: set[str] | None = None,
    room: int = ROOM,
) -> None:
    """Raises VerifyError where the graph around the tiles differs, TileError where a tile computes something else.

    A tile that cannot be run within the room, in bytes, is an error, too: what nobody has seen may be wrong.
    tried: what was run before, and is not run again; what is run is added.
    """
    tried = set() if tried is None else tried
    calls = [call for region, _ in tiles for call in _calls(after, region)]
    claims = _claims(before, after, calls)
    verify_graph(before, after, pass_name="tile", claims=claims)
    shards = {region.outputs: count for region, count in tiles}
    place = {node.name: n for n, node in enumerate(before.graph.nodes)}
    nodes = {node.name: node for node in before.graph.nodes}
    spelled: dict[str, str] = {}
    for call, inputs in _inputs(before, after, calls, claims):
        label = call.node.args[0].target
        tile = after.get_submodule(label)
        if label not in spelled:
            spelled[label] = "\n".join(map(_spell, _graphs(tile)))
        if call.node.args[1] != label:  # Inductor takes equal names for equal graphs
            raise TileError(call.region, f"{call.node.name} calls {label} by the name of {call.node.args[1]}")
        _look(call, tile, shards[call.region.outputs], nodes)
        graph = _cut_out(nodes, place, call, inputs)
        units = frozenset(n for n, operand in enumerate(inputs) if operand.unit)
        alike = tuple(inputs.index(operand) for operand in inputs)
        text = f"{_spell(graph)}\n{sorted(units)} {alike} {sorted(call.scaled)}\n{spelled[label]}"
        key = hashlib.sha256(text.encode()).hexdigest()
        if key in tried:
            continue
        try:
            Trial(graph, tile, units, alike, call.scaled, call.stands_for, room).run()
        except Differs as problem:
            raise TileError(call.region, str(problem)) from problem
        tried.add(key)


# --- what the calls stand for ------------------------------------------------------------------------------


def _calls(after: fx.GraphModule, region: TokenRegion) -> list[_Call]:
    """The calls that stand for a region's outputs.  Raises TileError unless there is one for each output."""
    found = []
    for node in after.graph.find_nodes(op="call_function", target=compat.invoke_subgraph()):
        stands_for = tuple(node.meta.get(STANDS_FOR, ()))
        if stands_for and set(stands_for) <= set(region.outputs):
            found.append(_Call(node, region, stands_for))
    names = [name for call in found for name in call.stands_for]
    if sorted(names) != sorted(region.outputs):
        raise TileError(region, "a call of its tile is missing")
    return found


def _claims(before: fx.GraphModule, after: fx.GraphModule, calls: Sequence[_Call]) -> dict[str, str]:
    """What stands for the outputs of regions: by the name of the new node, that of the old one."""
    claims: dict[str, str] = {}
    for call in calls:
        for user in call.node.users:
            if user.target is operator.getitem and user.args[0] is call.node:
                place = user.args[1]
                stand = [user]
                if place in call.scaled:
                    stand = [node for node in user.users if _times(node, user, call.region.tangent)]
                claims |= {node.name: call.stands_for[place] for node in stand}
    made = {name: call.region for call in calls for name in call.stands_for}
    inside = {name for call in calls for name in call.region.nodes}
    new = {node.name: node for node in after.graph.nodes}
    for node in before.graph.nodes:
        if node.name in inside or node.name not in new:
            continue
        for old, now in zip(node.all_input_nodes, new[node.name].all_input_nodes, strict=False):
            if old.name in made and claims.get(now.name) != old.name:
                raise TileError(made[old.name], f"{node.name} reads {now.name} in place of {old.name}")
    return claims


def _times(node: fx.Node, unit: fx.Node, tangent: str) -> bool:
    """Whether a node is what a tile made with the tangent at 1, times the tangent."""
    return node.target is torch.ops.aten.mul.Tensor and node.args[0] is unit and node.args[1].name == tangent


def _inputs(
    before: fx.GraphModule, after: fx.GraphModule, calls: Sequence[_Call], claims: Mapping[str, str]
) -> Iterator[tuple[_Call, list[_Operand]]]:
    """For each call, what its operands are.  Raises TileError where one is nothing that its region reads."""
    table = Table()
    placeholders = before.graph.find_nodes(op="placeholder")
    given = [named_input(table, node) for node in placeholders]

    def numbers(inputs: Sequence[int]) -> dict[str, int]:
        return {node.name: n for node, n in Numbered(before, inputs, Run(table)).numbers.items()}

    old = numbers(given)
    new = Numbered(after, given, Run(table), claims={name: old[source] for name, source in claims.items()}).numbers
    with_one: dict[str, dict[str, int]] = {}
    for call in calls:
        region = call.region
        chain = (region.tangent, *region.chain) if region.tangent else ()
        if chain and region.tangent not in with_one:
            one = new[_one(after, before, region)]
            ones = [one if node.name == region.tangent else n for node, n in zip(placeholders, given, strict=True)]
            with_one[region.tangent] = numbers(ones)
        known: dict[int, _Operand] = {}
        for name in (*chain, *(name for name in region.inputs if name not in chain)):
            number = with_one[region.tangent][name] if name in chain else old[name]
            known[number] = _Operand((*known.get(number, _Operand(())).names, name), name in chain)
        for operand in call.node.args[2:]:
            if new[operand] not in known:
                raise TileError(region, f"its tile is given {operand.name}, which is nothing that its region reads")
        yield call, [known[new[operand]] for operand in call.node.args[2:]]


def _one(after: fx.GraphModule, before: fx.GraphModule, region: TokenRegion) -> fx.Node:
    """The scalar 1 that stands for a region's tangent."""
    tangent = next(node for node in before.graph.nodes if node.name == region.tangent)
    for node in after.graph.find_nodes(op="call_function", target=torch.ops.aten.full.default):
        if list(node.args) == [[], 1.0] and signature(node.meta["val"]) == signature(tangent.meta["val"]):
            return node
    raise TileError(region, "the tangent of its tile is not 1")


# --- one tile ----------------------------------------------------------------------------------------------


def _look(call: _Call, tile: fx.GraphModule, shards: int, nodes: Mapping[str, fx.Node]) -> None:
    """Raises TileError where a tile is not what it seems, or what the trial cannot see is wrong."""
    region = call.region
    outputs = tile.graph.output_node().args[0]
    inputs = tile.graph.find_nodes(op="placeholder")
    wanted = [node.meta["val"] for node in call.node.args[2:]], [nodes[name].meta["val"] for name in call.stands_for]
    for side, has in zip(wanted, (inputs, outputs), strict=True):
        if len(side) != len(has):
            raise TileError(region, f"{call.node.name} takes {len(has)} values for {len(side)}")
        for value, node in zip(side, has, strict=True):
            if signature(value) != signature(node.meta["val"]):
                said, is_ = show(signature(node.meta["val"])), show(signature(value))
                raise TileError(region, f"{node.name} of its tile is {said}, not {is_}")
    rows = math.ceil(region.tokens / min(shards, region.tokens))
    runs = len(tile.graph.find_nodes(op="call_function", target=compat.invoke_subgraph()))
    if runs != math.ceil(region.tokens / rows):
        raise TileError(region, f"its tile runs {runs} shards, not {math.ceil(region.tokens / rows)}")
    for node in tile.graph.nodes:
        name, value = name_of(node.target) if node.op == "call_function" else "", node.meta.get("val")
        if name in _ADDING and value.dtype.is_floating_point and value.dtype.itemsize < 4:
            raise TileError(region, f"{node.name} adds shards up in {str(value.dtype).removeprefix('torch.')}")
        if name in _TOGETHER[2:]:
            into = node.args[0]
            if name_of(into.target) not in (*_TOGETHER, "aten::add") or len(into.users) > 1:
                raise TileError(region, f"{node.name} writes into {into.name}, which is read elsewhere")


def _cut_out(
    nodes: Mapping[str, fx.Node], place: Mapping[str, int], call: _Call, inputs: Sequence[_Operand]
) -> fx.Graph:
    """The joint graph's own operators that make a call's outputs of what it is given.  Raises TileError."""
    graph, new = fx.Graph(), {}
    for operand in inputs:
        made = graph.placeholder(operand.names[0])
        made.meta["val"] = nodes[operand.names[0]].meta["val"]
        new |= {nodes[name]: new.get(nodes[name], made) for name in operand.names}
    needed, pending = set(), [nodes[name] for name in call.stands_for]
    while pending:
        node = pending.pop()
        if node in needed or node in new:
            continue
        if node.op != "call_function":
            raise TileError(call.region, f"its tile is not given {node.name}, which its region reads")
        needed.add(node)
        pending += node.all_input_nodes
    for old in sorted(needed, key=lambda node: place[node.name]):
        args, kwargs = fx.map_arg((old.args, old.kwargs), new.__getitem__)
        new[old] = graph.create_node("call_function", old.target, args, kwargs, name=old.name)
        new[old].meta["val"] = old.meta["val"]
    graph.output(tuple(new[nodes[name]] for name in call.stands_for))
    return graph


def _graphs(module: fx.GraphModule) -> list[fx.Graph]:
    return [part.graph for part in module.modules() if isinstance(part, fx.GraphModule)]


def _spell(graph: fx.Graph) -> str:
    """Equal for graphs that do the same to values that look the same, in the same order."""
    place = {node: f"%{n}" for n, node in enumerate(graph.nodes)}
    lines = []
    for node in graph.nodes:
        held = node.meta.get("val")
        values = held if isinstance(held, (list, tuple)) else [held]
        looks = [signature(value) for value in values if isinstance(value, torch.Tensor)]
        told = fx.map_arg((node.args, dict(node.kwargs)), place.__getitem__) if node.op != "placeholder" else ""
        lines.append(f"{node.op} {node.target if node.op != 'placeholder' else ''} {told} {looks}")
    return "\n".join(lines)
