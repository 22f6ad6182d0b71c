"""The loops that `training_runs` and `distributed_runs` measure: what a user writes, and a step at a time."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

Step = Callable[[], float]
"""A forward and its backward: the loss."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """A Llama and its batches."""

    layers: int
    hidden: int
    vocabulary: int
    batch: int
    tokens: int


WHOLE = Shape(4, 256, 2048, 4, 512)
SHAPES = {
    "adamw": WHOLE,
    "adamw_late": WHOLE,
    "gradients_kept": WHOLE,
    "accumulation": Shape(2, 256, 1024, 2, 512),
    "layers_one_by_one": Shape(8, 128, 128, 4, 512),
    "layers_at_once": Shape(8, 128, 128, 4, 512),
    "lengths": Shape(2, 128, 2048, 4, 512),
    "growing_lengths": Shape(2, 128, 2048, 4, 512),
}
SHORTEST = 64
GROWING = (128, 256, 512, 64)
FAMILIES = ("gpt2", "gpt_oss", "t5")
"""Models of `tests.support.models.sized`, dropout on, whose attention stands in the graph as operators."""
BREAKS = {"one_break": 2, "two_breaks": 3}
"""The parts of a chain of six blocks between which the graph breaks."""


def steps(run: str, number: int, how: dict[str, Any]) -> Iterator[Step]:
    """The steps of a run, one after another; between them its optimizer steps.  how: the arguments of `compile`."""
    import torch

    if run in FAMILIES:
        model, batch, whole = _family(run)
    else:
        model, batch = _chain(BREAKS[run]) if run in BREAKS else _llama(run, how)
        whole = model if run in BREAKS else (lambda ids: model(input_ids=ids, labels=ids).loss)
    optimizer = None if run == "adamw_late" else torch.optim.AdamW(model.parameters(), 1e-3)
    loss_of = whole if run == "layers_one_by_one" else torch.compile(whole, **how)

    def step() -> float:
        inputs = batch()
        loss = loss_of(*inputs) if isinstance(inputs, tuple) else loss_of(inputs)
        loss.backward()
        return float(loss.item())

    for done in range(number):
        yield step
        if run == "accumulation" and done % 3 < 2:
            continue
        optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-3)
        optimizer.step()
        optimizer.zero_grad(set_to_none=run != "gradients_kept")


def _family(run: str) -> tuple[Any, Callable[[], Any], Any]:
    from tests.support.models.sized import Shape as Size
    from tests.support.models.sized import make

    case = make(run, Size(layers=2, hidden=64, sequence=512, vocabulary=512, dropout=0.1))
    return case.model, lambda: case.inputs, case.loss


def _llama(run: str, how: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
    import torch

    shape = SHAPES[run]
    model = llama(shape.layers, shape.vocabulary, shape.hidden)
    if run == "layers_one_by_one":
        for layer in model.model.layers:
            layer.compile(**how)
    lengths = _lengths(run, shape)
    return model, lambda: torch.randint(0, shape.vocabulary, (shape.batch, next(lengths)))


def _lengths(run: str, shape: Shape) -> Iterator[int]:
    drawn = random.Random(1)
    while True:
        if run == "lengths":
            yield drawn.randint(SHORTEST, shape.tokens)
        elif run == "growing_lengths":
            yield from GROWING
        else:
            yield shape.tokens


def llama(layers: int, vocabulary: int, hidden: int = 128) -> Any:
    """A small one, to be trained."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=hidden * 11 // 4, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=4, vocab_size=vocabulary, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).train()


def _chain(parts: int) -> tuple[Any, Callable[[], Any]]:
    """Six blocks, with a graph break between two parts of them."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(nn.functional.gelu(self.up(x)))

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            size = 6 // parts
            self.first, self.middle, self.last = (
                nn.Sequential(*(Block() for _ in range(size if part < parts else 0))) for part in range(3)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            torch._dynamo.graph_break()  # not in a loop: Dynamo would leave all of the loop alone
            x = self.middle(x)
            if len(self.last):
                torch._dynamo.graph_break()
                x = self.last(x)
            return x.square().mean()

    x = torch.randn(2048, 256)
    return Broken(), lambda: x
