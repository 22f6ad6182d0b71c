"""Operators that memgraph does not know, which count their runs, and a model around one of them."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

RUNS: Counter[str] = Counter()
SILU = "hidden::silu"


def custom(name: str, run, gradient, **told):
    """An operator of one tensor that counts its runs.  gradient: of the output's gradient, the input and the output."""

    def counted(x: torch.Tensor) -> torch.Tensor:
        RUNS[name] += 1
        return run(x)

    made = torch.library.custom_op(name, counted, mutates_args=(), **told)
    made.register_fake(torch.empty_like)
    made.register_autograd(
        lambda ctx, g: gradient(g, *ctx.saved_tensors),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, output),
    )
    return made


def silu_gradient(g, x, y):
    s = torch.sigmoid(x)
    return g * (s + x * s * (1 - s))


def drop_gradient(g, x, y):
    return g * (y != 0) * 2


drop = custom("hidden::drop", lambda x: x * (torch.rand_like(x) > 0.5) * 2, drop_gradient)
silu = custom(SILU, nn.functional.silu, silu_gradient)
tagged = custom("hidden::tagged", nn.functional.silu, silu_gradient, tags=(torch.Tag.pointwise,))
seeded = custom(
    "hidden::seeded",
    lambda x: x * (torch.rand_like(x) > 0.5) * 2,
    drop_gradient,
    tags=(torch.Tag.nondeterministic_seeded,),
)


@torch.library.custom_op("hidden::pair", mutates_args=())
def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    RUNS["hidden::pair"] += 1
    return x * 2, x.exp()


pair.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
pair.register_autograd(
    lambda ctx, one, other: one * 2 + other * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output[1]),
)


LAYERS = 3


class Layers(nn.Module):
    """Residual MLPs around a function of the test's."""

    def __init__(self, act, around=None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), Act(act), nn.GELU(), nn.Linear(64, 16)) for _ in range(LAYERS)
        )
        self.around = around or (lambda layer, x: layer(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + self.around(layer, x)
        return x.square().mean()


class Act(nn.Module):
    def __init__(self, act) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x)


X = torch.randn(32, 16, generator=torch.Generator().manual_seed(3))
