"""What the planner may not change: what must cross to the backward, and what the rules ask for."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import re
import warnings

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.joint import JointFacts, overwritten_inputs
from memgraph.facts.operators import draws, short_name, twice_is_wrong
from memgraph.facts.regions import matched, module_path, parents


def protect(joint: fx.GraphModule) -> dict[str, tuple[str, str]]:
    """Tag what must cross to the backward: draws, and what is read from inputs that the forward overwrites.

    Inductor's partitioner would redraw an untagged seed under a user's checkpoint, and recompute from a buffer that
    the forward has changed meanwhile (wrong gradients on 2.11 and 2.13; tests/end_to_end/test_exact.py).
    """
    overwritten = overwritten_inputs(joint.graph.nodes)
    pins: dict[str, tuple[str, str]] = {}
    for node in joint.graph.nodes:
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        if short_name(node.target) == "copy_":
            continue
        if draws(node) or any(arg in overwritten for arg in node.all_input_nodes):
            node.meta["recompute"] = compat.must_save()
            pins[node.name] = ("save", "must not be computed twice")
    return pins


def apply_rules(
    joint: fx.GraphModule, rules: tuple[tuple[str, str], ...], repeatable: tuple[str, ...] = ()
) -> dict[str, tuple[str, str]]:
    """Tag what the rules pin, as a checkpoint policy of the user's own would; that one wins where both speak.

    Each module that a rule matches is a checkpointed region of its own: what enters it is held. What must not run twice
    gets no tag: a module's path says nothing about the operators in it. repeatable: those that the user has declared.
    """
    pins: dict[str, tuple[str, str]] = {}
    regions: dict[str, int] = {}
    for node in joint.graph.nodes:
        path = module_path(node.meta.get("nn_module_stack"))
        if node.op != "call_function" or not path or "recompute" in node.meta:
            continue
        found = rule_of(path, rules)
        if found is None or found[1].startswith(("offload:", "tile")):  # about what is saved, about regions
            continue
        pattern, action, instance = found
        pins[node.name] = (action, f"rule {pattern!r}")
        if twice_is_wrong(node, repeatable):
            continue
        node.meta["recompute"] = compat.must_save() if action == "save" else compat.must_recompute()
        node.meta["ac_graph_id"] = regions.setdefault(instance, len(regions) + 1)
    return pins


def send_away(facts: JointFacts, rules: tuple[tuple[str, str], ...]) -> JointFacts:
    """Pin what Inductor would save of the modules that offload rules name; of a view, the value that owns its bytes."""
    values = list(facts.values)
    for i in sorted({facts.values[i].storage for i in facts.stock_saved}):
        rule = rule_of(values[i].module, rules)
        if rule is not None and rule[1].startswith("offload:") and values[i].pin is None and values[i].savable:
            values[i] = dataclasses.replace(values[i], pin=(rule[1], f"rule {rule[0]!r}"))
    return dataclasses.replace(facts, values=tuple(values))


def rule_of(path: str, rules: tuple[tuple[str, str], ...]) -> tuple[str, str, str] | None:
    """The first rule that a module path, or one of its parents, matches: pattern, action, what matched."""
    for pattern, action in rules:
        if (instance := matched(path, pattern)) is not None:
            return pattern, action, instance
    return None


def warn_of_unmatched(gm: fx.GraphModule, rules: tuple[tuple[str, str], ...], graph: str) -> None:
    """Warn of each rule whose pattern matches no module of a graph as Dynamo made it.

    A warning and not an error: where Dynamo makes several graphs of a function, a rule may be about another one.
    """
    if not rules:
        return
    graphs = [module for module in gm.modules() if isinstance(module, fx.GraphModule)]
    nodes = [node for module in graphs for node in module.graph.nodes]
    paths = dict.fromkeys(path for node in nodes if (path := module_path(node.meta.get("nn_module_stack"))))
    known = dict.fromkeys(parent for path in paths for parent in parents(path))
    for pattern, action in rules:
        if any(fnmatch.fnmatchcase(path, pattern) for path in known):
            continue
        spelt = [re.sub(r"\b\d+\b", "*", path) for path in known] if "*" in pattern else list(known)
        near = difflib.get_close_matches(pattern, spelt, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else "" if known else ": the graph has no modules"
        where = graph or "this graph"
        warnings.warn(f"memgraph: the rule {pattern!r}: {action!r} matches no module of {where}{hint}", stacklevel=2)
