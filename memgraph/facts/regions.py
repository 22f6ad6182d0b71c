"""Regions: the stretches of a forward that are kept, recomputed and scheduled as one.

From `nn_module_stack`: one region per element of the outermost module list (`model.layers.3`), and one per stretch
between such elements (embedding; final norm, head and loss). Where no module list is to be seen, the forward is cut
where all data flows through one value. Regions of the same nodes in the same order and of the same shapes are one
class.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch.fx import Node

from memgraph.facts.operators import family

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
        if part.isdigit():
            return ".".join(parts[: position + 1])
    return ""


def forward_regions(nodes: Sequence[Node], paths: Sequence[str]) -> tuple[list[int], list[str]]:
    """A region for each forward node (in execution order), and the regions' names."""
    names: list[str] = []
    index: dict[str, int] = {}
    assigned: list[int] = []
    elements = [element_of(path) for path in paths]
    if not any(elements):
        return _between_bottlenecks(nodes)
    current = ""
    stretch = 0
    for element, path in zip(elements, paths, strict=True):
        if element:
            current = element
        elif path and (not current or not current.startswith("between ")):
            stretch += 1
            current = f"between {stretch}"
        elif not current:
            current = "between 0"
        if current not in index:
            index[current] = len(names)
            names.append(current)
        assigned.append(index[current])
    return assigned, names


def _between_bottlenecks(nodes: Sequence[Node], most: int = 24) -> tuple[list[int], list[str]]:
    """Cut the forward where a single computed value crosses, into at most `most` stretches of similar length."""
    position = {node: i for i, node in enumerate(nodes)}
    last_use: dict[Node, int] = {}
    for node in nodes:
        uses = [position[user] for user in node.users if user in position]
        last_use[node] = max(uses, default=position[node])
    crossing = [0] * (len(nodes) + 1)
    for node, last in last_use.items():
        if isinstance(node.meta.get("val"), torch.Tensor) and family(node.target) != "view":
            crossing[position[node] + 1] += 1
            crossing[last + 1 if last > position[node] else position[node] + 1] -= 1
    assigned, names, running, started = [], ["stretch 0"], 0, 0
    least = max(4, len(nodes) // most)
    for i in range(len(nodes)):
        running += crossing[i]
        if running == 1 and i - started >= least and len(nodes) - i >= least:
            names.append(f"stretch {len(names)}")
            started = i
        assigned.append(len(names) - 1)
    return assigned, names


def classes(nodes: Sequence[Node], assigned: Sequence[int], count: int) -> list[int]:
    """The class of each region: regions of equal nodes, shapes and dtypes, in equal order, share one."""
    signatures: list[list] = [[] for _ in range(count)]
    for node, region in zip(nodes, assigned, strict=True):
        value = node.meta.get("val")
        shape = (tuple(map(str, value.shape)), value.dtype) if isinstance(value, torch.Tensor) else None
        signatures[region].append((str(node.target), shape))
    seen: dict[tuple, int] = {}
    return [seen.setdefault(tuple(signature), len(seen)) for signature in signatures]
