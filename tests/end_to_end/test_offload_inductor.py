"""Offload through Inductor: the order of copies survives, the bits are those of the same plan with save."""

from __future__ import annotations

import gc
import re

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

import memgraph
from memgraph import passes, runtime
from memgraph.facts.actions import Offload
from memgraph.machine import disk
from memgraph.machine.measure import peak_above_start
from tests.support.models.stack import Stack
from tests.support.offloading import GdsFiles

pytestmark = [pytest.mark.inductor, pytest.mark.slow]


X = torch.randn(512, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def scratch(tmp_path):
    yield str(tmp_path)
    torch._dynamo.reset()
    runtime.release()
    assert runtime.statistics().nvme_live == 0
    assert not list(tmp_path.iterdir())


def options(scratch: str, **more) -> dict:
    return {
        "budget": None,
        "offload": {"nvme": scratch, "min_bytes": 0, "verify": True},
        "rules": {"*": "offload:nvme"},
        **more,
    }


def step(call, module: nn.Module, *args: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    loss = call(*args)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters())]


def compiled(module: nn.Module, **given):
    torch._dynamo.reset()
    return torch.compile(module, backend="memgraph", options=given)


def test_order_bits_peak_and_a_warm_cache(scratch, monkeypatch):
    torch.manual_seed(0)
    module = Stack()
    call = compiled(module, **options(scratch, cache=False))
    found, codes = run_and_get_code(lambda: step(call, module, X))
    report = memgraph.report()
    moved = [decision.name for decision in report.decisions if isinstance(decision.action, Offload)]
    assert len(moved) > 6 and report.bytes_on("nvme") > 0
    forward, backward = (next(code for code in codes if f"memgraph.{op}_start" in code) for op in ("offload", "reload"))
    check_forward(forward, moved)
    check_backward(backward, moved)

    module.zero_grad(set_to_none=True)
    peak = peak_above_start(lambda: call(X).backward(), "cpu")
    assert peak == report.predicted_peak - report.baseline

    with runtime.sanitized(0):
        again = step(call, module, X)
    # The same plan, in the same order, with every value saved where it would leave.
    monkeypatch.setattr(passes, "SPLIT", passes.SPLIT[:-1])
    saving = step(compiled(module, **options(scratch, cache=False)), module, X)
    for mine, poisoned, saved in zip(found, again, saving, strict=True):
        assert torch.equal(mine, poisoned) and torch.equal(mine, saved)
    monkeypatch.undo()

    kept = step(compiled(module, **options(scratch)), module, X)
    assert not memgraph.report().cached
    warm = step(compiled(module, **options(scratch)), module, X)
    assert memgraph.report().cached and memgraph.report().bytes_on("nvme") == report.bytes_on("nvme")
    for mine, cold, hot in zip(found, kept, warm, strict=True):
        assert torch.equal(mine, cold) and torch.equal(mine, hot)


def test_by_gpudirect_and_the_report_says_so(scratch, monkeypatch, tmp_path):
    monkeypatch.setenv("MEMGRAPH_CACHE", str(tmp_path.parent / f"{tmp_path.name}-cache"))
    disk.save(scratch, disk.Disk(write=1e9, read=1e9, gpudirect_write=4e9, gpudirect_read=4e9))
    torch.manual_seed(0)
    module = Stack(1)
    given = options(scratch, offload={"nvme": {"path": scratch, "gpudirect": False}, "min_bytes": 0})
    staged = step(compiled(module, **given), module, X)
    assert not any("GPUDirect" in note for note in memgraph.report().notes)  # nothing to choose on a CPU

    given["offload"]["nvme"] = scratch
    torch._dynamo.reset()
    runtime.release()
    runtime.scratch_file(scratch, "cpu", gds=(files := GdsFiles()))
    direct = step(compiled(module, **given), module, X)
    assert files.of("save") and len(files.of("save")) == len(files.of("load"))
    assert any("by GPUDirect (4.00 GB/s out, 4.00 back)" in note for note in memgraph.report().notes)
    assert all(map(torch.equal, staged, direct))

    files.fail = {"open": "cuFileDriverOpen failed"}
    given["offload"]["nvme"] = {"path": scratch, "gpudirect": True}
    torch._dynamo.reset()
    gc.collect()
    runtime.release()
    with pytest.raises(memgraph.OffloadError, match="asked for and cannot be used: cuFileDriverOpen failed"):
        step(compiled(module, **given), module, X)


def lines_of(code: str) -> list[str]:
    """The wrapper's statements, in order."""
    return [line.strip() for line in code[code.index("def call(") :].splitlines()]


def check_forward(code: str, moved: list[str]) -> None:
    """A copy and its end get one buffer, and that is given up, or reused, after the end and not before."""
    lines = lines_of(code)
    argument = r"(reinterpret_tensor\(.*?\), \d+\)|\w+)"
    found = set()
    for begun, line in enumerate(lines):
        if match := re.search(rf"(\w+) = torch\.ops\.memgraph\.offload_start\.default\({argument}, '(\w+)'", line):
            ticket, x, name = match.groups()
            # Up to 2.13 the ticket gets a second name; from 2.15 an operator's only output is its buffer.
            renamed = (m[1] for other in lines[begun:] if (m := re.match(rf"(\w+) = {ticket}\b", other)))
            value = next(renamed, ticket)
            finished = next(n for n, other in enumerate(lines) if f"offload_finish.default({value}, {x}, " in other)
            buffer = re.search(r"buf\d+", x)[0]
            given_up = [n for n, other in enumerate(lines) if re.search(rf"\bdel {buffer}\b", other)]
            assert begun < finished and all(finished < n for n in given_up), name
            found.add(name)
    assert found == set(moved)


def check_backward(code: str, moved: list[str]) -> None:
    """Each load starts before its end, and work stands between the two for many."""
    lines = lines_of(code)
    work = [n for n, line in enumerate(lines) if "extern_kernels." in line or "cpp_fused" in line]
    hidden, found = 0, set()
    for begun, line in enumerate(lines):
        if match := re.search(r"reload_start\.default\((\w+)_held, ", line):
            end = re.compile(rf"reload_finish\.default\(\w+, {match[1]}_held, ")
            finished = next(n for n, other in enumerate(lines) if end.search(other))
            assert begun < finished
            hidden += any(begun < n < finished for n in work)
            found.add(match[1])
    assert found == set(moved)
    assert hidden > len(found) / 3, "copies stand next to their ends: nothing hides them"


def test_one_graph_a_layer(scratch):
    """Each layer compiled by itself: its values are its own graph's, and the next one's may come early."""
    torch.manual_seed(0)
    module = Stack()
    reference = step(module, module, X)
    torch._dynamo.reset()
    given = options(scratch)
    given["offload"] |= {"window": 1 << 20}
    for layer in module.layers:
        layer.compile(backend="memgraph", options=given)
    for _ in range(3):
        found = step(module, module, X)
        for mine, theirs in zip(found, reference, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        assert runtime.statistics().nvme_live == 0
    assert runtime.statistics().read > 0
