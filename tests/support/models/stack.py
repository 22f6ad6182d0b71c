"""A stack of residual MLPs with dropout."""

from __future__ import annotations

import torch
from torch import nn


class Stack(nn.Module):
    """No kernel of it adds up in an order of its own: two runs have the same bits."""

    def __init__(self, layers: int = 3, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + nn.functional.dropout(layer(x), 0.1, self.training)
        return x.square().mean()
