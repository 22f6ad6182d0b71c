"""How many tensors hold a storage, asked without holding it."""

from __future__ import annotations

import functools
import sys
from typing import Any


class StorageReference:
    """A tensor's storage, which this does not keep alive. `bytes` is its size."""

    def __init__(self, tensor: Any) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self.bytes: int = tensor.untyped_storage().nbytes()
        self._weak = StorageWeakRef(tensor.untyped_storage())

    def holders(self) -> int:
        """The number of tensors, those of C++ alone included, that hold it; 0 when it is gone."""
        import torch

        return 0 if self._weak.expired() else torch._C._storage_Use_Count(self._weak.cdata)


@functools.cache
def holders_alone() -> tuple[int, int, int]:
    """How many hold a gradient that nothing but a node of autograd gets, as the node's prehook counts them.

    Counted, since that differs from one version of torch and of Python to another; once, and not within a backward.
    """
    import torch

    found: list[tuple[int, int, int]] = []
    with torch.enable_grad():
        # Operators that save nothing: torch.utils.checkpoint counts what is saved meanwhile.
        made = torch.ones(1, device="cpu", requires_grad=True).neg()
        made.grad_fn.register_prehook(lambda gradients: found.extend(map(_holders, gradients)))
        made.neg().sum().backward()
    return found[0]


def given_away(gradients: Any, device: Any) -> int:
    """Bytes on a device of the gradients that a node of autograd gets and holds alone: they go when it drops them.

    gradients: as a prehook of the node has them. A number, and a part of a larger storage, do not count.
    """
    import torch

    if torch.compiler.is_compiling():  # compiled autograd traces the hook: its gradients are nobody's yet
        return 0
    alone = holders_alone()
    counts = list(map(_holders, gradients))
    return sum(
        gradient.nbytes
        for gradient, count in zip(gradients, counts, strict=True)
        if count == alone
        and gradient.dim()
        and gradient.device.type == device.type
        and gradient.untyped_storage().nbytes() == gradient.nbytes
    )


def _holders(gradient: Any) -> tuple[int, int, int]:
    """Holders of a tensor in C++, of its Python object, and of its storage; all 0 of what has no storage of its own."""
    import torch

    if type(gradient) is not torch.Tensor or gradient.layout is not torch.strided:
        return 0, 0, 0
    storage = torch._C._storage_Use_Count(gradient.untyped_storage()._cdata)
    return gradient._use_count(), sys.getrefcount(gradient), storage


def first_users_output(count: int) -> int | None:
    """The position of the user's first output among the outputs of the forward graph that AOTAutograd is compiling.

    count: how many outputs Dynamo's graph returns.  None where the user's outputs are not those of the graph.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    known = context.fw_metadata if context is not None else None
    if known is None or known.tokens or known.num_intermediate_bases or len(known.output_info) != count:
        return None
    return len(known.mutated_inp_runtime_indices)
