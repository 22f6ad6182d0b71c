"""One family trained through Inductor and through memgraph: one row for each column of the zoo's table.

Every column starts from the same weights, the same optimizer state and the same seeds. The state is made beforehand, so
that the budget's baseline holds it. A row is a plain dict.
"""

from __future__ import annotations

import functools
import gc
import tempfile
import time
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import memgraph
from memgraph.machine.measure import allocated_bytes
from tests.families import FAMILIES, Family

STEPS = 5
FRACTIONS = (0.6, 0.35)
# Losses, relative: five steps of training multiply what the gradients differ by.
LOSS_TOLERANCE = 1e-3
# Predicted against measured peak, both above the baseline.
PEAK_TOLERANCE = 0.01
SEED = 1234


def rows(family: Family) -> Iterator[dict[str, Any]]:
    """Plain Inductor, then memgraph: no bound, each fraction, all levers; after a refusal, its minimum.

    Where the error says that this is at least so much, as graphs of the step are to come, the next one's as well.
    """
    reference = _train(family, {}) | {"eager": functools.cache(lambda: _train(family, {}, eager=True))}
    losses = [float(loss) for loss in reference["losses"]]
    yield {"column": "inductor", "failure": ""} | {key: reference[key] for key in ("above", "graphs", "seconds")}
    if not np.isfinite(losses).all():
        raise ValueError(f"plain Inductor's own losses are {losses}")
    unbound = _row(family, "no budget", {"budget": None}, reference)
    yield unbound
    if "baseline" not in unbound:
        return
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        levers = {"tile": True, "offload": {"nvme": folder, "min_bytes": 4096}}
        columns = [(f"{fraction:.0%}", fraction, {}) for fraction in FRACTIONS]
        columns.append((f"{FRACTIONS[-1]:.0%}, all levers", FRACTIONS[-1], levers))
        tried: set[tuple[bool, int]] = set()
        for column, fraction, more in columns:
            budget = level(unbound) + int(fraction * reference["above"])
            row = _row(family, column, {"budget": budget} | more, reference)
            yield row
            named = row
            while (refused := named.get("refused")) is not None and (bool(more), refused) not in tried:
                tried.add((bool(more), refused))  # two fractions may share a minimum
                found = _row(family, f"{column}: its minimum", {"budget": refused} | more, reference)
                yield found if named["unfinished"] else named_by_an_error(found)
                if not named["unfinished"]:
                    break
                named = found  # the error said "at least": graphs were to come


def named_by_an_error(row: dict[str, Any]) -> dict[str, Any]:
    """The row of a smallest budget that an error named: refused once more, it is wrong."""
    return row | {"failure": "refused, though an error named it"} if "refused" in row else row


