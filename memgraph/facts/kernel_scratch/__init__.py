"""Memory that a kernel of ATen allocates and frees within one call: no wrapper and no graph shows it.

On CUDA `cuda` has the rules. On the CPU `rules` says how many bytes an operator takes, exactly or at most; `trial` runs
an operator and measures it, cuDNN's attention on a card too; `known` decides between them for one compilation and notes
what it could not find out. All bytes that torch's allocator hands out count (oneDNN's included), as in
`memgraph.measure_peak` and in a budget.
"""

from __future__ import annotations

from memgraph.facts.kernel_scratch.known import Kernels, current, for_compilation, for_dry_run, looking_up
from memgraph.facts.kernel_scratch.machine import fingerprint
from memgraph.facts.kernel_scratch.nodes import has_rule, is_called, of_node, of_operator

__all__ = [
    "Kernels",
    "current",
    "fingerprint",
    "for_compilation",
    "for_dry_run",
    "has_rule",
    "is_called",
    "looking_up",
    "of_node",
    "of_operator",
]
