"""Copies to another tier and back: four operators, each an end of a copy.

    forward    ticket = offload_start(x, name);            held = offload_finish(ticket, x)
    backward   ticket = reload_start(held, layout of x);   y = reload_finish(ticket, held, layout of x)

y is x, the value that left, if the four ends fit together. If they do not, y is another value.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import fx

from memgraph.verify.frame import Frame
from memgraph.verify.terms import Form, Term

_STEPS = {"offload_start": 0, "offload_finish": 1, "reload_start": 2, "reload_finish": 3}


def copy(frame: Frame, node: fx.Node) -> Term:
    """The term of an operator that starts or finishes a copy."""
    name, terms, values = node.target._schema.name.removeprefix("memgraph::"), frame.terms, frame.values
    if name == "offload_start":
        value = terms.after(values[node.args[0]], frame.history.writes)
        offloaded = terms.make(Form.OFFLOADED, node.args[1], value, _layout_of(node.args[0]))
        return terms.make(Form.COPY, _STEPS[name], offloaded)
    begun = values[node.args[0]].copy
    if begun is None or not _fits(frame, node, name, *begun):
        return terms.make(Form.MISFIT, name, frame.frozen(node.args))
    step, offloaded = begun
    if name == "reload_finish":
        _, value, _ = offloaded.args
        return value
    return terms.make(Form.COPY, _STEPS[name], offloaded)


def _fits(frame: Frame, node: fx.Node, name: str, step: int, offloaded: Term) -> bool:
    """Whether an operator goes on with a copy at the step where it is, with the value and the layout that left."""
    _, value, layout = offloaded.args
    if step != _STEPS[name] - 1:
        return False
    if name == "offload_finish":
        return value is frame.values[node.args[1]]
    if _layout(*node.args[-5:-1]) != layout:
        return False
    if name == "reload_finish":
        held = frame.values[node.args[1]].copy
        return held is not None and held[1] is offloaded and tuple(node.args[2:]) == tuple(node.args[0].args[1:])
    return True


def _layout_of(node: fx.Node) -> Hashable:
    held = node.meta.get("val")
    return None if held is None else _layout(held.shape, held.stride(), held.dtype, held.device)


def _layout(size: Any, stride: Any, dtype: Any, device: Any) -> Hashable:
    return (_lengths(size), _lengths(stride), dtype, torch.device(device))


def _lengths(lengths: Any) -> tuple[str, ...]:
    return tuple(str(length.meta.get("val") if isinstance(length, fx.Node) else length) for length in lengths)
