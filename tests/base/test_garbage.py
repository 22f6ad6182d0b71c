"""Python's collector of garbage, held back."""

from __future__ import annotations

import gc

import pytest

from memgraph.base.garbage import without_collections


@pytest.fixture(autouse=True)
def as_before():
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


def test_nothing_is_collected_within():
    gc.enable()
    with without_collections():
        assert not gc.isenabled()
        with without_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_leaves_the_collector_as_it_was():
    gc.enable()
    with pytest.raises(ValueError), without_collections():
        raise ValueError
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off():
    gc.disable()
    with without_collections():
        pass
    assert not gc.isenabled()
