"""Rounds of toy graphs: the budget is kept on every launch, and the plans are chosen together."""

import dataclasses
import gc
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memgraph.base.errors import BudgetError, OffloadError, PlanWarning
from memgraph.step.joint import Unsolved
from memgraph.step.problem import MARGIN, PLANS
from memgraph.step.variants import Envelope, Variant
from tests.step.toys import KIB, LIGHT, CountingMeter, Toy, World, layers, plan, step
from tests.support.lanes import examples


def test_the_first_round_is_the_tightest_and_the_next_one_uses_the_budget():
    world = World(130 * KIB)
    graphs = layers(world, 4)
    peaks = [step(world, graphs) for _ in range(4)]
    assert peaks[0] < peaks[1] == peaks[2] == peaks[3] <= 130 * KIB
    assert {variant.seconds for variant in graphs[0].variants} == {1.0, 2.0}
    assert len(world.run.last) == 5


def test_a_few_bytes_more_are_no_other_round():
    """Neither are its plans chosen anew, nor does it fall back to the lightest, nor is it recorded again."""
    world = World(130 * KIB)
    graphs = layers(world, 4)
    for _ in range(2):
        step(world, graphs)
    peak, made = step(world, graphs), world.made
    for more in (100, 200, 300):
        trifle = world.device.hold(more)
        assert step(world, graphs) == peak + more <= 130 * KIB
        assert world.made == made and not world.run.round[0].marks
        del trifle


def test_late_layers_keep_and_early_ones_do_not():
    world = World(100 * KIB)
    graphs = layers(world, 4)
    step(world, graphs)
    step(world, graphs)
    held = [launch.envelope.held for launch in world.run.round[:4]]
    assert held == sorted(held) and len(set(held)) == 2


def test_a_round_that_no_choice_keeps_within_the_budget_is_refused_before_it_runs():
    """Others need what is left beside the lightest plans, and a little more. The smallest budget is kept."""
    world = World(100 * KIB)
    graphs = layers(world, 4)
    with pytest.warns(PlanWarning, match=r"has reached 113.0 KiB, above the budget of 100.0 KiB: it was not known"):
        step(world, graphs, outside=95 * KIB)
    world.device.reset()
    for _ in range(2):
        with pytest.raises(BudgetError) as refused:
            step(world, graphs, outside=95 * KIB)
        gc.collect()
    assert world.device.peak == 0 and refused.value.budget == 100 * KIB
    minimum = refused.value.minimum
    assert 95 + 4 * 4 <= minimum / KIB - 128 < 95 + 4 * 4 + 8  # each layer holds 4, the loss 2
    again = World(minimum)
    graphs = layers(again, 4)
    assert max(step(again, graphs, outside=95 * KIB) for _ in range(4)) <= minimum


def test_few_plans_of_a_graph_are_compiled_where_more_are_hardly_faster():
    """With four of them a round would be 3 % faster; a graph with one plan already may have two more."""
    menu = [plan(40, 4, 60, 2.0), *(plan(40, held, 44, 2.0 - held / 100) for held in (8, 12, 16, 20))]
    for most in range(110, 200, 10):
        world = World(most * KIB)
        graphs = layers(world, 6, menu)
        assert max(step(world, graphs) for _ in range(4)) <= most * KIB
        assert graphs[0].made <= PLANS


def test_more_plans_are_compiled_where_that_is_worth_it():
    world = World(160 * KIB)
    graphs = layers(world, 6, [plan(40, 4, 60, 2.0), plan(40, 6, 44, 1.8), plan(40, 8, 44, 1.0)])
    graphs[0].made = PLANS  # as if rounds of before had needed other ones
    step(world, graphs)
    step(world, graphs)
    assert any(launch.variant().seconds == 1.0 for launch in world.run.round[:6])


def test_what_others_reach_between_the_launches_is_left_free():
    world = World(130 * KIB)
    graphs = layers(world, 4)
    assert max(step(world, graphs, outside=90 * KIB) for _ in range(4)) <= 130 * KIB


