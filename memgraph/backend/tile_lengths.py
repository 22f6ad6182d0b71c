"""How many tokens the regions of a joint graph have, where sizes are symbols: as expressions, and as numbers.

A graph with symbols runs for all sizes that Dynamo's guards let through. What is assumed of a length beyond them (that
each shard of attention has its queries) becomes one more guard, as long as Dynamo takes any.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.costs import storage_span
from memgraph.facts.masks.reach import Reaches
from memgraph.facts.plain import generic, names_of_symbols, shortest, with_plain_sizes
from memgraph.facts.tokens.attention import mask_of
from memgraph.facts.tokens.region import TokenRegion
from memgraph.facts.tokens.states import Sharded
from memgraph.passes.tiles.body import Size
from memgraph.passes.tiles.shards import tokens_of


class Lengths:
    """The numbers of tokens of one joint graph's regions."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module

    @functools.cached_property
    def symbols(self) -> list[str]:
        """The names of the symbols in the graph's sizes."""
        return names_of_symbols(self.module)

    @functools.cached_property
    def nodes(self) -> dict[str, fx.Node]:
        """By name."""
        return {node.name: node for node in self.module.graph.nodes}

    def plain(self) -> fx.GraphModule:
        """The graph with a large prime for each symbol: what is found in it holds for all sizes."""
        return with_plain_sizes(self.module, generic(self.symbols)) if self.symbols else self.module

    def of(self, region: TokenRegion) -> Size:
        """A region's tokens, as an expression where they are symbolic."""
        return tokens_of(self.nodes, region) if self.symbols else region.tokens

    def fewest(self, region: TokenRegion) -> int:
        """How many queries a sequence has at least; `region` is attention.

        As long as Dynamo takes guards, what is shorter than the capture may be left to another graph: `assumed`.
        """
        tokens = self.of(region)
        guarded = compat.symbol_of(tokens) is not None and compat.may_be_guarded(tokens)
        with compat.reading_with({} if guarded else shortest(self.module)):
            return compat.size_hint(tokens)

    def most_shards(self, region: TokenRegion) -> int:
        """How many shards a region may have, whoever asks for them.

        For symbolic sizes Inductor generates code that fits those of the capture: each shard has two tokens at least
        there.
        """
        tokens = self.of(region)
        if isinstance(tokens, int):
            return -(-tokens // region.multiple)
        if region.kind == "attention":  # no kernel of attention takes a shard without queries
            return max(1, self.fewest(region) // _block(region))
        with compat.reading_with({}):
            return max(1, compat.size_hint(tokens) // 2)

    def too_few(self, region: TokenRegion, wanted: int) -> str:
        """Why attention gets fewer shards than are wanted, since its length may be short; "" if it does not."""
        most = self.most_shards(region)
        if region.kind != "attention" or isinstance(self.of(region), int) or most >= wanted:
            return ""
        needs = "two queries" if region.multiple == 1 else f"a block of {region.multiple} queries"
        return f"its length may be {self.fewest(region)}, and each shard needs {needs}: {most} shards at most"

    def assumed(self, tiles: Iterable[tuple[TokenRegion, int]]) -> dict[str, tuple[torch.SymInt, int]]:
        """By symbol that is a length of attention, the fewest queries of which each shard has its block.

        tiles: regions, with how many shards each has.
        """
        found: dict[str, tuple[torch.SymInt, int]] = {}
        for region, count in tiles:
            size = self.of(region)
            if region.kind == "attention" and not isinstance(size, int) and compat.symbol_of(size) is not None:
                least = max(count * _block(region), found.get(str(size), (size, 0))[1])
                found[str(size)] = size, least
        return found

    def for_all_sizes(self, regions: Sequence[TokenRegion]) -> list[TokenRegion]:
        """Regions of `plain`, with the keys of their shards where a query reads these alone at any size."""
        if not self.symbols:
            return list(regions)
        reaches, found = Reaches(), []
        for region in regions:
            members = (self.nodes[name] for name in (*region.forward, *region.backward))
            proven = {reaches.of(mask) for node in members if region.reach and (mask := mask_of(node)) is not None}
            reach = proven.pop() if len(proven) == 1 else None
            found.append(with_all_keys(region) if reach is None else dataclasses.replace(region, reach=reach))
        return found

    def counted(self, regions: Sequence[TokenRegion]) -> Iterator[TokenRegion]:
        """Regions with their tokens, and rows of scores and masks, at the sizes in force (`compat.reading_with`)."""
        for region in regions if self.symbols else ():
            tokens, row_bytes = compat.size_hint(self.of(region)), region.row_bytes
            if region.kind == "attention":  # a row has an entry for each key
                members = [self.nodes[name] for name in (*region.forward, *region.backward)]
                masks = {mask for node in members if (mask := mask_of(node)) is not None}
                wide = masks or {node for node in members if isinstance(region.states[node.name], Sharded)}
                spans = (storage_span(value) for node in wide if isinstance(value := node.meta["val"], torch.Tensor))
                row_bytes = max(spans) // tokens
            yield dataclasses.replace(region, tokens=tokens, row_bytes=row_bytes)
        if not self.symbols:
            yield from regions


def _block(region: TokenRegion) -> int:
    """How many queries each shard has at least where their number is a symbol: torch's trace takes 1 for a constant."""
    return max(2, region.multiple)


def with_all_keys(region: TokenRegion) -> TokenRegion:
    """The same attention, each of whose shards is given all keys."""
    return dataclasses.replace(region, reach=None, keys={})
