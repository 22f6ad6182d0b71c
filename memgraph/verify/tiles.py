"""A tiled joint graph held against the one that it was made from.

Around the tiles nothing may have changed: values are compared by their terms, and an output of a tile is taken for the
value that it stands for. Inside, operators have other sizes, so their terms differ. There, both are run on small random
data (`trial.py`): the tile as it stands in the graph, with the graphs that it calls, and the operators of the joint
graph that make the same values of the same inputs. This module does not know how a tile is built: the tile's call says
only which values it stands for, and the trial shows whether that is true.
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
from memgraph.facts.plain import generic, names_of_symbols, shortest, with_plain_sizes
from memgraph.facts.tokens.region import STANDS_FOR, TokenRegion
from memgraph.verify.arguments import Arguments, name_of
from memgraph.verify.attention import ATTENTION, KERNELS
from memgraph.verify.checks import show, signature
from memgraph.verify.frame import History
from memgraph.verify.inputs import input_term
from memgraph.verify.real import Real, Unreal, real
from memgraph.verify.rewrite import verify_graph
from memgraph.verify.smaller import BOUNDS, SIZES
from memgraph.verify.terms import Term, Terms
from memgraph.verify.trial import ROOM, Differs, Trial, graphs_of
from memgraph.verify.walk import number

# Operators that put shards together. The latter write into their first argument.
_WRITING = ("memgraph::shard_put", "memgraph::shard_add", "memgraph::shard_sum")
_TOGETHER = ("memgraph::shard_whole", "memgraph::shard_total", "memgraph::shard_product", *_WRITING)
# Operators whose whole numbers are sizes and places along a dimension.
_TOLD_SIZES = frozenset((*SIZES, *BOUNDS, *KERNELS, "aten::constant_pad_nd"))
_SUMS = ("memgraph::shard_total", "memgraph::shard_product", *_WRITING[1:])
_ADDING = (*_SUMS, "aten::add", "aten::mm", "aten::addmm", "aten::bmm")


class TileError(Exception):
    """A tile that does not do what its region does."""

    def __init__(self, region: TokenRegion, reason: str) -> None:
        self.region = region
        super().__init__(reason)


@dataclasses.dataclass(frozen=True)
class _Call:
    """A tile where it is called."""

    node: fx.Node
    region: TokenRegion
    stands_for: tuple[str, ...]
    """For each output, the node of the graph before."""

    @property
    def scaled(self) -> frozenset[int]:
        """Positions of the outputs that are multiplied by the tangent afterwards."""
        backward = set(self.region.backward) if self.region.tangent else ()
        return frozenset(place for place, name in enumerate(self.stands_for) if name in backward)


@dataclasses.dataclass(frozen=True)
class _Operand:
    """An input of a tile."""

    names: tuple[str, ...]
    """Nodes of the graph before that hold the same value."""
    unit: bool = False
    """Whether they hold it if the tangent is 1."""


def verify_tiles(
    before: fx.GraphModule,
    after: fx.GraphModule,
    tiles: Sequence[tuple[TokenRegion, int]],
    tried: set[str] | None = None,
    room: int = ROOM,
    assumed: Mapping[str, int] | None = None,
) -> None:
    """Raises VerifyError if the graph around the tiles differs, TileError if a tile computes something else.

    A tile that cannot be tried within the room is an error, too: it may be wrong.
    tiles: regions, and in how many shards each runs.  room: in bytes.  assumed: by name, what symbols are at least.
    tried: keys of the trials that were run; these are not run again, new ones are added.
    """
    tried = set() if tried is None else tried
    calls = [call for region, _ in tiles for call in _calls(after, region)]
    claims = _claims(before, after, calls)
    verify_graph(before, after, pass_name="tile", claims=claims)
    if not (symbols := names_of_symbols(before)):
        _verify_plain(before, after, tiles, calls, claims, tried, room)
        return
    # Once with numbers that no number of shards divides, and once with the smallest that there may be.
    for values in (generic(symbols, above=100), shortest(before, assumed)):
        one, other = with_plain_sizes(before, values), with_plain_sizes(after, values)
        again = [call for region, _ in tiles for call in _calls(other, region)]
        _verify_plain(one, other, tiles, again, _claims(one, other, again), tried, room, symbolic=True)


def _verify_plain(
    before: fx.GraphModule,
    after: fx.GraphModule,
    tiles: Sequence[tuple[TokenRegion, int]],
    calls: Sequence[_Call],
    claims: Mapping[str, str],
    tried: set[str],
    room: int,
    *,
    symbolic: bool = False,
) -> None:
    """Raises TileError if a tile computes something else.  symbolic: the graphs that these stand for have symbols."""
    shards = {region.outputs: count for region, count in tiles}
    place = {node.name: n for n, node in enumerate(before.graph.nodes)}
    nodes = {node.name: node for node in before.graph.nodes}
    spelled: dict[str, str] = {}
    for call, inputs in _inputs(before, after, calls, claims):
        label = call.node.args[0].target
        tile = after.get_submodule(label)
        if label not in spelled:
            spelled[label] = "\n".join(map(_spell, graphs_of(tile)))
        if call.node.args[1] != label:  # Inductor takes equal names for equal graphs
            raise TileError(call.region, f"{call.node.name} calls {label} by the name of {call.node.args[1]}")
        _check_ends(call, tile, nodes)
        _check_shards(call.region, tile, shards[call.region.outputs], symbolic)
        _check_sums(call.region, tile)
        graph = _cut_out(nodes, place, call, inputs)
        units = frozenset(n for n, operand in enumerate(inputs) if operand.unit)
        alike = tuple(inputs.index(operand) for operand in inputs)
        text = f"{_spell(graph)}\n{sorted(units)} {alike} {sorted(call.scaled)}\n{spelled[label]}"
        names = tuple(operand.names[0] for operand in inputs)
        made = _real(call, nodes, graph, tile)
        if made is not None:
            text = f"{text}\n{_spell(made.graph)} {[names.index(name) for name in made.names]}"
        key = hashlib.sha256(text.encode()).hexdigest()
        if key in tried:
            continue
        try:
            positions = _positions(graph) if call.region.kind == "attention" else ()
            Trial(graph, tile, units, alike, call.scaled, call.stands_for, room, positions, names, made).run()
        except Differs as problem:
            raise TileError(call.region, str(problem)) from problem
        tried.add(key)


# --- what the calls stand for ------------------------------------------------------------------------------


def _calls(after: fx.GraphModule, region: TokenRegion) -> list[_Call]:
    """The calls that stand for a region's outputs.  Raises TileError unless each output has one."""
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
    """By name of a node that stands for an output of a region, the name of that output in the graph before."""
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
    """Whether a node is an output of a tile, made with a tangent of 1, times the tangent."""
    return node.target is torch.ops.aten.mul.Tensor and node.args[0] is unit and node.args[1].name == tangent


