"""What fusion does to prices, on graphs whose kernels one can count."""

from __future__ import annotations

from memgraph.facts.joint import JointFacts
from memgraph.machine.hardware import Hardware
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