def test_what_others_reach_in_a_first_step_is_told_where_it_passes_the_budget():
    world = World(130 * KIB)
    graphs = layers(world, 4)
    with pytest.warns(PlanWarning, match="between the forward of a graph and the backward of a graph") as told:
        peaks = [step(world, graphs, outside=outside * KIB) for outside in (90, 115, 90, 90)]
    assert len(told) == 1 and peaks[1] > 130 * KIB and max(peaks[:1] + peaks[2:]) <= 130 * KIB


def test_so_it_is_where_the_graphs_have_gone_meanwhile():
    world = World(130 * KIB)
    graphs = layers(world, 4)
    x = torch.ones(1, requires_grad=True)
    for graph in graphs:
        (x,) = graph.launch(x)
    moment = world.device.hold(115 * KIB)
    del moment
    x.sum().backward()
    del graphs, graph, x
    gc.collect()
    assert all(launch.graph() is None for launch in world.run.round)
    with pytest.warns(PlanWarning, match="it was not known"):
        world.run.stop_recording()


def test_a_level_that_grows_is_planned_for_anew():
    world = World(150 * KIB)
    graphs = layers(world, 4)
    for _ in range(2):
        step(world, graphs)
    state = world.device.hold(50 * KIB)
    peaks = [step(world, graphs) for _ in range(3)]
    del state
    assert max(peaks) <= 150 * KIB


def test_what_has_gone_within_a_recorded_round_is_not_taken_off_its_later_levels_again():
    """As seen with DDP: some bytes stand when a step begins, and go in its midst, so that the next one begins lower."""
    world = World(100 * KIB)
    graphs = layers(world, 4, (plan(10, 4, 60, 2.0), plan(10, 4, 95, 1.0)))
    buckets, x = world.device.hold(20 * KIB), torch.ones(1, requires_grad=True)
    for graph in graphs:
        (x,) = graph.launch(x)
    del buckets
    x.sum().backward()
    del x
    world.run.stop_recording()
    assert max(step(world, graphs) for _ in range(3)) <= 100 * KIB
    assert any(launch.variant().seconds == 1.0 for launch in world.run.round[:4])


def test_a_round_that_goes_another_way_is_refused_or_kept_and_learned():
    """Its first launches hold what was chosen for a shorter round: it may be refused, once."""
    world = World(110 * KIB)
    graphs = layers(world, 3)
    for _ in range(3):
        step(world, graphs)
    longer = [graphs[0]] * 5 + graphs[-1:]
    with pytest.raises(BudgetError):
        step(world, longer)
    assert world.device.peak <= 110 * KIB
    gc.collect()
    assert max(step(world, longer) for _ in range(3)) <= 110 * KIB
    assert max(step(world, graphs) for _ in range(3)) <= 110 * KIB


def test_what_is_dropped_is_not_kept_alive():
    world = World(130 * KIB)
    graphs = layers(world, 2)
    step(world, graphs)
    graph = graphs[0]
    del graphs
    gc.collect()
    referrers = [found for found in gc.get_referrers(graph) if isinstance(found, dict | list) and found is not locals()]
    assert all("graph" in found for found in referrers if isinstance(found, dict))  # its maker, and this test


def test_a_plan_that_cannot_be_made_is_tried_once_for_a_level():
    world = World(100 * KIB)
    loss = world.graph([plan(10, 2, 40, 1.0)], ends=True)
    tried = []

    class NoMaker:
        def make(self, entry, args, dropped):
            tried.append(entry)

    loss.maker = NoMaker()
    state = world.device.hold(80 * KIB)
    with pytest.warns(PlanWarning, match="has reached 120.0 KiB, above its budget of 100.0 KiB: with what else"):
        for _ in range(3):
            step(world, [loss])
    assert len(tried) == 1
    del state


