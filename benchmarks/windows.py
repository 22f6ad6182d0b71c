"""Attention whose queries do not read all keys, in shards that are given the keys that they read, against Inductor.

    python -m benchmarks.windows
    python -m benchmarks.windows --models mistral --lengths 4096 --rounds 9
    python -m benchmarks.windows --symbolic             one graph for batches of any length, as both arms compile it

Models of transformers with random weights, trained on padded batches as they come, with torch's attention:

    mistral     all layers have a window
    gemma3      five layers have a window, the sixth is causal
    llama       all layers are causal; the padding makes the mask one of data

Arms are timed in turn; no budget is asked for, so memgraph's arm shows what shards of attention bring alone. Peaks are
above what stands when the step starts. Gradients are compared with Inductor's by norm, the worst of all parameters.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import harness, table
from benchmarks.harness import Process, Result, Task

HEADS = (
    "model",
    "tokens",
    "window",
    "arm",
    "step, s",
    "to Inductor's",
    "peak, MiB",
    "first step, s",
    "gradients off by",
)
WORK = "benchmarks.windows:work"
ARMS = ("inductor", "memgraph")
OPTIONS = {"tile": {"mlp": False, "loss": False, "attention": "auto"}}


def main(
    models: Annotated[str, typer.Option(help="By commas.")] = "mistral,gemma3,llama",
    lengths: Annotated[str, typer.Option(help="Tokens of a sequence, by commas.")] = "2048,4096,8192",
    window: Annotated[int, typer.Option(help="Keys that a query reads.")] = 512,
    sequences: Annotated[int, typer.Option(help="In a batch; two thirds of the last one are no padding.")] = 2,
    rounds: Annotated[int, typer.Option(help="Timed steps of each arm, in turn.")] = 5,
    symbolic: Annotated[bool, typer.Option("--symbolic", help="The length is a symbol of the graph.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "windows",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads(device)
    record, rows = harness.Record(f"{device}-{name}", device), []
    for model in models.split(","):
        for tokens in map(int, lengths.split(",")):
            case = {"model": model, "tokens": tokens, "window": window, "sequences": sequences, "device": device}
            case["symbolic"] = symbolic
            rows += [case | row for row in _measured(case, rounds, record)]
            print(record.write("Attention whose queries do not read all keys", {"rows": rows}, _page(rows)), flush=True)


def _measured(case: Task, rounds: int, record: harness.Record) -> list[Result]:
    with record.log("a") as log, tempfile.TemporaryDirectory() as folder:
        arms: dict[str, Task] = {arm: {"arm": arm, "file": f"{folder}/{arm}"} | case for arm in ARMS}

        def start(work: str, task: Task) -> Process:  # each compiles anew
            return Process(work, task, log, {"TORCHINDUCTOR_CACHE_DIR": f"{task['file']}-cache"})

        found = harness.compare(WORK, arms, rounds, start)
        for arm, row in found.items():
            row["ratio"] = harness.median(harness.ratios(row, found["inductor"])) if row["seconds"] else None
            if arm != "inductor" and all("peak" in row for row in found.values()):
                row["error"] = _worst(Path(folder) / "inductor", Path(folder) / arm)
    return list(found.values())


def _worst(want: Path, got: Path) -> float:
    """The largest relative difference of a gradient, by norm.  want, got: files of the gradients of all parameters."""
    import torch

    pairs = zip(torch.load(want), torch.load(got), strict=True)
    return max(float((one - other).norm() / one.norm()) for one, other in pairs)


def _page(rows: list[Result]) -> str:
    page = table.markdown(HEADS, [_cells(row) for row in rows])
    shards = [f"- {row['model']}, {row['tokens']} tokens: {text}" for row in rows for text in row.get("shards", ())]
    failed = [f"- {row['model']} {row['arm']}: {row['failure']}" for row in rows if "failure" in row]
    return "\n".join([page, "", *shards, *failed])


def _cells(row: Result) -> list[str]:
    step, error = harness.median(row["seconds"]), row.get("error")
    return [
        row["model"],
        str(row["tokens"]),
        "" if row["model"] == "llama" else str(row["window"]),
        row["arm"],
        "" if step is None else f"{step:.3f}",
        "" if row["ratio"] is None else f"{row['ratio']:.3f}",
        table.mib(row["peak"]) if "peak" in row else "",
        f"{row['first']:.0f}" if "first" in row else "",
        "" if error is None else f"{error:.1e}",
    ]


# Within the process of one arm


def _models() -> dict[str, Callable[[dict[str, Any], int], Any]]:
    import transformers

    def gemma3(options: dict[str, Any], window: int) -> Any:
        config = transformers.Gemma3TextConfig(**options, num_hidden_layers=6, head_dim=64, sliding_window=window)
        return transformers.Gemma3ForCausalLM(config)

    def mistral(options: dict[str, Any], window: int) -> Any:
        config = transformers.MistralConfig(**options, num_hidden_layers=2, sliding_window=window)
        return transformers.MistralForCausalLM(config)

    def llama(options: dict[str, Any], window: int) -> Any:
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**options, num_hidden_layers=2))

    return {"mistral": mistral, "gemma3": gemma3, "llama": llama}


def work(task: Task) -> Iterator[Result]:
    """What the first step took and made, and then the seconds of a step for each word."""
    import torch

    import memgraph
    from benchmarks import arm
    from memgraph.machine.measure import peak_above_start
    from tests.support.models.sized import Case

    torch.manual_seed(0)
    tokens, device = task["tokens"], task["device"]
    options = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    options |= {"vocab_size": 512, "max_position_embeddings": tokens, "pad_token_id": 0, "attn_implementation": "sdpa"}
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        model = _models()[task["model"]](options, task["window"]).to(dtype).train()
        ids = torch.randint(1, options["vocab_size"], (task["sequences"], tokens))
        real = torch.ones_like(ids)
    real[-1, tokens * 2 // 3 :] = 0
    for given in (ids, real) if task["symbolic"] else ():
        torch._dynamo.mark_dynamic(given, 1)

    def loss(ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        labels = ids.masked_fill(real == 0, -100)
        return model(input_ids=ids, attention_mask=real, labels=labels, use_cache=False).loss

    class Windows(arm.Arm):
        def ready(self) -> Result:
            first = self.seconds()
            peak = peak_above_start(self.step, device)
            torch.save([parameter.grad.double().cpu() for parameter in model.parameters()], task["file"])
            self.case.clear()
            found = {"first": first, "peak": peak}
            if task["arm"] == "memgraph":
                tiles = [d for d in memgraph.report().decisions if d.action.lever == "tile"]
                found["shards"] = [f"{d.module}: {d.action.shards}, {d.why}" for d in tiles]
            return found

    made = Windows()
    made.device, made.case = device, Case(model, (ids, real), loss)
    made.loss = arm.compiled(loss, None if task["arm"] == "inductor" else OPTIONS)
    yield from made.results()


if __name__ == "__main__":
    typer.run(main)
