"""How many tensors hold a storage, asked without holding it."""

from __future__ import annotations

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
