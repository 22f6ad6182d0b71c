"""The memory of one wrapper: its allocations, and what the operators that it calls allocate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from memgraph.base import compat
from memgraph.facts import kernel_scratch
from memgraph.lower.tensors import Shadow, Storage, operator_outputs, resolve, span
from memgraph.runtime.nvme import destination

Log = Callable[[str, int], None]
CUDA_STATE = 16  # bytes of the state of a CUDA generator, which lies in the memory of the host
TRANSFERS = frozenset(("offload_start", "offload_finish", "reload_start", "reload_finish"))


class Memory:
    """Makes storages that report their allocation and their end."""

    def __init__(self, log: Log, prefix: str, device: str, so_far: Callable[[], int] = lambda: 0) -> None:
        """log: told of each allocation (+) and free (-) on `device`, in order.  prefix: of the storages' names.
        so_far: how many changes the log has by now.
        """
        self._log, self._prefix, self._device = log, prefix, device
        self._so_far = so_far
        self._names: dict[str, int] = {}
        self._fakes = compat.fake_mode()
        self.holders: list[tuple[int, str, str]] = []
        """How many allocations and frees came before, a storage that is counted, and the variable that names it now."""

    def storage(self, target: str, nbytes: int, device: str) -> Storage:
        """A new storage, named after the variable that is assigned."""
        self._names[target] = count = self._names.get(target, 0) + 1
        name = f"{self._prefix}.{target}" + (f"#{count}" if count > 1 else "")
        if torch.device(device).type != self._device:
            return Storage(name, nbytes, None)
        self._log(name, nbytes)
        return Storage(name, nbytes, self._log)

    def held(self, tensor: Shadow, variable: str) -> None:
        """A variable now names a tensor."""
        if tensor.storage.counted:
            self.holders.append((self._so_far(), str(tensor.storage.name), variable))

    def empty(self, target: str, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: str) -> Shadow:
        """A new tensor in a new storage."""
        nbytes = span(size, stride) * dtype.itemsize
        return Shadow(self.storage(target, nbytes, device), tuple(size), tuple(stride), dtype, device)

    def operator(self, target: str, path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The outputs of an operator: allocated, unless they lie in the storage of an input."""
        namespace, name, *_ = path.removeprefix("torch.ops.").split(".")
        if "out" in kwargs:
            outputs = kwargs["out"]
        elif namespace == "memgraph" and name in TRANSFERS:
            return self._transfer(target, name, args)
        elif namespace == "higher_order" and name in ("run_and_save_rng_state", "run_with_rng_state"):
            return self._replay(target, name == "run_and_save_rng_state", args, kwargs)
        else:
            new = functools.partial(self.storage, target)
            outputs = operator_outputs(resolve(path), args, kwargs, new, self._fakes)
        self.storage(f"{name} scratch", self._scratch(path, args, kwargs, outputs), self._device)  # freed at once
        return outputs

    def _replay(self, target: str, first: bool, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """An operator that draws: the first time it returns the state of its generator, later it begins with that."""
        operator, *args = args if first else args[1:]
        tensors = [arg for arg in args if isinstance(arg, Shadow)]
        on_cuda = any(torch.device(tensor.device).type == "cuda" for tensor in tensors)
        size = CUDA_STATE if on_cuda else torch.get_rng_state().numel()
        state = [self.empty(target, (size,), (1,), torch.uint8, "cpu")] if first else []
        outputs = self.operator(target, operator.name, args, kwargs)
        return (*state, outputs) if first else outputs

    def _scratch(self, path: str, args: list[Any], kwargs: dict[str, Any], outputs: Any) -> int:
        """Bytes that an operator's kernel allocates and frees within the call."""
        op: Any
        try:
            op = resolve(path)
        except AttributeError:  # a helper of Inductor's, which is no operator
            op = path
        return kernel_scratch.of_operator(op, args, kwargs, outputs, self._device)

    def _transfer(self, target: str, name: str, args: list[Any]) -> Shadow:
        """A copy to another tier or back.

        Its ticket lies in memory of the runtime's own. The tensor that comes back is allocated when its copy starts,
        and belongs to the ticket until the copy is finished.
        """
        if name == "reload_finish":
            return Shadow(args[0].storage.holds, tuple(args[2]), tuple(args[3]), args[4], str(args[5]))
        ticket = Storage(f"{self._prefix}.{target}", 0, None)
        if name == "reload_start":
            _, size, stride, dtype, device, tier = args
            nbytes = span(size, stride) * dtype.itemsize
            if tier == "nvme":
                nbytes = destination(nbytes, torch.device(device))
            ticket.holds = self.storage(target, nbytes, str(device))
        return Shadow(ticket, (1,), (1,), torch.int64)
