"""Regions: the stretches of a forward between which chains of recomputation may be cut.

A region is a run of neighbouring forward operators. A new one begins where the element of the outermost module list
changes (`model.layers.3`); the operators between two elements are a region too. A run that holds much of the graph is
cut further, where the fewest bytes cross: a graph without a module list is one such run. A module that runs several
times (the cell of an unrolled LSTM, layers that share weights) has a region for each run.

Autograd computes some values of its backward from forward values alone (1 - tanh(x)^2, x > 0). They stand at the end of
the forward in the joint graph, but belong to the region of the forward operator whose gradient they serve.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.fx import Node

from memgraph.facts.costs import logical_bytes
from memgraph.facts.operators import family

# A run with more than one PARTS-th of the forward's operators, or with twice MOST operators, is cut into parts of LEAST
# operators or more on average.
PARTS = 24
LEAST, MOST = 6, 64

_ROOT = re.compile(r"^[LG]\['[^']*'\]\.?")
_MODULES = re.compile(r"(?:\.|^)(?:__dict__\['_modules'\]|_modules)?\['([^']+)'\]")
_SLICE = re.compile(r"\.slice\([^)]*\)|\.__class__|\.__dict__")


def module_path(stack: dict | None) -> str:
    """The dotted path of the innermost module of a `nn_module_stack`, cleaned of Dynamo's spelling; "" for none."""
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    path = _ROOT.sub("", path)
    path = _MODULES.sub(lambda match: "." + match.group(1), path)
    path = _SLICE.sub("", path)
    return re.sub(r"\[(\d+)\]", r".\1", path).strip(".")


def element_of(path: str) -> str:
    """`model.layers.3.mlp.up_proj` -> `model.layers.3`; "" where no part of the path is a number."""
    parts = path.split(".")
    for position, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[: position + 1])
    return ""


def matched(path: str, pattern: str) -> str | None:
    """The module path, or the outermost of its parents, that the pattern matches; None if it matches none."""
    return next((prefix for prefix in parents(path) if fnmatch.fnmatchcase(prefix, pattern)), None)


def parents(path: str) -> list[str]:
    """A module path and all of its parents, outermost first."""
    parts = path.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


@dataclasses.dataclass(frozen=True)
class Region:
    """One region."""

    name: str
    """The element, or "between 2", with the number of the part where a run was cut: to read."""
    element: str
    """The element of a module list that it is a part of, "" if there is none."""


def forward_regions(nodes: Sequence[Node], paths: Sequence[str]) -> tuple[list[int], list[Region]]:
    """The region of each forward operator, and the regions, both in execution order.

    paths: the module path of each operator, "" if it is not known.
    """
    starts = _starts(paths)
    bounds = [*starts, len(nodes)]
    crossing = _crossing_bytes(nodes)
    assigned: list[int] = []
    found: list[Region] = []
    for run, first, last in zip(starts.values(), bounds[:-1], bounds[1:], strict=True):
        count = last - first
        parts = min(max(-(-count * PARTS // len(nodes)), count // MOST), count // LEAST)
        cuts = _cuts(crossing, first, last, parts)
        for number, (start, end) in enumerate(zip([first, *cuts], [*cuts, last], strict=True)):
            assigned += [len(found)] * (end - start)
            found.append(Region(f"{run.name}, part {number + 1}" if cuts else run.name, run.element))
    return assigned, found


def _starts(paths: Sequence[str]) -> dict[int, Region]:
    """By the first operator of each run, the run: operators that share an element, or that lie between two."""
    starts: dict[int, Region] = {}
    current, between = None, 0  # the element of the current run; None before the first one
    for position, path in enumerate(paths):
        element = element_of(path)
        if element and element != current:
            starts[position] = Region(element, element)
        elif not element and (current is None or (path and current)):
            between += 1
            starts[position] = Region(f"between {between}", "")
        else:
            continue
        current = element
    return starts


def _crossing_bytes(nodes: Sequence[Node]) -> np.ndarray:
    """Bytes of computed values that operators at or after each position read from operators before it."""
    position = {node: i for i, node in enumerate(nodes)}
    change = np.zeros(len(nodes) + 1)
    for node in nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or family(node.target) == "view":
            continue
        last = max((position[user] for user in _readers(node) if user in position), default=position[node])
        change[position[node] + 1] += logical_bytes(value)
        change[last + 1] -= logical_bytes(value)
    return np.cumsum(change)


def _readers(node: Node) -> set[Node]:
    """The operators that read a value, through views of it as well."""
    found: set[Node] = set()
    pending = [node]
    while pending:
        for user in pending.pop().users:
            if user not in found:
                found.add(user)
                if user.op == "call_function" and family(user.target) in ("view", "getitem"):
                    pending.append(user)
    return found


def _cuts(crossing: np.ndarray, first: int, last: int, parts: int) -> list[int]:
    """Where to cut the run [first, last) into about `parts` parts: where the least crosses, near the even places."""
    cuts: list[int] = []
    for n in range(1, parts):
        even = first + (last - first) * n / parts
        reach = (last - first) / parts / 2
        low = max(int(even - reach) + 1, (cuts[-1] if cuts else first) + 1)
        places = range(low, min(int(even + reach), last - 1) + 1)
        if places:
            cuts.append(min(places, key=lambda p: (crossing[p], abs(p - even))))
    return cuts


def gradient_regions(
    nodes: Sequence[Node], region_of: Mapping[Node, int], regions: Sequence[Region], start: int
) -> dict[Node, int]:
    """The region of each operator that autograd added: that of the forward operator whose gradient it serves.

    nodes: in execution order.  region_of: the region of each forward operator.  start: the region of the first
    operators, as long as nothing is known of them.
    """
    by_sequence = {node.meta["seq_nr"]: region for node, region in region_of.items() if "seq_nr" in node.meta}
    visits: dict[str, list[int]] = {}
    for number, region in enumerate(regions):
        visits.setdefault(region.element, []).append(number)
    found: dict[Node, int] = {}
    current = start
    for node in nodes:
        sequence = None if node.meta.get("is_gradient_acc") else by_sequence.get(node.meta.get("seq_nr"))
        element = element_of(module_path(node.meta.get("fwd_nn_module_stack")))
        runs = visits.get(element, ()) if element else ()
        if sequence is not None and (not runs or sequence in runs):
            current = sequence
        elif runs:
            current = min(runs, key=lambda region: abs(region - current))
        found[node] = current
    return found
