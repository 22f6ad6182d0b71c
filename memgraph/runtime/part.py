"""`part(x)`: the entries of a view in memory of their own, so that what it views can be freed.

It says of itself the strides of the view, gaps and all, since those are what the readers of the view were given. A
compiler is free to leave the gaps out.
"""

from __future__ import annotations

import torch


def _part(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


_library = torch.library.Library("memgraph", "FRAGMENT")
_library.define("part(Tensor x) -> Tensor")
_library.impl("part", _part, "CompositeExplicitAutograd")
