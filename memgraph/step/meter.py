"""What is allocated when a launch of one graph begins, and what the run will still allocate."""

from __future__ import annotations

import dataclasses
import gc
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from memgraph.base import compat
from memgraph.machine.caching_allocator import may_rise
from memgraph.machine.measure import allocated_bytes, counters
from memgraph.step.forecast import OptimizerForecast, forecast, gradients_to_come, live_optimizers
from memgraph.step.run import Run
from memgraph.step.shards import Shards, sets_like
from memgraph.step.variants import Entry


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Which of a graph's arguments tell something about a launch."""

    sizes: tuple[int, ...] = ()
    """Positions of symbolic sizes."""
    parameters: tuple[int, ...] = ()
    """Positions of leaves that get a gradient."""

    @classmethod
    def of(cls, inputs: Sequence[Any]) -> Arguments:
        """The places among the inputs that Dynamo gives to its backend."""
        return cls(
            tuple(place for place, given in enumerate(inputs) if compat.is_size(given)),
            tuple(
                place
                for place, given in enumerate(inputs)
                if isinstance(given, torch.Tensor) and given.requires_grad and given.is_leaf
            ),
        )

    def leaves(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """Those of a launch's arguments: what was a leaf when the graph was compiled may be an activation now."""
        return [leaf for place in self.parameters if (leaf := args[place]).is_leaf]


def standing(leaves: Sequence[torch.Tensor]) -> int:
    """How many of the leaves have a gradient already."""
    return sum(leaf.grad is not None for leaf in leaves)


def bytes_standing(leaves: Sequence[torch.Tensor]) -> int:
    """Bytes, in this process, of the gradients that the leaves have already, each storage once."""
    found = {compat.storage_id(local): local for leaf in leaves if (local := compat.local(leaf.grad)) is not None}
    return sum(gradient.untyped_storage().nbytes() for gradient in found.values())


def _bytes_here(parameter: torch.Tensor) -> int:
    local = compat.local(parameter)
    return local.numel() * local.element_size()


class Situation(NamedTuple):
    """What decides the level of an entry, as far as it can be known without counting."""

    depth: int
    """Launches whose backward is to come."""
    standing: int
    """Parameters that have a gradient."""
    generation: int
    """How many times optimizers have made state."""


class Meter:
    """Reads what is allocated at the entry of a graph's launches, and what the run will still allocate.

    On CUDA the level is the caching allocator's counter. On the CPU there is none, and counting the tensors that Python
    can see takes as long as a pass of the garbage collector: it is counted in the first, second, fourth, eighth, ...
    launch of each situation. So what grows unseen otherwise (a user's list of outputs, LBFGS within its first steps) is
    seen before it has doubled.
    """

    def __init__(self, device: torch.device, arguments: Arguments, run: Run) -> None:
        self.device, self.arguments, self.run = device, arguments, run
        self.forecasts: tuple[OptimizerForecast, ...] = ()
        self.to_come = 0
        """Bytes of optimizer state that are not allocated yet."""
        self.made = 0
        """Bytes of optimizer state that are allocated."""
        self.to_make = 0
        """Bytes of the gradients that the optimizers' parameters did not have when the forecasts were made."""
        self.shards = Shards()
        self.ends = False
        """Whether no other graph is launched after its forward."""
        self.sets = 1
        """Sets of parameters like the graph's that the optimizers own."""
        self._levels: dict[Situation, tuple[int, int]] = {}  # the level, and what open launches held of it
        self._launches: Counter[Situation] = Counter()
        self._forecast_for: tuple[int, int, bool] | None = None
        self._stood: tuple[tuple[bool, ...], int] | None = None  # whether two parameters had none; how many had one
        self._gradients: dict[int, tuple[int, int]] = {}  # by how many stand: their bytes, and those of the others

    def entry(self, args: Sequence[Any]) -> Entry:
        """The entry of a launch with these arguments."""
        if not self.run.depth():
            self.run.look_for_states()
        situation, held = self._situation(args), self.run.held()
        # DDP's buckets are compiled with fake parameters, all of them before the first is launched.
        ahead = any(compat.is_fake(args[place]) for place in self.arguments.parameters[:1])
        uncut = to_rise = 0
        if self.device.type == "cuda":
            level, uncut, to_rise = self._in_blocks(others=situation.depth > 0, several=ahead)
        elif not self._counts(situation):
            counted, then = self._levels[situation]
            level = counted + held - then  # other plans hold more or less
        else:
            level = allocated_bytes(self.device)
            self._levels[situation] = level, held
        # Optimizers come and go between steps, and fake parameters have those of the real ones only then.
        seen = (situation.generation, situation.standing, ahead)
        if self._forecast_for != seen:
            self._forecast_for = seen
            self._gradients.clear()
            self.look_ahead(self.parameters(args))
        sizes = tuple(compat.size_hint(args[place]) for place in self.arguments.sizes)
        stand, own = self._gradients_of(situation.standing, args)
        later, around = self._later(own), compat.checkpoint_around()
        if around is not None:
            later += self.run.checkpointed.held_beside(around)
        return Entry(
            level,
            self.to_come,
            sizes,
            stand,
            states=self.made,
            others=held,
            later=later,
            own=own,
            uncut=uncut,
            to_rise=to_rise,
            once_more=around is not None,
        )

    def _counts(self, situation: Situation) -> bool:
        """Whether the level of a launch is counted, which has begun in a situation."""
        self._launches[situation] += 1
        again = self._launches[situation].bit_count() == 1  # a power of two
        return again or situation not in self._levels

    def _in_blocks(self, *, others: bool, several: bool = False) -> tuple[int, int, int]:
        """Of a launch on CUDA: the level, and the entry's `uncut` and `to_rise`.

        others: whether other launches are open.  several: whether its step is known to have several graphs.
        """
        now = counters(self.device)
        if self.ends and not others and not several:  # the blocks of its own step are all there are
            return now.allocated, now.uncut, 0
        first = self.run.round[0].entry.uncut if others else now.uncut
        return now.allocated, now.uncut, may_rise(self.device.type, now.uncut - first)

    def _gradients_of(self, number: int, args: Sequence[Any]) -> tuple[int, int]:
        """Bytes of the gradients that stand, and of those that this graph will make. Added up once for each number."""
        if number not in self._gradients:
            parameters = self.parameters(args)
            own = sum(_bytes_here(p) for p in parameters if p.grad is None)
            self._gradients[number] = bytes_standing(parameters), own
        return self._gradients[number]

    def _standing(self, args: Sequence[Any]) -> int:
        """How many of a launch's parameters have a gradient.

        Of 300 that takes 20 us. On CUDA it decides about no level, and nothing but the report asks for it where no
        other graph is launched in the step: there the first and the last parameter tell whether it has changed.
        """
        if self.device.type != "cuda" or not self.ends or self.shards.gathers is not False:
            return standing(self.parameters(args))
        places = self.arguments.parameters
        leaves = (args[place] for place in (*places[:1], *places[-1:]))
        ends = tuple(leaf.is_leaf and leaf.grad is None for leaf in leaves)
        if self._stood is None or self._stood[0] != ends:
            self._stood = ends, standing(self.parameters(args))
        return self._stood[1]

    def _later(self, own: int) -> int:
        """Bytes of the gradients of graphs that are launched later in the step.  own: of this graph.

        Backwards come in the order against that of the forwards: what is neither this graph's nor that of a launch
        which is open already stands when its backward begins. Parameters that no graph trains count as well.
        """
        if self.ends:
            return 0
        before = sum(launch.entry.own for launch in self.run.round if launch.open)
        return max(0, self.to_make - own - before)

    def tidy(self) -> None:
        """Free what a compilation has left: reference cycles of Dynamo hold the inputs of the step that it ran in."""
        gc.collect()
        self._levels.clear()
        self._launches.clear()

    def exact(self, entry: Entry, args: Sequence[Any]) -> Entry:
        """The same entry, counted after the garbage of reference cycles is gone."""
        gc.collect()
        if self.device.type == "cuda":
            level, uncut, to_rise = self._in_blocks(others=self.run.depth() > 1)  # it has begun itself
            return dataclasses.replace(entry, level=level, uncut=uncut, to_rise=to_rise)
        level = allocated_bytes(self.device)
        self._levels[self._situation(args)] = level, self.run.held()
        return dataclasses.replace(entry, level=level)

    def _situation(self, args: Sequence[Any]) -> Situation:
        return Situation(self.run.depth(), self._standing(args), self.run.generation)

    def parameters(self, args: Sequence[Any]) -> Sequence[torch.Tensor]:
        """What optimizers own of a launch's leaves."""
        return self.shards.owned(self.arguments.leaves(args))

    def look_ahead(self, parameters: Sequence[torch.Tensor]) -> None:
        """Find the optimizers that own the parameters, and what they will allocate."""
        optimizers = live_optimizers(parameters)
        self.run.look_for_states(optimizers)
        self.forecasts = tuple(
            dataclasses.replace(
                forecast(optimizer, self.device),
                gradients=gradients_to_come(optimizer, self.device),
                identity=id(optimizer),
            )
            for optimizer in optimizers
        )
        self.to_come = sum(each.state_to_come for each in self.forecasts)
        self.made = sum(each.state_bytes for each in self.forecasts) - self.to_come
        self.to_make = sum(each.gradients for each in self.forecasts)
        self.sets = sets_like(parameters, optimizers)
