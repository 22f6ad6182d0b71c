"""One captured step, planned as often as one asks: for other sizes, budgets and tiers.

    capture once ──> joint graph, with a symbol for the size ──> Inductor's cut, once ──> facts for a size ──> plans

What takes long is the capture and Inductor's own partition; neither depends on a budget, and with a symbolic size
neither depends on the size. Tiles are verified once they are chosen: most of those that are planned with are not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from memgraph.backend.budget import bound_of, budget_of
from memgraph.backend.capture import Step, Target, captured
from memgraph.backend.cuts import Cuts
from memgraph.backend.destinations import tier_bytes, tiers
from memgraph.backend.dry import dry_report
from memgraph.backend.hook import Partitioner
from memgraph.backend.joint_graph import Planning
from memgraph.backend.options import Options
from memgraph.backend.planned import Planned
from memgraph.base import compat
from memgraph.base.errors import GraphError
from memgraph.facts import kernel_scratch
from memgraph.facts.costs import storage_span
from memgraph.planner.solve import Planner
from memgraph.planner.tiles import Shards
from memgraph.reporting.report import Report

Found = TypeVar("Found")
# Sizes whose facts are kept: a search ends with a size that fits and the next one. Those of a size take hundreds of
# megabytes for an 8B Llama in tiles.
KEPT = 2


@dataclasses.dataclass(frozen=True)
class Answer:
    """Whether a size fits."""

    size: int
    """The length of the dimension that was asked about."""
    fits: bool
    excess: int
    """Bytes by which the lowest peak found passes the budget; 0 where the size fits."""
    above: int
    """Bytes above the baseline that the step may take."""


class Explorer:
    """Answers questions about one captured step."""

    def __init__(self, step: Step, cuts: Cuts) -> None:
        self.step, self.cuts = step, cuts
        placeholders = cuts.joint.module.graph.find_nodes(op="placeholder")
        symbols = set().union(*(compat.symbols_in(node.meta.get("val")) for node in placeholders))
        self.symbols: tuple[str, ...] = tuple(sorted(map(str, symbols)))
        """The names of the symbols in the graph's sizes: all stand for the one size that may change."""
        # By size: what the last question was about comes last.
        self._known: dict[tuple[tuple[str, int], ...], dict[Shards, Planner]] = {}

    def level(self) -> int:
        """Bytes that stand when a step starts, and those to come, at the sizes in force (`compat.reading_with`)."""
        given = [t for t in self.step.inputs if isinstance(t, torch.Tensor) and compat.symbols_in(t)]
        now = sum(map(storage_span, given))
        with compat.reading_with({}):
            return self.step.baseline + self.step.to_come + now - sum(map(storage_span, given))

    def fits(self, size: int | None, options: Options | None = None) -> Answer:
        """Whether a step of this size fits.

        options: by default those of the capture; they may differ in offload and budget.
        """
        with compat.reading_with(self._sizes(size)):
            planning, _ = self.planning(size, options)
            _, wanted, choice = planning.chosen()
        assert wanted is not None  # a share of a peak that grows with the size bounds no size
        excess = 0 if choice.fits else max(1, choice.candidate.peak - wanted)
        return Answer(size or 0, choice.fits, excess, wanted)

    def plan(self, size: int | None, options: Options | None = None) -> tuple[Report, Planned]:
        """The report and the plan of a step of this size: the plan with the lowest peak where none fits.

        Raises VerifyError where a rewrite is not legal.
        """
        options = options or self.step.options
        with compat.reading_with(self._sizes(size)):
            planning, level = self.planning(size, options)
            _, planned = planning.outcome()
        bound = planning.bound
        step = dataclasses.replace(self.step, options=options, baseline=level - self.step.to_come)
        budget = None if bound.bytes is None else level + bound.bytes
        notes = (*planning.tiers.notes, *kernel_scratch.current().notes)
        return dry_report(step, planned, "explored", budget, notes), planned

    def on_tier(self, planned: Planned, options: Options, tier: str) -> int:
        """Bytes that a step of a plan takes on a tier."""
        return tier_bytes([planned.plan], tiers(options, self.step.hardware, here=False)).get(tier, 0)

    def _sizes(self, size: int | None) -> Mapping[str, int]:
        if size is None:
            return {}
        if not self.symbols:
            raise GraphError(
                "the graph is one of this size alone: the function compares it, or computes with it, so that Dynamo "
                "took it for a number. Its parts can only be planned for one size at a time"
            )
        return dict.fromkeys(self.symbols, size)

    def planning(self, size: int | None, options: Options | None = None) -> tuple[Planning, int]:
        """How the step is planned, within `reading_with` its size; and the bytes that stand when it starts."""
        options = options or self.step.options
        step, level = self.step, self.level()
        sizes = tuple(sorted(self._sizes(size).items()))
        bound = bound_of(options, budget_of(step.hardware, options), level, step.device)
        known = self._known.pop(sizes, {})
        while len(self._known) >= KEPT:
            del self._known[next(iter(self._known))]
        self._known[sizes] = known
        return Planning(
            self.cuts,
            self.cuts.tiling.counted(),
            options,
            step.hardware,
            dataclasses.replace(bound, sizes=sizes),
            tiers(options, step.hardware, here=False),
            known=known,
        ), level


