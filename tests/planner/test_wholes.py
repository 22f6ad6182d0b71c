"""Which gradients are written as a whole before their parts are: those whose parts would make the peak."""

from __future__ import annotations

import pytest

from memgraph.facts.joint import JointFacts
from memgraph.planner.candidates import Candidate, Candidates
from memgraph.planner.decisions import KernelEnd
from memgraph.planner.kernel_ends import kernel_ends
from memgraph.planner.moments import read_moments
from memgraph.planner.narrows import Narrows
from memgraph.planner.solve import Planner
from tests.support.facts import value

HALF = 60
COPY = 0.25  # seconds a part


def joins(count: int, *, skips: bool = True) -> JointFacts:
    """Joins one after another: each whole is the sum of what two products made, or one, and two products read parts."""
    values = [
        value("x", "primal", at=0, size=8),
        value("y", "extern", 0, at=1, size=8),
        value("dz", "tangent", at=2, size=8),
    ]
    last = 2
    for n in range(count):
        at = len(values)
        made = [at, at + 1] if skips else [at]
        values += [value(f"made{n}_{k}", "extern", last, at=i, size=2 * HALF) for k, i in enumerate(made)]
        whole = len(values)
        parts = [whole + 1, whole + 2]
        values.append(value(f"whole{n}", "pointwise", *made, at=whole, size=2 * HALF, entries=2 * HALF))
        values += [
            value(f"part{n}_{i - whole}", "view", whole, at=whole, part=HALF, elsewhere=(0,), hold=COPY) for i in parts
        ]
        values.append(value(f"early{n}", "extern", parts[0], at=whole + 3, size=8))
        values.append(value(f"late{n}", "extern", parts[1], whole + 3, at=whole + 4, size=8))
        last = whole + 4
    return JointFacts(tuple(values), (1,), tuple(range(3, len(values))), (1,), (last,), frozenset(), ("0",))


def settled(facts: JointFacts, candidate: Candidate) -> set[str]:
    program = candidate.schedule.backward
    return {facts.values[program.values[slot]].name for slot in program.settled}


def planned(facts: JointFacts) -> Candidate:
    found = Candidates(facts).of(frozenset())
    assert found is not None
    return found


@pytest.mark.parametrize("count", [1, 3])
def test_a_whole_takes_the_place_of_one_of_two_that_it_is_made_of(count):
    facts = joins(count)
    found = planned(facts)
    assert {f"whole{n}" for n in range(count)} < settled(facts, found)
    # Both that it is made of; then the whole and its parts. From wholes of their own all three would stand: 360.
    assert 4 * HALF <= found.backward.peak <= 4 * HALF + 16
    assert found.seconds == pytest.approx(2 * COPY * count)
    # Else one function of C++ would hold all that a whole is made of.
    behind = tuple(KernelEnd("backward", f"part{n}_1", (f"whole{n}",)) for n in range(count))
    assert kernel_ends(facts, found) == behind


def test_a_whole_is_not_written_where_that_does_not_help():
    facts = joins(2, skips=False)
    found = planned(facts)
    assert settled(facts, found) == {f"part{n}_{k}" for n in range(2) for k in (1, 2)}
    assert 4 * HALF <= found.backward.peak <= 4 * HALF + 16 and found.seconds == 0
    assert kernel_ends(facts, found) == ()


def test_the_fx_interpreter_writes_every_whole_and_no_part():
    found = Candidates(joins(1), fused=False).of(frozenset())
    assert found is not None and not found.schedule.backward.settled and found.seconds == 0


def test_the_bound_counts_a_part_and_not_its_whole():
    facts = joins(1)
    late = next(i for i, v in enumerate(facts.values) if v.name == "late0")
    narrow = Narrows(facts, read_moments(facts, fused=True)).at(facts.backward.index(late))
    assert narrow.bytes == HALF
    assert Planner(facts).bounds.smallest() <= planned(facts).peak
