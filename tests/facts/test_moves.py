"""Which inputs an operator reads at other entries than the one that it writes, against the entries that it reads."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from memgraph.facts.moves import read_elsewhere

ATEN = torch.ops.aten
X = torch.arange(1.0, 25.0).reshape(4, 6)
Y = -X[:2, :3]

CALLS = {
    "pointwise": (ATEN.add.Tensor, (X, X * 100), {}),
    "padded at the end": (ATEN.constant_pad_nd.default, (X, [0, 2, 0, 1]), {}),
    "padded at the start": (ATEN.constant_pad_nd.default, (X, [0, 0, 1, 0]), {}),
    "cropped": (ATEN.constant_pad_nd.default, (X, [0, -1]), {}),
    "the first rows": (ATEN.slice.Tensor, (X, 0, 0, 2), {}),
    "all rows": (ATEN.slice.Tensor, (X,), {}),
    "later rows": (ATEN.slice.Tensor, (X, 0, 1, 3), {}),
    "the last row": (ATEN.slice.Tensor, (X, 0, -1), {}),
    "every other row": (ATEN.slice.Tensor, (X,), {"step": 2}),
    "gradient of the first rows": (ATEN.slice_backward.default, (Y, [4, 3], 0, 0, 2, 1), {}),
    "gradient of later rows": (ATEN.slice_backward.default, (Y, [4, 3], 0, 2, 4, 1), {}),
    "put into the first rows": (ATEN.slice_scatter.default, (X[:, :3], Y), {"end": 2}),
    "put into later rows": (ATEN.slice_scatter.default, (X[:, :3], Y, 0, 1, 3), {}),
    "put into a row": (ATEN.select_scatter.default, (X[:, :3], Y[0], 0, 1), {}),
    "a row": (ATEN.select.int, (X, 0, 1), {}),
    "flipped": (ATEN.flip.default, (X, [0]), {}),
    "reversed": (torch.ops.prims.rev.default, (X, [0]), {}),
}


def call(graph: fx.Graph, target, args, kwargs) -> fx.Node:
    """A node that calls an operator, each tensor among its arguments an input of its own."""

    def given(argument):
        if isinstance(argument, torch.Tensor):
            return graph.placeholder(f"x{len(graph.nodes)}")
        if isinstance(argument, list) and isinstance(argument[0], torch.Tensor):
            return [given(item) for item in argument]
        return argument

    return graph.call_function(target, tuple(map(given, args)), kwargs)


def moved(target, args, kwargs) -> tuple[int, ...]:
    """By running it: the inputs of which an entry comes to another place. Every entry of all inputs differs."""
    made = target(*args, **kwargs)
    inputs = args[0] if isinstance(args[0], list) else [arg for arg in args if isinstance(arg, torch.Tensor)]
    found = []
    for n, given in enumerate(inputs):
        for place in torch.cartesian_prod(*map(torch.arange, given.shape)).reshape(-1, given.ndim).tolist():
            here = given.ndim == made.ndim and all(i < size for i, size in zip(place, made.shape, strict=True))
            kept = here and made[tuple(place)] == given[tuple(place)]
            if not kept and given[tuple(place)] in made:
                found.append(n)
                break
    return tuple(found)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_read_elsewhere(name):
    target, args, kwargs = CALLS[name]
    assert read_elsewhere(call(fx.Graph(), target, args, kwargs)) == moved(target, args, kwargs)


def test_all_parts_that_are_put_together_count_as_moved():
    assert read_elsewhere(call(fx.Graph(), ATEN.cat.default, ([Y, Y * 100],), {})) == (0, 1)


@pytest.mark.parametrize(("part", "found"), [(0, ()), (1, (0,))])
def test_later_parts_of_a_split_begin_elsewhere(part, found):
    graph = fx.Graph()
    split = graph.call_function(ATEN.split.Tensor, (graph.placeholder("x"), 2))
    assert read_elsewhere(graph.call_function(operator.getitem, (split, part))) == found
