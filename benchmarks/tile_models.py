"""The stage models of tile.py: gradients of small real models, tiled against untiled."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.arm import SEED, compiled, newest_report, refusals, tiled
from benchmarks.harness import LONGEST_MESSAGE, Result, Start, Task
from tests.support.models import build_without_dropout

# A gradient that is zero but for rounding is measured by this share of the largest one's norm.
FLOOR = 1e-4
GROUPED = ("gpt_oss", "qwen3_moe")  # models whose experts are grouped products
Trained = tuple[float, dict[str, torch.Tensor]]
"""A loss, and by parameter its gradient."""


def rows(settings: dict[str, Any], start: Start) -> Iterator[Result]:
    """The rows of each model, from a process of its own."""
    for name in settings["models"]:
        task = {"stage": "models", "model": name, "shards": settings["shards"], "device": settings["device"]}
        for row in start("benchmarks.tile_models:gradients_of_model", task).results():
            yield {"model": name} | row


# Within a process


def gradients_of_model(task: Task) -> Iterator[Result]:
    """Tiled against plain Inductor in float32, both against eager float64; then both in bfloat16 against eager float32.

    Always of the same weights. The arm "rounded" is the float32 gradient in bfloat16: the least that any other is off.
    """
    model, inputs = build_without_dropout(task["model"])
    model.to(task["device"])
    inputs = {key: value.to(task["device"]) for key, value in inputs.items()}
    wide = copy.deepcopy(model).double()
    if task["model"] in GROUPED:  # torch multiplies groups of no double precision
        wide.model.set_experts_implementation("batched_mm")
    exact = eager(wide, inputs)
    reference = train(model, inputs, compiled(model, None))
    yield {"dtype": "float32", "arm": "inductor", **against_float64(reference, exact)}
    for shards in task["shards"]:
        yield {"dtype": "float32", **in_shards(model, inputs, shards, reference, exact)}
    model.bfloat16()
    wide = copy.deepcopy(model).float()
    reference = eager(wide, inputs)
    untiled = train(model, inputs, compiled(model, None))
    yield {"dtype": "bfloat16", "arm": "inductor", **errors(untiled, reference)}
    yield {"dtype": "bfloat16", **in_shards(model, inputs, task["shards"][-1], reference, untiled=untiled)}
    rounded = {name: gradient.bfloat16().double() for name, gradient in reference[1].items()}
    yield {"dtype": "bfloat16", "arm": "rounded", **errors((reference[0], rounded), reference)}


def train(model: Any, inputs: dict[str, torch.Tensor], call: Any) -> Trained:
    """The loss of one step and its gradients, in float64."""
    torch._dynamo.reset()
    torch.manual_seed(SEED)
    loss = call(**inputs)
    loss.backward()
    named = model.named_parameters()
    found = {name: parameter.grad.double() for name, parameter in named if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    return float(loss.detach()), found


def eager(model: Any, inputs: dict[str, torch.Tensor]) -> Trained:
    """Without a compiler, in the model's type."""
    kind = next(model.parameters()).dtype
    return train(model, {key: x.to(kind) if x.is_floating_point() else x for key, x in inputs.items()}, model)


def in_shards(
    model: Any,
    inputs: dict[str, torch.Tensor],
    shards: int,
    reference: Trained,
    exact: Trained | None = None,
    untiled: Trained | None = None,
) -> Result:
    """One row: a model tiled by memgraph."""
    row: Result = {"arm": f"memgraph {shards}"}
    try:
        found = train(model, inputs, compiled(model, {"tile": {"mlp": shards, "loss": shards}}))
    except Exception as error:  # the next number of shards may do
        return row | {"failure": f"{type(error).__name__}: {str(error)[:LONGEST_MESSAGE]}"}
    report = newest_report()
    row |= errors(found, reference) | (against_float64(found, exact) if exact else {})
    if untiled:
        row["error_against_untiled"] = errors(found, untiled).get("worst_gradient_error")
    return row | {"tiled": tiled(report), "refusals": refusals(report)}


def against_float64(found: Trained, exact: Trained) -> Result:
    """How far off the exact gradients are: the parameter that `errors` calls the worst, and by how much."""
    row = errors(found, exact)
    if "failure" in row:
        return row
    return {"float64_error": row["worst_gradient_error"], "worst_there": row["worst"]}


def errors(found: Trained, wanted: Trained) -> Result:
    """The loss's difference and the norms of the gradients' differences, relative: the worst, and of all together."""
    missing = wanted[1].keys() ^ found[1].keys()
    if missing:
        return {"failure": f"only one has gradients of {', '.join(sorted(missing))}"}
    norms = {name: float(gradient.norm()) for name, gradient in wanted[1].items()}
    missed = {name: float((found[1][name] - gradient).norm()) for name, gradient in wanted[1].items()}
    floor = FLOOR * max(norms.values())
    worst = max(missed, key=lambda name: missed[name] / max(norms[name], floor))
    return {
        "loss_error": abs(found[0] - wanted[0]) / abs(wanted[0]),
        "worst_gradient_error": missed[worst] / max(norms[worst], floor),
        "all_gradients_error": sum(x**2 for x in missed.values()) ** 0.5 / sum(x**2 for x in norms.values()) ** 0.5,
        "worst": worst,
    }
