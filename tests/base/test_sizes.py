import pytest
from hypothesis import given
from hypothesis import strategies as st

from memgraph.base.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20GiB", 20 * 1024**3),
        (" 20 gib ", 20 * 1024**3),
        ("1.5KiB", 1536),
        (".5 KB", 500),
        ("0.1GB", 100_000_000),  # exact, which a float product need not be
        ("1TiB", 1024**4),
        ("1tb", 10**12),
        ("7B", 7),
        ("1.9B", 1),
        (123, 123),
    ],
)
def test_parses(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "size",
    ["20 GiBs", "20", "GiB", "", "-1GiB", "1e3GiB", "1,5GiB", "20G", "0GiB", "0.1B", "٣GiB"]
    + [0, -1, True, 1.5, None, [1], b"1GiB"],
)
def test_refuses(size):
    with pytest.raises(ValueError) as refusal:
        parse_size(size)
    assert repr(size) in str(refusal.value)


def test_zero_only_where_allowed():
    assert parse_size(0, allow_zero=True) == parse_size("0 B", allow_zero=True) == 0
    with pytest.raises(ValueError):
        parse_size(-1, allow_zero=True)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (20 * 1024**3, "20.0 GiB"),
        (5000 * 1024**4, "5000.0 TiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_formats(size, text):
    assert format_size(size) == text


@given(st.integers(1, 2**60))
def test_formatting_keeps_the_size_to_its_last_digit(size):
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.051)
