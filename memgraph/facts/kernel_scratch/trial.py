"""The scratch of one kernel, measured: the operator runs once, on made-up data of the same sizes, strides and dtypes.

Only torch's own operators run, and only on data that cannot lead them astray: an operator of somebody else may count,
log or communicate; an index out of range may end the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from memgraph.base import compat
from memgraph.base.compat import tree_leaves
from memgraph.facts.kernel_scratch.operands import Call, Operand, operands, schema

# Operators whose integers may all be zero: indices into a tensor that is not empty, or data like any other.
_ZEROS = frozenset(
    "index index_add index_copy index_fill index_put index_put_ index_reduce index_reduce_ index_select "
    "_unsafe_index _unsafe_index_put gather take put scatter scatter_ scatter_add scatter_add_ scatter_reduce "
    "scatter_reduce_ embedding embedding_dense_backward _embedding_bag _embedding_bag_forward_only "
    "_embedding_bag_backward _embedding_bag_dense_backward _sparse_coo_tensor_with_dims_and_tensors "
    "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward "
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward "
    "adaptive_max_pool3d_backward bucketize searchsorted sort topk kthvalue median nanmedian mode cumsum cumprod "
    "cummax cummin sum prod mm addmm bmm baddbmm _int_mm convolution unique_dim _unique2 masked_scatter "
    "_grouped_mm flip roll argsort _scaled_dot_product_cudnn_attention_backward".split()
)
_BY_MASK = frozenset("index index_put index_put_ _unsafe_index _unsafe_index_put".split())
# Operators that are called for an effect, not for what they return.
_ACTS = ("_assert", "_print", "_record", "set_", "resize_", "_linalg_check_errors")


class NotTried(Exception):
    """Why an operator is not run."""


def needs(call: Call) -> int:
    """Bytes of the arguments and results of a trial."""
    read = sum(operand.span * operand.dtype.itemsize for operand in operands((call.args, call.kwargs)))
    return read + call.made


def measure(call: Call, device: str = "cpu") -> int:
    """The most bytes that the kernel on `device` ("cpu" or "cuda") holds beyond the call's arguments and results.

    On CUDA all that the kernel allocates counts as if it were held at a time. Raises NotTried if the operator must not
    run, or fails. The state of the random generators stays as it was.
    """
    _check(call, device)
    with compat.really(), torch.no_grad(), _same_draws(call, device):
        try:
            args, kwargs = made_up(call, device)
            recorded = compat.allocations if device == "cpu" else _allocations_on_the_card
            outputs, changes = recorded(lambda: call.op(*args, **kwargs))
        except (
            Exception
        ) as error:  # bad data for this operator, no memory: the bytes are not known, whatever the reason
            raise NotTried(f"it failed on made-up data: {type(error).__name__}") from error
        given = _storages((args, kwargs))  # within `really`: the parts of a sparse tensor come from an operator
        kept = _storages(outputs)
    if device == "cuda" and not any(changes):  # an allocator that is not torch's, or caches nothing
        raise NotTried("the allocator of the card counts nothing")
    level = peak = 0
    for change in changes:
        level += change
        peak = max(peak, level)
    return max(0, peak - sum(size for storage, size in kept.items() if storage not in given))


def _storages(values: Any) -> dict[int, int]:
    """Bytes of the storages that some values lie in, by their ids. A sparse tensor lies in those of its parts."""
    found: dict[int, int] = {}
    for tensor in tree_leaves(values):
        if isinstance(tensor, torch.Tensor):
            parts = (tensor._indices(), tensor._values()) if tensor.layout is torch.sparse_coo else (tensor,)
            found |= {compat.storage_id(part): part.untyped_storage().nbytes() for part in parts}
    return found


def _allocations_on_the_card(run: Callable[[], Any]) -> tuple[Any, list[int]]:
    """What `run()` returns, and the bytes that it asks torch's allocator for, in one sum.

    By a counter that only grows: the peaks are the user's. It runs twice and the smaller sum is taken, since other
    threads may allocate meanwhile.
    """
    sums = []
    for _ in range(2):
        outputs = None  # those of the run before
        before = _asked_for()
        outputs = run()
        sums.append(_asked_for() - before)
    return outputs, [min(sums)]


def _asked_for() -> int:
    """Bytes that were ever asked for on the current card."""
    return torch.cuda.memory_stats()["requested_bytes.all.allocated"]


def _check(call: Call, device: str) -> None:
    namespace, _, name = call.name.partition("::")
    if namespace not in ("aten", "prims"):
        raise NotTried("only torch's own operators are tried")
    if name.startswith(_ACTS):
        raise NotTried("it acts")
    if torch.Tag.dynamic_output_shape in getattr(call.op, "tags", ()):
        raise NotTried("the size of its output depends on data")
    read = list(operands((call.args, call.kwargs)))
    if any(map(_whole, read)) and name not in _ZEROS:
        raise NotTried("it is not known which integers it takes")
    if name in _BY_MASK and any(operand.dtype in (torch.bool, torch.uint8) for operand in read):
        raise NotTried("it depends on how much a mask leaves")
    if device == "cpu" and compat.profiling():
        raise NotTried("another profiler runs")


def _whole(operand: Operand) -> bool:
    return not (operand.dtype.is_floating_point or operand.dtype.is_complex or operand.dtype == torch.bool)


def _same_draws(call: Call, device: str) -> contextlib.AbstractContextManager[None]:
    """Put the states of the CPU's and the current card's random generators back after an operator that draws."""
    draws = torch.Tag.nondeterministic_seeded in getattr(call.op, "tags", ())
    draws = draws or any(argument.name == "generator" for argument in schema(call.op).arguments)
    cards = [] if device == "cpu" else [torch.cuda.current_device()]
    return torch.random.fork_rng(devices=cards) if draws else contextlib.nullcontext()


def made_up(call: Call, device: str = "cpu") -> tuple[list[Any], dict[str, Any]]:
    """Arguments of the call on `device`: zeros for integers, else matrices that can be inverted."""
    args = [_value(argument, device) for argument in call.args]
    kwargs = {name: _value(argument, device) for name, argument in call.kwargs.items()}
    if call.name == "aten::_grouped_mm" and (ends := call.named.get("offs")) is not None:
        # All rows in the first group: the largest product that it may be asked for.
        (offs,) = [value for value in [*args, *kwargs.values()] if isinstance(value, torch.Tensor) and value.ndim == 1
                   and value.dtype == torch.int32 and tuple(value.shape) == ends.size]  # fmt: skip
        first, second = call.named["self"], call.named["mat2"]
        offs.fill_(second.size[-1] if len(first.size) == 3 else first.size[-1 if len(second.size) == 2 else 0])
    return args, kwargs


def _value(argument: Any, device: str) -> Any:
    if isinstance(argument, tuple):
        return [_value(item, device) for item in argument]
    return _tensor(argument, device) if isinstance(argument, Operand) else argument


def _tensor(operand: Operand, device: str) -> torch.Tensor:
    """Zeros for integers and masks; else 0.5 with a heavier diagonal: matrices that can be inverted and factorised."""
    memory = torch.zeros(operand.span, dtype=operand.dtype, device=device)
    floating = operand.dtype.is_floating_point or operand.dtype.is_complex
    if floating:
        memory.fill_(0.5)
    tensor = memory.as_strided(operand.size, operand.stride)
    if floating and len(operand.size) > 1 and operand.size[-1] == operand.size[-2] and operand.span == tensor.numel():
        tensor.diagonal(dim1=-2, dim2=-1).fill_(operand.size[-1])
    return tensor
