"""A zoo of model families: tiny, random weights, one training loss each.

`FAMILIES` names them; `Family.make()` gives a module in training mode whose output is the loss, and its inputs. The
sizes are chosen so that activations outweigh weights (a budget then means something) and little C++ has to be compiled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import pathlib
from collections.abc import Callable, Iterable

import torch
import torch._dynamo

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing may be downloaded; set before transformers is imported
SEED = 0
KINDS = ("decoders", "mixtures", "hybrids", "encoders", "encoder_decoders", "vision", "audio", "multimodal")
KINDS += ("diffusion", "torchvision_models", "plain")

Made = tuple[torch.nn.Module, dict[str, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Family:
    """One family of models.

    Attributes:
        name: such as `"llama"`.  kind: the file of this package that makes it.  needs: the package it is from.
        build: a module whose output is the loss, and its inputs.
        optimizer: `"adamw"`, or `"sgd"` for models with sparse gradients.
        tolerance: the largest difference of a gradient's entry from plain Inductor's, relative to the largest entry.
        why: why the tolerance is not the usual one.
        dynamo: what a user sets in torch._dynamo.config so that the model is one graph.
    """

    name: str
    kind: str
    needs: str
    build: Callable[[], Made]
    optimizer: str = "adamw"
    tolerance: float = 1e-4
    why: str = ""
    dynamo: dict[str, object] = dataclasses.field(default_factory=dict)

    def make(self) -> Made:
        """The module in training mode, from a fixed seed, and its inputs: the same at each call."""
        torch.manual_seed(SEED)
        module, inputs = self.build()
        return module.train(), inputs

    def capturing(self) -> contextlib.AbstractContextManager:
        """Dynamo with the family's settings, for as long as it is compiled and run."""
        return torch._dynamo.config.patch(self.dynamo) if self.dynamo else contextlib.nullcontext()

    @property
    def missing(self) -> bool:
        """Whether the package that it is from is not installed."""
        return importlib.util.find_spec(self.needs) is None


class Training(torch.nn.Module):
    """`loss(model, **inputs)` as a module's output."""

    def __init__(self, model: torch.nn.Module, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model, **inputs)


def labelled(model: torch.nn.Module, **inputs: torch.Tensor) -> torch.Tensor:
    """The loss that a transformers model computes itself."""
    return model(**inputs).loss


def squared(wanted: str) -> Callable[..., torch.Tensor]:
    """The loss of a diffusion model: its output against the input named `wanted`."""

    def loss(model: torch.nn.Module, **inputs: torch.Tensor) -> torch.Tensor:
        target = inputs.pop(wanted)
        return torch.nn.functional.mse_loss(model(**inputs, return_dict=False)[0], target)

    return loss


def tokens(batch: int, length: int, vocabulary: int = 128) -> torch.Tensor:
    """Random tokens, int64 [batch, length]."""
    return torch.randint(1, vocabulary, (batch, length))


def _lend_schemas() -> list[torch.library.Library]:
    """Where torchvision's operators were built for another torch, declare those that its import asks for.

    Its models need none of them; without the declaration neither it nor transformers beside it can be imported.
    """
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return []
    try:
        torch.ops.load_library(str(pathlib.Path(found.origin).parent / "_C.so"))
        return []
    except OSError:
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return [declared]


def _all(kinds: Iterable[str]) -> dict[str, Family]:
    found = [family for kind in kinds for family in importlib.import_module(f"{__name__}.{kind}").FAMILIES]
    by_name = {family.name: family for family in found}
    if len(by_name) != len(found):
        raise ValueError("two families of one name")
    return by_name


_lent = _lend_schemas()
FAMILIES = _all(KINDS)
