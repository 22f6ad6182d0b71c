"""Layers of a joint graph's forward that do the same, as values: what a planner decides once for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import fx

from memgraph.facts.joint import JointFacts
from memgraph.facts.layers import equal_layers
from memgraph.facts.steps import steps_of


def with_alike_layers(facts: JointFacts, joint: fx.GraphModule, repeatable: Sequence[str] = ()) -> JointFacts:
    """The facts of a joint graph with the equal layers of its forward.

    The backward follows from them: what it computes again is what the forward does not save.
    repeatable: patterns of the operators that the user has declared to be so.
    """
    place = {value.name: i for i, value in enumerate(facts.values)}
    forward = set(facts.forward)
    classes = (
        tuple(tuple(place[name] for name in names) for names in layers)
        for layers in equal_layers(steps_of(joint, repeatable)).classes
    )
    alike = tuple(layers for layers in classes if all(forward.issuperset(layer) for layer in layers))
    return dataclasses.replace(facts, alike=alike)
