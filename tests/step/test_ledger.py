"""The ledger of the run: what launches, optimizers and others took, as planned and as measured, by toy graphs."""

import gc
import re
import warnings
import weakref

import pytest
import torch

import memgraph
from memgraph.base.errors import PlanWarning
from memgraph.reporting import log
from memgraph.step.forecast import Method, OptimizerForecast
from memgraph.step.ledger import RECORDED, ROUNDS
from memgraph.step.variants import Entry, Envelope
from tests.reporting.test_report import example
from tests.step.test_rounds import SizedMeter
from tests.step.toys import FAST, KIB, LIGHT, Toy, World, layers, plan, step

SMALL = 64  # bytes: what a toy's clone of its input takes


def lone(world, forward=30, held=20, backward=40):
    """A graph that ends its rounds."""
    return world.graph([plan(forward, held, backward, 1.0)], ends=True)


def takes(graph, envelope):
    """From now on the graph allocates something else than its plan says."""
    device = graph.meter.toy
    graph.variants[0].call = lambda x: (Toy.apply(x, device, envelope),)


def test_a_graph_alone_is_measured_in_its_first_round_and_not_in_the_next():
    world = World(100 * KIB)
    graph = lone(world)
    for _ in range(3):
        step(world, [graph])
    report = world.run.ledger.report()
    first, *others = report.rounds
    (launch,) = first.launches
    assert launch.predicted_above == 40 * KIB and launch.measured_above == pytest.approx(40 * KIB, abs=SMALL)
    assert launch.measured_forward == pytest.approx(30 * KIB, abs=SMALL)
    assert [some.measured_peak for some in others] == [None, None]
    assert report.measured.number == 1 and report.as_predicted
    assert report.measured_peak == pytest.approx(world.device.peak, abs=SMALL)


def test_it_is_measured_again_when_an_optimizer_has_made_state():
    world = World(100 * KIB)
    graph = lone(world)
    step(world, [graph])
    world.run.generation += 1
    state = world.device.hold(10 * KIB)
    step(world, [graph])
    del state
    report = world.run.ledger.report()
    assert report.measured.number == 2
    assert report.grown == (("other tensors", 10 * KIB),)
    assert report.measured_peak == pytest.approx(50 * KIB, abs=SMALL)


def test_a_plan_that_takes_more_than_it_says_is_not_as_predicted():
    world = World(50 * KIB)
    graph = lone(world)
    takes(graph, Envelope(30 * KIB, 20 * KIB, 60 * KIB))
    with pytest.warns(PlanWarning, match="a graph has reached 60.0 KiB, above its budget of 50.0 KiB"):
        step(world, [graph])
    report = world.run.ledger.report()
    assert not report.as_predicted and "OVER the budget" in report.summary and "MORE THAN PREDICTED" in report.summary
    assert "20.0 KiB MORE than planned" in str(report)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world.run.generation += 1  # it is measured again, and said once
        step(world, [graph])


def test_the_report_of_the_plan_says_what_was_measured():
    world = World(1 << 30)
    graph = lone(world)
    planned = example()
    graph.variants[0].report = planned
    graph.variants[0].envelopes = {(): Envelope(30 * KIB, 20 * KIB, planned.above)}
    log.record(planned)
    step(world, [graph])
    assert memgraph.report().measured_above == pytest.approx(40 * KIB, abs=SMALL)
    assert "less than predicted" in str(memgraph.report()) and not memgraph.report().as_predicted
    assert world.run.ledger.report().graphs[0].off == 1


@pytest.mark.parametrize(("backward", "off"), [(35, 0), (60, 1)], ids=["less", "more"])
def test_a_launch_by_the_plan_of_larger_sizes_may_take_less(backward, off):
    """What larger sizes take says nothing of it, unless it takes more than they."""
    world = World(1 << 30)
    graph = lone(world)
    planned = example()
    graph.meter = SizedMeter(world.device, world.run)
    graph.variants[0].report = planned
    graph.variants[0].envelopes = {(2 * KIB,): Envelope(30 * KIB, 20 * KIB, 40 * KIB)}
    takes(graph, Envelope(30 * KIB, 20 * KIB, backward * KIB))
    log.record(planned)
    step(world, [graph])
    found = world.run.ledger.report()
    (launch,) = found.rounds[0].launches
    assert launch.larger and launch.predicted_above == 40 * KIB and launch.as_predicted == (not off)
    assert ("planned for larger sizes" in str(found)) == (not off)
    measured = memgraph.report().measured_above
    assert measured == (pytest.approx(backward * KIB, abs=SMALL) if off else None)


