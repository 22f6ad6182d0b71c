"""A U-Net as diffusion models have it: values of the way down are read again, last in first out, on the way up."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GROUPS = 8
BLOCKS = 2  # of each level, down and up


class Block(nn.Module):
    """x + two convolutions of x."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(GROUPS, width), nn.SiLU(), nn.Conv2d(width, out, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(GROUPS, out), nn.SiLU(), nn.Conv2d(out, out, 3, padding=1))
        self.skip = nn.Conv2d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.second(self.first(x))


class UNet(nn.Module):
    """The loss of a U-Net that predicts the noise of an image; each level has half the side and twice the width."""

    def __init__(self, width: int, levels: int, channels: int = 4) -> None:
        super().__init__()
        widths = [width * 2**n for n in range(levels)]
        self.start = nn.Conv2d(channels, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        self.smaller, self.larger = nn.ModuleList(), nn.ModuleList()
        now, kept = width, [width]
        for n, wide in enumerate(widths):
            self.down.append(nn.ModuleList())
            for _ in range(BLOCKS):
                self.down[-1].append(Block(now, wide))
                now = wide
                kept.append(now)
            if n + 1 < levels:
                self.smaller.append(nn.Conv2d(now, now, 3, stride=2, padding=1))
                kept.append(now)
        self.middle = Block(now, now)
        for n, wide in enumerate(reversed(widths)):
            self.up.append(nn.ModuleList())
            for _ in range(BLOCKS + 1):
                self.up[-1].append(Block(now + kept.pop(), wide))
                now = wide
            if n + 1 < levels:
                self.larger.append(nn.Conv2d(now, now, 3, padding=1))
        self.end = nn.Sequential(nn.GroupNorm(GROUPS, now), nn.SiLU(), nn.Conv2d(now, channels, 3, padding=1))

    def forward(self, image: Tensor, noise: Tensor) -> Tensor:
        x = self.start(image)
        kept = [x]
        for n, blocks in enumerate(self.down):
            for block in blocks:
                x = block(x)
                kept.append(x)
            if n < len(self.smaller):
                x = self.smaller[n](x)
                kept.append(x)
        x = self.middle(x)
        for n, blocks in enumerate(self.up):
            for block in blocks:
                x = block(torch.cat([x, kept.pop()], dim=1))
            if n < len(self.larger):
                x = self.larger[n](F.interpolate(x, scale_factor=2.0))
        return F.mse_loss(self.end(x), noise)