def _inputs(
    before: fx.GraphModule, after: fx.GraphModule, calls: Sequence[_Call], claims: Mapping[str, str]
) -> Iterator[tuple[_Call, list[_Operand]]]:
    """The operands of each call.  Raises TileError if one is a value that its region does not read."""
    terms = Terms()
    placeholders = before.graph.find_nodes(op="placeholder")
    given = [input_term(terms, node) for node in placeholders]

    def values(inputs: Sequence[Term]) -> dict[str, Term]:
        return {node.name: term for node, term in number(before, inputs, History(terms)).values.items()}

    old = values(given)
    claimed = {name: old[source] for name, source in claims.items()}
    new = number(after, given, History(terms), claims=claimed).values
    with_one: dict[str, dict[str, Term]] = {}
    for call in calls:
        region = call.region
        chain = (region.tangent, *region.chain) if region.tangent else ()
        if chain and region.tangent not in with_one:
            one = new[_one(after, before, region)]
            ones = [one if node.name == region.tangent else n for node, n in zip(placeholders, given, strict=True)]
            with_one[region.tangent] = values(ones)
        known: dict[Term, _Operand] = {}
        for name in (*chain, *(name for name in (*region.inputs, *region.handed) if name not in chain)):
            term = with_one[region.tangent][name] if name in chain else old[name]
            known[term] = _Operand((*known.get(term, _Operand(())).names, name), name in chain)
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


def _check_ends(call: _Call, tile: fx.GraphModule, nodes: Mapping[str, fx.Node]) -> None:
    """Raises TileError if a tile takes or returns other values than its call says."""
    region = call.region
    given = [node.meta["val"] for node in call.node.args[2:]]
    wanted = [nodes[name].meta["val"] for name in call.stands_for]
    inputs, outputs = tile.graph.find_nodes(op="placeholder"), tile.graph.output_node().args[0]
    for values, ends in ((given, inputs), (wanted, outputs)):
        if len(values) != len(ends):
            raise TileError(region, f"{call.node.name} takes {len(ends)} values for {len(values)}")
        for value, node in zip(values, ends, strict=True):
            if (want := signature(value)) != (got := signature(node.meta["val"])):
                raise TileError(region, f"{node.name} of its tile is {show(got)}, not {show(want)}")


