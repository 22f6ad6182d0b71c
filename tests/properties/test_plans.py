"""Any legal plan means what the unplanned step means, and peaks where its timeline says."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from memgraph.facts import kernel_scratch
from memgraph.facts.actions import CheckpointTag, Offload, Pin, Recompute, Save
from memgraph.facts.joint import JointFacts, Value
from memgraph.planner.candidates import Candidate
from memgraph.planner.copies import Copies
from memgraph.planner.course import timeline
from memgraph.planner.cut import SavedSetCut
from memgraph.planner.kernel_ends import kernel_ends
from memgraph.planner.leaving import Tiers
from memgraph.planner.queues import Clock, Move, Tier, place, with_moves
from memgraph.planner.schedule import Unschedulable, make_schedule
from memgraph.planner.solve import Planner
from memgraph.runtime import sanitized
from tests.support.graphs import capture, same_bits
from tests.support.lanes import examples
from tests.support.programs import OPS, programs

# What these calls take and give back is in no timeline, or differs where no compiler runs. Found by measuring:
# attention works on tiles, dropout as autograd sees it makes a mask of floats first, the backward of a layer norm has
# rows of its own for each thread; a Python number becomes a 0-d tensor of 8 bytes and a copy in the dtype of the other
# operand, a whole one where that is a tensor of another type; a mean of everything takes one too.
SCRATCH = {"attention", "dropout", "layer_norm"}
NUMBER = 12
# Allocates all of the storage that its destination is a view of; Inductor's lowering does not.
COPIES = torch.ops.aten.copy.default
SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
# Smallest peak against that of the best subset, and seconds above the best as a share of (slowest - fastest).
PEAK, TIME = 1.15, 0.45
choices = st.lists(st.sets(st.integers(0, 40)), min_size=1, max_size=3)


def legal(facts: JointFacts, chosen: set[int], copies: Copies) -> Candidate:
    """The schedule that saves the chosen ones of the savable values, and what has to be saved."""
    needed = SavedSetCut(facts).needed
    savable = [i for i in needed if facts.values[i].savable]
    saved = {savable[n % len(savable)] for n in chosen} if savable else set()
    planner = Planner(facts, fused=False)
    try:
        return planner.candidates.evaluate(make_schedule(facts, saved, copies))
    except Unschedulable:
        fixed = {i for i in savable if facts.values[i].fixed}
        assert fixed - saved, "nothing that must not run twice is missing"
        return planner.candidates.evaluate(make_schedule(facts, saved | fixed, copies))


@settings(SETTINGS, max_examples=examples(40))
@given(programs(), choices, st.booleans(), st.sampled_from(Copies))
def test_any_legal_plan_is_the_unplanned_step(program, plans, decompose, copies):
    captured = capture(program, decompose=decompose)
    unplanned = captured.run(captured.forward, captured.backward)
    stock = Planner(captured.facts, fused=False).stock
    for chosen in plans:
        candidate = legal(captured.facts, chosen, copies)
        graphs = captured.realise(candidate, stock)
        assert same_bits(unplanned, captured.run(*graphs))
        if not any(node.target is COPIES for node in captured.joint.graph.nodes):
            assert candidate.peak == captured.held(*graphs)
        assert candidate.peak == timeline(captured.facts, candidate).peak


HOST = Tiers((Tier("host", 1e9, 1e9),))
moves = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=4)


def moved(facts: JointFacts, base: Candidate, drawn: list[tuple[int, int, int]]) -> Candidate:
    """The same choice with some of the saved values copied out and back, at any legal time."""
    planner = Planner(facts, fused=False, offload=HOST)
    may, clock = planner.offloader.leaving.movable(base), Clock(facts, base.schedule)
    chosen: dict[int, Move] = {}
    for n, late, early in drawn if may else ():
        i = may[n % len(may)]
        first, last = clock.last_read[clock.slot[i]], len(base.schedule.forward.values) - 1
        use = clock.first_use[i]
        chosen[i] = Move(i, "host", first + late % (last - first + 1), use - early % (use + 1), use)
    ordered = tuple(sorted(chosen.values(), key=lambda move: clock.slot[move.value]))
    return dataclasses.replace(planner.candidates.evaluate(with_moves(base.schedule, clock, ordered)), moves=ordered)


@settings(SETTINGS, max_examples=examples(40))
@given(programs(), choices, moves)
def test_any_legal_copies_are_the_unplanned_step(program, plans, drawn):
    captured = capture(program)
    unplanned = captured.run(captured.forward, captured.backward)
    stock = Planner(captured.facts, fused=False).stock
    for chosen in plans:
        candidate = moved(captured.facts, legal(captured.facts, chosen, Copies.OF_HELD), drawn)
        graphs = captured.realise(candidate, stock)
        assert same_bits(unplanned, captured.run(*graphs))
        with sanitized():
            assert same_bits(unplanned, captured.run(*graphs))
        ended = captured.realise(candidate, stock, kernel_ends(captured.facts, candidate, 0))
        assert same_bits(unplanned, captured.run(*ended))
        if not any(node.target is COPIES for node in captured.joint.graph.nodes):
            assert candidate.peak == captured.held(*graphs)
        assert candidate.peak == timeline(captured.facts, candidate).peak


@settings(SETTINGS, max_examples=examples(25))
@given(programs(most=14), st.floats(1e6, 1e12), st.floats(1e6, 1e12), st.sampled_from([0.0, 100.0, math.inf]))
def test_copies_are_placed_where_they_may_stand(program, out, back, window):
    facts = capture(program).facts
    tier = Tier("host", out, back, drag=0.5, each=1e-6)
    planner = Planner(facts, offload=Tiers((tier,)))
    base = planner.stock
    clock, may = Clock(facts, base.schedule), planner.offloader.leaving.movable(base)
    placed = place(facts, base.schedule, clock, [(i, tier) for i in may], window)
    assert [move.value for move in placed.moves] == may
    for move in placed.moves:
        assert clock.last_read[clock.slot[move.value]] <= move.finish < len(base.schedule.forward.values)
        assert 0 <= move.load <= move.use == clock.first_use[move.value]
    total = sum(facts.values[i].bytes * (1 / out + 1 / back) for i in may)
    assert -1e-12 <= placed.stall <= total * (1 + 1e-9)
    taken = 0.5 * max(0.0, total - placed.stall) + 1e-6 * len(may)
    assert placed.drag == pytest.approx(taken, abs=1e-9 * total)
    if window == 0:
        assert placed.stall >= total * (1 - 1e-9)


@settings(SETTINGS, max_examples=examples(25))
@given(programs(most=14), st.floats(1e6, 1e12), st.sampled_from([0.0, 0.7]), st.sampled_from([0.0, 1e-6]))
def test_any_bound_with_copies(program, rate, drag, each):
    facts = capture(program).facts
    tier = Tier("host", rate, rate, drag=drag, each=each)
    kept, moving = Planner(facts), Planner(facts, offload=Tiers((tier,)))
    top, low = moving.stock.peak, moving.smallest().peak
    assert low <= kept.smallest().peak
    for bound in sorted({top - 1, *(low + (top - low) * n // 5 for n in range(5))}, reverse=True):
        best, without = moving.best(bound), kept.best(bound)
        assert best is not None or bound < low
        if without is not None:
            assert best.seconds <= without.seconds, "another lever made it slower"
        if best is not None:
            assert best.peak <= bound


@settings(SETTINGS, max_examples=examples(15))
@given(programs(most=12), st.sets(st.integers(0, 40), min_size=1, max_size=3))
def test_what_a_rule_sends_away_leaves_at_any_bound(program, drawn):
    facts = capture(program).facts
    roots = {facts.values[i].storage for i in facts.stock_saved}  # what Inductor saves is what rules speak of
    may = sorted(i for i in roots if facts.values[i].movable)
    assume(may)
    away = {may[n % len(may)] for n in drawn}
    values = tuple(
        dataclasses.replace(v, pin=Pin(Offload("host"), CheckpointTag())) if i in away else v
        for i, v in enumerate(facts.values)
    )
    planner = Planner(dataclasses.replace(facts, values=values), offload=HOST)
    low = planner.smallest()
    between = max(low.peak, (low.peak + planner.stock.peak) // 2)  # what has to leave may make the lowest peak higher
    for candidate in (
        planner.best(None),
        planner.best(low.peak),
        planner.best(between),
        low,
    ):
        refused = {i for i, _ in planner.offloader.leaving.refused(candidate)}
        moves = {move.value for move in candidate.moves}
        assert away & set(candidate.schedule.saved) <= moves | refused
        assert not away & candidate.schedule.recomputed or candidate.schedule.saved == planner.stock.schedule.saved


# In eager mode a sum of two dtypes copies an operand to the wider one.
CASTS = {"bfloat16", "float64"}


@settings(SETTINGS, max_examples=examples(15))
@given(programs(sorted(set(OPS) - SCRATCH - CASTS - {"write_row"})), st.sets(st.integers(0, 40)))
def test_the_predicted_peak_is_the_profilers(program, chosen):
    kernels = kernel_scratch.for_compilation(None, 0, cache=False)  # measured, not bounded
    with kernel_scratch.looking_up(kernels):
        captured = capture(program, decompose=False)
    candidate = legal(captured.facts, chosen, Copies.OF_HELD)
    graphs = captured.realise(candidate, Planner(captured.facts, fused=False).stock)
    assert 0 <= captured.peak(*graphs) - candidate.peak <= NUMBER


@settings(SETTINGS, max_examples=examples(25))
@given(programs(most=14), st.booleans())
def test_any_bound(program, fused):
    planner = Planner(capture(program).facts, fused=fused)
    top, low = planner.stock.peak, planner.smallest().peak
    assert planner.best(top) is planner.stock and planner.best(None) is planner.stock
    assert low <= top
    assert planner.best(low) is not None
    before = planner.stock
    for bound in sorted({top - 1, *(low + (top - low) * n // 7 for n in range(7)), low - 1}, reverse=True):
        best = planner.best(bound)
        if best is None:
            assert bound < low
            break
        assert best.peak <= bound
        assert best.peak <= before.peak, "a lower bound, a higher peak"
        # Inductor's own split stands wherever it fits, even where a faster one is known.
        assert before.stock or best.seconds >= before.seconds - 1e-12, "a lower bound, a faster plan"
        before = best


@settings(SETTINGS, max_examples=examples(15))
@given(programs(most=12), st.sets(st.integers(0, 40), max_size=3), st.sets(st.integers(0, 40), max_size=3))
def test_pins(program, kept, dropped):
    facts = capture(program).facts
    needed = [i for i in SavedSetCut(facts).needed if holds(facts.values[i]) and not facts.values[i].fixed]
    assume(needed)
    save = {needed[n % len(needed)] for n in kept}
    again = {needed[n % len(needed)] for n in dropped} - save
    pin = {
        **dict.fromkeys(save, Pin(Save(), CheckpointTag())),
        **dict.fromkeys(again, Pin(Recompute(), CheckpointTag())),
    }
    values = tuple(dataclasses.replace(v, pin=pin.get(i, v.pin)) for i, v in enumerate(facts.values))
    fixed = {i for i in facts.forward if facts.values[i].fixed and facts.values[i].savable}
    stock = frozenset((facts.stock_saved | save | fixed) - again)  # Inductor's partitioner obeys the tags
    pinned = Planner(dataclasses.replace(facts, values=values, stock_saved=stock), fused=False)
    for best in (pinned.smallest(), pinned.best(pinned.stock.peak - 1)):
        if best is not None:
            assert not save & best.schedule.recomputed
            assert not again & set(best.schedule.saved)


def holds(value: Value) -> bool:
    return value.savable and value.kind != "view"


POINTWISE = "mul exp tanh sigmoid softmax gelu where add_ relu_ dropout project float64 bfloat16 gate add transpose"


@settings(SETTINGS, max_examples=examples(40))
@given(programs(POINTWISE.split(), most=8, outputs=1))
def test_brute_force(program):
    """Measured on 340 random graphs of up to 10 values: the smallest peak found in all but one, 14 % off there.

    Of 168 bounds below the peak of Inductor's own split 155 were met at the least time, one not at all, the
    others up to 0.42 of (slowest - fastest) above it.
    """
    facts = capture(dataclasses.replace(program, batch=8, size=2)).facts
    planner = Planner(facts, fused=False)
    candidates = [i for i in SavedSetCut(facts).needed if holds(facts.values[i])]
    fixed = {i for i in candidates if facts.values[i].fixed}
    free = [i for i in candidates if i not in fixed]
    assume(2 <= len(free) <= 8)
    found = []
    for kept in itertools.product((False, True), repeat=len(free)):
        saved = fixed | {i for i, keep in zip(free, kept, strict=True) if keep}
        found.append(planner.candidates.evaluate(make_schedule(facts, saved)))
    lowest = min(candidate.peak for candidate in found)
    assert planner.smallest().peak <= PEAK * lowest
    times = [candidate.seconds for candidate in found]
    for bound in sorted({c.peak for c in found if PEAK * lowest <= c.peak < planner.stock.peak})[::4]:
        best = planner.best(bound)
        assert best is not None
        fastest = min(candidate.seconds for candidate in found if candidate.peak <= bound)
        assert best.seconds - fastest <= TIME * (max(times) - min(times)) + 1e-15
