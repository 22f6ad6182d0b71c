"""The order in which a planned forward runs: what the backward alone needs is computed next to what it is made of.

    joint graph:  h = a @ b; y = gate(h) @ c; ...; loss; d = h * (1 - h)      d is all that the backward reads of h
    forward:      h = a @ b; ... d = h * (1 - h); y = gate(h) @ c; ...; loss  h is freed in its layer

Autograd's formulas stand behind the loss in a joint graph, those of all layers together. Inductor keeps that order, and
on the CPU makes one kernel of them, which holds all that they read until it ends (docs/decisions/0004).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from memgraph.facts.values import Value


def order_of_forward(values: Sequence[Value], forward: Sequence[int], of_autograd: Collection[int]) -> tuple[int, ...]:
    """The values of the forward in the order in which a plan runs them.

    forward: in the order of the joint graph.  of_autograd: those that are autograd's own. If it may run at any time,
    each runs at the end of the stretch of fused operators in which the last value that it reads is made, before the
    next operator that fuses with nothing. Within the stretch it would stand beside what it could be written over: an
    operator that is fused reads where its reader runs.
    """
    late = _for_autograd_alone(values, forward, of_autograd)
    place: dict[int, tuple[int, bool, int]] = {}
    stretch = 0
    for n, i in enumerate(forward):
        if i not in late:
            stretch += values[i].kind == "extern"
            place[i] = (stretch, False, n)
    for n, i in enumerate(forward):
        if i in late:
            read = [place[j][0] for j in values[i].inputs if j in place]
            place[i] = (max(read, default=stretch), True, n)
    return tuple(sorted(forward, key=place.__getitem__))


def _for_autograd_alone(values: Sequence[Value], forward: Sequence[int], of_autograd: Collection[int]) -> set[int]:
    """Values of autograd's that may run at any time, and that no other operator of the forward reads."""
    found: set[int] = set()
    read: set[int] = set()
    for i in reversed(forward):
        if i in of_autograd and i not in read and values[i].fixed is None:
            found.add(i)
        else:
            read.update(values[i].inputs)
    return found
