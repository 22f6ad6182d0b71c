"""What fusion does to prices, on graphs whose kernels one can count."""

from __future__ import annotations

import dataclasses

import pytest

from memgraph.facts.joint import JointFacts
from memgraph.facts.values import Label
from memgraph.machine.hardware import Hardware
from memgraph.planner.candidates import Candidates
from memgraph.planner.prices import price_fusion
from tests.support.facts import value

BANDWIDTH = 100.0
HARDWARE = Hardware("test", "cpu", (("float32", 1e9),), BANDWIDTH, 1e8, 1e-6, 2**30)


def test_a_value_that_one_kernel_makes_and_reads_costs_a_write_and_a_read_to_save():
    """f0 fuses into f1, which a product reads; b1 fuses into b0, which the backward returns."""
    values = (
        value("x", "primal", at=0, size=200),
        value("f0", "pointwise", 0, at=1, size=200, seconds=5.0),
        value("f1", "pointwise", 1, at=2, size=200, seconds=5.0),
        value("f2", "extern", 2, at=3, size=200, seconds=5.0),
        value("dz", "tangent", at=4, size=200),
        value("b1", "pointwise", 4, 1, at=5, size=200, seconds=5.0),
        value("b0", "pointwise", 5, at=6, size=200, seconds=5.0),
    )
    facts = JointFacts(values, (1, 2, 3), (5, 6), (3,), (6,), frozenset((0, 2)), ("",))
    priced = price_fusion(facts, HARDWARE).values
    assert [v.seconds for v in priced] == [0.0, 3.0, 5.0, 5.0, 0.0, 3.0, 5.0]  # less a write of 200 bytes
    assert [v.hold for v in priced] == [0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_truth_values_cost_a_cpu_what_their_vectors_cost():
    """le fuses into what reads it in both directions: to save it, a CPU stores and loads each of its entries."""
    values = (
        value("x", "primal", at=0, size=200),
        dataclasses.replace(value("le", "pointwise", 0, at=1, size=50, seconds=1.0), label=Label(dtype="bool")),
        value("out", "pointwise", 1, at=2, size=200, seconds=5.0),
        value("dz", "tangent", at=3, size=200),
        value("dx", "pointwise", 3, 1, at=4, size=200, seconds=5.0),
    )
    facts = JointFacts(values, (1, 2), (4,), (2,), (4,), frozenset((1,)), ("",))
    on_gpu, on_cpu = (price_fusion(facts, dataclasses.replace(HARDWARE, truth_time=time)) for time in (0.0, 0.25))
    assert on_gpu.values[1].hold == 1.0  # 50 bytes written and read
    assert on_cpu.values[1].hold == pytest.approx(1.0 + 50 * 0.25)
    # Inductor saves it, and pays for it in its step.
    steps = [Candidates(facts).stock_step for facts in (on_gpu, on_cpu)]
    assert steps[1] - steps[0] == pytest.approx(50 * 0.25)


@pytest.mark.parametrize("reader", ["extern", "pointwise"])
def test_truth_values_that_are_written_in_any_case_cost_their_vectors_once_in_every_plan(reader):
    """A product or a tile that reads le has it written, saved or not; where it is computed again, it is again."""
    values = (
        value("x", "primal", at=0, size=200),
        dataclasses.replace(value("le", "pointwise", 0, at=1, size=50, seconds=1.0), label=Label(dtype="bool")),
        value("out", reader, 1, at=2, size=200, seconds=5.0),
        value("dz", "tangent", at=3, size=200),
        dataclasses.replace(value("gt", "pointwise", 3, at=4, size=50, seconds=1.0), label=Label(dtype="bool")),
        value("dx", reader, 4, 1, at=5, size=200, seconds=5.0),
    )
    facts = JointFacts(values, (1, 2), (4, 5), (2,), (5,), frozenset((1,)), ("",))
    priced = price_fusion(facts, dataclasses.replace(HARDWARE, truth_time=0.25)).values
    written = reader == "extern"
    assert priced[1].seconds == (1.0 + 50 * 0.25 if written else 0.5)  # fused: less a write of 50 bytes
    assert priced[4].seconds == (1.0 + 50 * 0.25 if written else 0.5)
    assert priced[1].hold == (0.0 if written else 1.0 + 50 * 0.25)
