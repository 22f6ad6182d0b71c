"""The calls of attention that torch gives to cuDNN on this card.

Torch itself is asked: the call is dispatched once more on the fake tensors of the capture.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from memgraph import simulator
from memgraph.base import compat
from memgraph.facts.masks.causal import ATTENTION, arguments


def given_to_cudnn(module: fx.GraphModule) -> frozenset[str]:
    """The names of these calls in a Dynamo graph."""
    if not torch.cuda.is_available() or not torch.backends.cuda.cudnn_sdp_enabled():
        return frozenset()
    chosen: dict[tuple[str, ...], bool] = {}
    found = set()
    for call, cast in _calls(module.graph):
        given = {name: _example(value) for name, value in arguments(call).items()}
        if not all(isinstance(given[name], torch.Tensor) and given[name].is_cuda for name in ("query", "key", "value")):
            continue
        key = (str(cast), *map(_text, given.values()))
        if key not in chosen:
            chosen[key] = _by_cudnn(given, cast)
        if chosen[key]:
            found.add(call.name)
    return frozenset(found)


def _calls(graph: fx.Graph) -> Iterator[tuple[fx.Node, tuple[Any, ...]]]:
    """The calls of attention, each with the arguments of the autocast that it stands in, or none of them."""
    begun: list[fx.Node] = []
    for node in graph.nodes:
        if compat.enters_autocast(node.target):
            begun.append(node)
        elif compat.leaves_autocast(node.target) and node.args[0] in begun:
            begun.remove(node.args[0])
        elif node.target is ATTENTION:
            yield node, begun[-1].args if begun else ()


def _example(value: Any) -> Any:
    return value.meta.get("example_value") if isinstance(value, fx.Node) else value


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.stride()} {value.dtype} {value.requires_grad}"
    return str(value)


def _by_cudnn(given: dict[str, Any], cast: tuple[Any, ...]) -> bool:
    """Whether torch would give a call to cuDNN.  cast: the arguments of an autocast."""
    listener = _Operators()
    mode = compat.fake_mode_of([given["query"]])
    # On the simulated card torch is told to prefer other kernels; a card of these two generations prefers cuDNN's.
    simulated, preferred = simulator.here(), torch.cuda.get_device_capability() in ((9, 0), (10, 0))
    if mode is None or (simulated and not preferred):
        return False
    as_on_a_card = sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH], set_priority=True)
    alone = as_on_a_card if simulated else contextlib.nullcontext()
    autocast = torch.autocast(*cast) if cast else contextlib.nullcontext()
    try:
        with alone, mode, autocast, listener:
            ATTENTION(**given)
    except RuntimeError:  # torch's own: whoever traces the call next says what it has against it
        return False
    return any("cudnn_attention" in name for name in listener.names)


class _Operators(compat.operator_mode()):  # type: ignore[misc]
    """Notes the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        self.names.append(str(operator))
        return operator(*args, **(kwargs or {}))
