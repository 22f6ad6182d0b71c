"""Values that one kernel makes and reads get no memory; what a view by strides views gets some."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from memgraph.facts.joint import JointFacts, Value
from memgraph.facts.liveness import Sweep, sweep
from memgraph.planner.schedule import forward_program
from tests.support.facts import value


def values(*made: tuple[str, str, tuple[int, ...], dict]) -> list[Value]:
    """An input x, 0, and values of 16 entries, in order: (name, kind, what it reads, more)."""
    found = [value("x", "primal", at=0, size=64, entries=16)]
    for at, (name, kind, reads, more) in enumerate(made, 1):
        found.append(value(name, kind, *reads, at=at, size=64, **({"entries": 16} | more)))
    return found


def swept(values: Sequence[Value], *outputs: int) -> tuple[Sweep, set[str]]:
    """The sweep of a forward of all values behind the input as Inductor runs it, and what it writes."""
    facts = JointFacts(tuple(values), tuple(range(1, len(values))), (), outputs, (), frozenset(outputs), ("0",))
    program = forward_program(facts, outputs)
    found = sweep(facts.values, program, fused=True)
    return found, {values[program.values[slot]].name for slot in found.births if slot >= program.inputs}


def shared(**last: object) -> list[Value]:
    """e = exp of a product, which 2 e and e + 1 read, and z = 2 e * (e + 1)."""
    return values(
        ("product", "extern", (0,), {}),
        ("e", "pointwise", (1,), {"heavy": True}),
        ("double", "pointwise", (2,), {}),
        ("more", "pointwise", (2,), {}),
        ("z", "pointwise", (3, 4), last),
    )


def test_a_costly_value_that_one_kernel_reads_twice_stays_in_it():
    found, written = swept(shared(), 5)
    assert written == {"product", "z"}
    assert found.in_place == {5: 1} and max(found.usage) == 64  # z takes the place of what the kernel reads last


@pytest.mark.parametrize(
    "others, outputs",
    [
        (shared(), (4, 5)),  # two kernels read it
        (shared(), (2, 5)),  # it is an output
        (shared(entries=32), (5,)),  # the kernel has other entries
        (shared(elsewhere=(1,)), (5,)),  # the kernel reads another entry than it writes
    ],
)
def test_a_costly_value_is_written_that_another_reads_or_reads_elsewhere(others, outputs):
    assert "e" in swept(others, *outputs)[1]


@pytest.mark.parametrize("reader", ["reduction", "extern"])
def test_a_costly_value_is_written_for_what_is_not_pointwise(reader):
    first = shared()
    first[5] = dataclasses.replace(first[5], kind=reader)
    written = {"e"} if reader == "reduction" else {"e", "double", "more"}
    assert swept(first, 5)[1] == {"product", "z"} | written


def test_of_a_chain_of_such_values_only_the_last_is_written():
    more = values(
        ("e", "pointwise", (0,), {"heavy": True}),
        ("double", "pointwise", (1,), {}),
        ("z", "pointwise", (1, 2), {"heavy": True}),
        ("half", "pointwise", (3,), {}),
        ("least", "pointwise", (3,), {}),
        ("y", "pointwise", (4, 5), {}),
        ("product", "extern", (6,), {"entries": 1}),
    )
    found, written = swept(more, 7)
    assert written == {"y", "product"}
    assert max(found.usage) == 2 * 64
    _, apart = swept([*more[:5], dataclasses.replace(more[5], kind="reduction"), *more[6:]], 7)
    assert apart >= {"z"} and "e" not in apart


@pytest.mark.parametrize("strided", [False, True])
def test_what_a_view_by_strides_views_is_written(strided):
    viewed = values(
        ("double", "pointwise", (0,), {}), ("view", "view", (1,), {"strided": strided}), ("z", "pointwise", (2,), {})
    )
    viewed[2] = dataclasses.replace(viewed[2], storage=1, bytes=0)
    assert swept(viewed, 3)[1] == ({"double", "z"} if strided else {"z"})
