"""Which values leave, and when no plan without tiers needs to be looked for."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from unittest import mock

import pytest

from memgraph.planner import offload, polish, solve
from memgraph.planner.candidates import Candidate, Candidates
from memgraph.planner.leaving import Tiers
from memgraph.planner.offload import Offloader
from memgraph.planner.queues import Tier
from memgraph.planner.solve import Planner
from tests.support.facts import chain
from tests.support.graphs import capture
from tests.support.programs import Op, Program

# Found by a search of random programs: its value born first costs more to copy than one that is born later.
LATE = Program(
    ops=(
        Op("attention", 0, 0), Op("linear", 3, 0), Op("attention", 0, 0), Op("attention", 0, 0), Op("linear", 0, 3),
        Op("relu_", 4, 3), Op("matmul", 3, 3), Op("float64", 4, 3), Op("add", 4, 3), Op("track", 4, 0),
    ),
    outputs=(0,), batch=1, size=2, seed=0,
)  # fmt: skip


def test_a_value_that_is_born_late_may_leave_alone():
    facts = capture(LATE).facts
    planner = Planner(facts, offload=Tiers((Tier("host", 2e8, 2e8),)))
    best = planner.best(planner.stock.peak - 1)
    assert best is not None
    assert [facts.values[move.value].name for move in best.moves] == ["getitem_3"]
    with mock.patch.object(Offloader, "_alone", lambda *_: None):
        others = planner.best(planner.stock.peak - 1)
    assert others is not None and best.seconds < others.seconds


@pytest.mark.parametrize("rate", [1e12, 1e9, 1e8])
def test_what_is_not_looked_for_would_not_have_been_chosen(rate, monkeypatch):
    facts = chain([((n,), 100, 1e-6, True, "") for n in range(8)], regions=8)
    movable = tuple(dataclasses.replace(value, movable=value.kind == "extern") for value in facts.values)
    facts = dataclasses.replace(facts, values=movable)

    def seconds() -> list[float | None]:
        planner = Planner(facts, fused=False, offload=Tiers((Tier("host", rate, rate),)))
        bounds = range(planner.smallest().peak, planner.stock.peak, 200)
        return [found and found.seconds for found in map(planner.best, bounds)]

    short = seconds()
    monkeypatch.setattr(Planner, "_beats_all_kept", lambda *_: False)
    assert short == pytest.approx(seconds())


def test_nothing_leaves_where_its_copies_take_more_than_recomputation(monkeypatch):
    """Copies that hide behind the operators: free where the device has engines for them, not on a CPU."""
    facts = chain([((n,), 100, 1e-6, True, "") for n in range(8)], regions=8)
    movable = tuple(dataclasses.replace(value, movable=value.kind == "extern") for value in facts.values)
    facts = dataclasses.replace(facts, values=movable)

    def best(rate: float, drag: float) -> Candidate:
        planner = Planner(facts, fused=False, offload=Tiers((Tier("host", rate, rate, drag=drag),)))
        found = planner.best(planner.stock.peak - 200)
        assert found is not None
        return found

    free, taken = best(2e8, 0.0), best(2e8, 1.0)
    assert free.moves and free.drag == 0
    assert not taken.moves and taken.seconds > free.seconds
    hardly = best(2e8, 0.95)  # faster by less than its prediction is worth
    assert not hardly.moves and hardly.seconds == pytest.approx(taken.seconds)
    monkeypatch.setattr(solve, "HARDLY", 0.0)
    assert best(2e8, 0.95).moves
    cheap = best(2e8, 0.01)
    assert cheap.moves and cheap.seconds == pytest.approx(free.seconds + cheap.drag) and cheap.drag > 0


def test_small_values_leave_last_where_leaving_costs_more_than_their_copies(monkeypatch):
    """Eight values of 100 and of 4 bytes in turn: a bound that two large ones keep is kept by them alone."""
    monkeypatch.setattr(offload, "FEW", 0)  # no value is tried on the device afterwards
    sizes = [100, 4] * 4
    facts = chain([((n,), size, 1.0, True, "") for n, size in enumerate(sizes)], regions=8)
    movable = tuple(dataclasses.replace(value, movable=value.kind == "extern") for value in facts.values)
    facts = dataclasses.replace(facts, values=movable)

    def left(each: float) -> list[int]:
        by_rules = Tier("host", 1e3, 1e3, only_rules=True)  # as on a CPU
        tiers = Tiers((by_rules, Tier("nvme", 1e3, 1e3, each=each)))
        offloader = Planner(facts, fused=False, offload=tiers).offloader
        assert offloader is not None
        base = offloader.plain
        found = offloader._under(base, base.peak - 150)
        assert found is not None
        return [facts.values[move.value].bytes for move in found.moves]

    assert 4 in left(0.0)  # the first ones born
    assert set(left(0.05)) == {100}  # copies of 4 bytes take 0.008 s, of 100 bytes 0.2 s


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_no_value_leaves_that_need_not(share, monkeypatch):
    """Twelve values, all of which have left: what stays keeps the bound, is faster, and none of the others can stay."""
    facts = chain([((n,), (100, 4, 30)[n % 3], 1.0, True, "") for n in range(12)], regions=12)
    movable = tuple(dataclasses.replace(value, movable=value.kind == "extern") for value in facts.values)
    facts = dataclasses.replace(facts, values=movable)
    offloader = Planner(facts, fused=False, offload=Tiers((Tier("nvme", 1e3, 1e3, each=0.01),))).offloader
    assert offloader is not None
    base = offloader.plain
    everything = offloader._emptied(base, 0)
    bound = int(everything.peak + share * (base.peak - everything.peak))
    found = offloader._less(everything, bound, again=False)
    assert found.peak <= bound and found.seconds < everything.seconds
    gone = [move.value for move in found.moves]
    assert 0 < len(gone) < len(everything.moves)
    for value in gone:
        less = offloader._with(base, offloader.leaving.assign(base, [v for v in gone if v != value]), 0)
        assert less.peak > bound or less.seconds >= found.seconds
    monkeypatch.setattr(offload, "SWEEPS_TO_KEEP", 0)
    assert offloader._lighter(everything, bound) is everything


def test_what_is_computed_again_in_less_time_does_not_leave():
    """Every second value takes longer by its copies than by its operator: it does not leave."""
    facts = chain([((n,), 100, (2e-3, 10.0)[n % 2], True, "") for n in range(12)], regions=12)
    movable = tuple(dataclasses.replace(value, movable=value.kind == "extern") for value in facts.values)
    facts = dataclasses.replace(facts, values=movable)
    offloader = Planner(facts, fused=False, offload=Tiers((Tier("nvme", 1e3, 1e3, each=0.01),))).offloader
    assert offloader is not None
    everything = offloader._emptied(offloader.plain, 0)
    found = offloader._less(everything, everything.peak + 100, again=True)
    assert found.peak <= everything.peak + 100 and found.seconds < everything.seconds
    assert found.schedule.recomputed and {facts.values[i].seconds for i in found.schedule.recomputed} == {2e-3}
    assert {facts.values[move.value].seconds for move in found.moves} == {10.0}
    assert len(found.moves) + len(found.schedule.recomputed) == len(everything.moves)


@pytest.mark.parametrize("layers", [3, 12])
def test_without_recomputation_values_only_leave(layers):
    """What would be computed again in a fiftieth of its copies' time leaves all the same."""
    facts = chain([((n,), 100, (2e-3, 10.0)[n % 2], True, "") for n in range(layers)], regions=layers)
    movable = tuple(dataclasses.replace(value, movable=value.kind == "extern") for value in facts.values)
    facts = dataclasses.replace(facts, values=movable)
    tiers = Tiers((Tier("nvme", 1e3, 1e3, each=0.01),))
    for planner in (
        Planner(facts, fused=False, recompute=False, offload=tiers),
        Planner(facts, fused=False, recompute=False).sending(tiers),
    ):
        least = planner.smallest().peak
        for percent in (0, 20, 50, 80):
            found = planner.best(least + (planner.stock.peak - least) * percent // 100)
            assert found is not None and found.moves
            assert found.schedule.recomputed <= planner.stock.schedule.recomputed


class _Counted(tuple[int, ...]):
    """Values, of which each that is looked at is counted."""

    looked_at = 0

    def __iter__(self) -> Iterator[int]:
        for i in super().__iter__():
            self.looked_at += 1
            yield i


class _Watched(Candidates):
    @functools.cached_property
    def savable(self) -> _Counted:
        return _Counted(super().savable)


def test_exchanges_of_a_large_graph_are_made_as_they_are_tried():
    """All at once, as many as saved values times others, they took all memory for a model of 32 layers."""
    facts = chain([((n,), 100, 1e-6, n % 2 == 0, "") for n in range(640)], regions=8)
    movable = tuple(dataclasses.replace(value, movable=value.kind == "extern") for value in facts.values)
    candidates = _Watched(dataclasses.replace(facts, values=movable), fused=False)
    offloader = Offloader(candidates, Tiers((Tier("host", 1e9, 1e9),)))
    found = offloader.best(candidates.stock.peak // 2, [])
    assert found is not None and found.moves
    assert candidates.savable.looked_at <= polish.sweeps(facts)


def test_who_looks_longer_finds_what_leaves_more_cheaply(monkeypatch):
    """Where a plan may be far from the best, more of what is near it is tried."""
    sizes = [90, 10, 70, 30, 110, 50, 20, 80, 40, 60, 100, 15]
    facts = chain([((n,), size, 1e-6 * (1 + n % 3), True, "") for n, size in enumerate(sizes)], regions=4)
    movable = tuple(dataclasses.replace(value, movable=value.kind == "extern") for value in facts.values)
    facts = dataclasses.replace(facts, values=movable)
    monkeypatch.setattr(polish, "sweeps", lambda facts, effort=polish.EFFORT: 400 if effort > polish.EFFORT else 1)
    monkeypatch.setattr(solve, "SMALL", 0)
    monkeypatch.setattr(solve, "FAR", 0.0)
    planner = Planner(facts, fused=False, offload=Tiers((Tier("host", 5e7, 5e7, drag=0.4, each=2e-7),)))
    gained = 0
    for bound in range(planner.smallest().peak, planner.stock.peak, 30):
        short, longer = planner.best(bound), planner.thorough().best(bound)
        assert short is not None and longer is not None
        assert longer.peak <= bound and longer.seconds <= short.seconds + 1e-12
        if longer.seconds < short.seconds - 1e-9:
            gained += 1
            assert planner.may_be_far(short, bound)  # what is faster proves it
    assert gained
    assert not planner.may_be_far(planner.stock, planner.stock.peak)
