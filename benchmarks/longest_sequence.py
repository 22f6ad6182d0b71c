"""The stages of tile.py on whole models, and what is only planned: longest sequence, cold compiles, gradients.

Each stage is two functions: one that starts processes and yields rows of the table, and one that runs within such a
process and yields answers, which are dicts of plain values.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import machine
import torch
import torch.nn.functional as F

Row = dict[str, Any]
Start = Callable[..., Any]  # a task (and what to add to the environment) to its process
STEP = 512  # tokens; sequences are multiples
MOST_TOKENS = 1 << 20
SEED = 1234
# layers, hidden, inner, heads, vocabulary, sequence where it is given
COMPILED = {"layers": 16, "hidden": 128, "inner": 344, "heads": 4, "vocabulary": 1024, "sequence": 512}
LONGEST = {"layers": 4, "hidden": 256, "inner": 688, "heads": 4, "vocabulary": 32768}
SMALL = {"layers": 1, "hidden": 64, "inner": 172, "heads": 2, "vocabulary": 2048}
COMPILES = {"inductor": None, "memgraph untiled": {}, "memgraph tiled": {"tile": {"mlp": 8, "loss": 8}}}
# By arm, memgraph's options beside the budget; None for Inductor alone.
LONGEST_ARMS = {"inductor": None, "save + recompute": {}, "save + recompute + tile": {"tile": True}}
UNMASKED = "sdpa_unmasked"
PLANNED = {"sequence": 8192, "hidden": 2560, "vocabulary": 151936}
ABOVE = 5 * 10**9  # bytes above the baseline that "auto" may use there
RETRIES = 3  # lengths that are tried where Inductor lowers a plan into more than it said
# A gradient that is zero but for rounding is measured by this share of the largest one's norm.
FLOOR = 1e-4
GROUPED = ("gpt_oss", "qwen3_moe")


@functools.cache
def tests_models() -> Any:
    """The models of the tests."""
    sys.path.insert(0, str(machine.ROOT))
    return importlib.import_module("tests.support.models")


def llama(shape: dict[str, int], device: str, dtype: str, mask: bool = True) -> Any:
    """A Llama with random weights, its loss as its output.

    mask: of sequence x sequence, as transformers has it made where torch is older than 2.14 and compiles; without it
    the kernel is told that attention is causal, as where nothing is compiled.
    """
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    torch.manual_seed(0)
    AttentionInterface.register(UNMASKED, sdpa_attention_forward)  # no mask is made for a name without a mask function
    config = LlamaConfig(
        hidden_size=shape["hidden"],
        intermediate_size=shape["inner"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["heads"],
        vocab_size=shape["vocabulary"],
        max_position_embeddings=MOST_TOKENS,
        use_cache=False,
        attn_implementation="sdpa" if mask else UNMASKED,
    )
    with torch.device(device):
        model = LlamaForCausalLM(config)
    return tests_models().Loss(model.to(getattr(torch, dtype)).train())


def batch(shape: dict[str, int], length: int, device: str) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, shape["vocabulary"], (1, length), device=device)
    return {"input_ids": ids, "labels": ids}


def compiled(model: Any, options: dict[str, Any] | None) -> Any:
    """The model by Inductor where `options` is None, else by memgraph without its caches."""
    if options is None:
        return torch.compile(model, backend="inductor", fullgraph=True)
    return torch.compile(model, backend="memgraph", fullgraph=True, options={"budget": None, "cache": False} | options)


def tiled(report: Any) -> str:
    """What a report says was tiled, as in "4 in 8, 1 in 16"."""
    counts: dict[int, int] = {}
    for decision in report.decisions:
        if decision.action.lever == "tile":
            counts[decision.action.shards] = counts.get(decision.action.shards, 0) + 1
    return ", ".join(f"{regions} in {shards}" for shards, regions in counts.items())


def refusals(report: Any) -> list[str]:
    return [f"{refusal.what}: {refusal.reason}" for refusal in report.refusals]


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


# Cold compiles


def compile_rows(settings: dict[str, Any], start: Start) -> Iterator[Row]:
    """Seconds of the first step, each in a process and a cache folder of its own; the arms in turn."""
    shape = COMPILED | (SMALL if settings["small"] else {})
    task = {"stage": "compile", "shape": shape, "device": settings["device"], "dtype": settings["dtype"]}
    rows: dict[str, Row] = {arm: {"arm": arm, "seconds": [], "cpu_seconds": []} for arm in COMPILES}
    for _ in range(settings["rounds"]):
        for arm, row in rows.items():
            with tempfile.TemporaryDirectory(prefix="memgraph-cold-") as folder:
                # One thread compiles: the C++ compilers are then children, whose CPU time can be read.
                environment = {"TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
                (answer,) = start(task | {"options": COMPILES[arm]}, environment).answers()
            for key in ("seconds", "cpu_seconds"):
                row[key] += [answer.pop(key)] if key in answer else []
            row |= answer
    for row in rows.values():
        for key in ("seconds", "cpu_seconds"):
            pairs = zip(row[key], rows["inductor"][key], strict=False)
            ratios = [mine / base for mine, base in pairs]
            row[f"{key}_ratio"] = statistics.median(ratios) if ratios else None
        yield row


def cold_compile(task: dict[str, Any]) -> Iterator[Row]:
    """Seconds of the first step by the clock, and of CPU with the C++ compiler's."""
    model = llama(task["shape"], task["device"], task["dtype"])
    inputs = batch(task["shape"], task["shape"]["sequence"], task["device"])
    torch._inductor.config.force_disable_caches = True
    start, cpu = time.perf_counter(), os.times()
    compiled(model, task["options"])(**inputs).backward()
    synchronize(task["device"])
    answer = {"seconds": time.perf_counter() - start}
    answer["cpu_seconds"] = sum(after - before for after, before in zip(os.times()[:4], cpu[:4], strict=True))
    if task["options"] is not None:
        import memgraph

        report = memgraph.report()
        answer |= {"tiled": tiled(report), "refusals": refusals(report), "stages": report.stages}
    yield answer


