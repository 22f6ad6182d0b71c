"""What a container leaves to its processes: control groups made of plain files."""

from __future__ import annotations

import pytest

from memgraph.machine import memory

MIB = 1024**2


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A function that makes groups, of (path, limit, bytes taken, of them in the page cache)."""
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_OWN_GROUP", tmp_path / "own")

    def make(own, *found):
        (tmp_path / "own").write_text(f"1:cpu:/elsewhere\n0::/{own}\n")
        for path, limit, taken, cached in found:
            folder = tmp_path / path
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "memory.max").write_text(f"{limit}\n")
            (folder / "memory.current").write_text(f"{taken}\n")
            (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")

    return make


def test_without_a_limit_it_is_that_of_the_machine(groups):
    plain = memory.physical_memory()
    groups("a/b", ("a/b", "max", 5 * MIB, 0))
    assert memory.physical_memory() == plain > 5 * MIB
    assert memory.free_memory() > 5 * MIB


def test_the_tightest_of_all_groups_counts(groups):
    groups("a/b", ("", "max", 0, 0), ("a", 30 * MIB, 25 * MIB, 3 * MIB), ("a/b", 20 * MIB, 4 * MIB, 0))
    assert memory.physical_memory() == 20 * MIB
    assert memory.free_memory() == (30 - 25 + 3) * MIB


def test_a_container_sees_its_own_group_as_the_outermost(groups):
    groups("", ("", 8 * MIB, 2 * MIB, 0))
    assert memory.physical_memory() == 8 * MIB and memory.free_memory() == 6 * MIB


def test_where_there_are_no_groups_the_machine_decides(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_OWN_GROUP", tmp_path / "none")
    assert memory.free_memory() > MIB and memory.physical_memory() > MIB
