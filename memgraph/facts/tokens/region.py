"""A token region, and a stretch of a joint graph that cannot be one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from memgraph.facts.masks.reach import Reach
from memgraph.facts.tokens.states import State

# Under this key a call of a tile says, in its metadata, which nodes of the joint graph its outputs stand for, in order.
STANDS_FOR = "tile_stands_for"


@dataclasses.dataclass(frozen=True)
class TokenRegion:
    """A stretch of a joint graph that can run one shard of the tokens at a time.

    It names nodes of the graph, always in the graph's order.
    """

    kind: Literal["loss", "mlp", "attention"]
    """"mlp" if a product makes the wide values thin again, "loss" if they are only reduced, "attention" for a call of
    attention with what makes its mask."""
    module: str
    """The path of the module that it comes from, "" if the graph has no paths."""
    tokens: int
    """The number of tokens in all shards; of attention, the queries of a sequence."""
    forward: tuple[str, ...]
    """Its nodes that do not depend on a tangent."""
    backward: tuple[str, ...]
    """Its nodes that depend on a tangent."""
    inputs: tuple[str, ...]
    """The nodes outside that it reads."""
    outputs: tuple[str, ...]
    """Its nodes that are read outside, and those in `handed`."""
    states: Mapping[str, State]
    """By name, the states of its nodes and inputs."""
    wide_bytes: int
    """The bytes of all its wide values together."""
    row_bytes: int
    """The bytes that its widest value has for each token."""
    tangent: str = ""
    """The one scalar tangent that its backward depends on; "" if the backward depends on anything else."""
    chain: tuple[str, ...] = ()
    """The nodes outside between the tangent and the backward."""
    handed: tuple[str, ...] = ()
    """The outputs of its forward that its backward is given; all else of the forward it computes again."""
    multiple: int = 1
    """Each shard but the last has a multiple of so many tokens."""
    reach: Reach | None = None
    """Of attention, the keys that a query may read, where that is not all of them: a shard is given these alone."""
    keys: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By name of a node or an input, the dimension that the keys run along; empty where a shard is given all."""

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset((*self.forward, *self.backward))


@dataclasses.dataclass(frozen=True)
class RefusedRegion:
    """A stretch with wide values that cannot run one shard at a time."""

    module: str
    """Its module path."""
    node: str
    """The operator that stops it."""
    reason: str
    """A sentence about that operator, which starts with the operator's name."""