plans = st.tuples(st.integers(1, 40), st.integers(0, 30), st.integers(0, 40), st.integers(1, 9)).map(
    lambda drawn: plan(drawn[0] + drawn[1], drawn[1], drawn[1] + drawn[2], float(drawn[3]))
)
menus = st.lists(plans, min_size=1, max_size=4)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(menus, min_size=1, max_size=3),
    st.lists(st.integers(0, 2), min_size=1, max_size=5),
    st.integers(20, 300),
    st.integers(0, 40),
    st.integers(0, 60),
)
def test_never_above_the_budget(menus, order, room, grows, outside):
    """Whatever runs, no launch passes the room, unless others alone do; a refusal comes before its launch runs."""
    world = World(room * KIB)
    middle = [world.graph(menu, ends=False) for menu in menus]
    loss = world.graph(menus[0], ends=True)
    graphs = [middle[number % len(middle)] for number in order] + [loss]
    kept = []
    for _ in range(4):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PlanWarning)  # a round that was recorded may not fit as it was
                step(world, graphs, outside=0)
        except BudgetError as refused:
            assert refused.minimum > room * KIB
        assert world.device.peak <= room * KIB
        gc.collect()
        kept.append(world.device.hold(grows * KIB)) if world.device.level + grows * KIB <= room * KIB else None
    kept.clear()
    gc.collect()
    assert world.device.level == 0


def test_a_round_that_a_refusal_has_cut_says_nothing_of_backwards():
    """Nothing runs backward after a refusal: a plan whose backward is too large would seem to be free."""
    world = World(20 * KIB)
    menu = [plan(1, 0, 21, 1.0), plan(11, 10, 10, 1.0)]
    graphs = [world.graph(menu, ends=False), world.graph(menu, ends=True)]
    for _ in range(3):
        with pytest.raises(BudgetError):
            step(world, graphs)
        assert world.device.peak <= 20 * KIB
        gc.collect()


def test_a_roomier_plan_that_finds_no_room_in_a_tier_costs_nothing():
    """The plan that there is keeps the budget: a better one is tried once, and its failure ends no run."""
    world = World(100 * KIB)
    loss = world.graph([plan(10, 2, 40, 1.0)], ends=True)
    tried = []

    class FullTier:
        def make(self, entry, args, dropped):
            tried.append(dropped)
            raise OffloadError("the tier is full", tier="host", path="")

    loss.maker = FullTier()
    x = torch.ones(KIB, requires_grad=True)
    for _ in range(3):
        loss.launch(x)[0].sum().backward()
    assert tried == [(0,)] and world.device.peak <= 100 * KIB


class SizedMeter(CountingMeter):
    """The one size of a launch is that of its input."""

    def entry(self, args):
        return dataclasses.replace(super().entry(args), sizes=tuple(args[0].shape))

    def exact(self, entry, args):
        return dataclasses.replace(super().exact(entry, args), sizes=entry.sizes)


def sized(world, menu):
    """A graph whose plans take as many times what the menu says as their input is long."""
    graph = world.graph(menu, ends=False)
    graph.meter = SizedMeter(world.device, world.run)

    def grown(envelope, sizes):
        return Envelope(*(size * sizes[0] for size in dataclasses.astuple(envelope)))

    def made(envelope, seconds):
        read = lambda sizes: grown(envelope, sizes)  # noqa: E731
        call = lambda x: (Toy.apply(x, world.device, grown(envelope, x.shape)),)  # noqa: E731
        return Variant(call, seconds, {}, read)

    graph.variants[:] = [made(*plan) for plan in menu]
    graph.offers[:] = []
    graph.variants.reverse()
    return graph


def two_lengths(world, graph, loss, lengths):
    world.device.reset()
    found = [graph.launch(torch.ones(length, requires_grad=True))[0].sum() for length in lengths]
    loss.launch(sum(found).reshape(1))[0].sum().backward()
    del found
    world.run.stop_recording()
    return world.device.peak


