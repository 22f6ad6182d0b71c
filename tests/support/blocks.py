"""Blocks of memory on the CPU, as torch's profilers see them."""

from __future__ import annotations

import torch

from memgraph.base import compat

PAGES = 8192


def at_an_address_that_was_recorded(size: int) -> torch.Tensor:
    """A block of a little less than `size` bytes that no profiler saw made, where one had seen a block of `size`.

    A profiler that sees it go says that it had `size` bytes.
    """
    elsewhere = []  # what lies in other holes of the heap stays there, so that these are no choice any more
    for _ in range(100):
        seen, _ = compat.allocations(lambda: torch.empty(size, dtype=torch.uint8))
        address = seen.data_ptr()
        del seen
        found = torch.empty(size - PAGES, dtype=torch.uint8)
        if found.data_ptr() == address:
            return found
        elsewhere.append(found)
    raise AssertionError("no address came again")
