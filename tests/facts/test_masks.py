"""Which masks are the causal one: in many disguises; and many that are nearly so, and are not."""

from __future__ import annotations

import time

import pytest
import torch
from torch.nn import functional as F

from memgraph.facts.masks.causal import causal_masks
from tests.support.masks import LENGTH, attending, captured, causal, masks_of, queries, read

INF = float("-inf")
LEAST = torch.finfo(torch.float32).min


def positions(q):
    return torch.arange(q.shape[2], device=q.device)


def transformers_mask(q, packed=True, window=None):
    """As transformers' `sdpa_mask` makes it where no positions are given."""
    n, batch = q.shape[2], q.shape[0]
    given = positions(q)[None].expand(batch, -1)
    first = given[:, :1] - 1
    sequence = (torch.diff(given, prepend=first, dim=-1) != 1).cumsum(-1)
    rows, columns = positions(q)[None, None, :, None], positions(q)[None, None, None, :]
    which = torch.arange(batch, device=q.device)[:, None, None, None]
    mask = rows.new_ones((), dtype=torch.bool)
    if packed:
        mask = mask & (sequence[which, rows] == sequence[which, columns])
    if window is not None:
        mask = mask & (columns > rows - window)
    return (mask & (given[which, columns] <= given[which, rows])).expand(batch, -1, n, n)


def added(mask, least=INF):
    return torch.zeros(mask.shape).masked_fill(~mask, least)


