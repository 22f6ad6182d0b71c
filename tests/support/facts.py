"""Small joint graphs as numbers, made by hand or drawn, and every saved set of one. No torch."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st

from memgraph.facts.actions import Fixed, FixedKind
from memgraph.facts.joint import JointFacts, Value

SETTINGS = settings(deadline=None, derandomize=True, database=None)


def value(name: str, kind: str, *inputs: int, at: int, size: int = 0, **rest) -> Value:
    base = {"seconds": 0.0, "region": 0, "savable": kind != "tangent"}
    return Value(name=name, kind=kind, inputs=inputs, storage=at, bytes=size, **(base | rest))


def chain(nodes, *, regions: int = 1, outputs=()) -> JointFacts:
    """One input x, forward values f0, f1, ..., and for each that is read by the backward one backward value.

    nodes: one a forward value: (inputs, bytes, seconds, read by the backward, fixed).
    """
    values = [value("x", "primal", at=0, size=8)]
    for n, (inputs, size, seconds, _, fixed) in enumerate(nodes):
        region = n * regions // len(nodes)
        why = Fixed(FixedKind.DRAWS, fixed) if fixed else None
        values.append(value(f"f{n}", "extern", *inputs, at=n + 1, size=size, seconds=seconds, region=region, fixed=why))
    forward = tuple(range(1, len(values)))
    values.append(value("dz", "tangent", at=len(values), size=8))
    last, backward = len(values) - 1, []
    for n in reversed(range(len(nodes))):
        if nodes[n][3]:
            backward.append(len(values))
            region = n * regions // len(nodes)
            values.append(value(f"b{n}", "extern", last, n + 1, at=len(values), size=8, region=region))
            last = len(values) - 1
    return JointFacts(
        values=tuple(values),
        forward=forward,
        backward=tuple(backward),
        forward_outputs=outputs,
        backward_outputs=(last,),
        stock_saved=frozenset(n + 1 for n, node in enumerate(nodes) if node[3]),
        region_names=tuple(f"layers.{n}" for n in range(regions)),
    )


@st.composite
def graphs(draw, most: int = 7) -> JointFacts:
    nodes = []
    for n in range(draw(st.integers(1, most))):
        inputs = tuple(sorted(draw(st.sets(st.integers(0, n), min_size=1, max_size=2))))
        size, seconds = draw(st.integers(1, 20)), float(draw(st.integers(0, 20)))
        read = draw(st.booleans()) or n == 0
        nodes.append((inputs, size, seconds, read, "draws" if draw(st.integers(0, 7)) == 7 else ""))
    return chain(nodes, regions=draw(st.integers(1, 3)))


def again(facts: JointFacts, saved: frozenset[int]) -> float | None:
    """Seconds of computing again what the backward needs and was not saved; None where that is not legal."""
    pending = [i for b in facts.backward for i in facts.values[b].inputs]
    seen: set[int] = set()
    while pending:
        i = pending.pop()
        if i in seen or i in saved or i not in facts.forward:
            continue
        if facts.values[i].fixed:
            return None
        seen.add(i)
        pending += facts.values[i].inputs
    return sum(facts.values[i].seconds for i in seen)


def subsets(facts: JointFacts):
    for size in range(len(facts.forward) + 1):
        for saved in itertools.combinations(facts.forward, size):
            seconds = again(facts, frozenset(saved))
            if seconds is not None:
                yield frozenset(saved), sum(facts.values[i].bytes for i in saved), seconds