def test_rounds_of_several_graphs_are_measured_as_they_are_learned_and_as_they_are_chosen():
    world = World(130 * KIB)
    graphs = layers(world, 4)
    peaks = [step(world, graphs, outside=5 * KIB) for _ in range(4)]
    rounds = world.run.ledger.report().rounds
    assert [some.measured_peak is not None for some in rounds] == [True, True, False, False]
    for some, peak in zip(rounds[:2], peaks, strict=False):
        assert some.measured_peak == pytest.approx(peak, abs=10 * SMALL) and some.as_predicted
        assert some.predicted_peak == pytest.approx(peak, abs=10 * SMALL)
    assert rounds[0].outside and rounds[1].outside and not rounds[2].outside


def test_what_runs_outside_is_named():
    world = World(130 * KIB)
    graphs = layers(world, 2)
    graphs[0].name, graphs[-1].name = "layer", "loss"
    step(world, graphs, outside=30 * KIB)
    highest = max(world.run.ledger.report().outside, key=lambda outside: outside.above)
    assert (highest.after, highest.before) == ("forward of loss", "backward of loss")
    assert highest.above == pytest.approx(30 * KIB, abs=SMALL)


def test_what_alone_breaks_the_budget_outside_is_said_once_in_the_first_step_with_what_would_do():
    world = World(100 * KIB)
    graphs = layers(world, 4)
    with pytest.warns(
        PlanWarning, match="outside .* between the forward of a graph and the backward of a graph"
    ) as said:
        step(world, graphs, outside=105 * KIB)
        for _ in range(3):
            step(world, graphs, outside=105 * KIB)
    (text,) = [str(one.message) for one in said if "outside" in str(one.message)]
    assert "takes 105.0 KiB and reaches 1" in text and "would do" in text
    assert "OVER the budget" in str(world.run.ledger.report())


