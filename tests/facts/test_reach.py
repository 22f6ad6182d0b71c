"""How far queries reach by a mask of a joint graph, held against masks of many data, entry by entry."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from memgraph.facts.masks.reach import ALL, Reach, Reaches, reach_of

TOKENS = 12
HIDDEN = float("-inf")
Mask = Callable[..., Tensor]
"""Of the positions of queries and of keys [tokens, 1] and [1, tokens], and of whole numbers [2, tokens]."""


def graph_of(mask: Mask, tracing: str = "fake", tokens: int = TOKENS) -> fx.GraphModule:
    """A graph of ATen's operators that makes what is added to scores.  mask: gives truth values, or that."""

    def made(data: Tensor) -> Tensor:
        places = torch.arange(tokens)
        held = mask(places[:, None], places[None, :], data)
        return torch.where(held, 0.0, HIDDEN) if held.dtype is torch.bool else held

    return make_fx(made, tracing_mode=tracing)(torch.zeros(2, tokens, dtype=torch.int64))


def reach(mask: Mask, tracing: str = "fake") -> Reach | None:
    (made,) = graph_of(mask, tracing).graph.output_node().all_input_nodes
    return reach_of(made)


def read(data: Tensor, of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """A number of each token at queries and at keys, [2, 1, tokens, 1] and [2, 1, 1, tokens]."""
    held = of(data)[:, None]
    return held[..., None], held[..., None, :]


def padding(data: Tensor) -> Tensor:
    return data.bool()[:, None, None, :]


def packing(data: Tensor) -> Tensor:
    one, other = read(data, lambda item: item.cumsum(-1))
    return one == other


def chunks(q: Tensor, k: Tensor, data: Tensor, length: int = 4) -> Tensor:
    """Whether both are in the same one, counted from the first token that is not padding."""
    pads = (data.cumsum(-1) == 0).sum(-1)[:, None, None, None]
    return (k - pads) // length == (q - pads) // length


TABLE: dict[str, tuple[Mask, Reach | None]] = {
    "causal": (lambda q, k, d: k <= q, Reach(TOKENS - 1, 0)),
    "a window": (lambda q, k, d: (k <= q) & (k > q - 4), Reach(3, 0)),
    "both sides": (lambda q, k, d: (q - k).abs() <= 2, Reach(2, 2)),
    "both sides, compared": (lambda q, k, d: (k >= q - 2) & (k <= q + 3), Reach(2, 3)),
    "the sides alone": (lambda q, k, d: ((q - k).abs() < 5) & ((k - q).abs() > 1), Reach(4, 4)),
    "a product": (lambda q, k, d: q * k <= 2, None),
    "its own": (lambda q, k, d: k == q, Reach(0, 0)),
    "what comes after": (lambda q, k, d: k > q, Reach(0, TOKENS - 1)),
    "two windows": (lambda q, k, d: ((k > q - 3) & (k <= q)) | ((k > q - 7) & (k < q - 4)), Reach(6, 0)),
    "padding": (lambda q, k, d: padding(d) & torch.ones_like(q == k), None),
    "padding, causal": (lambda q, k, d: padding(d) & (k <= q), Reach(TOKENS - 1, 0)),
    "padding in a window": (lambda q, k, d: padding(d) & (k <= q) & (k > q - 4), Reach(3, 0)),
    "padding or a window": (lambda q, k, d: padding(d) | (k <= q) & (k > q - 4), None),
    "packing": (lambda q, k, d: packing(d) & (k <= q), Reach(TOKENS - 1, 0)),
    "packing in a window": (lambda q, k, d: packing(d) & (k <= q) & (q - k < 5), Reach(4, 0)),
    "a distance that data tell": (lambda q, k, d: (k <= q) & (q - k < d[:, None, :, None]), Reach(TOKENS - 1, 0)),
    "data cut off": (lambda q, k, d: (k <= q) & (q - k < d[:, None, :, None].clamp(0, 2)), Reach(TOKENS - 1, 0)),
    "chunks": (lambda q, k, d: (k <= q) & (q // 4 == k // 4), Reach(3, 0)),
    "chunks of both sides": (lambda q, k, d: q // 5 == k // 5, Reach(4, 4)),
    "chunks from the first token": (lambda q, k, d: (k <= q) & chunks(q, k, d), Reach(3, 0)),
    "other chunks": (lambda q, k, d: (k <= q) & (q // 4 != k // 4), Reach(TOKENS - 1, 0)),
    "rounded towards zero": (
        lambda q, k, d: (k <= q) & (q.div(4, rounding_mode="trunc") == k.div(4, rounding_mode="trunc")),
        Reach(TOKENS - 1, 0),
    ),
    "chunks by data": (lambda q, k, d: (k <= q) & (q // d[:, None, :, None] == 1), Reach(TOKENS - 1, 0)),
    "the smallest number": (lambda q, k, d: torch.where((k <= q) & (k > q - 4), 0.0, -3.4028234663852886e38), None),
    "a distance that is added": (lambda q, k, d: torch.where(k <= q, (k - q).float(), HIDDEN), None),
    "two numbers": (lambda q, k, d: torch.where(k > q, HIDDEN, torch.where(k > q - 4, 1.5, HIDDEN)), Reach(3, 0)),
    "padded by pads": (
        lambda q, k, d: torch.nn.functional.pad(torch.where((k <= q) & (k > q - 4), 0.0, HIDDEN), (0, 4))[:, :TOKENS],
        Reach(3, 0),
    ),
    "pads at the front": (
        lambda q, k, d: torch.nn.functional.pad(torch.where((k <= q) & (k > q - 4), 0.0, HIDDEN), (2, 0))[:, :TOKENS],
        Reach(TOKENS - 1, 2),  # the pads are read, and all keys are two places further on
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_masks(name):
    mask, wanted = TABLE[name]
    assert reach(mask) == wanted


def test_queries_of_a_symbolic_length():
    graph = make_fx(
        lambda data: torch.where(torch.arange(data.shape[1])[:, None] >= torch.arange(data.shape[1]), 0.0, HIDDEN),
        tracing_mode="symbolic",
    )(torch.zeros(2, TOKENS))
    (made,) = graph.graph.output_node().all_input_nodes
    assert reach_of(made) == Reach(ALL, 0)


@pytest.mark.parametrize("before, after", [(0, 0), (30, 0), (3, 5)])
def test_a_window_of_a_symbolic_length(before, after):
    def mask(data):
        queries, keys = torch.arange(data.shape[1])[:, None], torch.arange(data.shape[1])
        return torch.where((queries - keys <= before) & (keys - queries <= after), 0.0, HIDDEN)

    graph = make_fx(mask, tracing_mode="symbolic")(torch.zeros(2, TOKENS))
    (made,) = graph.graph.output_node().all_input_nodes
    assert reach_of(made) == Reach(before, after)


def test_a_window_that_grows_with_the_length():
    def mask(data):
        length = data.shape[1]
        queries, keys = torch.arange(length)[:, None], torch.arange(length)
        return torch.where((queries - keys < length - 1) & (queries >= keys), 0.0, HIDDEN)

    graph = make_fx(mask, tracing_mode="symbolic")(torch.zeros(2, TOKENS))
    (made,) = graph.graph.output_node().all_input_nodes
    assert reach_of(made) == Reach(ALL, 0)


def test_other_keys_than_queries():
    graph = make_fx(lambda x: torch.where(torch.arange(4)[:, None] >= torch.arange(8), x, HIDDEN), tracing_mode="fake")
    (made,) = graph(torch.zeros(())).graph.output_node().all_input_nodes
    assert reach_of(made) is None


# --- random masks -----------------------------------------------------------------------------------------


@st.composite
def masks(draw: st.DrawFn, depth: int = 3) -> tuple[str, Mask]:
    """A mask, with how it is written."""
    if depth == 0 or draw(st.booleans()):
        bound = draw(st.integers(-4, 5))
        kinds = ["after", "before", "same", "near", "chunk", "padding", "packing", "told", "padded chunk"]
        kind = draw(st.sampled_from(kinds))
        length = abs(bound) + 1
        table: dict[str, Mask] = {
            "after": lambda q, k, d: k > q + bound,
            "before": lambda q, k, d: q - k >= bound,
            "same": lambda q, k, d: k + bound == q,
            "near": lambda q, k, d: (k - q).abs() < bound,
            "chunk": lambda q, k, d: (q + 2) // length == k // length,
            "padded chunk": lambda q, k, d: chunks(q, k, d, length),
            "padding": lambda q, k, d: padding(d) & (q >= 0),
            "packing": lambda q, k, d: packing(d),
            "told": lambda q, k, d: q - k < d[:, None, :, None] + bound,
        }
        return f"{kind} {bound}", table[kind]
    text, one = draw(masks(depth - 1))
    if draw(st.integers(0, 3)) == 0:
        return f"not ({text})", lambda q, k, d: ~one(q, k, d)
    more, other = draw(masks(depth - 1))
    if draw(st.booleans()):
        return f"({text}) and ({more})", lambda q, k, d: one(q, k, d) & other(q, k, d)
    return f"({text}) or ({more})", lambda q, k, d: one(q, k, d) | other(q, k, d)


@given(masks())
def test_no_mask_of_any_data_is_read_beyond_its_reach(case):
    text, mask = case
    graph = graph_of(mask)
    (made,) = graph.graph.output_node().all_input_nodes
    found = reach_of(made)
    before, after = (found.before, found.after) if found is not None else (TOKENS - 1, TOKENS - 1)
    away = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    draw = torch.Generator().manual_seed(0)
    furthest = nearest = 0
    for _ in range(8):
        data = torch.randint(-2, 6, (2, TOKENS), generator=draw) * torch.randint(0, 2, (2, TOKENS), generator=draw)
        seen = (graph(data) > HIDDEN).reshape(-1, TOKENS, TOKENS).any(0)
        steps = away[seen].tolist()
        furthest, nearest = max([furthest, *steps]), min([nearest, *steps])
        assert furthest <= before and -nearest <= after, text
    data_decide = any(kind in text for kind in ("padding", "packing", "told", "padded"))
    # Chunks of two lengths are rounded down twice, and the elimination knows no whole numbers between the two.
    lengths = {abs(int(bound)) + 1 for bound in re.findall(r"chunk (-?\d+)", text)}
    if not data_decide and len(lengths) < 2:
        assert (furthest, -nearest) == (before, after), text


def test_chunks_of_two_lengths_may_be_given_a_key_too_many():
    def mask(q: Tensor, k: Tensor, data: Tensor) -> Tensor:
        return ((q + 2) // 5 == k // 5) & ((k + 1 == q) | ((q + 2) // 6 == k // 6) | (k + 4 == q))

    places = torch.arange(TOKENS)
    read = mask(places[:, None], places, places)
    assert max((places - places[:, None])[read].tolist()) == 5 and reach(mask) == Reach(2, 6)


def test_masks_that_are_made_alike_are_read_once(monkeypatch):
    """As layers make them: of the same inputs by the same operators, each for itself."""

    def made(data: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        q, k = torch.arange(TOKENS)[:, None], torch.arange(TOKENS)[None, :]
        held = [(k <= q) & (k > q - window) & padding(given) for window in (4, 4, 3) for given in (data, other)]
        return tuple(torch.where(one, 0.0, HIDDEN) for one in held)

    data = torch.zeros(2, TOKENS, dtype=torch.int64)
    graph = make_fx(made, tracing_mode="fake")(data, data.clone())
    masks = graph.graph.output_node().all_input_nodes
    asked: list[fx.Node] = []

    def counted(mask: fx.Node) -> Reach | None:
        asked.append(mask)
        return reach_of(mask)

    monkeypatch.setattr("memgraph.facts.masks.reach.reach_of", counted)
    reaches = Reaches()
    assert [reaches.of(mask) for mask in masks] == [Reach(3, 0)] * 4 + [Reach(2, 0)] * 2
    assert asked == [masks[0], masks[1], masks[4], masks[5]]
