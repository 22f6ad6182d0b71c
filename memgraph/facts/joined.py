"""Tensors joined by `cat`: on the CPU Inductor writes them to memory, each part into its place.

    scores = mm(q, k);  joined = cat([scores, sinks]);  weights = exp(joined - top)

    inlined         weights reads scores and sinks
    on the CPU      joined is written, weights reads that, and takes memory of its own

So a joined tensor is like a reduction: it has a buffer, and what it is made of may have none. No output takes its place
(torch/_inductor/lowering.py, cat; ir.py, ConcatKernel; scheduler.py, decide_inplace_update: 2.11, 2.13, 2.15).
"""

from __future__ import annotations

import torch
from torch import fx

from memgraph.facts.operators import argument, aten_names, qualified_name

CAT = aten_names("cat")
# What Inductor leaves to torch's own kernel if all parts are of these.
BYTES = (torch.int8, torch.uint8)


def is_joined(node: fx.Node) -> bool:
    """Whether a node joins tensors in memory. Of a single tensor Inductor makes a copy, which it may inline."""
    return qualified_name(node.target) in CAT and len(_parts(node)) > 1 and _on_cpu(node)


def is_joined_by_torch(node: fx.Node) -> bool:
    """Whether a kernel of torch joins them, which reads all parts from memory."""
    return is_joined(node) and all(part.dtype in BYTES for part in _parts(node))


def _parts(node: fx.Node) -> list[torch.Tensor]:
    """The tensors that are joined: `cat` takes no notice of an empty one of one dimension."""
    vals = [part.meta.get("val") for part in argument(node, "tensors")]
    return [val for val in vals if isinstance(val, torch.Tensor) and not _is_nothing(val)]


def _is_nothing(val: torch.Tensor) -> bool:
    return val.dim() == 1 and type(val.shape[0]) is int and val.shape[0] == 0  # a symbol must not be asked


def _on_cpu(node: fx.Node) -> bool:
    val = node.meta.get("val")
    return isinstance(val, torch.Tensor) and val.device.type == "cpu"
