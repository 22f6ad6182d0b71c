"""Keep the backward in the plan's order through Inductor's scheduler: a dependency from each operator to the next.

    plan:      product = silu(gate) * up;  dW = product.T @ dz;  dh = dz @ W.T;  dgate, dup = silu_backward(dh, ...)
    Inductor:  dh first, then ONE kernel for product, dgate and dup (they read the same), and dW after it:
               product, dgate, dup and dh stand at the same time
    here:      dh waits for dW, so product cannot join the kernel that needs dh

A forward out of which values are copied is kept in order as well: a copy's end stands where the plan put it.

Where a value could take the place of one that it is computed from, but for a reader that picks entries of that (the
loss picks the logit of each label), it waits for this reader: in one kernel with it, it would get a buffer of its own.

A sum of gradients that the plan wants written (passes/settle.py) is waited for by the next operator, which so cannot
become part of a later sum's kernel, nor can the sum.

Only operators with a kernel of their own (matrix products, attention) are tied, be it a library's or a template of
Inductor's (max-autotune, flex attention); what lies between two of them still fuses.
Measured on a Llama of 2 layers (hidden 128, MLP 512, 1,024 tokens) planned for 14.9 MiB: 20.4 MiB as Inductor would
have it (20.9 with reorder_for_peak_memory off), see docs/decisions/0004.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memgraph.base import compat


class KeepOrder(compat.scheduler_pass_base()):  # type: ignore[misc]
    """Ties the scheduler nodes of a planned graph.  planned: whether the graph at hand is one; told if a backward."""

    def __init__(self, planned: Callable[[bool], bool], identity: str) -> None:
        self.planned, self.identity = planned, identity

    def __call__(self, nodes: list[Any]) -> list[Any]:
        if not self.planned(compat.lowers_backward()):
            return nodes
        previous = None
        sums: list[Any] = []
        for node in nodes:
            if compat.is_written(node):
                sums.append(node)
            if not ((node.is_extern() or node.is_template()) and list(node.get_buffer_names())):
                continue
            for earlier in (*sums, previous):
                if earlier is not None:
                    compat.run_after(node, earlier)
            previous = node
            sums.clear()
        for node, reader in compat.overwriters(nodes):
            compat.run_after(node, reader)
        if nodes:
            compat.recompute_ancestors(nodes[0])
        return nodes

    def uuid(self) -> str:
        """The partitioner's: whether a graph is planned follows from it."""
        return self.identity

    def __reduce__(self) -> tuple[Any, ...]:
        return (str, (self.identity,))

    def __deepcopy__(self, memo: dict) -> KeepOrder:
        return self
