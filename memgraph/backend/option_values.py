"""The values that each option takes: one function an option turns a user's value into the frozen one.

Each raises ValueError for what it does not take.
 The text says what is allowed.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import reprlib
from collections.abc import Iterable, Mapping

from memgraph.base import compat
from memgraph.base.sizes import ALLOWED as SIZES
from memgraph.base.sizes import parse_size
from memgraph.facts.actions import SPELLINGS, Rule, parse_action
from memgraph.planner.step_plan import StepPlan

ACTIONS_LISTED = (*SPELLINGS, "tile:16")
# What memgraph sets in Inductor's configuration itself.
OWN_INDUCTOR_KEYS = frozenset(
    {
        "custom_partitioner_fn",
        "_pre_fusion_custom_pass",
        "allow_buffer_reuse",
        "realize_opcount_threshold",
        "realize_acc_reads_threshold",
    }
)


def budget(value: object) -> int | float | str | None:
    if value is None or value == "auto":
        return value
    if isinstance(value, float):
        if 0 < value <= 1:  # false for NaN, too
            return value
    elif isinstance(value, (str, int)) and not isinstance(value, bool):
        return parse_size(value)
    raise ValueError(f'allowed: {SIZES}; a fraction above 0.0 and up to 1.0 (float); "auto"; None')


def reserve(value: object) -> int:
    return parse_size(value, allow_zero=True)


def largest_size(value: object) -> int | None:
    if value is None or isinstance(value, int) and not isinstance(value, bool) and value > 1:
        return value
    raise ValueError("allowed: None, or a number of entries from 2 on (int)")


def plan(value: object) -> StepPlan | None:
    """The plan in a file.  Raises PlanError, a ValueError, where the file has none."""
    if value is None or isinstance(value, StepPlan):
        return value
    if isinstance(value, (str, os.PathLike)) and os.fspath(value):
        return StepPlan.load(value)
    raise ValueError('allowed: None, or a file that `report.plan.save("plan.json")` wrote')


def outline(value: object) -> bool | str:
    if isinstance(value, bool) or value == "auto":
        return value
    raise ValueError('allowed: "auto", True, False')


def recompute(value: object) -> object:
    if isinstance(value, bool):
        return {} if value else None  # what RecomputeOptions | None is made of
    if isinstance(value, Mapping):
        return value
    raise ValueError('allowed: True, False, or a dict such as {"copies": True}')


def offload(value: object) -> object:
    if value is None or isinstance(value, bool):
        return {"host": True} if value else None
    if isinstance(value, Mapping):
        return value
    raise ValueError('allowed: True, False, or a dict such as {"host": "64GiB", "nvme": "/scratch"}')


def host(value: object) -> int | bool:
    if isinstance(value, bool):
        return value
    if value is None:
        return False
    return parse_size(value)


def nvme(value: object) -> object:
    if isinstance(value, str) and value:
        return {"path": value}
    if value is None or isinstance(value, Mapping):
        return value
    raise ValueError('allowed: None, a folder, or a dict such as {"path": "/scratch", "limit": "500GiB"}')


def limit(value: object) -> int | None:
    return None if value is None else parse_size(value)


def margin(value: object) -> int | float | None:
    if value is None:
        return None
    if isinstance(value, float):
        if 0 <= value < 1:  # false for NaN, too
            return value
    elif isinstance(value, (str, int)) and not isinstance(value, bool):
        return parse_size(value, allow_zero=True)
    raise ValueError(f"allowed: {SIZES}; a share of the file system from 0.0 on and below 1.0 (float); None")


def gpudirect(value: object) -> bool | str:
    if value == "auto" or isinstance(value, bool):
        return value
    raise ValueError('allowed: "auto", True, False')


def tile(value: object) -> object:
    if value is None or isinstance(value, bool):
        return {} if value else None
    if isinstance(value, Mapping):
        return value
    raise ValueError('allowed: True, False, or a dict such as {"mlp": "auto", "loss": 16}')


def shards(value: object) -> object:
    if value == "auto" or value is False:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value > 1:
        return value
    raise ValueError('allowed: "auto", False, or a number of shards from 2 on')


def rules(value: object) -> tuple[Rule, ...]:
    example = '{"model.layers.*.mlp": "recompute"}'
    if not isinstance(value, Mapping):
        raise ValueError(f"allowed: a dict of module path patterns to actions, such as {example}")
    rules = []
    for pattern, spelling in value.items():
        if not isinstance(pattern, str) or not pattern:
            raise ValueError(f"the pattern {pattern!r} is not a module path; allowed: {example}")
        action = parse_action(spelling)
        if action is None:
            near, allowed = nearest(spelling, ACTIONS_LISTED), listed(ACTIONS_LISTED)
            raise ValueError(f"the action {spelling!r} of {pattern!r} is not known{near}; allowed: {allowed}")
        rules.append(Rule(pattern, action))
    return tuple(rules)


def spelt(rules: tuple[Rule, ...]) -> list[tuple[str, str]]:
    """The rules as JSON has them, in the order given: the first that matches wins."""
    return [(rule.pattern, str(rule.action)) for rule in rules]


def repeatable(value: object) -> tuple[str, ...]:
    """Patterns of operators.  Whether there are such operators is known only when a graph is planned."""
    example = '["mylib::rmsnorm", "mylib::*", "triton::my_kernel"]'
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"allowed: a list of operators, such as {example}")
    for name in value:
        if not isinstance(name, str) or not re.fullmatch(r"\w+::[\w*?]+", name):
            raise ValueError(f"{name!r} is no operator's name, `namespace::name`; allowed: {example}")
        namespace = name.partition("::")[0]
        communicates = "c10d" in namespace or namespace in ("symm_mem", "_dtensor")
        if communicates or namespace in ("aten", "prims"):
            why = "communicate" if communicates else "are known to memgraph"
            raise ValueError(f"{name!r}: the operators of {namespace!r} {why}; allowed: those of others")
    return tuple(dict.fromkeys(value))


def inductor(value: object) -> str:
    if not isinstance(value, Mapping):
        raise ValueError("allowed: a dict of names in Inductor's configuration to plain values")
    known = compat.inductor_config_keys() if value else frozenset()
    for key, setting in value.items():
        if key in OWN_INDUCTOR_KEYS:
            raise ValueError(f"{key!r} is set by memgraph itself; allowed: any other name in the configuration")
        if key not in known:
            raise ValueError(
                f"{key!r} is not in Inductor's configuration{nearest(key, known)}; "
                "allowed: the names that Inductor's list_options() gives"
            )
        if not _is_plain(setting):
            raise ValueError(
                f"{key!r} cannot be {reprlib.repr(setting)}; allowed: None, bool, int, finite float, str, "
                "and lists and dicts (str keys) of these"
            )
    return json.dumps(value, sort_keys=True)


def _is_plain(value: object) -> bool:
    """Whether JSON gives `value` back as it is (a tuple comes back as a list)."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, str)


def nearest(name: object, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), sorted(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
