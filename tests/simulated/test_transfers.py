"""The four operators on the simulated device: what they refuse, and the order of their copies in the log."""

from __future__ import annotations

import json

import pytest
import torch

import memgraph.runtime  # noqa: F401  (the operators)
from memgraph.base.errors import OffloadError
from tests.simulated.forked import on_the_device

pytestmark = pytest.mark.smoke
MIB = 1024**2


@pytest.mark.parametrize("tier", ["host"])
def test_no_copy_is_captured_into_a_graph(tier):
    value = torch.zeros(MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            with pytest.raises(OffloadError, match="cannot be captured"):
                torch.ops.memgraph.offload_start(value, "value", tier, json.dumps({}))
        finally:
            graph.capture_end()


def round_trip() -> None:
    """One value to the host and back, with work before, between and after."""
    operators = torch.ops.memgraph
    value = torch.zeros(MIB, device="cuda")
    ticket = operators.offload_start(value, "value", "host", json.dumps({}))
    between = torch.zeros(MIB, device="cuda")
    held = operators.offload_finish(ticket, value, "host")
    del ticket, value, between
    like = ([MIB], [1], torch.float32, torch.device("cuda:0"), "host")
    ticket = operators.reload_start(held, *like)
    back = operators.reload_finish(ticket, held, *like)
    back.add_(1)


def test_copies_wait_for_work_and_work_for_copies(tmp_path):
    on_the_device(round_trip, log=tmp_path / "log")
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    (out,) = [n for n, line in enumerate(lines) if line[0] == "copy" and line[2] == "d2h"]
    (back,) = [n for n, line in enumerate(lines) if line[0] == "copy" and line[2] == "h2d"]
    launches = [n for n, line in enumerate(lines) if line[0] == "launch"]
    compute = lines[launches[-1]][1]
    for copy in (out, back):
        side = lines[copy][1]
        assert side != compute
        assert waits(lines[:copy], side, compute), "the copy starts before the value is computed or its block is free"
    end = waits(lines[out : launches[-1]], compute, lines[out][1])
    assert end, "the block is given away while it may still be copied"
    assert waits(lines[back : launches[-1]], compute, lines[back][1]), "the value is read before it is back"


def waits(lines: list[list[str]], waiting: str, behind: str) -> bool:
    """Whether a stream waits for an event that was recorded on another one, in this order."""
    recorded = set()
    for line in lines:
        if line[0] == "record" and line[1] == behind:
            recorded.add(line[2])
        if line[0] == "wait" and line[1] == waiting and line[2] in recorded:
            return True
    return False
