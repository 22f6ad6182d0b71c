"""Which kernels torch gives a call of attention to.

Torch itself is asked: the call is dispatched once more, on fake tensors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.masks.causal import ATTENTION, arguments


def calls_of_attention(graph: fx.Graph) -> Iterator[tuple[fx.Node, tuple[Any, ...]]]:
    """The calls of attention, each with the arguments of the autocast that it stands in, or none of them."""
    begun: list[fx.Node] = []
    for node in graph.nodes:
        if compat.enters_autocast(node.target):
            begun.append(node)
        elif compat.leaves_autocast(node.target) and node.args[0] in begun:
            begun.remove(node.args[0])
        elif node.target is ATTENTION:
            yield node, begun[-1].args if begun else ()


def examples(call: fx.Node) -> dict[str, Any]:
    """The arguments of a call by name, with the capture's fake tensors in place of nodes."""
    return {name: _example(value) for name, value in arguments(call).items()}


def _example(value: Any) -> Any:
    return value.meta.get("example_value") if isinstance(value, fx.Node) else value


def described(given: Mapping[str, Any], cast: tuple[Any, ...]) -> tuple[str, ...]:
    """What torch's choice depends on, as text: equal ones need not be asked for twice."""
    return (str(cast), *map(_text, given.values()))


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.stride()} {value.dtype} {value.requires_grad}"
    return str(value)


def operators_of(given: Mapping[str, Any], cast: tuple[Any, ...], mode: Any) -> list[str]:
    """The names of the operators that a call becomes; none where torch refuses the call.

    cast: the arguments of an autocast.  mode: that of the fake tensors in `given`.
    """
    listener = _Operators()
    autocast = torch.autocast(*cast) if cast else contextlib.nullcontext()
    try:
        with mode, autocast, listener:
            ATTENTION(**given)
    except RuntimeError:  # torch's own: whoever traces the call next says what it has against it
        return []
    return listener.names


def taken_apart(module: fx.GraphModule, device: torch.device | None = None) -> frozenset[str]:
    """The calls in a Dynamo graph of which torch makes products and a softmax, were they told to be causal.

    There is no kernel for attention with dropout on a CPU, say. Each of these calls would then make a mask of its own,
    where the graph may have one for all of them.
    device: for which the graph will be traced; by default where its tensors are.
    """
    chosen: dict[tuple[str, ...], bool] = {}
    found = set()
    for call, cast in calls_of_attention(module.graph):
        given = examples(call)
        if not all(isinstance(given[name], torch.Tensor) for name in ("query", "key", "value")):
            continue
        key = described(given, cast)
        if key not in chosen:
            names = _told_causal(given, cast, device)
            chosen[key] = bool(names) and not any("attention" in name for name in names)
        if chosen[key]:
            found.add(call.name)
    return frozenset(found)


def _told_causal(given: Mapping[str, Any], cast: tuple[Any, ...], device: torch.device | None) -> list[str]:
    """The operators of a call that is told to be causal. Sizes that are symbols are what they are now: no guard."""
    mode = compat.fake_mode()
    told = dict(given) | {"attn_mask": None, "is_causal": True}
    with mode:
        for name in ("query", "key", "value"):
            told[name] = _alike(given[name], device)
    return operators_of(told, cast, mode)


def _alike(tensor: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    shape, strides = ([compat.size_hint(n) for n in sizes] for sizes in (tensor.shape, tensor.stride()))
    made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=device or tensor.device)
    return made.requires_grad_(tensor.requires_grad)


class _Operators(compat.operator_mode()):  # type: ignore[misc]
    """Notes the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        self.names.append(str(operator))
        return operator(*args, **(kwargs or {}))
