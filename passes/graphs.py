"""What a pass takes and gives: graphs of one stage of the compilation, a plan, and the graphs after it.

stage             graphs                                      plan
before autograd   Captured: Dynamo's graph and its inputs     EarlyPlan
joint             Joint: forward and backward in one graph    TilePlan
split             Split: the forward and the backward         planner.decisions.Plan
lowered           Split                                       OutlinePlan

A pass leaves the graphs that it is given as they are: where it changes something it rewrites a copy, and where it
changes nothing it returns what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import fx

from memgraph.facts.tokens.region import TokenRegion
from memgraph.facts.tokens.table_gradients import TableGradient
from memgraph.planner.decisions import Refusal


@dataclass(frozen=True, eq=False)
class Captured:
    """A Dynamo graph before autograd sees it."""

    module: fx.GraphModule
    inputs: Sequence[Any] = ()
    """The graph's example inputs, parameters among them, one for each of its first placeholders."""

    def by_name(self) -> dict[str, fx.GraphModule]:
        """The graphs, by the name under which they are printed."""
        return {"captured": self.module}


@dataclass(frozen=True, eq=False)
class Joint:
    """The joint graph of forward and backward, as AOTAutograd makes it."""

    module: fx.GraphModule
    num_fwd_outputs: int
    """The first outputs, which are the forward's; gradients follow."""
    static_inputs: tuple[int, ...] = ()
    """Placeholders, by place, whose memory outlives the step: parameters and buffers."""

    def by_name(self) -> dict[str, fx.GraphModule]:
        return {"joint": self.module}


@dataclass(frozen=True, eq=False)
class Split:
    """A forward and a backward, and the joint graph that they are made of."""

    joint: Joint
    forward: fx.GraphModule
    backward: fx.GraphModule
    settings: Mapping[str, str] = field(default_factory=dict)
    """By tier, what the runtime is told about a copy to it: `memgraph.runtime.Settings` as JSON."""

    def by_name(self) -> dict[str, fx.GraphModule]:
        return {"forward": self.forward, "backward": self.backward}


@dataclass(frozen=True)
class EarlyPlan:
    """What is asked of Dynamo's graph."""

    causal: tuple[str, ...] = ()
    """Calls of attention whose mask is the causal one, by name: they are told so, and get no mask."""
    drop_logits: bool = False
    """The logits that the function returns beside its loss are not returned."""
    slice_before_head: bool = False
    """Rows that the loss leaves out of the logits are left out of what the head reads."""


@dataclass(frozen=True)
class Tiled:
    """A token region in shards."""

    region: TokenRegion
    shards: int
    keys: tuple[int | torch.SymInt, ...] = ()
    """Of attention, how many keys each shard is given, in order; empty where each is given all."""


@dataclass(frozen=True)
class TilePlan:
    """What is tiled."""

    tiles: tuple[Tiled, ...] = ()
    assumed: tuple[tuple[str, int], ...] = ()
    """By name, what the symbols of the graph's sizes are at least, besides what its guards say."""
    apart: tuple[TableGradient, ...] = ()
    """Gradients of tables that are made part by part. What is tiled is found in a graph that has them so already."""


@dataclass(frozen=True)
class OutlinePlan:
    """Which layers become bodies. For each class its layers, each as the names of its operators in order."""

    forward: tuple[tuple[tuple[str, ...], ...], ...] = ()
    backward: tuple[tuple[tuple[str, ...], ...], ...] = ()


Graphs = TypeVar("Graphs", Captured, Joint, Split)


@dataclass(frozen=True, eq=False)
class Rewritten(Generic[Graphs]):
    """The graphs after a pass, or after several."""

    graphs: Graphs
    modified: bool
    """Whether anything was changed; if not, `graphs` is what the pass was given."""
    notes: tuple[str, ...] = ()
    """What the report says of the rewrite."""
    refusals: tuple[Refusal, ...] = ()
    """What the plan asks for and the graph does not allow, with the reasons."""


Pass: TypeAlias = Callable[[Any, Any], Rewritten[Any]]
"""The signature of a pass: (graphs, plan) -> Rewritten."""
