"""What a tile computes held against what its region computes, on small data.

Both graphs run as they stand, with all their shards, on smaller sizes (`smaller.py`): first on fake tensors, on which
each operator has to give the shape that its value should have and the bytes are counted, and only then on random data.
Both runs are always on the CPU: the device may be full, and an index out of bounds there would end the process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import fx

from memgraph.base import compat
from memgraph.base.sizes import format_size
from memgraph.verify.execute import DryExecution, Execution, Misfit, first_line, show_value
from memgraph.verify.real import Real, Unreal
from memgraph.verify.smaller import Relations, Sizes

# Bytes that a trial may take; its need is known before anything is allocated.
ROOM = 64 << 20
# The tangent of a loss in the trial of its region; the tile runs with a tangent of 1.
TANGENT = 0.5
# So many times data are drawn where masks are tried: a draw may leave a query no key to read.
MASKED_DRAWS = 4
# By bytes of the type, how far an output may be off, relative to its norm: each sum is rounded in another order.
TOLERANCE = {8: 1e-12, 4: 2e-5, 2: 3e-2, 1: 0.3}


class Differs(Exception):
    """A tile does not compute what its region computes, or a trial cannot tell."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """Two graphs of equal inputs and outputs, which should compute the same."""

    region: fx.Graph
    """The operators of the joint graph."""
    tile: fx.GraphModule
    """The graph that is called in their place."""
    units: frozenset[int]
    """Positions of inputs that the tile gets for a tangent of 1."""
    alike: tuple[int, ...]
    """For each input, the position of the first one that holds the same value."""
    scaled: frozenset[int]
    """Positions of outputs that are multiplied by the tangent afterwards."""
    names: tuple[str, ...]
    """Of the outputs."""
    room: int = ROOM
    """Bytes that all values which stand at once may take."""
    positions: tuple[int, ...] = ()
    """What integers are drawn from where they make a mask: numbers that reach its bounds.  Empty: 0 and 1."""
    inputs: tuple[str, ...] = ()
    """The names of the inputs in the joint graph."""
    real: Real | None = None
    """What makes those inputs whose numbers are not drawn but computed, at their real sizes."""

    def run(self) -> None:
        """Raises Differs if the two differ, or cannot be tried."""
        relations = Relations()
        for graph in (self.region, *graphs_of(self.tile)):
            relations.read(graph)
        even: set[int] = set()
        kept: set[int] = set()
        while True:
            sizes = relations.smaller(even, kept)
            try:
                self._measure(sizes)
                return self._compare(sizes)
            except Misfit as problem:
                more = {size for size in problem.sizes if sizes[size] != size}
                if not more:
                    raise Differs(f"it does not run on small data: {problem}") from problem
                if isinstance(problem.__cause__, NotImplementedError):
                    raise Differs(f"it cannot be tried on the CPU: {problem}") from problem
                kept |= more & even
                even |= more
            except (MemoryError, torch.OutOfMemoryError) as error:
                raise Differs(f"it cannot be tried: {first_line(error)}") from error

    def _measure(self, sizes: Sizes) -> None:
        """Run both on fake tensors.

        Raises Differs if layouts differ or the data would take more than the room, Misfit if the sizes do not fit.
        """
        with compat.really(), compat.fake_evaluation():
            inputs = [_empty(node.meta["val"], sizes) for node in self.tile.graph.find_nodes(op="placeholder")]
            dry = DryExecution(sizes)
            want, got = dry.run(self.region, inputs), dry.run(self.tile.graph, inputs, self.tile)
            for name, one, other in zip(self.names, want, got, strict=True):
                if _look(one) != _look(other):
                    raise Differs(f"{name} is {show_value(other)} in shards, {show_value(one)} whole")
            size = dry.peak + sum(value.nbytes for value in want)
        if size > self.room:
            may = f"a trial may take {format_size(self.room)}"
            raise Differs(f"it cannot be tried: with its smallest sizes it takes {format_size(size)}, and {may}")

    def _compare(self, sizes: Sizes) -> None:
        """Run both on random data.  Raises Differs if an output differs."""
        values = [node.meta["val"] for node in self.tile.graph.find_nodes(op="placeholder")]
        run = Execution(sizes)
        for draw, positive in self._draws(len(values)):
            computed = self._computed(draw)
            with compat.really(), torch.no_grad():
                data = [
                    _sampled(value, sizes, computed[seed])
                    if seed in computed
                    else _data(value, sizes, draw + seed, positive, self.positions)
                    for seed, value in zip(self.alike, values, strict=True)
                ]
                scaled = [item * TANGENT if place in self.units else item for place, item in enumerate(data)]
                want, got = run.run(self.region, scaled), run.run(self.tile.graph, data, self.tile)
                for place, name in enumerate(self.names):
                    _same(name, want[place], got[place] * TANGENT if place in self.scaled else got[place])
                if not self.positions and all(bool(torch.isfinite(value).all()) for value in want):
                    return  # otherwise again with positive numbers, which have a logarithm

    def _computed(self, seed: int) -> dict[int, torch.Tensor]:
        """By position of an input, what it holds at its real sizes, where that is not drawn."""
        try:
            found = self.real.values(seed) if self.real is not None else {}
        except Unreal as problem:
            raise Differs(str(problem)) from problem
        return {place: found[name] for place, name in enumerate(self.inputs) if name in found}

    def _draws(self, inputs: int) -> list[tuple[int, bool]]:
        """For each draw of data, the first of its seeds and whether its numbers are positive."""
        if self.positions:
            return [(draw * inputs, False) for draw in range(MASKED_DRAWS)]
        return [(0, False), (0, True)]


def graphs_of(module: fx.GraphModule) -> list[fx.Graph]:
    """The graph of a module, and of all modules in it."""
    return [part.graph for part in module.modules() if isinstance(part, fx.GraphModule)]


def _look(value: torch.Tensor) -> tuple:
    strides = tuple(stride for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1)
    return tuple(value.shape), strides, value.dtype


def _empty(value: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    return torch.empty_strided(sizes.shape(value.shape), sizes.stride(value.shape, value.stride()), dtype=value.dtype)


def _data(value: torch.Tensor, sizes: Sizes, seed: int, positive: bool, positions: Sequence[int] = ()) -> torch.Tensor:
    """Random numbers. Integers may be positions of anything, so they are 0 or 1 where none are given to draw from."""
    generator = torch.Generator().manual_seed(seed)
    item, shape = _empty(value, sizes), sizes.shape(value.shape)
    repeated = tuple(1 if not stride else size for size, stride in zip(shape, item.stride(), strict=True))
    if value.dtype.is_floating_point:
        drawn = torch.randn(repeated, generator=generator, dtype=torch.float64)
        drawn = drawn * max(1, shape[-1]) ** -0.5 if len(shape) > 1 else drawn
        drawn = drawn.abs() if positive else drawn
    elif positions and value.dtype is not torch.bool:
        drawn = torch.tensor(positions)[torch.randint(0, len(positions), repeated, generator=generator)]
    else:
        drawn = torch.randint(0, 2, repeated, generator=generator)
    own = item.as_strided(repeated, item.stride()).copy_(drawn)
    return own.as_strided(shape, item.stride())


def _sampled(value: torch.Tensor, sizes: Sizes, held: torch.Tensor) -> torch.Tensor:
    """A value at the places that small sizes stand for.  held: all of it."""
    for dim, size in enumerate(value.shape):
        held = held.index_select(dim, sizes.sampled(size))
    item = _empty(value, sizes)
    kept = [slice(0, 1 if not stride else None) for stride in item.stride()]
    own = held[tuple(kept)]
    return item.as_strided(own.shape, item.stride()).copy_(own).as_strided(item.shape, item.stride())


def _same(name: str, want: torch.Tensor, got: torch.Tensor) -> None:
    """Raises Differs if an output differs by more than rounding."""
    if not want.dtype.is_floating_point:
        if not torch.equal(want, got):
            raise Differs(f"{name} differs in shards at {int((want != got).sum())} of {want.numel()} places")
        return
    odd = ~torch.isfinite(want)
    if bool(odd.any()):  # infinity or NaN at the same places (masked logits) is equal
        same = odd & ((want == got) | (want.isnan() & got.isnan()))
        want, got = want.masked_fill(same, 0), got.masked_fill(same, 0)
    size = float(torch.linalg.vector_norm(want, dtype=torch.float64))
    error = float(torch.linalg.vector_norm(got - want, dtype=torch.float64)) / (size or 1.0)
    if not error <= TOLERANCE[want.element_size()]:
        raise Differs(f"{name} in shards differs from the whole by {error:.2g} of its norm, on small data")
