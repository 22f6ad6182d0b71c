"""What is tried after a plan that lowering has made larger than the sweep said."""

import dataclasses
import types

import hypothesis.strategies as st
from hypothesis import given

from memgraph.backend.attempt import Attempt, Next, plans_of
from memgraph.backend.budget import Bound
from memgraph.planner.outlining import Outlining


def missed(peak, above, plain, bound=Bound(), carried=0, outlining=Outlining(), more_ends=False):  # noqa: B008 (they are frozen)
    chosen, plan = types.SimpleNamespace(carried=carried), types.SimpleNamespace(peak=peak)
    planned = types.SimpleNamespace(plan=plan, plain=plain, chosen=chosen, outlining=outlining, more_ends=more_ends)
    return Attempt(bound, None, planned, {}, None, above, bound.beside(above, carried))


def test_the_margin_grows_by_what_a_plan_has_missed():
    after = Next(Bound(bytes=1000)).after(missed(970, 1050, plain=False), 1000)
    assert 970 - after.bound.margin < 970 - 50 and after.bound.unplanned is None


def test_inductors_own_choice_is_not_tried_again_by_its_sweep():
    """Swept below the bound and lowered above it: no margin for our plans follows from that, but what it takes."""
    first = Next(Bound(bytes=1000))
    after = first.after(missed(970, 1002, plain=True), 1000)
    assert after.bound == dataclasses.replace(first.bound, unplanned=1002)


def test_the_last_attempt_is_what_is_known_to_fit():
    resort = Bound(bytes=1000, margin=500)
    assert Next(Bound(bytes=1000, margin=3), resort).final() == Next(resort)
    assert Next(Bound(bytes=1000, margin=3)).final().bound == Bound(bytes=1000, margin=3, last=True)


def test_on_the_cpu_the_same_plan_is_tried_with_ends_of_kernels_first():
    first = Next(Bound(bytes=1000, margin=3), functions=True)
    after = first.after(missed(970, 1050, plain=False, more_ends=True), 1000)
    assert after == dataclasses.replace(first, bound=dataclasses.replace(first.bound, kernel_ends=True))
    again = after.after(missed(970, 1010, plain=False, more_ends=True), 1000)
    assert again.bound.kernel_ends and again.bound.margin > 3
    assert again.final().bound == dataclasses.replace(again.bound, last=True)


def test_without_a_place_to_end_or_on_a_gpu_the_margin_grows_at_once():
    for first, more in ((Next(Bound(bytes=1000), functions=True), False), (Next(Bound(bytes=1000)), True)):
        after = first.after(missed(970, 1050, plain=False, more_ends=more), 1000)
        assert after.bound.margin and not after.bound.kernel_ends


def test_the_lowest_peak_on_the_cpu_is_one_with_ends_of_kernels():
    """So that each refusal names the same smallest budget, whatever was tried before."""
    assert Next(Bound(bytes=1000), functions=True).final().bound == Bound(bytes=1000, last=True, kernel_ends=True)
    lowest = Next(Bound(bytes=1000, last=True), functions=True)
    assert lowest.after(missed(990, 1002, plain=False, more_ends=True), 1000).bound.kernel_ends


def test_the_same_plan_with_ends_of_kernels_is_not_another_one():
    """Else a plan that ends do not help has an attempt less, and the lowest peak is taken where it need not be."""
    plain = Bound(bytes=1000)
    bounds = [
        plain,
        dataclasses.replace(plain, kernel_ends=True),
        dataclasses.replace(plain, kernel_ends=True, margin=9),
    ]
    tried = [missed(990, 1002, plain=False, bound=bound) for bound in bounds]
    assert [plans_of(tried[:count]) for count in range(4)] == [0, 1, 1, 2]
    assert plans_of([tried[0], tried[2]]) == 2 and plans_of([tried[1], tried[2]]) == 2


def test_nothing_smaller_is_known():
    assert Next(Bound(bytes=1000, last=True)).after(missed(990, 1002, plain=False), 1000) is None
    assert Next(Bound(bytes=1000, margin=100)).after(missed(990, 1002, plain=False), 1000) is None
    resort = Bound(bytes=1000, margin=500)
    assert Next(Bound(bytes=1000, last=True), resort).after(missed(990, 1002, plain=False), 1000) == Next(resort)


def test_where_the_sweep_of_the_lowest_is_missed_by_much_another_one_is_tried():
    """The planner knows nothing smaller, but lowering may have made a plan near it so."""
    first = Next(Bound(bytes=1000, margin=100))
    after = first.after(missed(990, 1100, plain=False), 1000)
    assert after == Next(Bound(bytes=1000, margin=100, last=True, near=True))
    assert after.after(missed(1030, 1200, plain=False), 1000) is None
    resort = Bound(bytes=1000, margin=500)
    assert Next(first.bound, resort).after(missed(990, 1100, plain=False), 1000) == Next(resort)
    among = Bound(bytes=1000, margin=100, others=1)
    assert Next(among).after(missed(990, 1100, plain=False), 1000) is None


def test_without_bodies_there_may_be_room():
    """The planner knows nothing smaller, and equal layers became bodies by themselves: they are left as they are."""
    resort = Bound(bytes=1000, margin=500)
    for known in (None, resort):
        first = Next(Bound(bytes=1000, margin=100), known)
        after = first.after(missed(990, 1002, plain=False, outlining=Outlining(by_itself=True)), 1000)
        assert after == Next(dataclasses.replace(first.bound, bodies=False), known)
        assert after.after(missed(990, 1001, plain=False), 1000) == (None if known is None else Next(known))


def test_the_margin_knows_of_what_stands_beside():
    """Within the bound by itself, and above it with two launches that hold 100 bytes each."""
    bound = Bound(bytes=1000, others=7, again=2)
    after = Next(bound).after(missed(790, 850, plain=True, bound=bound, carried=100), 1000)
    assert after.bound.margin == 1000 - (990 - 50) and after.bound.unplanned is None
    assert Next(bound).after(missed(810, 850, plain=False, bound=bound, carried=100), 1000) is None


@given(st.integers(0, 9), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 999))
def test_what_stands_beside_is_that_of_the_worst_backward(again, held, gradients, others, more):
    """Forwards and then backwards of equal launches, one after another; others' gradients stand all the time."""
    levels, above = [], held + more
    for number in range(again + 1):  # its backward: what earlier launches hold, and the gradients of later ones
        levels.append(others + number * held + (again - number) * gradients + above)
    bound = Bound(again=again, gradients=again * gradients)
    assert others + again * gradients + above + bound.beside(above, held) == max(levels)


def test_what_runs_outside_meets_what_is_held_and_not_the_peak():
    bound = Bound(bytes=1000, others=7, between=300)
    assert bound.beside(800, 400) == 0 and bound.beside(800, 600) == 100
    assert dataclasses.replace(bound, again=2).beside(800, 600) == 1300