def _check_shards(region: TokenRegion, tile: fx.GraphModule, shards: int, symbolic: bool) -> None:
    """Raises TileError if a tile does not run the shards that were asked for, all of them where these are symbolic."""
    runs = len(tile.graph.find_nodes(op="call_function", target=compat.invoke_subgraph()))
    if symbolic and runs == shards:
        return
    rows = math.ceil(region.tokens / min(shards, region.tokens))
    shards = math.ceil(region.tokens / (math.ceil(rows / region.multiple) * region.multiple))
    if runs != shards:
        raise TileError(region, f"its tile runs {runs} shards, not {shards}")


def _check_sums(region: TokenRegion, tile: fx.GraphModule) -> None:
    """Raises TileError if shards are added up in a short type, or a write into a value changes what others read.

    A trial on small data can see neither.
    """
    for node in tile.graph.nodes:
        name, value = name_of(node.target) if node.op == "call_function" else "", node.meta.get("val")
        if name in _ADDING and value.dtype.is_floating_point and value.dtype.itemsize < 4:
            raise TileError(region, f"{node.name} adds shards up in {str(value.dtype).removeprefix('torch.')}")
        if name in _WRITING:
            into = node.args[0]
            if not _is_written_alone(into):
                raise TileError(region, f"{node.name} writes into {into.name}, which is read elsewhere")


def _is_written_alone(into: fx.Node) -> bool:
    """Whether a value is a sum or a whole of shards, or what one shard returns, and one operator alone reads it."""
    returned = into.target is operator.getitem and into.args[0].target is compat.invoke_subgraph()
    made = (*_TOGETHER, "aten::add", "prims::convert_element_type")
    return (returned or name_of(into.target) in made) and len(into.users) == 1


def _cut_out(
    nodes: Mapping[str, fx.Node], place: Mapping[str, int], call: _Call, inputs: Sequence[_Operand]
) -> fx.Graph:
    """The operators of the joint graph that make a call's outputs of its operands.

    Raises TileError if they need another operand.
    """
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
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


def _real(call: _Call, nodes: Mapping[str, fx.Node], graph: fx.Graph, tile: fx.GraphModule) -> Real | None:
    """What makes the positions among a call's operands, where its shards are given a part of the keys.

    graph: as `_cut_out` gives it.
    """
    if set().union(*map(_keys, graphs_of(tile))) == _keys(graph):
        return None
    given = graph.find_nodes(op="placeholder")
    of_masks = [node.target for node in given if not any(name_of(user.target) in ATTENTION for user in node.users)]
    try:
        return real(nodes, of_masks)
    except Unreal as problem:
        raise TileError(call.region, str(problem)) from problem


def _keys(graph: fx.Graph) -> set[int]:
    """How many keys the calls of attention in a graph have."""
    calls = [node for node in graph.nodes if node.op == "call_function" and name_of(node.target) in ATTENTION]
    return {Arguments(node).shape("key")[2] for node in calls}


def _positions(graph: fx.Graph) -> tuple[int, ...]:
    """Whole numbers around those that a mask compares with; 0 and 1 where its integers are places in a table."""
    found, calls = {0, 1}, [node for node in graph.nodes if node.op == "call_function"]
    if not any(name_of(node.target) == "aten::index" for node in calls):
        told = [arg for node in calls if name_of(node.target) not in _TOLD_SIZES for arg in node.args]
        bounds = [arg for arg in told if isinstance(arg, int) and not isinstance(arg, bool)]
        found.update(bound + step for bound in bounds for step in (-1, 0, 1))
    return tuple(sorted(found))


def _spell(graph: fx.Graph) -> str:
    """A text that is equal for graphs that run the same operators on values of the same layouts, in the same order."""
    place = {node: f"%{n}" for n, node in enumerate(graph.nodes)}
    lines = []
    for node in graph.nodes:
        held = node.meta.get("val")
        values = held if isinstance(held, (list, tuple)) else [held]
        looks = [signature(value) for value in values if isinstance(value, torch.Tensor)]
        told = fx.map_arg((node.args, dict(node.kwargs)), place.__getitem__) if node.op != "placeholder" else ""
        lines.append(f"{node.op} {node.target if node.op != 'placeholder' else ''} {told} {looks}")
    return "\n".join(lines)
