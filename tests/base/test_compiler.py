"""The C++ compiler and the reader of the allocator's counters that is built with it."""

import pytest
import torch

from memgraph.base import compat, compiler
from memgraph.base.compat import counters
from memgraph.machine import measure


def test_without_a_compiler_the_error_says_so(monkeypatch):
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    with pytest.raises(compiler.CompilerError, match="install g\\+\\+"):
        compiler.compiler()


def test_what_cannot_be_built_says_why():
    with pytest.raises(compiler.CompilerError, match="cannot be built: broken"):
        compiler.run(["sh", "-c", "echo broken >&2; exit 1"], "it cannot be built")


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """Nothing is built yet."""
    monkeypatch.setenv("MEMGRAPH_CACHE", str(tmp_path))
    counters.allocator_counters.cache_clear()
    yield tmp_path / "native"
    counters.allocator_counters.cache_clear()


@pytest.mark.inductor
def test_the_reader_is_built_once_and_knows_where_there_is_no_device(anew, monkeypatch):
    read = counters.allocator_counters()
    assert read is not None
    if not torch.cuda.is_available():
        assert read(0) is None
    assert [file.suffix for file in anew.iterdir()] == [".so"]
    counters.allocator_counters.cache_clear()
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    assert counters.allocator_counters() is not None, "it is found again"


def test_without_a_compiler_there_is_no_reader(anew, monkeypatch):
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    assert counters.allocator_counters() is None


@pytest.mark.parametrize("read", [None, lambda device: None], ids=["no reader", "another allocator"])
def test_without_the_reader_the_counters_are_those_of_the_dictionary(monkeypatch, read):
    kinds = {"allocated_bytes": {"all": {"current": 3, "peak": 7}}, "requested_bytes": {"all": {"current": 2}}}
    monkeypatch.setattr(compat, "allocator_counters", lambda: read)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: kinds)
    found = measure.counters(torch.device("cuda", 0))
    assert (found.allocated, found.highest, found.requested, found.uncut) == (3, 7, 2, 1)
