import json
import multiprocessing
import os
import threading
import time

import pytest

from memgraph.base.store import Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "plans")


def names(store):
    return sorted(os.listdir(store.folder))


def test_gives_back_what_was_put(store):
    record = {"margin": 3, "last": False, "report": "é\ud800", "nested": [1, None, 0.1]}
    store.put("a", record)
    store.put("b", {})
    assert store.get("a") == record and store.get("b") == {} and store.get("c") is None
    store.put("a", {"margin": 4})
    assert store.get("a") == {"margin": 4}
    assert names(store) == ["a.json", "b.json"]


def test_lies_in_the_cache_folder_for_the_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMGRAPH_CACHE", str(tmp_path / "cache"))
    Store().put("a", {"x": 1})
    file = tmp_path / "cache" / "plans" / "a.json"
    assert json.loads(file.read_text()) == {"x": 1}
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "content", [b"", b'{"margin": 1', b"[1]", b"null", b"\xff\xfe", b"[" * 200_000], ids=lambda c: repr(c[:8])
)
def test_removes_what_is_corrupt(store, content, caplog):
    store.put("a", {})
    (store.folder / "a.json").write_bytes(content)
    assert store.get("a") is None
    assert names(store) == []
    assert "a.json" in caplog.text
    store.put("a", {"margin": 1})
    assert store.get("a") == {"margin": 1}


@pytest.mark.parametrize("key", ["", "../a", "a/b", "a.json", "a\n", "x" * 201])
def test_refuses_a_key_that_is_no_file_name(store, key):
    with pytest.raises(ValueError):
        store.put(key, {})
    with pytest.raises(ValueError):
        store.get(key)


def test_refuses_what_is_not_json_and_keeps_the_old_record(store):
    store.put("a", {"x": 1})
    with pytest.raises(TypeError):
        store.put("a", {"x": object()})
    assert store.get("a") == {"x": 1} and names(store) == ["a.json"]


def age(store, key, seconds):
    then = time.time() - seconds
    os.utime(store.folder / f"{key}.json", (then, then))


def test_prunes_the_least_recently_used(tmp_path):
    store = Store(tmp_path, kept=3)
    for seconds, key in ((40, "a"), (30, "b"), (20, "c")):
        store.put(key, {})
        age(store, key, seconds)
    assert store.get("a") == {}  # used just now
    store.put("d", {})
    assert names(store) == ["a.json", "c.json", "d.json"]


def test_keeps_the_newest_of_equal_times(tmp_path, monkeypatch):
    store = Store(tmp_path, kept=2)
    for key in ("z", "y", "a"):  # no order of names puts "a" first
        store.put(key, {})
        for name in names(store):
            os.utime(tmp_path / name, (1, 1))
    real = os.replace

    def replace(source, target):  # a file system with coarse times
        real(source, target)
        os.utime(target, (1, 1))

    monkeypatch.setattr(os, "replace", replace)
    store.put("b", {"x": 1})
    assert store.get("b") == {"x": 1} and len(names(store)) == 2


def test_prunes_by_bytes_but_never_the_newest(tmp_path):
    store = Store(tmp_path, kept_bytes=1000)
    store.put("a", {"x": "x" * 600})
    age(store, "a", 10)
    store.put("b", {"x": "x" * 300})
    assert names(store) == ["a.json", "b.json"]
    store.put("c", {"x": "x" * 2000})
    assert names(store) == ["c.json"]


def test_clears_what_killed_processes_left(store):
    store.put("a", {})
    for name, seconds in ((".old.tmp", 7200), (".new.tmp", 0)):
        (store.folder / name).write_text("{")
        os.utime(store.folder / name, (time.time() - seconds,) * 2)
    store.put("b", {})
    assert names(store) == [".new.tmp", "a.json", "b.json"]


def test_a_disk_that_refuses_is_only_logged(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    for where in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("MEMGRAPH_CACHE", str(where))
        store = Store()
        store.put("a", {})
        assert store.get("a") is None
    assert caplog.text.count("not kept") == 2


def test_a_failed_write_leaves_nothing(store, monkeypatch):
    store.put("a", {"x": 1})

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    store.put("a", {"x": 2})
    assert store.get("a") == {"x": 1} and names(store) == ["a.json"]


def put_many(folder, writer):
    store = Store(folder, kept=4)
    for turn in range(30):
        store.put("shared", {"writer": writer, "text": f"{writer}" * 5000})
        store.put(f"own-{writer}-{turn}", {})


def test_concurrent_processes_never_see_half_a_record(tmp_path):
    Store(tmp_path).put("shared", {"writer": 0, "text": "0" * 5000})
    writers = [multiprocessing.get_context("fork").Process(target=put_many, args=(tmp_path, i)) for i in (1, 2)]
    writers.append(threading.Thread(target=put_many, args=(tmp_path, 3)))
    for writer in writers:
        writer.start()
    store, seen = Store(tmp_path), 0
    while any(writer.is_alive() for writer in writers):
        record = store.get("shared")
        if record is not None:  # pruned by one writer, until the next puts it again
            assert record["text"] == f"{record['writer']}" * 5000
            seen += 1
    for writer in writers:
        writer.join()
    assert all(getattr(writer, "exitcode", 0) == 0 for writer in writers)
    assert seen and 1 <= len(names(store)) <= 4 and not any(name.endswith(".tmp") for name in names(store))
