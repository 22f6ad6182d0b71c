"""Attention with random masks: any number of shards gives what the definition of attention gives."""

from __future__ import annotations

import dataclasses

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from tests.properties.test_tiles import SETTINGS
from tests.support.attention import CLOSE, FEATURES, Attention, joint_of, positions, squares
from tests.support.lanes import examples

BATCH = 2


@dataclasses.dataclass(frozen=True)
class Masked:
    """A mask, and how many shards read it.  real: of each sequence, the tokens that are no padding."""

    length: int
    window: int | None
    sinks: int
    real: tuple[int, int] | None
    documents: int | None
    slope: bool
    groups: int
    shards: int

    def inputs(self) -> list[Tensor]:
        """Padding and documents by token, where the mask has them."""
        places = torch.arange(self.length)
        padding = [] if self.real is None else [torch.stack([places < n for n in self.real]).long()]
        return padding + ([] if self.documents is None else [(places // self.documents).repeat(BATCH, 1)])

    def mask(self, x: Tensor, *more: Tensor) -> Tensor:
        """The mask, made as a model makes it."""
        query, key = positions(x)
        found, rest = key <= query, list(more)
        if self.window is not None:
            found = found & ((query - key < self.window) | (key < self.sinks))
        if self.real is not None:
            found = found & rest.pop(0)[:, None, None, :].bool()
        if self.documents is not None:
            ids = rest.pop(0)
            found = found & (ids[:, None, :, None] == ids[:, None, None, :])
        found = (found | (key == query))[(None,) * (4 - found.dim())]
        # Of the query's type: with AVX2, ATen reads a float32 mask of float64 queries wrong from 8 keys on (2.13).
        return torch.where(found, (key - query).to(x.dtype) * 0.25, float("-inf")) if self.slope else found

    def read(self, batch: int, query: int, key: int) -> bool:
        """Whether a query reads a key."""
        if query == key:
            return True
        near = self.window is None or query - key < self.window or key < self.sinks
        there = self.real is None or key < self.real[batch]
        same = self.documents is None or query // self.documents == key // self.documents
        return key < query and near and there and same


def masks():
    some = st.integers(1, 12)
    return st.builds(
        Masked,
        length=st.sampled_from((3, 5, 7, 9, 11, 14)),
        window=st.none() | some,
        sinks=st.integers(0, 2),
        real=st.none() | st.tuples(some, some),
        documents=st.none() | some,
        slope=st.booleans(),
        groups=st.sampled_from((1, 2)),
        shards=st.integers(2, 14),
    )


def by_definition(module: Attention, masked: Masked, x: Tensor) -> Tensor:
    """The module's output, one query and head at a time."""
    ((query, key, value, out),) = module.layers
    q, k, v = (project(x).unflatten(-1, (-1, FEATURES)) for project in (query, key, value))
    rows = []
    for batch in range(BATCH):
        for token in range(masked.length):
            keys = [other for other in range(masked.length) if masked.read(batch, token, other)]
            bias = torch.tensor([(other - token) * 0.25 * masked.slope for other in keys], dtype=x.dtype)
            for head in range(q.shape[2]):
                group = head * k.shape[2] // q.shape[2]
                scores = k[batch, keys, group] @ q[batch, token, head] / FEATURES**0.5 + bias
                rows.append(scores.softmax(0) @ v[batch, keys, group])
    return (x + out(torch.stack(rows).view(x.shape))).square().mean()


@settings(SETTINGS, max_examples=examples(12))
@given(masks())
def test_shards_are_the_definition(masked):
    torch.manual_seed(0)
    module = Attention(masked.mask, groups=masked.groups)
    joint = joint_of(module, *masked.inputs(), length=masked.length)
    assert len(joint.regions) == 1 and not joint.refused
    tiled = joint.tiled(min(masked.shards, masked.length))
    # And the verifier accepts it. A query that reads one key alone has no gradient but what rounding leaves.
    assert joint.error(masked.shards, floor=1e-2) < CLOSE
    assert not squares(tiled, masked.length)
    x = next(item for item in joint.data if item.dim() == 3).detach().requires_grad_()
    loss = by_definition(module, masked, x)
    loss.backward()
    with torch.no_grad():
        found = [item for item in tree_leaves(fx.Interpreter(tiled).run(*joint.data)) if isinstance(item, Tensor)]
    half = [0.5 * grad for grad in (x.grad, *(p.grad for p in module.parameters()))]  # of the tangent 0.5
    assert torch.allclose(found[0], loss.detach(), rtol=CLOSE)
    for want in half:
        assert any(
            got.shape == want.shape and torch.allclose(got, want, rtol=1e3 * CLOSE, atol=CLOSE) for got in found[1:]
        )
