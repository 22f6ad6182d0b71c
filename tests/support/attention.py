"""Attention with masks of its own, as joint graphs to tile."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from memgraph.facts.tokens.attention import find_attention
from memgraph.facts.tokens.region import RefusedRegion, TokenRegion
from tests.support import tiles
from tests.support.splits import calls

HEADS, FEATURES = 2, 4
WIDTH = HEADS * FEATURES
_ANY = torch.empty(1, 1, 2, 2, dtype=torch.float64, device="meta")
_SUMS = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(_ANY, _ANY, _ANY)[1]
# In shards it is known in float64 where torch says right which type its sums have: not on 2.11.
DTYPE, CLOSE = (torch.float64, 1e-12) if _SUMS.dtype == torch.float64 else (torch.float32, 2e-6)
Mask = Callable[..., Tensor]
"""Makes a mask of the hidden states [batch, queries, width], which tell its sizes, and of further inputs."""


class Attention(nn.Module):
    """Layers that project hidden states and attend with one mask, made once."""

    def __init__(
        self,
        mask: Mask,
        layers: int = 1,
        groups: int = HEADS,
        attend: Callable[..., Tensor] | None = None,
        features: int = FEATURES,
        **options: object,
    ) -> None:
        """groups: heads of keys and values.  attend: in place of torch's function.  features: of each head."""
        super().__init__()
        self.mask, self.options, self.attend, self.features = mask, options, attend, features
        # Without biases: that of the keys moves all scores of a query alike, so its gradient is rounding alone.
        width = HEADS * features
        sides = (width, groups * features, groups * features, width)
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, side, bias=False) for side in sides) for _ in range(layers)
        )

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        mask = self.mask(x, *more)
        for query, key, value, out in self.layers:
            q, k, v = (project(x).unflatten(-1, (-1, self.features)).transpose(1, 2) for project in (query, key, value))
            if self.attend is not None:
                made = self.attend(q, k, v, mask, **self.options)
            else:
                grouped = k.shape[1] != q.shape[1]
                made = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped, **self.options)
            x = x + out(made.transpose(1, 2).flatten(-2))
        return x.square().mean()


def positions(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of queries, as a column, and of keys, as a row."""
    places = torch.arange(x.shape[1], device=x.device)
    return places[:, None], places[None, :]


def window(size: int) -> Mask:
    """A query reads so many keys up to its own."""

    def mask(x: Tensor) -> Tensor:
        query, key = positions(x)
        return (key <= query) & (query - key < size)

    return mask


def padded(x: Tensor, real: Tensor) -> Tensor:
    """Causal, and no key that is padding; real: [batch, tokens], 1 or 0."""
    query, key = positions(x)
    return (key <= query) & real.bool()[:, None, None, :]


def packed(x: Tensor, document: Tensor) -> Tensor:
    """Causal within documents, which are numbered by token: [batch, tokens]."""
    query, key = positions(x)
    return (key <= query) & (document[:, None, :, None] == document[:, None, None, :])


def alibi(x: Tensor) -> Tensor:
    """Added to scores: less for keys that are farther away, by head."""
    query, key = positions(x)
    slope = torch.tensor([0.5, 0.25], dtype=x.dtype)[None, :, None, None]
    return torch.where(key <= query, slope * (key - query), float("-inf"))


def without_a_sum(tiled: fx.GraphModule) -> None:
    """Leave out what the last shard adds to the gradient of keys."""
    added = calls(tiled.tile_1, "memgraph.shard_sum")[-1]
    added.replace_all_uses_with(added.args[0])
    tiled.tile_1.graph.erase_node(added)


def summed_in_bfloat16(tiled: fx.GraphModule) -> None:
    """Say that the sums of gradients of keys and values are in bfloat16."""
    for node in calls(tiled.tile_1, "memgraph.shard_sum"):
        node.meta["val"] = node.meta["val"].bfloat16()


@dataclasses.dataclass(frozen=True)
class Joint(tiles.Joint):
    """A joint graph in which calls of attention are the regions."""

    @functools.cached_property
    def regions(self) -> tuple[TokenRegion, ...]:
        return find_attention(self.graph)[0]

    @functools.cached_property
    def refused(self) -> tuple[RefusedRegion, ...]:
        return find_attention(self.graph)[1]


def joint_of(module: nn.Module, *more: Tensor, length: int = 24, dtype: torch.dtype = DTYPE) -> Joint:
    """The joint graph of a module for two sequences."""
    x = torch.randn(2, length, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(1)).requires_grad_()
    made = tiles.joint_of(module, x, *more, dtype=dtype)
    return Joint(made.graph, made.data)


def squares(graph: fx.GraphModule, length: int = 24) -> list[str]:
    """The values of a graph, and of no graph that it calls, with an entry for each query and key."""
    found = []
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and tuple(value.shape[-2:]) == (length, length):
            found.append(node.name)
    return found