def test_the_budget_named_for_what_runs_outside_is_kept_where_it_is_asked_for():
    reserve = 32 * KIB
    world = World(100 * KIB)
    graphs = layers(world, 4)
    for graph in graphs:
        graph.reserve = reserve
    with pytest.warns(PlanWarning, match="above the budget of 132.0 KiB") as said:
        step(world, graphs, outside=105 * KIB)
    (named,) = {
        float(found[1])
        for one in said
        if (found := re.search(r"a budget of about ([\d.]+) KiB would do", str(one.message)))
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        enough = World(int(named * KIB) - reserve)
        others = layers(enough, 4)
        for _ in range(3):
            assert step(enough, others, outside=105 * KIB) <= enough.room


def test_an_optimizer_whose_step_passes_the_budget_is_said_once():
    world = World(100 * KIB)
    graph = lone(world)
    forecast = OptimizerForecast("AdamW", 40 * KIB, 40 * KIB, 30 * KIB, Method.FAKE_STEP, "foreach=False holds less.")
    graph.meter.forecasts = (forecast,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(world, [graph])  # 70 KiB
    held = world.device.hold(35 * KIB)
    graph.meter.forecasts = (forecast, OptimizerForecast("SGD", 0, 0, 0, Method.FAKE_STEP, identity=1))
    with pytest.warns(PlanWarning, match=r"AdamW.step\(\) will reach 105.0 KiB .* foreach=False holds less"):
        step(world, [graph])
    graph.meter.forecasts = (forecast,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(world, [graph])
    del held
    (adam,) = world.run.ledger.report().optimizers
    assert (adam.peak, adam.to_come, adam.note) == (105 * KIB, 40 * KIB, "foreach=False holds less.")


def test_gradients_to_come_are_in_what_an_optimizers_step_reaches():
    world = World(100 * KIB)
    graph = lone(world)
    graph.meter.forecasts = (OptimizerForecast("SGD", 0, 0, 0, Method.FAKE_STEP, gradients=101 * KIB),)
    with pytest.warns(PlanWarning, match="No option of it is known"):
        step(world, [graph])


class TwoOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, logits):
        ctx.set_materialize_grads(False)
        return x.clone(), torch.empty(logits, dtype=torch.uint8)

    @staticmethod
    def backward(ctx, gradient, _):
        del _
        torch.empty(10 * KIB, dtype=torch.uint8)
        return gradient, None


@pytest.mark.parametrize("ends", [True, False])
def test_outputs_that_the_caller_drops_are_not_measured_in_the_backward(ends):
    world = World(100 * KIB)
    graph = world.graph([plan(60, 60, 70, 1.0)], ends=ends)
    graph.variants[0].call = lambda x: TwoOutputs.apply(x, 60 * KIB)
    loss, logits = graph.launch(torch.ones(1, requires_grad=True))
    del logits
    loss.sum().backward()
    world.run.stop_recording()
    (launch,) = world.run.ledger.report().newest.launches
    assert launch.measured_above == pytest.approx(60 * KIB, abs=SMALL)
    # The backward takes 10, less 60 of the logits that are gone.
    assert launch.measured_backward == pytest.approx(10 * KIB, abs=2 * SMALL)


def test_a_profiler_of_the_users_may_start_anywhere_between_the_launches_of_a_graph_alone():
    world = World(100 * KIB)
    graph = lone(world)
    (y,) = graph.launch(torch.ones(1, requires_grad=True))
    with torch.profiler.profile():
        torch.ones(3)
    y.sum().backward()
    with torch.profiler.profile(profile_memory=True) as profile:
        torch.ones(3)
        graph.launch(torch.ones(1, requires_grad=True))
    assert any(event.name == "aten::ones" for event in profile.events())
    first, second = world.run.ledger.report().rounds
    assert first.launches[0].measured_above and second.launches[0].measured_above is None


@pytest.mark.filterwarnings("ignore:Leaked callback handle")  # torch's own, of a profiler that an error has ended
def test_a_launch_that_fails_leaves_no_recording_and_no_open_launch():
    world = World(100 * KIB)
    graph = lone(world)

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, forward):
            if forward:
                raise ValueError("forward")
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("backward")

    for forward in (True, False):
        world.run.generation += 1
        graph.variants[0].call = lambda x, forward=forward: (Fails.apply(x, forward),)
        with pytest.raises(ValueError):
            graph.launch(torch.ones(1, requires_grad=True))[0].sum().backward()
        gc.collect()
        assert world.run.depth() == 0
        with torch.profiler.profile():
            torch.ones(3)
    takes(graph, Envelope(30 * KIB, 20 * KIB, 40 * KIB))
    world.run.generation += 1
    step(world, [graph])
    assert world.run.ledger.report().newest.measured_peak == pytest.approx(40 * KIB, abs=SMALL)


def test_it_keeps_no_tensor_and_no_graph_alive_and_does_not_grow():
    world = World(130 * KIB)
    graphs = layers(world, 2)
    for number in range(3 * ROUNDS):
        world.run.generation = number // ROUNDS
        step(world, graphs)
    assert len(world.run.ledger.rounds) == ROUNDS and len(world.run.ledger.recorded) <= RECORDED
    assert world.run.ledger.report().measured_peak is not None  # recorded rounds are kept for longer
    gone = weakref.ref(graphs[0])
    del graphs
    gc.collect()
    assert world.device.level == 0
    world.rounds._kept.clear()
    world.rounds._present = ()
    gc.collect()
    assert gone() is None
    assert "a graph" in str(world.run.ledger.report())


def test_nothing_launched_is_no_report():
    with pytest.raises(LookupError, match="has been launched"):
        World(1).run.ledger.report()
    world = World(100 * KIB)
    step(world, [lone(world)])
    assert world.run.ledger.report(torch.device("cpu")).device == "cpu"
    with pytest.raises(LookupError, match="on cuda"):
        world.run.ledger.report(torch.device("cuda"))


def test_what_has_grown_between_two_entries():
    first = Entry(100, gradients=10, states=0, others=5)
    now = Entry(150, gradients=30, states=25, others=5)
    assert list(now.grown_since(first, "AdamW")) == [
        ("gradients that stand already", 20),
        ("state of AdamW", 25),
        ("other tensors", 5),
    ]
    assert list(Entry(110, gradients=30).grown_since(first, "AdamW")) == [("gradients that stand already", 10)]
    assert list(Entry(90, gradients=30).grown_since(first, "AdamW")) == []


def test_two_plans_of_one_graph_are_two_rows():
    world = World(100 * KIB)
    graphs = layers(world, 4, (LIGHT, FAST))
    for _ in range(2):
        step(world, graphs)
    text = str(world.run.ledger.report())
    assert text.count("a graph  ") >= 3 and len(text.splitlines()) < 50


def test_a_round_that_was_recorded_in_part_has_no_measured_peak():
    """As the first one, in the middle of which another graph is compiled."""
    world = World(130 * KIB)
    graphs = layers(world, 2)
    (x,) = graphs[0].launch(torch.ones(1, requires_grad=True))
    world.run.stop_recording()
    for graph in graphs[1:]:
        (x,) = graph.launch(x)
    x.sum().backward()
    (some,) = world.run.ledger.report().rounds
    assert some.launches[0].measured_forward is not None and some.measured_peak is None


def test_the_newest_round_is_shown_though_its_first_graph_is_gone():
    world = World(200 * KIB)
    first, second = world.graph([plan(10, 2, 10, 0.1)], ends=False), lone(world)
    step(world, [first, second])
    number = world.run.ledger.report().rounds[-1].number
    world.rounds._learned.clear()
    world.run.last.clear()
    del first
    gc.collect()
    assert world.run.round[0].graph() is None and second is not None
    assert world.run.ledger.report().rounds[-1].number == number
