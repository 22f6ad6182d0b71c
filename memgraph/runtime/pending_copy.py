"""A copy between a device and a tier, from its start to its finish."""

from __future__ import annotations

import torch

from memgraph.runtime import streams
from memgraph.runtime.value import OffloadedValue


class PendingCopy:
    """One value on its way out of a device or back, between a start and its finish.

    `launch` starts the copy, `wait` makes the compute stream wait for it, `abandon` keeps the memory of a copy that
    nobody will wait for in place for as long as it may be touched.
    """

    def __init__(self, value: OffloadedValue, tensor: torch.Tensor):
        """`tensor` lies as the value did when it left; its device may be another one."""
        self.value = value
        self.device = tensor.device
        self.on_device: torch.Tensor | None = value.layout.bytes_of(tensor)
        self.ready = streams.mark(tensor.device)  # the bytes, or the memory for them, are there from here on
        self.lanes = streams.lanes(tensor.device)
        self.cancelled = False
        self._launched = False

    @property
    def memory(self) -> torch.Tensor:
        """The value's bytes on the device: uint8, one dimension. Nobody asks for them after `finish`."""
        assert self.on_device is not None
        return self.on_device

    def start(self) -> None:
        """Launch, once."""
        if not self._launched:
            self._launched = True
            self.launch()

    def finish(self) -> None:
        """Make the compute stream wait for the copy. Raises OffloadError where the value is lost."""
        self.start()
        self.wait()
        self.value.check()
        self.on_device = None  # the device's memory is free from here, though blocks may still be on their way

    def cancel(self) -> None:
        """Give up the copy, whose ticket was dropped. After `finish` it does nothing."""
        if self.on_device is not None:
            self.cancelled = True
            self.abandon()

    def launch(self) -> None:
        raise NotImplementedError

    def wait(self) -> None:
        raise NotImplementedError

    def abandon(self) -> None:
        raise NotImplementedError