@pytest.mark.parametrize("lengths", [(1, 10), (10, 1)])
def test_each_launch_of_a_graph_is_planned_with_its_own_sizes(lengths):
    """The fast plan fits the short one alone."""
    world = World(660 * KIB)
    graph = sized(world, [LIGHT, plan(70, 30, 70, 1.0)])
    loss = world.graph([plan(10, 2, 10, 0.1)], ends=True)
    assert max(two_lengths(world, graph, loss, lengths) for _ in range(4)) <= 660 * KIB
    held = [launch.envelope.held for launch in world.run.round if launch.entry.sizes]
    # What is known of the long one is taken for the short one as well.
    assert held == ([30 * KIB, 40 * KIB] if lengths[0] == 1 else [40 * KIB, 40 * KIB])


def test_plans_of_which_nothing_is_known_are_not_chosen_together():
    world = World(130 * KIB)
    graphs = layers(world, 4)
    step(world, graphs)
    for variant in graphs[0].variants:
        variant.envelopes.clear()
    graphs[0].offers.clear()
    world.run.begin(graphs[0], graphs[0].meter.entry(()))  # the round that ended is learned now
    assert world.rounds.chosen(graphs[0], world.run.round[0]) is None


def test_a_choice_that_takes_too_long_is_none(monkeypatch):
    def late(*_):
        raise Unsolved("time limit")

    monkeypatch.setattr("memgraph.step.problem.choose", late)
    world = World(130 * KIB)
    graphs = layers(world, 4)
    assert max(step(world, graphs) for _ in range(3)) <= 130 * KIB


def test_so_is_one_that_names_what_runs_outside(monkeypatch):
    def late(*_):
        raise Unsolved("time limit")

    monkeypatch.setattr("memgraph.step.problem.choose", late)
    world = World(100 * KIB)
    with pytest.warns(PlanWarning, match="a budget of about .* would do"):
        step(world, layers(world, 4), outside=105 * KIB)


def ahead(room, refused):
    """A world with three graphs that were compiled before the first one runs; `refused`: the last one does not fit."""
    world = World(room)
    graphs = [world.graph([plan(40, 30, 60, 1.0)], ends=False) for _ in range(2)]
    graphs.append(world.graph([plan(40, 30, 120, 1.0)], ends=True))
    for graph in graphs:
        graph.gradients = 8 * KIB
        world.rounds.compiled_ahead(graph)
    if refused:
        graphs[-1].refused = BudgetError(minimum=120 * KIB)
    return world, graphs


def test_graphs_compiled_ahead_are_refused_before_the_first_runs_with_what_all_of_them_need():
    world, graphs = ahead(100 * KIB, refused=True)
    with pytest.raises(BudgetError) as caught:
        step(world, graphs)
    assert not world.run.round and not world.device.level
    # the last one's backward, while the first two hold
    assert 180 * KIB <= caught.value.minimum <= 181 * KIB + MARGIN
    enough, others = ahead(caught.value.minimum, refused=False)
    for _ in range(3):
        assert step(enough, others) <= 180 * KIB


def test_what_is_compiled_ahead_and_fits_runs():
    world, graphs = ahead(200 * KIB, refused=False)
    assert step(world, graphs) <= 181 * KIB
    assert len(world.run.round) == 3


def test_a_round_is_known_though_a_graph_was_compiled_in_it():
    """Dynamo compiles the second graph of a step once the first one was launched."""
    world = World(1000 * KIB)
    graphs = layers(world, 2)
    x = torch.ones(1, requires_grad=True)
    for graph in graphs:
        with world.run.compiling():
            torch.empty(400 * KIB, dtype=torch.uint8)
        (x,) = graph.launch(x)
    x.sum().backward()
    world.run.stop_recording()
    assert [launch.recorded for launch in world.run.round] == [True, True, True]
    assert max(mark.peak for launch in world.run.round for mark in launch.marks.values()) < 400 * KIB
