"""Keep a graph in the plan's order through Inductor's scheduler: kernels stay between the operators they stand between.

    plan:      product = silu(gate) * up;  dW = product.T @ dz;  dh = dz @ W.T;  dgate, dup = silu_backward(dh, ...)
    Inductor:  dh first, then ONE kernel for product, dgate and dup (they read the same), and dW after it:
               product, dgate, dup and dh stand at the same time
    here:      dW waits for product, dh for dW, dgate and dup for dh: product cannot join their kernel

The operators that fuse with nothing (matrix products, attention) are tied to each other, and each of the others to the
operators before and after it. So are Inductor's templates (max-autotune, flex attention). What lies between two of
them still fuses. What is recomputed late does not join a kernel that reads the same early, and a sum over tokens (the
gradient of a norm's weight) does not wait for a kernel of its shape, with all that it adds up. A forward out of which
values are copied is kept in order as well: a copy's end stands where the plan put it.

Random numbers are drawn right before the first kernel that reads them, to be drawn within it. Inductor lowers them
where they stand and the mask that is made of them where that is read; an operator in between would have them written,
in four bytes an entry.

A value that is computed entry by entry may take the buffer that it is computed from. Where another operator still picks
entries of that buffer (the loss picks the logit of each label), the value waits for this reader: in one kernel with it,
the value would get a buffer of its own.

What that saves, measured on seven models: docs/decisions/0004.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memgraph.base import compat


class KeepOrder(compat.scheduler_pass_base()):  # type: ignore[misc]
    """Ties the scheduler nodes of a planned graph, and notes what the buffers of every graph stand for.

    planned: whether the graph that is lowered is one; called with True for a backward.  identity: the partitioner's
    uuid.  seen: called with the nodes that each buffer comes from, by the buffer's name.
    """

    def __init__(
        self,
        planned: Callable[[bool], bool],
        identity: str,
        seen: Callable[[dict[str, tuple[str, ...]]], None] | None = None,
    ) -> None:
        self.planned, self.identity, self.seen = planned, identity, seen

    def __call__(self, nodes: list[Any]) -> list[Any]:
        if self.seen is not None:
            self.seen(compat.origins(nodes))
        if not self.planned(compat.lowers_backward()):
            return nodes
        compat.draw_late(nodes)
        operator = None
        between: list[Any] = []
        for node in nodes:
            if operator is not None:
                compat.run_after(node, operator)
            if not list(node.get_buffer_names()):
                continue
            if not (node.is_extern() or node.is_template()):
                between.append(node)
                continue
            for earlier in between:
                compat.run_after(node, earlier)
            operator, between = node, []
        for node, reader in compat.overwriters(nodes):
            compat.run_after(node, reader)
        compat.recompute_ancestors(nodes)
        return nodes

    def uuid(self) -> str:
        """The partitioner's: whether a graph is planned follows from it."""
        return self.identity

    def __reduce__(self) -> tuple[Any, ...]:
        return (str, (self.identity,))

    def __deepcopy__(self, memo: dict) -> KeepOrder:
        return self
