"""What the planner may not change: the pins that the graph itself and the user's rules ask for.

The pins on what is saved and recomputed are tags on the nodes as well, which Inductor's own partitioner obeys.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import re
import warnings
from collections.abc import Iterable

import torch
from torch import fx

from memgraph.backend.options import OffloadOptions
from memgraph.base import compat
from memgraph.facts.actions import CheckpointTag, GraphItself, Offload, Pin, Recompute, Rule, Save
from memgraph.facts.joint import JointFacts, overwritten_inputs
from memgraph.facts.operators import draws, short_name, twice_is_wrong
from memgraph.facts.regions import matched, module_path, parents
from memgraph.planner.decisions import Refusal


def protect(joint: fx.GraphModule) -> dict[str, Pin]:
    """Tag what must cross to the backward: draws, and what is read from inputs that the forward overwrites.

    Under a user's checkpoint, Inductor's partitioner would redraw a seed that has no tag, and recompute from a buffer
    that the forward has changed meanwhile (wrong gradients on 2.11 and 2.13; tests/end_to_end/test_exact.py).
    """
    overwritten = overwritten_inputs(joint.graph.nodes)
    pins: dict[str, Pin] = {}
    for node in joint.graph.nodes:
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        if short_name(node.target) == "copy_":
            continue
        if draws(node) or any(arg in overwritten for arg in node.all_input_nodes):
            node.meta["recompute"] = compat.must_save()
            pins[node.name] = Pin(Save(), GraphItself())
    return pins


def apply_rules(joint: fx.GraphModule, rules: tuple[Rule, ...], repeatable: tuple[str, ...] = ()) -> dict[str, Pin]:
    """Tag what the rules save or recompute, as a checkpoint policy of the user's would. Such a policy wins over a rule.

    Each module that a rule matches is a checkpointed region of its own: its inputs are held. An operator that must not
    run twice gets no tag: a module's path says nothing about the operators in it. repeatable: the operators that the
    user has declared.
    """
    pins: dict[str, Pin] = {}
    regions: dict[str, int] = {}
    for node in joint.graph.nodes:
        path = module_path(node.meta.get("nn_module_stack"))
        if node.op != "call_function" or not path or "recompute" in node.meta:
            continue
        match = first_match(path, rules)
        if match is None or not isinstance(match.rule.action, Save | Recompute):
            continue
        pins[node.name] = Pin(match.rule.action, match.rule)
        if twice_is_wrong(node, repeatable):
            continue
        saved = isinstance(match.rule.action, Save)
        node.meta["recompute"] = compat.must_save() if saved else compat.must_recompute()
        node.meta["ac_graph_id"] = regions.setdefault(match.module, len(regions) + 1)
    return pins


def offload_tags(
    joint: fx.GraphModule, offload: OffloadOptions | None, device: str
) -> tuple[dict[str, Pin], tuple[Refusal, ...]]:
    """The pins of values that the user's checkpoint policy sends to the host, and refusals of those that cannot go.

    MUST_CPU_OFFLOAD goes wherever the options give host memory; PREFER_CPU_OFFLOAD where that is another memory than
    the device's. Such a value is tagged as saved, which Inductor's partitioner obeys: it knows nothing of offload. A
    value that cannot go is left to the planner, as PREFER_SAVE is.
    """
    pins: dict[str, Pin] = {}
    refused: dict[tuple[str, str], list[str]] = {}
    for node in joint.graph.nodes:
        tag = getattr(node.meta.get("recompute"), "name", "")
        if not tag.endswith("_CPU_OFFLOAD") or node.op != "call_function":
            continue
        if offload is None or not offload.host:
            reason = "there is no host tier: option 'offload' gives no host memory"
            refused.setdefault((tag, reason), []).append(node.name)
        elif device == "cpu" and tag.startswith("PREFER"):
            reason = "the CPU's own memory is where the values are already: only rules and MUST send values there"
            refused.setdefault((tag, reason), []).append(node.name)
        else:
            node.meta["recompute"] = compat.must_save()
            pins[node.name] = Pin(Offload("host"), CheckpointTag())
    told = (Refusal(_tagged(tag, names), reason) for (tag, reason), names in refused.items())
    return pins, tuple(told)


def _tagged(tag: str, names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{tag} of {names[0]}{more} ({CheckpointTag()})"


def send_away(facts: JointFacts, rules: tuple[Rule, ...]) -> JointFacts:
    """Pin what Inductor would save of the modules that offload rules name; of a view, the value that owns its bytes."""
    values = list(facts.values)
    for i in sorted({facts.values[i].storage for i in facts.stock_saved}):
        match = first_match(values[i].module, rules)
        if match is None or values[i].pin is not None or not values[i].savable:
            continue
        if isinstance(match.rule.action, Offload):
            values[i] = dataclasses.replace(values[i], pin=Pin(match.rule.action, match.rule))
    return dataclasses.replace(facts, values=tuple(values))


@dataclasses.dataclass(frozen=True)
class Match:
    """A rule that speaks of a module."""

    rule: Rule

    module: str
    """The path that its pattern matches: the module's own, or that of one of its parents."""


def first_match(path: str, rules: Iterable[Rule]) -> Match | None:
    """The first rule that matches a module path or one of its parents."""
    for rule in rules:
        if (module := matched(path, rule.pattern)) is not None:
            return Match(rule, module)
    return None


def warn_of_unmatched(gm: fx.GraphModule, rules: tuple[Rule, ...], graph: str) -> None:
    """Warn of each rule whose pattern matches no module of a graph as Dynamo made it.

    This is a warning and not an error: where Dynamo makes several graphs of a function, a rule may speak of another.
    """
    if not rules:
        return
    graphs = [module for module in gm.modules() if isinstance(module, fx.GraphModule)]
    nodes = [node for module in graphs for node in module.graph.nodes]
    paths = dict.fromkeys(path for node in nodes if (path := module_path(node.meta.get("nn_module_stack"))))
    known = dict.fromkeys(parent for path in paths for parent in parents(path))
    for rule in rules:
        if any(fnmatch.fnmatchcase(path, rule.pattern) for path in known):
            continue
        hint = _nearest(rule.pattern, list(known))
        where = graph or "this graph"
        warnings.warn(f"memgraph: the {rule.spelling} matches no module of {where}{hint}", stacklevel=2)


def _nearest(pattern: str, paths: list[str]) -> str:
    """What a user may have meant by a pattern that matches none of a graph's module paths."""
    if not paths:
        return ": the graph has no modules"
    spelt = [re.sub(r"\b\d+\b", "*", path) for path in paths] if "*" in pattern else paths
    near = difflib.get_close_matches(pattern, spelt, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
