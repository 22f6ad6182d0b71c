"""A tiled joint graph held against the one that it was made from.

Around the tiles nothing may have changed: values are numbered, and what a tile returns is taken for the value that it
stands for. Inside, operators that were told other sizes cannot be compared by number, so a tile is run: on small random
data, in shards and whole, and what comes out must be the same but for the rounding of sums.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from memgraph import compat
from memgraph.bodies import build_body
from memgraph.facts.token_states import State, Tokens
from memgraph.facts.tokens import Region
from memgraph.numbering import Numbered, Run
from memgraph.passes.tile import call_names, sides, unit_name
from memgraph.tile_graph import build_tile, identity, needed, signature
from memgraph.value_numbers import Table, freeze
from memgraph.verify import named_input, verify_graph

# Small, and two shards that differ.
ROWS, SHARDS = 5, 2
# Relative to the norm of the whole, by bytes of the type: each sum is rounded in another order.
LARGE = 1 << 22
TOLERANCE = {8: 1e-12, 4: 2e-5, 2: 3e-2, 1: 0.3}


class TileError(Exception):
    """A tile that does not do what its region does.  region: which."""

    def __init__(self, region: Region, reason: str) -> None:
        self.region = region
        super().__init__(reason)


def verify_tiles(
    before: fx.GraphModule, after: fx.GraphModule, tiles: Sequence[tuple[Region, int]], tried: set[str] | None = None
) -> None:
    """Raises VerifyError where the graph around the tiles differs, TileError where a tile computes something else.

    tried: what was run before, and is not run again; what is run is added.
    """
    tried = set() if tried is None else tried
    claims: dict[str, str] = {}
    for region, _ in tiles:
        claims |= _claims(before, after, region)
    verify_graph(before, after, pass_name="tile", claims=claims)
    _operands(before, after, [region for region, _ in tiles], claims)
    nodes = {node.name: node for node in before.graph.nodes}
    labels: dict[str, str] = {}
    for region, shards in tiles:
        for call, outputs in zip(_calls(after, region), sides(region), strict=True):
            names, inputs = needed(nodes, region, outputs)
            stands_for = signature(nodes, region, names, inputs, outputs, shards)
            label = str(call.args[0].target)
            if call.args[1] != label or labels.get(label, stands_for) != stands_for:
                raise TileError(region, f"{call.name} calls the tile of another region")
            if label not in labels:
                labels[label] = stands_for
                built = build_tile(nodes, region, names, inputs, outputs, shards)
                if identity(built) != identity(after.get_submodule(label)):
                    raise TileError(region, f"{call.name} does not call the tile of its region")
        _try_out(nodes, region, tried)


def _claims(before: fx.GraphModule, after: fx.GraphModule, region: Region) -> dict[str, str]:
    """What stands for the outputs of a region: by the name of the new node, that of the old one."""
    calls = _calls(after, region)
    if len(calls) != len(sides(region)):
        raise TileError(region, "a call of its tile is missing")
    claims: dict[str, str] = {}
    for call, outputs in zip(calls, sides(region), strict=True):
        for user in call.users:
            if user.target is operator.getitem and user.args[0] is call:
                name = outputs[user.args[1]]
                scaled = region.tangent and name in region.backward
                stand = [node for node in user.users if _scaled(node, user, region)] if scaled else [user]
                claims |= {node.name: name for node in stand}
    new = {node.name: node for node in after.graph.nodes}
    outputs, inside = set(region.outputs), region.nodes
    for node in before.graph.nodes:
        if node.name in inside or node.name not in new:
            continue
        reads = list(zip(node.all_input_nodes, new[node.name].all_input_nodes, strict=False))
        for old, now in reads:
            if old.name in outputs and claims.get(now.name) != old.name:
                raise TileError(region, f"{node.name} reads {now.name} in place of {old.name}")
    return claims


def _scaled(node: fx.Node, unit: fx.Node, region: Region) -> bool:
    """Whether a node is what a tile made with the tangent at 1, times the tangent."""
    return node.target is torch.ops.aten.mul.Tensor and node.args[0] is unit and node.args[1].name == region.tangent


def _calls(after: fx.GraphModule, region: Region) -> list[fx.Node]:
    names = call_names(region)
    return [node for node in after.graph.nodes if node.name in names]


def _operands(
    before: fx.GraphModule, after: fx.GraphModule, regions: Sequence[Region], claims: Mapping[str, str]
) -> None:
    """What each tile is given is what its region read, or that with the tangent at 1."""
    table = Table()
    placeholders = before.graph.find_nodes(op="placeholder")
    given = [named_input(table, node) for node in placeholders]
    old = {node.name: n for node, n in Numbered(before, given, Run(table)).numbers.items()}
    taken = {name: old[source] for name, source in claims.items()}
    new = Numbered(after, given, Run(table), claims=taken).numbers
    for region in regions:
        calls = _calls(after, region)
        if not calls:
            raise TileError(region, "no call of its tile is in the graph")
        unit: dict[str, int] = {}
        if region.tangent:
            one = next((new[node] for node in calls[0].graph.nodes if node.name == unit_name(region)), -1)
            ones = [one if node.name == region.tangent else n for node, n in zip(placeholders, given, strict=True)]
            unit = {node.name: n for node, n in Numbered(before, ones, Run(table)).numbers.items()}
            if one != table.number(*_one(after, unit_name(region))):
                raise TileError(region, "the tangent of its tile is not 1")
        nodes = {node.name: node for node in before.graph.nodes}
        for call, outputs in zip(calls, sides(region), strict=True):
            _, inputs = needed(nodes, region, outputs)
            for name, operand in zip(inputs, call.args[2:], strict=True):
                wanted = unit if name in (region.tangent, *region.chain) else old
                if new[operand] != wanted.get(name):
                    raise TileError(region, f"its tile is given {operand.name} for {name}")


def _one(after: fx.GraphModule, name: str) -> tuple:
    """What a scalar 1 is numbered by, if that is what a node is."""
    node = next(node for node in after.graph.nodes if node.name == name)
    if node.target is not torch.ops.aten.full.default or list(node.args) != [[], 1.0]:
        return ("not 1",)
    return (node.target, freeze(node.args, {}), freeze(node.kwargs, {}))


def _try_out(nodes: Mapping[str, fx.Node], region: Region, tried: set[str]) -> None:
    """Run a region whole and in shards on small random data.  Raises TileError where the results differ.

    Always in as many shards: what was tried once need not be tried for another number of them.
    """
    for outputs in sides(region):
        names, inputs = needed(nodes, region, outputs)
        what = signature(nodes, region, names, inputs, outputs, SHARDS)
        if what not in tried:
            _compare(nodes, region, outputs)
            tried.add(what)


def _compare(nodes: Mapping[str, fx.Node], region: Region, outputs: Sequence[str]) -> None:
    names, inputs = needed(nodes, region, outputs)
    values = [nodes[name].meta["val"] for name in inputs]
    if any(value.is_cuda for value in values) and not torch.cuda.is_available():
        return
    mode = compat.fake_mode_of(values)
    small = dataclasses.replace(region, tokens=ROWS, states=_no_spread(region.states))
    with compat.propagating(mode):
        fakes = {name: _small(value, region, name) for name, value in zip(inputs, values, strict=True)}
    whole = build_body(nodes, region, names, fakes, outputs, ROWS, mode, split=False)
    parts = {node.name: node for node in whole.module.graph.nodes}
    tiled = build_tile(parts, small, names, inputs, outputs, SHARDS)
    with compat.really(), torch.no_grad():
        data = _data(list(fakes.values()))
        scale = [0.5 if name in (region.tangent, *region.chain) else 1 for name in inputs]
        scaled = [item * by if by != 1 else item for item, by in zip(data, scale, strict=True)]
        try:
            want, got = fx.Interpreter(whole.module).run(*scaled), _InPlace(tiled).run(*data)
        except Exception as error:  # whatever an operator raises on data that does not fit
            raise TileError(region, f"it does not run on {ROWS} tokens: {_first_line(error)}") from error
        backward = set(region.backward)
        for place, name in enumerate(outputs):
            one, other = want[whole.values[name]], got[place]
            if region.tangent and name in backward:
                other = other * 0.5
            _same(region, name, one, other)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _no_spread(states: Mapping[str, State]) -> dict[str, State]:
    """The states on small data, which is made with a number for each token."""
    return {
        name: dataclasses.replace(state, spread=()) if isinstance(state, Tokens) else state
        for name, state in states.items()
    }


def _same(region: Region, name: str, want: torch.Tensor, got: torch.Tensor) -> None:
    if want.shape != got.shape or want.dtype != got.dtype:
        raise TileError(
            region, f"{name} is {got.dtype}{list(got.shape)} in shards, {want.dtype}{list(want.shape)} whole"
        )
    if not want.dtype.is_floating_point:
        if not torch.equal(want, got):
            raise TileError(region, f"{name} differs in shards at {int((want != got).sum())} of {want.numel()} places")
        return
    want, got = _part(want), _part(got)
    odd = ~torch.isfinite(want)
    if bool(odd.any()):  # infinite or not a number at the same places (masked logits) is the same
        same = odd & ((want == got) | (want.isnan() & got.isnan()))
        want, got = want.masked_fill(same, 0), got.masked_fill(same, 0)
    size = float(torch.linalg.vector_norm(want, dtype=torch.float64))
    error = float(torch.linalg.vector_norm(got - want, dtype=torch.float64)) / (size or 1.0)
    if not error <= TOLERANCE[want.element_size()]:
        raise TileError(region, f"{name} in shards differs from the whole by {error:.2g} of its norm, on {ROWS} tokens")


def _part(value: torch.Tensor) -> torch.Tensor:
    """Some rows of what is large: to read all of a large head's gradient takes longer than to make it.

    The first ones, which the integers of `_data` point to, and others at equal distances. Only sums over tokens are
    large here, and their rows are made alike.
    """
    if value.numel() < LARGE or value.dim() < 2:
        return value
    rows = max(1, LARGE // (2 * value[0].numel()))
    return torch.cat([value[:rows], value[:: max(1, value.shape[0] // rows)]])


class _InPlace(fx.Interpreter):
    """Runs a tile as Inductor does: what puts its shards together writes into place."""

    _writing = {
        torch.ops.memgraph.shard_add.default: torch.ops.memgraph.shard_add_.default,
        torch.ops.memgraph.shard_put.default: torch.ops.memgraph.shard_put_.default,
    }

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target not in self._writing:
            return super().call_function(target, args, kwargs)
        self._writing[target](*args, **kwargs)
        return args[0]


def _small(value: torch.Tensor, region: Region, name: str) -> torch.Tensor:
    state = region.states[name]
    if not isinstance(state, Tokens):
        return value
    sizes = list(value.shape)
    for dim in state.dims[:-1]:
        sizes[dim] = 1
    sizes[state.dims[-1]] = ROWS * state.factor
    return value.new_empty(sizes)


def _data(fakes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Random numbers; integers that are indices of anything are at most 1."""
    made = []
    for seed, fake in enumerate(fakes):
        generator = torch.Generator().manual_seed(seed)
        count = fake.numel()
        if fake.dtype.is_floating_point:
            # A block again and again: to draw all of a large head's weights would take as long as to run it.
            block = torch.empty(min(count, LARGE - 1)).normal_(generator=generator)
            if fake.dim() > 1:
                block *= max(1, fake.shape[-1]) ** -0.5
        else:
            block = torch.randint(0, 2, (min(count, LARGE - 1),), generator=generator)
        block = block.to(device=fake.device, dtype=fake.dtype)
        item = block.repeat(-(-count // max(1, block.numel())))[:count].view(fake.shape)
        if fake.stride() != item.stride():
            item = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device).copy_(item)
        made.append(item)
    return made
