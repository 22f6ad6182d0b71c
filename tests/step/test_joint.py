"""The choice of plans for a round, against all choices."""

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memgraph.step import joint
from memgraph.step.joint import Launch, Option, choose
from memgraph.step.variants import Envelope

sizes = st.integers(0, 20)


@st.composite
def options(draw):
    held = draw(sizes)
    return Option(Envelope(held + draw(sizes), held, held + draw(sizes)), draw(st.integers(0, 9)) / 10)


@st.composite
def rounds(draw):
    """Forwards of one to four launches of up to two graphs, and their backwards in the reverse order."""
    menus = [tuple(draw(st.lists(options(), min_size=1, max_size=3))) for _ in range(2)]
    count = draw(st.integers(1, 4))
    launches = []
    for number in range(count):
        graph = draw(st.integers(0, 1))
        before = tuple(range(number))
        levels = [draw(sizes) for _ in range(4)]
        launches.append(Launch(graph, menus[graph], levels[0], levels[1], before, before, levels[2], levels[3]))
    return launches, draw(st.integers(0, 120)), draw(st.integers(1, 3))


def keeps(launches, room, plans, places):
    """Whether a choice keeps the room, by its definition."""
    chosen = [launch.menu[place] for launch, place in zip(launches, places, strict=True)]
    for graph in {launch.graph for launch in launches}:
        used = {place for launch, place in zip(launches, places, strict=True) if launch.graph == graph}
        if len(used) > plans:
            return False
    for launch, option in zip(launches, chosen, strict=True):
        forward = launch.before_forward + sum(chosen[n].envelope.held for n in launch.open_in_forward)
        backward = launch.before_backward + sum(chosen[n].envelope.held for n in launch.open_in_backward)
        reached = (
            forward + option.envelope.forward,
            forward + launch.outside_forward,
            backward + option.envelope.backward,
            backward + option.envelope.held + launch.outside_backward,
        )
        if max(reached) > room:
            return False
    return True


@settings(max_examples=150, deadline=None)
@given(rounds())
def test_brute_force(case):
    launches, room, plans = case
    every = itertools.product(*(range(len(launch.menu)) for launch in launches))
    legal = [places for places in every if keeps(launches, room, plans, places)]

    def seconds(places):
        return sum(launch.menu[place].seconds for launch, place in zip(launches, places, strict=True))

    found = choose(launches, room, plans)
    if not legal:
        assert found is None
    else:
        assert keeps(launches, room, plans, found)
        assert abs(seconds(found) - min(map(seconds, legal))) < 1e-6


def test_early_launches_travel_light():
    """Of three equal layers under one budget the last one may keep the most: nothing runs while it holds it."""
    light, fast = Option(Envelope(8, 1, 8), 2.0), Option(Envelope(8, 6, 9), 1.0)
    layers = [Launch("layer", (light, fast), 10, 10, tuple(range(n)), tuple(range(n))) for n in range(3)]
    assert choose(layers, 21, plans=2) == (0, 0, 1)


def test_no_more_plans_than_may_be_compiled():
    menu = tuple(Option(Envelope(held, held, held), 10.0 - held) for held in range(5))
    layers = [Launch("layer", menu, 0, 0, tuple(range(n)), tuple(range(n))) for n in range(4)]
    for plans in (1, 2):
        places = choose(layers, 11, plans)
        assert len(set(places)) <= plans and sum(places) <= 11


def test_plans_that_are_compiled_come_before_new_ones():
    compiled = Option(Envelope(8, 4, 8), 2.0)
    new = [Option(Envelope(8, held, 8), 1.5 - held / 10, compiled=False) for held in range(4)]
    layers = [Launch("layer", (compiled, *new), 0, 0, tuple(range(n)), tuple(range(n))) for n in range(3)]
    assert 0 not in choose(layers, 100, plans=3)
    for most in (0, 1, 2):
        places = choose(layers, 20, plans=3, anew={"layer": most})
        assert len(set(places) - {0}) <= most and (places == (0, 0, 0)) == (not most)


def test_a_solver_that_runs_out_of_time_does_not_say_that_nothing_fits(monkeypatch):
    launch = Launch("layer", (Option(Envelope(8, 1, 8), 1.0),), 0, 0, (), ())
    monkeypatch.setattr(joint, "milp", lambda *_, **__: SimpleNamespace(x=None, status=1, message="time limit"))
    with pytest.raises(joint.Unsolved, match="time limit"):
        choose([launch], 100, plans=1)
