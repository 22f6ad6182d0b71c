"""Single layers and chains of them, without transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Head(nn.Module):
    """The head of a language model and its loss, of hidden states (1, tokens, hidden) and labels (1, tokens)."""

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, hidden) * hidden**-0.5)
        self.logits_dtype = torch.float32

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = F.linear(x, self.weight).to(self.logits_dtype)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


class SwiGLU(nn.Module):
    """The MLP of a Llama."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Residual(nn.Module):
    """x + down(gelu(up(x))), all of one width where no inner one is given."""

    def __init__(self, width: int, inner: int | None = None) -> None:
        super().__init__()
        inner = inner or width
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class UnrolledLstm(nn.Module):
    """An LSTM cell that reads the same input `steps` times, unrolled, and a head of four numbers."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.cell, self.head, self.steps = nn.LSTMCell(width, width), nn.Linear(width, 4), steps

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x), torch.zeros_like(x)
        for _ in range(self.steps):
            state = self.cell(x, state)
        return self.head(state[0])


def chain(kind: str, length: int, width: int) -> nn.Sequential:
    """Equal blocks one after another, each a linear layer and an activation, or `residual`."""
    activation = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}.get(kind)
    if activation is None and kind != "residual":
        raise ValueError(f"no chain of {kind!r}; there are: tanh, relu, gelu, residual")

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(width, width), activation()) if activation else Residual(width)

    return nn.Sequential(*(block() for _ in range(length)))
