"""Joint graphs to tile, with the data that they run on, and how what comes out is compared."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from memgraph.facts.tokens.find import find_regions
from memgraph.facts.tokens.region import RefusedRegion, TokenRegion
from memgraph.facts.tokens.states import RowOrder, Sharded, State
from memgraph.passes import graphs
from memgraph.passes.tile import tile
from memgraph.passes.tiles.body import sizes
from memgraph.planner.tiles import keys_of_shards
from memgraph.verify.tiles import TileError, verify_tiles
from tests.support.splits import capture_inductor

BATCH, LENGTH, WIDTH, WIDE, WORDS = 2, 6, 8, 32, 24  # WORDS: of the vocabulary


class Of(nn.Module):
    """A module that is one function of its parts and its inputs."""

    def __init__(self, function: Callable[..., object], /, **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> object:
        return self.function(self, *inputs)


def linear(inside: int, outside: int, bias: bool = True) -> nn.Linear:
    return nn.Linear(inside, outside, bias)


def mlp(middle: Callable[..., Tensor] = lambda m, h: h.relu(), width: int = WIDE, /, **parts: object) -> Of:
    """Up, something in the middle that gives `width` features, and down again."""
    parts = {"up": linear(WIDTH, WIDE), "down": linear(width, WIDTH), **parts}
    return Of(lambda m, x: m.down(middle(m, m.up(x))), **parts)


def cross_entropy(logits: Tensor, labels: Tensor, **options: object) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), **options)


def loss(function: Callable[..., object] = cross_entropy, head: nn.Module | None = None) -> Of:
    """A head, and a function of its logits and the labels."""
    return Of(lambda m, x, y: function(m.head(x), y), head=head or linear(WIDTH, WORDS, bias=False))


def floats(*shape: int) -> Tensor:
    shape = shape or (BATCH, LENGTH, WIDTH)
    draw = torch.Generator().manual_seed(1)
    return torch.randn(shape, dtype=torch.float64, generator=draw).requires_grad_()


def labels(words: int = WORDS) -> Tensor:
    return torch.randint(0, words, (BATCH, LENGTH), generator=torch.Generator().manual_seed(2))


def in_shards(region: TokenRegion, shards: int) -> graphs.Tiled:
    """A region in so many shards, with the keys that the planner gives each."""
    if region.reach is None:
        return graphs.Tiled(region, shards)
    rows = [int(count) for count in sizes(region.tokens, shards, region.multiple)]
    return graphs.Tiled(region, shards, keys_of_shards(rows, region.reach.before, region.reach.after, region.multiple))


@dataclasses.dataclass(frozen=True)
class Joint:
    """A joint graph.  data: what it was captured with, and random tangents."""

    graph: fx.GraphModule
    data: tuple[Tensor, ...]

    @functools.cached_property
    def regions(self) -> tuple[TokenRegion, ...]:
        return find_regions(self.graph)[0]

    @functools.cached_property
    def refused(self) -> tuple[RefusedRegion, ...]:
        return find_regions(self.graph)[1]

    def tiled(self, shards: int, regions: Sequence[TokenRegion] | None = None) -> fx.GraphModule:
        """A copy with so many shards of some regions, of all that there are unless told."""
        tiles = tuple(in_shards(region, shards) for region in regions or self.regions)
        return tile(graphs.Joint(self.graph, 1), graphs.TilePlan(tiles)).graphs.module

    def error(self, shards: int, regions: Sequence[TokenRegion] | None = None, floor: float = 0.0) -> float:
        """How far a tiled copy, which the verifier accepts, is from the graph in any output."""
        tiled = self.tiled(shards, regions)
        verify_tiles(self.graph, tiled, [(region, shards) for region in regions or self.regions])
        return distance(self.run(self.graph), self.run(tiled), floor)

    def run(self, graph: fx.GraphModule) -> list[object]:
        """What a graph returns on the data, with the same draws each time."""
        torch.manual_seed(0)
        with torch.no_grad():
            return tree_leaves(fx.Interpreter(graph).run(*(item.clone() for item in self.data)))


def joint_of(module: nn.Module, *inputs: Tensor, dtype: torch.dtype = torch.float64) -> Joint:
    """The joint graph of a module after Inductor's passes; scalar tangents are such that no digit is lost by them."""
    split = capture_inductor(module.to(dtype), *inputs)
    draw = torch.Generator().manual_seed(3)
    data = []
    for node in split.joint.graph.find_nodes(op="placeholder"):
        if "tangents" in node.name:
            like = node.meta["val"]
            size, stride = tuple(like.shape), like.stride()
            tangent = torch.randn(size, generator=draw) if size else torch.tensor(0.5)
            data.append(torch.empty_strided(size, stride, dtype=like.dtype).copy_(tangent))
        else:
            data.append(split.inputs[node.meta["desc"].idx].detach())
    return Joint(split.joint, tuple(data))


def refusal(joint: Joint, edit: Callable[[fx.GraphModule], None], shards: int = 2, errors: tuple = (TileError,)) -> str:
    """What the verifier says of a tiled graph, which it accepts as it is made, after an edit."""
    tiled, told = joint.tiled(shards), [(region, shards) for region in joint.regions]
    verify_tiles(joint.graph, tiled, told)
    edit(tiled)
    tiled.recompile()
    with pytest.raises(errors) as error:
        verify_tiles(joint.graph, tiled, told)
    return str(error.value)


def distance(want: Sequence[object], got: Sequence[object], floor: float = 0.0) -> float:
    """The largest relative error in norm of all outputs; what is no float must be equal, and all look the same.

    floor: the norm below which an output is nothing but what rounding left of 0.
    """
    worst = 0.0
    for one, other in zip(want, got, strict=True):
        if not isinstance(one, Tensor):
            assert one == other
            continue
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        if one.dtype.is_floating_point:
            size, error = one.double().norm(), (one.double() - other.double()).norm()
            assert not error.isnan()
            size = max(float(size), floor)
            worst = max(worst, float(error) / size if size > 0 else float(error))
        else:
            assert torch.equal(one, other)
    return worst


def spelled(state: State) -> str:
    """A state in a few letters: dimensions, entries a token, order and what positions point into."""
    if isinstance(state, tuple):
        return " | ".join(map(spelled, state))
    if not isinstance(state, Sharded):
        return type(state).__name__.lower()
    text = ",".join(map(str, state.dims))
    text += f" x{state.factor}" if state.factor != 1 else ""
    text += f" {state.order.value}" if state.order is not RowOrder.TOKENS else ""
    return text + (f" at {state.points.value}" if state.points else "")


def layers(count: int, last: nn.Module | None = None) -> Of:
    """So many residual MLPs, and one more block."""
    blocks = [mlp() for _ in range(count)] + ([last] if last else [])
    parts = {"blocks": nn.ModuleList(blocks), "norms": nn.ModuleList(nn.LayerNorm(WIDTH) for _ in blocks)}

    def forward(m, x):
        for norm, block in zip(m.norms, m.blocks, strict=True):
            x = x + block(norm(x))
        return x

    return Of(forward, **parts)


def largest_error(joint: Joint, counts: Sequence[int] = (2, 3, 8)) -> float:
    """How far the graph in some numbers of shards is from the whole one, at most."""
    assert joint.regions
    return max(joint.error(shards) for shards in counts)
