"""Layers of a joint graph's forward that do the same, as values: what a planner decides once for all of them."""

from __future__ import annotations

import dataclasses

from memgraph.facts.joint import JointFacts
from memgraph.facts.layers import Layers


def with_alike_layers(facts: JointFacts, found: Layers) -> JointFacts:
    """The facts of a joint graph with the equal layers of its forward.  found: those of the joint graph.

    The backward follows from them: what it computes again is what the forward does not save.
    """
    place = {value.name: i for i, value in enumerate(facts.values)}
    forward = set(facts.forward)
    classes = (tuple(tuple(place[name] for name in names) for names in layers) for layers in found.classes)
    alike = tuple(layers for layers in classes if all(forward.issuperset(layer) for layer in layers))
    return dataclasses.replace(facts, alike=alike)
