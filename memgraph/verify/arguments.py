"""The arguments of a call by the names that its operator's schema gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from memgraph.base import compat


def name_of(target: Any) -> str:
    """`aten::mm`; "" if the target is no operator of torch's."""
    return target._schema.name if isinstance(target, compat.OpOverload) else ""


def argument(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """An argument by its name in the operator's schema."""
    for place, known in enumerate(target._schema.arguments):
        if known.name == name:
            if place < len(args):
                return args[place]
            return kwargs.get(name, known.default_value if known.has_default_value() else None)
    return None


def replaced(target: Any, args: tuple, kwargs: dict, new: Mapping[str, Any]) -> tuple[tuple, dict]:
    """The arguments with those in `new`, by name, in place of the old ones."""
    positional, named = list(args), dict(kwargs)
    for place, known in enumerate(target._schema.arguments if new else ()):
        if known.name in new:
            if place < len(positional):
                positional[place] = new[known.name]
            else:
                named[known.name] = new[known.name]
    return tuple(positional), named


@dataclass(frozen=True)
class Arguments:
    """The arguments of a node's operator, by name."""

    node: fx.Node

    def __getitem__(self, name: str) -> Any:
        return argument(self.node.target, self.node.args, self.node.kwargs, name)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self[name].meta["val"].shape)


def shapes(value: Any) -> list[tuple[int, ...]]:
    """The shapes of the tensors in what a node holds."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [tuple(item.shape) for item in values if isinstance(item, torch.Tensor)]