class _Cutter(Partitioner):
    """Cuts each joint graph as Inductor does, and keeps the cuts of the last one, which is the outermost."""

    cuts: Cuts | None = None

    @property
    def called(self) -> bool:
        return self.cuts is not None

    def __call__(self, gm: Any, joint_inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
        device = self.hardware.device
        self.cuts = Cuts.of_joint(gm, joint_inputs, self.options, device, kwargs, verify_tiles=False)
        return self.cuts.plain.split.forward, self.cuts.plain.split.backward


def explored(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    target: Target,
    task: Callable[[Explorer], Found],
    dim: int | None = None,
) -> Found:
    """What a task finds out by asking about the step `fn(*args, **kwargs)`; nothing runs or is compiled.

    dim: the dimension of the arguments whose size the task asks about, as `with_dynamic` marks it; None for none.
    Raises as `captured` does.
    """

    def ask(step: Step) -> Found:
        bound = bound_of(step.options, None, 0, step.device)
        cutter = _Cutter(step.options, step.hardware, bound, step.progress, step.name)
        found: list[Found] = []

        def answered() -> None:
            assert cutter.cuts is not None
            found.append(task(Explorer(step, cutter.cuts)))

        step.partition(cutter, answered)
        return found[0]

    if dim is not None:
        args, kwargs = with_dynamic((args, kwargs), dim)
    return captured(fn, args, kwargs, target, ask)


def size_of(arguments: Any, dim: int) -> int | None:
    """The size of a dimension, of the first tensor among arguments that has it; None where none has."""
    tensors = (leaf for leaf in compat.tree_leaves(arguments) if isinstance(leaf, torch.Tensor))
    return next((int(tensor.shape[dim]) for tensor in tensors if tensor.dim() > dim), None)


def with_dynamic(arguments: Any, dim: int) -> Any:
    """The arguments with a dimension that Dynamo may take for symbolic, wherever it has the size of `size_of`."""

    def marked(leaf: torch.Tensor) -> torch.Tensor:
        twin = leaf.detach().requires_grad_(leaf.requires_grad)  # the mark stays on a tensor: not on the caller's
        return compat.with_symbol(twin, dim)

    return _changed(arguments, dim, marked)


def with_size(arguments: Any, dim: int, size: int) -> Any:
    """The arguments with another size of a dimension, and no contents, wherever it has the size of `size_of`."""

    def resized(leaf: torch.Tensor) -> torch.Tensor:
        shape = (*leaf.shape[:dim], size, *leaf.shape[dim + 1 :])
        return leaf.new_empty(shape).requires_grad_(leaf.requires_grad)

    return _changed(arguments, dim, resized)


def _changed(arguments: Any, dim: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The arguments, with each tensor changed whose dimension `dim` has the size of `size_of`."""
    size = size_of(arguments, dim)

    def changed(leaf: Any) -> Any:
        fits = isinstance(leaf, torch.Tensor) and leaf.dim() > dim and leaf.shape[dim] == size
        return change(leaf) if fits else leaf

    return compat.tree_map(changed, arguments)
