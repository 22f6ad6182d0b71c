"""Offload by GPUDirect, with files that stand for cuFile: chosen by the figures, refused aloud, the same bits."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json

import pytest
import torch

import memgraph
from memgraph import runtime
from memgraph.backend.destinations import settings, tiers
from memgraph.backend.options import parse_options
from memgraph.machine import disk
from memgraph.machine.hardware import built_in
from memgraph.runtime import sanitized
from tests.support.harness import Eager, assert_bitwise, step_of
from tests.support.lanes import slow_but
from tests.support.offloading import GdsFiles

FASTER = disk.Disk(write=1e9, read=1e9, gpudirect_write=4e9, gpudirect_read=5e9)


@pytest.fixture
def figures(tmp_path, monkeypatch):
    """Keeps the figures of the disk in a cache of this test's own."""
    monkeypatch.setenv("MEMGRAPH_CACHE", str(tmp_path.parent / f"{tmp_path.name}-cache"))
    return lambda known: disk.save(tmp_path, known)


def found(scratch, hardware="H100", here=False, verify=False, **nvme):
    options = parse_options({"offload": {"nvme": {"path": scratch, **nvme}, "verify": verify}})
    result = tiers(options, built_in(hardware), here)
    return result, json.loads(settings(options, result)["nvme"])


def test_gpudirect_by_the_figures(scratch, figures):
    result, told = found(scratch)
    assert not result.tiers[0].gpudirect and "gpudirect" not in told
    assert "not by GPUDirect: it was not measured here" in result.notes[0]
    figures(FASTER)
    result, told = found(scratch)
    assert (result.tiers[0].out, result.tiers[0].back) == (4e9, 5e9) and told["gpudirect"] is True
    assert "by GPUDirect (4.00 GB/s out, 5.00 back)" in result.notes[0]
    for more, reason in (
        ({"gpudirect": False}, "switched off"),
        ({"verify": True}, "checksums"),
    ):
        result, told = found(scratch, **more)
        assert (result.tiers[0].out, result.tiers[0].gpudirect) == (1e9, False) and "gpudirect" not in told
        assert f"staged in page-locked memory (1.00 GB/s out, 1.00 back), not by GPUDirect: {reason}" in result.notes[0]
    figures(dataclasses.replace(FASTER, write=5e9, read=5e9))
    assert "is not faster (4.00 GB/s out" in found(scratch)[0].notes[0]
    assert found(scratch, gpudirect=True)[0].tiers[0].out == 4e9


def test_gpudirect_that_was_asked_for_and_cannot_be_had(scratch, figures):
    for here in (True, False):
        with pytest.raises(memgraph.OffloadError, match="cannot be used: values on the CPU.*lie") as caught:
            found(scratch, "cpu", here, gpudirect=True)
        assert (caught.value.tier, caught.value.path) == ("nvme", scratch)
    runtime.scratch_file(scratch, "cpu", gds=GdsFiles(open="cuFileDriverOpen failed: no driver"))
    with pytest.raises(memgraph.OffloadError, match="asked for and cannot be used: cuFileDriverOpen failed: no driver"):
        found(scratch, "cpu", True, gpudirect=True)
    figures(FASTER)
    result, told = found(scratch, "cpu", True)  # nobody asked: staged, at that speed
    assert (result.tiers[0].out, told.get("gpudirect")) == (1e9, None)


def test_gpudirect_that_the_cpu_has_not_is_not_spoken_of(scratch, figures):
    assert found(scratch, "cpu", True)[0].notes == ()
    figures(FASTER)
    assert found(scratch, "cpu", True)[0].notes == ()


@pytest.mark.slow
@pytest.mark.parametrize("sanitizing", slow_but([False, True], fast=[True]))
def test_the_same_bits_by_gpudirect(scratch, figures, sanitizing):
    figures(FASTER)
    runtime.scratch_file(scratch, "cpu", gds=(files := GdsFiles()))
    result, _ = found(scratch, "cpu", True)
    assert result.tiers[0].gpudirect
    backend = Eager(tiers=result, offload={"nvme": scratch, "min_bytes": 0}, rules={"*": "offload:nvme"})
    with sanitized(0) if sanitizing else contextlib.nullcontext():
        assert_bitwise(step_of("llama", backend)(), step_of("llama", Eager())())
    moves = backend.planned[-1].plan.transfers
    assert len(moves) > 5 and files.of("save") and len(files.of("save")) == len(files.of("load"))


@pytest.mark.slow
def test_gpudirect_that_fails_in_a_step(scratch, figures):
    figures(FASTER)
    runtime.scratch_file(scratch, "cpu", gds=(files := GdsFiles()))
    result, _ = found(scratch, "cpu", True)
    room = runtime.prepare("cpu", json.dumps({"folder": scratch, "gpudirect": True}), nvme_bytes=1 << 20)
    files.fail = {"load": "cuFileRead failed: Input/output error"}
    backend = Eager(tiers=result, offload={"nvme": scratch, "min_bytes": 0}, rules={"*": "offload:nvme"})
    with pytest.raises(memgraph.OffloadError, match="GPUDirect: cuFileRead failed") as caught:
        step_of("llama", backend)()
    assert caught.value.value and (caught.value.tier, caught.value.path) == ("nvme", scratch)
    del caught
    torch._dynamo.reset()
    gc.collect()
    room.close()