CAUSAL = {
    "tril": lambda q: torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(),
    "not triu": lambda q: ~torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(diagonal=1),
    "tril of numbers": lambda q: torch.ones(q.shape[2], q.shape[2]).tril().bool(),
    "tril that is 0": lambda q: torch.ones(q.shape[2], q.shape[2]).tril() != 0,
    "comparison": lambda q: positions(q)[:, None] >= positions(q),
    "turned": lambda q: (positions(q)[:, None] <= positions(q)).T,
    "transposed of four": lambda q: (positions(q)[:, None] <= positions(q))[None, None].transpose(2, 3),
    "below the next": lambda q: positions(q)[None, :] < positions(q)[:, None] + 1,
    "difference": lambda q: (positions(q)[:, None] - positions(q)[None, :]) >= 0,
    "twice": lambda q: 2 * positions(q)[:, None] + 1 > 2 * positions(q),
    "backwards": lambda q: (q.shape[2] - 1 - positions(q))[:, None] <= (q.shape[2] - 1 - positions(q)),
    "shifted both": lambda q: torch.arange(5, q.shape[2] + 5)[:, None] >= torch.arange(5, q.shape[2] + 5),
    "cut out of more": lambda q: torch.ones(99, 99, dtype=torch.bool).tril()[5 : 5 + q.shape[2], 5 : 5 + q.shape[2]],
    "counted": lambda q: torch.ones(q.shape[2], dtype=torch.long).cumsum(0)[:, None] > positions(q),
    "picked": lambda q: (positions(q)[:, None] >= positions(q))[positions(q)],
    "selected": lambda q: (positions(q)[:, None] >= positions(q)).index_select(1, positions(q)),
    "halves": lambda q: torch.cat(
        [(positions(q)[:, None] >= positions(q))[:3], (positions(q)[:, None] >= positions(q))[3:]]
    ),
    "or equal": lambda q: (positions(q)[:, None] > positions(q)) | (positions(q)[:, None] == positions(q)),
    "exclusive": lambda q: (positions(q)[:, None] > positions(q)) ^ (positions(q)[:, None] == positions(q)),
    "where": lambda q: torch.where(positions(q)[:, None] < positions(q), False, True),
    "window of all": lambda q: (
        (positions(q)[:, None] >= positions(q)) & (positions(q) > positions(q)[:, None] - LENGTH)
    ),
    "one chunk": lambda q: (
        (positions(q)[:, None] >= positions(q)) & (positions(q)[:, None] // LENGTH == positions(q) // LENGTH)
    ),
    "batch": lambda q: (positions(q)[:, None] >= positions(q)).expand(q.shape[0], 1, -1, -1),
    "heads": lambda q: (positions(q)[:, None] >= positions(q)).expand(q.shape[0], q.shape[1], -1, -1).clone(),
    "repeated": lambda q: (positions(q)[:, None] >= positions(q)).repeat(q.shape[0], 1, 1, 1),
    "columns repeated": lambda q: positions(q)[:, None].repeat(1, q.shape[2]) >= positions(q),
    "minus infinity": lambda q: torch.full((q.shape[2], q.shape[2]), INF).triu(1),
    "added": lambda q: added(positions(q)[:, None] >= positions(q)),
    "least number": lambda q: added(positions(q)[:, None] >= positions(q), LEAST),
    "times": lambda q: (1.0 - (positions(q)[:, None] >= positions(q)).float()) * LEAST,
    "where of numbers": lambda q: torch.where(positions(q)[:, None] < positions(q), LEAST, 0.0),
    "transformers": transformers_mask,
    "transformers, window of all": lambda q: transformers_mask(q, window=LENGTH),
}
WIDER = "may read keys that come after"
LESS = "may not read all keys"
OTHER = {
    "next key too": (lambda q: positions(q)[:, None] + 1 >= positions(q), WIDER),
    "not its own": (lambda q: positions(q)[:, None] > positions(q), LESS),
    "tril, one up": (lambda q: torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(1), WIDER),
    "tril, one down": (lambda q: torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(-1), LESS),
    "everything": (lambda q: torch.ones(q.shape[2], q.shape[2], dtype=torch.bool), WIDER),
    "nothing": (lambda q: torch.zeros(q.shape[2], q.shape[2], dtype=torch.bool), LESS),
    "turned": (lambda q: positions(q)[:, None] <= positions(q), WIDER),
    "window": (lambda q: transformers_mask(q, window=3), LESS),
    "window, one short": (lambda q: transformers_mask(q, window=LENGTH - 1), LESS),
    "prefix": (lambda q: (positions(q)[:, None] >= positions(q)) | (positions(q) < 3), WIDER),
    "offset of a cache": (lambda q: torch.arange(2, q.shape[2] + 2)[:, None] >= positions(q), WIDER),
    "repeated": (lambda q: (positions(q)[:1, None] >= positions(q)).repeat(q.shape[2], 1), LESS),
    "one sequence of two": (
        lambda q: (positions(q)[:, None] >= positions(q)) | (torch.arange(q.shape[0]) > 0)[:, None, None, None],
        WIDER,
    ),
    "one head of two": (
        lambda q: (positions(q)[:, None] >= positions(q)) & (torch.arange(q.shape[1]) > 0)[None, :, None, None],
        LESS,
    ),
    "last query": (lambda q: (positions(q)[:, None] >= positions(q)) & (positions(q)[:, None] < LENGTH - 1), LESS),
    "first key": (lambda q: (positions(q)[:, None] >= positions(q)) & (positions(q) > 0), LESS),
    "two sequences": (
        lambda q: (positions(q)[:, None] >= positions(q)) & ((positions(q)[:, None] >= 4) == (positions(q) >= 4)),
        LESS,
    ),
    "finite": (lambda q: added(positions(q)[:, None] >= positions(q), -1e9), "a large score outweighs"),
    "a bias": (lambda q: added(positions(q)[:, None] >= positions(q)) + 1.0, "a large score outweighs"),
    "not a number": (lambda q: torch.full((q.shape[2], q.shape[2]), INF).triu(1) * 0.0, "adds nan"),
    "short positions": (
        lambda q: positions(q).to(torch.int8)[:, None] * 60 >= positions(q).to(torch.int8) * 60,
        "too large",
    ),
    "pairs": (lambda q: positions(q)[:, None] // 2 >= positions(q) // 2, "keys that come after it"),
    "chunks": (
        lambda q: (positions(q)[:, None] // 4 == positions(q) // 4) & (positions(q)[:, None] >= positions(q)),
        "may not read all keys up to its own",
    ),
    "parity": (lambda q: positions(q)[:, None] % 2 >= positions(q) % 2, "is no operator of masks"),
    "drawn": (lambda q: torch.rand(q.shape[2], q.shape[2]) > 0.5, "draws random numbers"),
    "data": (lambda q: (q[0, 0, :, :1] > 0) & (positions(q)[:, None] >= positions(q)), "made of data"),
    "padding": (lambda q: (positions(q)[:, None] >= positions(q)) & (q[0, 0, :, 0] > 0), "made of data"),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_mask_is_found(name):
    q, make = queries(), CAUSAL[name]
    found = masks_of(make)
    assert len(found.causal) == 1 and not found.refused
    mask = read(make(q))
    assert torch.equal(mask, causal(LENGTH).expand_as(mask))


@pytest.mark.parametrize("name", OTHER)
def test_another_mask_is_refused(name):
    make, reason = OTHER[name]
    found = masks_of(make)
    assert not found.causal
    (refused,) = found.refused
    assert reason in refused.reason


@pytest.mark.parametrize("name", ["comparison", "tril", "minus infinity", "transformers", "counted", "difference"])
def test_a_causal_mask_of_a_symbolic_length_is_found(name):
    found = masks_of(CAUSAL[name], dynamic=True)
    assert len(found.causal) == 1 and not found.refused


@pytest.mark.parametrize(
    "name", ["next key too", "window", "prefix", "last query", "two sequences", "offset of a cache"]
)
def test_another_mask_of_a_symbolic_length_is_refused(name):
    assert not masks_of(OTHER[name][0], dynamic=True).causal


def test_a_window_may_be_shorter_than_a_symbolic_length():
    """At the length of the capture it is the causal mask; at a longer one it is not."""
    assert masks_of(CAUSAL["window of all"]).causal
    assert not masks_of(CAUSAL["window of all"], dynamic=True).causal


@pytest.mark.parametrize("dtype, found", [(torch.float64, 1), (torch.bfloat16, 1), (torch.float16, 0)])
def test_the_least_number_of_a_type_is_minus_infinity_where_no_score_outweighs_it(dtype, found):
    def attend(q):
        mask = torch.zeros(LENGTH, LENGTH, dtype=dtype)
        mask = mask.masked_fill(positions(q)[:, None] < positions(q), torch.finfo(dtype).min)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    assert len(causal_masks(captured(attend, queries().to(dtype)).module).causal) == found


def test_more_keys_than_queries_are_refused():
    def attend(q):
        mask = torch.ones(3, LENGTH, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q[:, :, :3], q, q, attn_mask=mask)

    (refused,) = causal_masks(captured(attend, queries()).module).refused
    assert "3 queries read 7 keys" in refused.reason


def test_a_mask_of_more_sequences_than_queries_is_refused():
    """Without it there would be fewer results."""

    def attend(q):
        mask = (positions(q)[:, None] >= positions(q)).expand(3, 1, -1, -1)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    found = []
    torch._dynamo.reset()
    call = torch.compile(attend, backend=lambda gm, _: found.append(causal_masks(gm)) or gm.forward)
    with pytest.raises(RuntimeError):  # this kernel does not take it; others may
        call(queries(batch=1))
    assert "more sequences or heads" in found[0].refused[0].reason


def test_an_offset_that_is_a_symbol_is_taken_for_any_number():
    """Dynamo makes a symbol of a number that changes; an offset of both positions cancels out unless it is huge."""

    def attend(q, offset):
        shifted = positions(q) + offset
        return F.scaled_dot_product_attention(q, q, q, attn_mask=shifted[:, None] >= positions(q))

    def both(q, offset):
        shifted = positions(q) + offset
        return F.scaled_dot_product_attention(q, q, q, attn_mask=shifted[:, None] >= shifted)

    for function in (attend, both):
        found = masks_at(function, (0, 5, 6))
        assert not found[-1].causal and "too large" in found[-1].refused[0].reason
        assert found[0].causal  # of the number 0, before it was seen to change


def masks_at(function, offsets):
    """The masks of each graph that Dynamo makes."""
    found = []
    torch._dynamo.reset()
    call = torch.compile(function, backend=lambda gm, _: found.append(causal_masks(gm)) or gm.forward)
    for offset in offsets:
        call(queries(), offset)
    return found


@pytest.mark.parametrize("through_a_view", [False, True])
def test_a_mask_that_is_written_into_is_refused(through_a_view):
    def make(q):
        mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
        (mask[3:] if through_a_view else mask).fill_(True)
        return mask

    assert "written in place" in masks_of(make).refused[0].reason


def test_a_mask_that_is_given_is_refused():
    def attend(q, mask):
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    found = causal_masks(captured(attend, queries(), causal(LENGTH)).module)
    assert "made of data" in found.refused[0].reason and not found.causal


def test_attention_in_a_region_of_its_own_keeps_its_mask():
    def attend(q):
        mask = positions(q)[:, None] >= positions(q)
        inner = lambda q, mask: F.scaled_dot_product_attention(q, q, q, attn_mask=mask)  # noqa: E731
        return torch.utils.checkpoint.checkpoint(inner, q, mask, use_reentrant=False)

    found = causal_masks(captured(attend, queries().requires_grad_()).module)
    assert not found.causal and "a region of its own" in found.refused[0].reason


def test_attention_without_a_mask_is_not_mentioned():
    found = causal_masks(captured(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), queries()).module)
    assert not found.causal and not found.refused


def test_a_long_mask_is_never_made():
    """A mask of 65,536 tokens has 2^32 entries."""
    q = torch.empty(1, 1, 65536, 4, device="meta")
    module = captured(attending(lambda q: transformers_mask(q, window=65536)), q).module
    start = time.perf_counter()
    assert len(causal_masks(module).causal) == 1
    assert time.perf_counter() - start < 1.0
