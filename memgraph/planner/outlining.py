"""Which equal layers become bodies."""

from __future__ import annotations

import dataclasses
from typing import Literal

from memgraph.facts.layers import LEAST, SMALLEST, Layers
from memgraph.planner.decisions import Refusal

Asked = bool | Literal["auto"]

# With "auto", layers become bodies where that spares at least this share of the operators of both graphs a compilation,
# and at least so many: Inductor takes some 6 ms an operator, and bodies have about ten kernels of their own, each of
# which takes a C++ compiler a second (docs/decisions/0014). A Llama of 8 layers gains nothing, one of 32 a third.
WORTH, LEAST_SAVED = 0.25, 2_000


@dataclasses.dataclass(frozen=True)
class Outlining:
    """What becomes of the layers of one forward and its backward."""

    forward: Layers = Layers()
    """The layers that become bodies; none where they stay as they are."""
    backward: Layers = Layers()
    refusals: tuple[Refusal, ...] = ()
    by_itself: bool = False
    """Whether bodies, or the plan that was made for them, were not asked for: the layers could stay as they are."""

    @property
    def bodies(self) -> int:
        """Bodies in both graphs."""
        return len(self.forward.classes) + len(self.backward.classes)

    def note(self) -> str:
        """What became of the layers, for the report; "" where nothing was outlined."""
        if not self.bodies:
            return ""
        sides = (("forward", self.forward), ("backward", self.backward))
        said = (
            f"{found.count} layers of the {side} are {len(found.classes)} "
            f"{'body' if len(found.classes) == 1 else 'bodies'} ({found.left} of {found.operators} operators compiled)"
            for side, found in sides
            if found.classes
        )
        return "outlined: " + ", ".join(said)


def decide(asked: Asked, forward: Layers, backward: Layers) -> Outlining:
    """The layers that become bodies.

    asked: True for all that are equal, "auto" where enough operators need not be compiled, False for none.
    """
    if asked is False:
        return Outlining()
    if not pays(asked, forward, backward):
        refused = (Refusal("outline", _why(forward, backward)),) if asked is True else ()
        return Outlining(refusals=refused)
    refusals = tuple(
        Refusal(f"outline:{side}", f"{alone.first} to {alone.last}, {alone.count} operators: {alone.reason}")
        for side, found in (("forward", forward), ("backward", backward))
        for alone in found.alone
    )
    if asked is True:
        return Outlining(forward, backward, refusals)
    return Outlining(forward, backward, by_itself=True)


def may_pay(asked: Asked, operators: int) -> bool:
    """Whether equal layers of graphs with so many operators can become bodies at all: then they are looked for."""
    return asked is True or (asked == "auto" and operators >= LEAST_SAVED)


def pays(asked: Asked, *graphs: Layers) -> bool:
    """Whether the equal layers of some graphs are to become bodies, as `decide` takes it."""
    operators = sum(layers.operators for layers in graphs)
    saved = operators - sum(layers.left for layers in graphs)
    least = max(LEAST_SAVED, WORTH * operators) if asked == "auto" else 1
    return asked is not False and saved >= least


def _why(forward: Layers, backward: Layers) -> str:
    alone = next(iter((*forward.alone, *backward.alone)), None)
    none = f"no {LEAST} stretches of at least {SMALLEST} operators are equal"
    return none + (f": {alone.reason}" if alone else "")
