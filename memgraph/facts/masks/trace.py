"""The operators that make a tensor of Dynamo's graph, as torch runs them.

Dynamo's graph holds what Python wrote: `x[:, None]`, `x.expand(...)`, `torch.diff(x)`, `x == y` in one version and
`x.__eq__(y)` in another. Run once more on fake tensors, all of that is a few operators with schemas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from memgraph.base import compat

# A mask of transformers takes about 40 nodes.
MOST = 400


class NotKnown(Exception):
    """What stands in a tensor is not known; says why."""


@dataclass(frozen=True, eq=False)
class Call:
    """One run of an operator."""

    operator: Any
    arguments: dict[str, Any]
    """By the names that the operator's schema gives them."""
    output: torch.Tensor

    @property
    def name(self) -> str:
        """The operator without its overload, `aten::add`."""
        return self.operator._schema.name


@dataclass
class Trace:
    """The operators that make one tensor."""

    output: torch.Tensor
    calls: dict[int, Call]
    """By the identity of its output, which the call keeps alive."""
    names: dict[int, str]
    """By identity of a tensor that the graph is given, its name."""
    kept: list[Any]
    """Values that live as long as the trace, so that no other has their identity."""


def traced(node: fx.Node) -> Trace:
    """What makes a tensor of Dynamo's graph.

    Raises NotKnown where the operators cannot be run again, or something is written in place.
    """
    cone = _cone(node)
    mode = compat.fake_mode_of([part.meta.get("example_value") for part in cone])
    if mode is None:
        raise NotKnown("its shape is not known")
    _refuse_writes(node.graph, cone)
    calls: dict[int, Call] = {}
    names: dict[int, str] = {}
    values: dict[fx.Node, Any] = {}
    with compat.propagating(mode), _Recorder(calls):
        for part in cone:
            if is_given(part):
                values[part] = part.meta.get("example_value")
                names[id(values[part])] = part.name
            else:
                values[part] = _run_again(part, values)
    return Trace(values[node], calls, names, list(values.values()))


def _run_again(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    """What a node holds, computed from what others hold."""
    seen = node.meta.get("example_value")
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
    try:
        if node.op == "call_method":
            found = getattr(args[0], node.target)(*args[1:], **kwargs)
        else:
            found = node.target(*args, **kwargs)
    except NotKnown:
        raise
    except Exception as error:
        # Without the error's text, which may hold addresses: a report says the same in every run.
        raise NotKnown(f"{node.name} cannot be run again ({type(error).__name__})") from error
    if isinstance(seen, torch.Tensor) and not _alike(seen, found):
        raise NotKnown(f"{node.name} is another tensor when it is run again")
    return found


class _Recorder(compat.operator_mode()):  # type: ignore[misc]
    """Notes which operator made which tensor."""

    def __init__(self, calls: dict[int, Call]) -> None:
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, operator: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        found = operator(*args, **(kwargs or {}))
        if isinstance(operator, compat.OpOverload):
            if operator._schema.is_mutable:
                raise NotKnown(f"{operator._schema.name} writes in place")
            if torch.Tag.nondeterministic_seeded in operator.tags:
                raise NotKnown(f"{operator._schema.name} draws random numbers")
            given = named(operator, args, kwargs or {})
            for output in compat.tree_leaves(found):
                if isinstance(output, torch.Tensor) and not any(output is value for value in given.values()):
                    self.calls[id(output)] = Call(operator, given, output)
        return found


def named(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operator, by name."""
    found = {}
    for place, known in enumerate(operator._schema.arguments):
        default = known.default_value if known.has_default_value() else None
        found[known.name] = args[place] if place < len(args) else kwargs.get(known.name, default)
    return found


def is_given(node: fx.Node) -> bool:
    """Whether a node is data, or no tensor: its value is taken as Dynamo has it."""
    value = node.meta.get("example_value")
    learned = isinstance(value, torch.Tensor) and value.requires_grad
    return node.op not in ("call_function", "call_method") or learned or compat.is_size(value)


def _cone(node: fx.Node) -> list[fx.Node]:
    """The nodes from which a node is made, itself among them, in the graph's order.  Raises NotKnown above MOST."""
    found, pending = {node}, [node]
    while pending:
        part = pending.pop()
        new = set() if is_given(part) else set(part.all_input_nodes) - found
        found |= new
        pending += new
        if len(found) > MOST:
            raise NotKnown(f"more than {MOST} operators make it")
    return [part for part in node.graph.nodes if part in found]


def _refuse_writes(graph: fx.Graph, cone: Sequence[fx.Node]) -> None:
    """Raises NotKnown if a tensor of the cone, or a view of one, is written into anywhere in the graph."""
    tensors = [value for part in cone for value in _tensors(part)]
    shared = {compat.storage_id(value) for value in tensors}
    inside = set(cone)
    for node in graph.nodes:
        for value in _tensors(node):
            if compat.storage_id(value) in shared and compat.is_written_into(value) and not is_given(node):
                raise NotKnown(f"{node.name} is written in place")
        if isinstance(node.target, compat.HigherOrderOperator):
            for read in node.all_input_nodes:
                if read in inside and not is_given(read):
                    raise NotKnown(f"{read.name} is handed to {node.name}, which may write into it")


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    held = compat.tree_leaves(node.meta.get("example_value"))
    tensors = [value for value in held if isinstance(value, torch.Tensor) and value.layout is torch.strided]
    return [value for value in tensors if compat.is_fake(value)]


def _alike(one: torch.Tensor, other: Any) -> bool:
    return (
        isinstance(other, torch.Tensor)
        and one.dtype == other.dtype
        and one.dim() == other.dim()
        and all(map(compat.same_size, one.shape, other.shape))
    )