def _row(family: Family, column: str, options: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    """One column of memgraph's: what was planned, what was measured, and what is wrong with it ("" for nothing)."""
    row: dict[str, Any] = {"column": column, "budget": options["budget"], "failure": ""}
    known = len(memgraph.reports())
    try:
        found = _train(family, options)
    except memgraph.BudgetError as refusal:
        why = [": ".join(pair) for pair in refusal.refusals]
        return row | {"refused": refusal.minimum, "unfinished": refusal.unfinished, "why": why}
    except Exception as error:
        traceback.print_exc()
        first = (str(error).strip() or "no message").splitlines()
        text = next((line for line in first if "raised:" not in line), first[0])
        return row | {"failure": f"{type(error).__name__}: {text[:300]}"}
    reports = memgraph.reports()[known:]
    if not reports:
        return row | {"failure": "nothing was planned", "above": found["above"]}
    widest = max(reports, key=lambda report: report.predicted_peak)
    planned = sum(seconds for report in reports for name, seconds in report.stages if name == "planning")
    actions = [decision.action.lever for report in reports for decision in report.decisions]
    row |= {
        "baseline": widest.baseline,
        "predicted": widest.predicted_peak,
        "measured": found["measured"],
        "above": found["above"],
        "source": widest.source_of_peak,
        "attempts": max(report.attempts for report in reports),
        "planning": planned,
        "graphs": found["graphs"],
        "seconds": found["seconds"],
        "decisions": {action: actions.count(action) for action in sorted(set(actions))},
        "refusals": sorted({f"{refusal.what}: {refusal.reason}" for r in reports for refusal in r.refusals}),
        "notes": sorted({note for report in reports for note in report.notes}),
        "losses": _relative(found["losses"], reference["losses"]),
        "gradients": difference(found["gradients"], reference["gradients"]),
    }
    if row["gradients"] > family.tolerance:  # one of the two is wrong: eager torch says which
        eager = reference["eager"]()
        off = difference(reference["gradients"], eager["gradients"])
        row["notes"].append(f"plain Inductor's own gradients differ from eager's by {off:.1e}: compared with eager")
        row["losses"] = _relative(found["losses"], eager["losses"])
        row["gradients"] = difference(found["gradients"], eager["gradients"])
    return row | {"failure": "; ".join(_breaches(row, family))}


def level(row: dict[str, Any]) -> int:
    """What is allocated when a step begins: of one graph the baseline of its report, of several as it was measured.

    The widest of several graphs begins at a level of its own, and its report does not speak of the step.
    """
    return row["measured"] - row["above"] if row["graphs"] > 1 else row["baseline"]


def reached(row: dict[str, Any]) -> int:
    """The measured peak of a step."""
    return level(row) + row["above"]


def _breaches(row: dict[str, Any], family: Family) -> Iterator[str]:
    if row["budget"] is not None and (over := reached(row) - row["budget"]) > 0:
        yield f"{over} bytes over the budget"
    predicted = row["predicted"] - row["baseline"]
    if row["graphs"] == 1 and abs(predicted - row["above"]) > PEAK_TOLERANCE * row["above"]:
        yield f"predicted {predicted}, measured {row['above']} bytes above the baseline"
    if not row["losses"] <= LOSS_TOLERANCE:
        yield f"losses differ by {row['losses']:.1e}"
    if not row["gradients"] <= family.tolerance:
        yield f"gradients differ by {row['gradients']:.1e}"


def _train(family: Family, options: dict[str, Any], *, eager: bool = False) -> dict[str, Any]:
    """Five steps through memgraph with `options`, or through plain Inductor without, and the peak of a sixth."""
    torch._dynamo.reset()
    gc.collect()
    torch._dynamo.utils.counters.clear()
    module, inputs = family.make()
    optimizer = optimizer_of(family, module)
    how = {"backend": "memgraph", "options": options} if options else {"backend": "eager" if eager else "inductor"}
    compiled = torch.compile(module, **how)
    seconds, losses, gradients = 0.0, [], {}
    for step in range(STEPS):
        start = time.perf_counter()
        torch.manual_seed(SEED + step)
        loss = compiled(**inputs)
        loss.backward()
        if step == 0:
            seconds = time.perf_counter() - start
            # In numpy: tensors held here would count as part of the baseline of the columns to come.
            gradients = {name: _numpy(p.grad) for name, p in module.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        del loss
    gc.collect()
    before = allocated_bytes()

    def sixth() -> None:
        torch.manual_seed(SEED)
        compiled(**inputs).backward()

    measured = memgraph.measure_peak(sixth)
    return {
        "losses": losses,
        "gradients": gradients,
        "measured": measured,
        "above": measured - before,
        "seconds": seconds,
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
    }


def optimizer_of(family: Family, module: torch.nn.Module) -> torch.optim.Optimizer:
    """The family's optimizer with its state made by a step on gradients of zero, which changes no weight."""
    if family.optimizer == "sgd":
        return torch.optim.SGD(module.parameters(), lr=0.05)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.0)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


def difference(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """The largest difference of an entry, relative to the largest entry of its gradient.

    One that is zero but for rounding (the bias of BERT's keys, a bias before batch norm) is measured by the largest
    gradient instead.
    """
    if found.keys() != wanted.keys():
        return float("inf")
    largest = max(float(np.abs(gradient).max()) for gradient in wanted.values())
    worst = 0.0
    for name, gradient in wanted.items():
        scale = max(float(np.abs(gradient).max()), 1e-3 * largest)
        worst = max(worst, float(np.abs(found[name] - gradient).max()) / scale)
    return worst


def _relative(found: list[float], wanted: list[float]) -> float:
    return max(abs(mine - theirs) / abs(theirs) for mine, theirs in zip(found, wanted, strict=True))


def _numpy(gradient: torch.Tensor) -> np.ndarray:
    return gradient.detach().to_dense().double().numpy().copy()


def measure(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of the family that `task` names, for benchmarks/zoo.py."""
    import transformers

    transformers.logging.set_verbosity_error()
    family = FAMILIES[task["family"]]
    try:
        with family.capturing():
            yield from rows(family)
    except Exception as error:  # plain Inductor itself does not get through
        traceback.print_exc()
        yield {"failure": f"plain Inductor: {type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"}