# The longest sequence


def longest_rows(settings: dict[str, Any], start: Start) -> Iterator[Row]:
    """By arm, the longest sequence that is planned under the budget, and one real step of that length."""
    from memgraph.base.sizes import parse_size

    budget = parse_size(settings["budget"])
    shape = LONGEST | (SMALL if settings["small"] else {})
    task = {"shape": shape, "budget": budget, "mask": settings["mask"], "most": settings["most"]}
    task |= {"device": settings["device"], "dtype": settings["dtype"]}
    reference = None
    for arm, options in LONGEST_ARMS.items():
        mine = task | {"options": options}
        (row,) = start(mine | {"stage": "longest"}).answers()
        row = {"arm": arm, "budget_bytes": budget} | row
        if length := row.get("planned_tokens"):
            row |= trained_at(mine, length, row["baseline_bytes"], start)
        reference = reference or row.get("tokens")
        row["times_as_long"] = row["tokens"] / reference if reference and row.get("tokens") else None
        yield row


def trained_at(task: dict[str, Any], length: int, baseline: int, start: Start) -> Row:
    """Train at a length; where that is refused, at what the refusal's minimum says would do."""
    refused: list[tuple[int, int]] = []
    for _ in range(RETRIES):
        (answer,) = start(task | {"stage": "step", "tokens": length}).answers()
        if "minimum" not in answer:
            break
        refused.append((length, answer["minimum"]))
        share = (task["budget"] - baseline) / (answer["minimum"] - baseline)
        length = max(STEP, min(length - STEP, int(length * share) // STEP * STEP))
    else:
        answer = {"failure": f"refused at {', '.join(f'{tokens} (needs {size})' for tokens, size in refused)}"}
    return answer | {"refused": refused}


def longest_planned(task: dict[str, Any]) -> Iterator[Row]:
    """The longest multiple of STEP tokens that memgraph plans under the budget: by doubling, then by bisection."""
    model = llama(task["shape"], task["device"], task["dtype"], task["mask"])
    search = Search(model, task)
    start = time.perf_counter()
    most = min(MOST_TOKENS, task["most"])
    low, high = 0, STEP
    while low < most and search.fits(high):
        low, high = high, min(2 * high, most)
    while high - low > STEP:
        middle = (low + high) // (2 * STEP) * STEP
        low, high = (middle, high) if search.fits(middle) else (low, middle)
    yield search.answer(low) | {"plans": search.plans, "search_seconds": time.perf_counter() - start}


class Search:
    """Plans one model at one length after another; nothing is compiled."""

    def __init__(self, model: Any, task: dict[str, Any]) -> None:
        self.model, self.task = model, task
        self.fitting: dict[int, Any] = {}
        self.plans = 0

    def fits(self, length: int) -> bool:
        """Whether a step of `length` tokens stays within the budget, by the plan."""
        import memgraph

        budget, options = self.task["budget"], self.task["options"]
        self.plans += 1
        asked = {"budget": None} if options is None else {"budget": budget} | options
        inputs = batch(self.task["shape"], length, self.task["device"])
        try:
            report = memgraph.plan(self.model, options=asked, **inputs)
        except memgraph.BudgetError:
            return False
        if options is None and report.unplanned_peak > budget:
            return False
        self.fitting[length] = report
        return True

    def answer(self, length: int) -> Row:
        if not length:
            return {"failure": f"not even {STEP} tokens fit"}
        report = self.fitting[length]
        peak = report.unplanned_peak if self.task["options"] is None else report.predicted_peak
        return {"planned_tokens": length, "planned_peak_bytes": peak, "baseline_bytes": report.baseline}


def one_step(task: dict[str, Any]) -> Iterator[Row]:
    """Train: a first step that compiles, one whose peak is measured, one that is timed."""
    import memgraph

    device, length, budget = task["device"], task["tokens"], task["budget"]
    model = llama(task["shape"], device, task["dtype"], task["mask"])
    inputs = batch(task["shape"], length, device)
    options = task["options"]
    loss = compiled(model, options if options is None else options | {"budget": budget})

    def step() -> None:
        loss(**inputs).backward()

    def seconds() -> float:
        start = time.perf_counter()
        step()
        synchronize(device)
        spent = time.perf_counter() - start
        model.zero_grad(set_to_none=True)
        return spent

    try:
        first = seconds()
    except memgraph.BudgetError as refusal:
        yield {"minimum": refusal.minimum}
        return
    peak = memgraph.measure_peak(step, device)
    model.zero_grad(set_to_none=True)
    timed = seconds()
    answer = {"tokens": length, "peak_bytes": peak, "kept": "yes" if peak <= budget else "no"}
    answer |= {"seconds": timed, "microseconds_a_token": 1e6 * timed / length, "first_step_seconds": first}
    if options is not None:
        report = memgraph.report()
        answer |= {"predicted_bytes": report.predicted_peak, "attempts": report.attempts}
        answer |= {"tiled": tiled(report), "refusals": refusals(report)}
    yield answer


# Planned, on meta tensors


class Head(torch.nn.Module):
    """The head of a language model and its loss, of hidden states (1, tokens, hidden) and labels (1, tokens)."""

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(vocabulary, hidden) * hidden**-0.5)
        self.wide = torch.float32  # of the logits

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = F.linear(x, self.weight).to(self.wide)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def planned_rows(settings: dict[str, Any], start: Start) -> Iterator[Row]:
    yield from start({"stage": "planned", "device": settings["device"]}).answers()


def planned(task: dict[str, Any]) -> Iterator[Row]:
    """A loss alone: untiled, in 64 shards, and in as many as a budget needs; nothing is allocated."""
    import memgraph

    for dtype in ("float32", "bfloat16"):
        with torch.device("meta"):
            head = Head(PLANNED["hidden"], PLANNED["vocabulary"]).to(getattr(torch, dtype))
            x = torch.empty(1, PLANNED["sequence"], PLANNED["hidden"], dtype=head.weight.dtype, requires_grad=True)
            labels = torch.empty(x.shape[:2], dtype=torch.int64)
        plan = functools.partial(memgraph.plan, head, x, labels, hardware=task["device"])
        baseline = plan(options={"budget": None}).baseline
        asked: dict[str, dict[str, Any]] = {
            "untiled": {"budget": None},
            "64 shards": {"budget": None, "tile": {"loss": 64}},
            f"auto under {ABOVE / 1e9:g} GB": {"budget": baseline + ABOVE, "tile": True},
        }
        for arm, options in asked.items():
            row: Row = {"arm": arm, "dtype": dtype}
            begun = time.perf_counter()
            try:
                report = plan(options=options)
            except memgraph.BudgetError as refusal:
                yield row | {"failure": f"refused: needs {(refusal.minimum - baseline) / machine.MIB:.1f} MiB"}
                continue
            row |= {"peak_bytes": report.predicted_peak - baseline, "tiled": tiled(report)}
            row |= {"of_untiled": row["peak_bytes"] / (report.unplanned_peak - baseline)}
            row |= {"predicted_time_ratio": report.predicted_time / report.unplanned_time}
            yield row | {"planning_seconds": time.perf_counter() - begun, "refusals": refusals(report)}


# Gradients of real models


def model_rows(settings: dict[str, Any], start: Start) -> Iterator[Row]:
    """The rows of each model, from a process of its own."""
    for name in settings["models"]:
        task = {"stage": "models", "model": name, "shards": settings["shards"], "device": settings["device"]}
        for row in start(task).answers():
            yield {"model": name} | row


def gradients_of_model(task: dict[str, Any]) -> Iterator[Row]:
    """Tiled against plain Inductor in float32, both against eager float64; then both in bfloat16 against eager float32.

    Of the same weights, always. The arm "rounded" is the float32 gradient in bfloat16: what any other is at least off.
    """
    name, device = task["model"], task["device"]
    families = tests_models()
    dropout = {"dropout": 0.0} if "dropout" in inspect.signature(getattr(families, name)).parameters else {}
    model, inputs = families.build(name, **dropout)
    model.to(device)
    inputs = {key: value.to(device) for key, value in inputs.items()}
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


Trained = tuple[float, dict[str, torch.Tensor]]


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
    kind = next(model.parameters()).dtype
    return train(model, {key: x.to(kind) if x.is_floating_point() else x for key, x in inputs.items()}, model)


def in_shards(
    model: Any,
    inputs: dict[str, torch.Tensor],
    shards: int,
    reference: Trained,
    exact: Trained | None = None,
    untiled: Trained | None = None,
) -> Row:
    """One row: a model tiled by memgraph."""
    import memgraph

    row: Row = {"arm": f"memgraph {shards}"}
    try:
        found = train(model, inputs, compiled(model, {"tile": {"mlp": shards, "loss": shards}}))
    except Exception as error:  # the next number of shards may do
        return row | {"failure": f"{type(error).__name__}: {str(error)[:300]}"}
    report = memgraph.report()
    row |= errors(found, reference) | (against_float64(found, exact) if exact else {})
    if untiled:
        row["error_against_untiled"] = errors(found, untiled).get("worst_gradient_error")
    return row | {"tiled": tiled(report), "refusals": refusals(report)}


def against_float64(found: Trained, exact: Trained) -> Row:
    """How far off the exact gradients are: the parameter that `errors` calls the worst, and by how much."""
    row = errors(found, exact)
    if "failure" in row:
        return row
    return {"float64_error": row["worst_gradient_error"], "worst_there": row["worst"]}


def errors(found: Trained, wanted: Trained) -> Row:
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
