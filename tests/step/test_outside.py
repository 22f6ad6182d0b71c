"""What runs outside of the graphs is expected with inputs of a size that no round has had."""

import pytest
import torch

from memgraph.base.errors import BudgetError, PlanWarning
from memgraph.step.joint import Launch
from memgraph.step.launched import Launched
from memgraph.step.outside import Inputs, Outside
from memgraph.step.variants import Entry, Envelope
from tests.step.toys import KIB, World, plan

# Holds little and needs much for its backward; holds much and needs less.
LIGHT, LOW = plan(40, 4, 90, 1.0), plan(40, 60, 70, 2.0)


def launch(graph, elements, outside):
    """A round of one launch with so many inputs and something large before its backward; its peak in KiB."""
    world = graph.meter.toy
    world.reset()
    x = torch.ones(elements, requires_grad=True)
    (y,) = graph.launch(x)
    moment = world.hold(outside * KIB)
    del moment
    y.sum().backward()
    del x, y
    graph.meter.run.stop_recording()
    return world.peak / KIB


def worlds_graphs(room, small, large):
    """Two graphs of one function, as Dynamo compiles it anew for other inputs."""
    world = World(int(room * KIB))
    first, second = world.graph([small], ends=False), world.graph(large, ends=False)
    first.name, second.name = "loss 0/0", "loss 0/1"
    return first, second


def test_a_longer_batch_gets_a_plan_that_leaves_room_for_what_runs_outside():
    """Either plan alone keeps 100 KiB: with 45 KiB outside, which 30 for two thirds of the inputs tell, one does."""
    first, second = worlds_graphs(100, plan(10, 4, 20, 1.0), [LOW, LIGHT])
    assert launch(first, 200, outside=30) == 34
    assert launch(second, 300, outside=45) == 90
    assert second.variants[-1].envelopes[()] == LIGHT[0]


def test_it_is_refused_where_no_plan_leaves_the_room():
    first, second = worlds_graphs(100, plan(10, 4, 20, 1.0), [LOW])
    launch(first, 200, outside=30)
    with pytest.raises(BudgetError) as refused:
        launch(second, 300, outside=45)
    minimum = refused.value.minimum / KIB
    assert 105 <= minimum <= 107  # the tensors between the toys are real ones
    first, second = worlds_graphs(minimum, plan(10, 4, 20, 1.0), [LOW])
    launch(first, 200, outside=30)
    assert launch(second, 300, outside=45) == 105 <= minimum


def test_what_no_plan_can_help_is_no_reason_to_refuse():
    first, second = worlds_graphs(100, plan(10, 4, 20, 1.0), [LOW])
    launch(first, 200, outside=90)
    with pytest.warns(PlanWarning, match="what runs outside of the compiled graphs"):
        assert launch(second, 300, outside=135) == 195


def test_what_is_expected_grows_with_the_inputs_and_is_never_less_than_smaller_ones_took():
    outside = Outside()

    def expected(size, function="loss 0"):
        return outside.expected(Inputs(function, (), size))

    assert expected(10) == 0
    outside._seen[Inputs("loss 0", (), 0).model] = {100: 50, 200: 60}
    assert list(map(expected, (10, 100, 150, 200, 400))) == [50, 50, 60, 60, 200]
    assert expected(100, "loss 1") == 0
    entry = Entry(1000)
    assert outside.beside(entry, Inputs("loss 0", (), 100)).between == 50
    assert outside.beside(entry, Inputs("loss 0", (), 100), room=1049).between == 0


def test_parameters_tell_models_apart_and_are_no_inputs():
    weight = torch.nn.Parameter(torch.ones(2, 5))
    found = Inputs.of("loss 0/7", [weight, 3, torch.ones(5), torch.ones(2, dtype=torch.uint8)])
    assert found == Inputs("loss 0", ((2, 5),), 22)
    assert found.model == Inputs.of("loss 0/8", [weight]).model != Inputs.of("loss 0/8", [weight.detach()]).model


def test_gradients_that_are_made_meanwhile_are_not_expected():
    """Of two launches the second one's backward runs first, and leaves gradients of 70 bytes; a loss takes 30."""
    entry, envelope = Entry(0, own=70), Envelope()
    launched = [
        Launched(None, entry, [], (), name="loss 0/0", inputs=Inputs("loss 0", (), 8), begun=True) for _ in range(2)
    ]
    launches = [
        Launch("graph", (), 100, 170, (), (), 0, 0),
        Launch("graph", (), 105, 105, (0,), (0,), 0, 25),
    ]
    launched[1].open_in_backward = (0,)
    outside = Outside()
    outside.learn([(each, envelope) for each in launched], launches)
    assert outside.expected(Inputs("loss 0", (), 8)) == 30
