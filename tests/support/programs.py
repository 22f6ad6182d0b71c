"""Random small training programs: a Hypothesis strategy, and the module that a drawn program is.

A program is a list of operations over (batch, size, size) tensors. An operation names its operands by how
long ago they were made (0: the newest), so that whatever is left after shrinking is still a program. Every
three operations are one block, an element of a module list, so that the graph has regions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

BLOCK = 3


@dataclasses.dataclass(frozen=True)
class Op:
    """One operation on the a-th and the b-th newest value."""

    name: str
    a: int = 0
    b: int = 0


@dataclasses.dataclass(frozen=True)
class Program:
    """A list of operations, and what the program returns."""

    ops: tuple[Op, ...]
    outputs: tuple[int, ...] = ()
    """Values that are returned beside the loss; 0 is the newest."""
    batch: int = 2
    size: int = 4
    seed: int = 0

    def module(self) -> Net:
        """The program as a module, in training mode, with the same parameters each time."""
        return Net(self)

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Two inputs; the first has a gradient."""
        draw = torch.Generator().manual_seed(self.seed)
        shape = (self.batch, self.size, self.size)
        return torch.randn(shape, generator=draw).requires_grad_(), torch.randn(shape, generator=draw)


class Block(nn.Module):
    """A stretch of operations with buffers of its own; its weights may be another block's too."""

    def __init__(self, ops: Sequence[Op], weights: Sequence[nn.Parameter], size: int) -> None:
        super().__init__()
        self.ops = ops
        self.weight, self.bias, self.size = weights[0], weights[1], size
        self.register_buffer("mean", torch.ones(size))
        self.register_buffer("count", torch.ones(()))

    def forward(self, values: list[Tensor]) -> list[Tensor]:
        for op in self.ops:
            a, b = (values[max(-len(values), -1 - back)] for back in (op.a, op.b))
            values = [*values, OPS[op.name](self, a, b)]
        return values


class Net(nn.Module):
    """All blocks, one after another; the loss is the mean of the newest values."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(program.seed + 1)
        size, ops = program.size, program.ops
        self.outputs = program.outputs
        shared = [nn.Parameter(torch.randn(size, size, generator=draw) / 2) for _ in range(2)]
        bias = nn.Parameter(torch.randn(size, generator=draw))
        self.blocks = nn.ModuleList(
            Block(ops[start : start + BLOCK], (shared[start // BLOCK % 2], bias), size)
            for start in range(0, len(ops), BLOCK)
        )

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        values = [y, x]
        for block in self.blocks:
            values = block(values)
        loss = values[-1].float().mean() + x.sum()  # of x, so that there is a backward in any case
        if len(values) > 4:
            loss = loss + values[-2].float().sigmoid().sum()
        return loss, *(values[max(-len(values), -1 - back)] for back in self.outputs)


# --- operations: (block, a, b) -> a tensor of a's shape -------------------------------------------------


def _norm(m: Block, a: Tensor, b: Tensor) -> Tensor:
    centred = a - a.mean(-1, keepdim=True)
    return centred * (centred.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()


def _gate(m: Block, a: Tensor, b: Tensor) -> Tensor:
    left, right = a.chunk(2, -1)
    return torch.cat([right, left * right.sigmoid()], -1)


def _split(m: Block, a: Tensor, b: Tensor) -> Tensor:
    first, rest = b.split([1, m.size - 1], 1)
    return torch.cat([rest, first.tanh()], 1)


def _write_row(m: Block, a: Tensor, b: Tensor) -> Tensor:
    copy = a.clone()
    copy.select(1, 0).add_(1.0)
    return copy


def _write_transposed(m: Block, a: Tensor, b: Tensor) -> Tensor:
    total = a + b
    total.transpose(1, 2).mul_(2.0)
    return total


def _track(m: Block, a: Tensor, b: Tensor) -> Tensor:
    m.mean.mul_(0.5).add_(a.detach().float().mean((0, 1)), alpha=0.1)
    return a * m.mean.clone()  # it may change again before the backward


def _count(m: Block, a: Tensor, b: Tensor) -> Tensor:
    scaled = (a * m.count.clone()).sin()  # the backward needs the count as it was
    m.count.add_(1.0)
    return scaled


def _attention(m: Block, a: Tensor, b: Tensor) -> Tensor:
    b = b.type_as(a).unsqueeze(1)
    return F.scaled_dot_product_attention(a.unsqueeze(1), b, b).squeeze(1)


OPS: dict[str, Callable[[Block, Tensor, Tensor], Tensor]] = {
    "linear": lambda m, a, b: F.linear(a.type_as(m.weight), m.weight, m.bias),
    "project": lambda m, a, b: a.float() @ m.weight,
    "matmul": lambda m, a, b: a @ b.type_as(a),
    "add": lambda m, a, b: a + b,
    "mul": lambda m, a, b: a * b,
    "relu": lambda m, a, b: a.relu(),
    "gelu": lambda m, a, b: F.gelu(a),
    "tanh": lambda m, a, b: a.tanh(),
    "sigmoid": lambda m, a, b: a.sigmoid(),
    "exp": lambda m, a, b: (a * 0.5).exp(),
    "where": lambda m, a, b: torch.where(a > 0, a, b),
    "softmax": lambda m, a, b: F.softmax(a, -1),
    "layer_norm": lambda m, a, b: F.layer_norm(a.float(), (m.size,), m.bias),
    "norm": _norm,
    "attention": _attention,
    "gather": lambda m, a, b: a.index_select(1, torch.arange(m.size - 1, -1, -1)),
    "transpose": lambda m, a, b: a.transpose(1, 2),
    "reshape": lambda m, a, b: a.transpose(1, 2).reshape(-1, m.size).relu().view(-1, m.size, m.size),
    "contiguous": lambda m, a, b: a.transpose(0, 1).contiguous().transpose(0, 1),
    "slice": lambda m, a, b: a[:, :1] + b,
    "expand": lambda m, a, b: a[:, -1:].expand(-1, m.size, -1),
    "gate": _gate,
    "split": _split,
    "add_": lambda m, a, b: (a * b).add_(a),
    "relu_": lambda m, a, b: (a + b).relu_(),
    "write_row": _write_row,
    "write_transposed": _write_transposed,
    "dropout": lambda m, a, b: F.dropout(a, 0.5, True),
    "bfloat16": lambda m, a, b: a.to(torch.bfloat16),
    "float64": lambda m, a, b: a.to(torch.float64),
    "float32": lambda m, a, b: a.to(torch.float32),
    "detach": lambda m, a, b: a.detach() + b,
    "track": _track,
    "count": _count,
}


def programs(names: Sequence[str] = tuple(OPS), most: int = 10, outputs: int = 2) -> st.SearchStrategy[Program]:
    """Programs of up to `most` operations out of `names`, with up to `outputs` outputs beside the loss."""
    back = st.integers(0, 4)
    return st.builds(
        Program,
        ops=st.lists(st.builds(Op, st.sampled_from(names), back, back), min_size=1, max_size=most).map(tuple),
        outputs=st.lists(back, max_size=outputs).map(tuple),
        batch=st.integers(1, 3),
        size=st.sampled_from((2, 4, 6)),
        seed=st.integers(0, 3),
    )
