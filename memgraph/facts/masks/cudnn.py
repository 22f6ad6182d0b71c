"""The calls of attention that torch gives to cuDNN on this card."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from memgraph import simulator
from memgraph.base import compat
from memgraph.facts.masks.kernels import calls_of_attention, described, examples, operators_of


def given_to_cudnn(module: fx.GraphModule) -> frozenset[str]:
    """The names of these calls in a Dynamo graph."""
    if not torch.cuda.is_available() or not torch.backends.cuda.cudnn_sdp_enabled():
        return frozenset()
    chosen: dict[tuple[str, ...], bool] = {}
    found = set()
    for call, cast in calls_of_attention(module.graph):
        given = examples(call)
        if not all(isinstance(given[name], torch.Tensor) and given[name].is_cuda for name in ("query", "key", "value")):
            continue
        key = described(given, cast)
        if key not in chosen:
            chosen[key] = _by_cudnn(given, cast)
        if chosen[key]:
            found.add(call.name)
    return frozenset(found)


def _by_cudnn(given: dict[str, Any], cast: tuple[Any, ...]) -> bool:
    """Whether torch would give a call to cuDNN.  cast: the arguments of an autocast."""
    mode = compat.fake_mode_of([given["query"]])
    # On the simulated card torch is told to prefer other kernels; a card of these two generations prefers cuDNN's.
    simulated, preferred = simulator.here(), torch.cuda.get_device_capability() in ((9, 0), (10, 0))
    if mode is None or (simulated and not preferred):
        return False
    as_on_a_card = sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH], set_priority=True)
    with as_on_a_card if simulated else contextlib.nullcontext():
        return any("cudnn_attention" in name for name in operators_of(given, cast, mode))
