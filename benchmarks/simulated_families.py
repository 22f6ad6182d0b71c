"""Families of transformers at the widths of models of 1B to 20B, two layers each, planned exactly on a simulated card.

    python -m benchmarks.simulated_families --only llama,gpt_oss

Run it with a Python that has torch's CUDA build (`make test-simulated` makes one, .venv-cuda). Every family is trained
in bfloat16 without a budget and under two, in a process of its own. What was predicted is held against what torch's
allocator was asked for. Nothing is computed, and no figure is a time.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from benchmarks import harness, table
from benchmarks.harness import Process, Result, Task
from memgraph import simulator

SHARES = (0.6, 0.35)
"""Budgets: of what a step allocates above the baseline without one. They are given in bytes."""
HEADS = (
    "family", "tokens", "budget asked for", "predicted", "requested", "allocated", "reserved", "off by, bytes",
    "off by", "over the budget", "plans tried",
)  # fmt: skip
NOTE = (
    "MiB, the baseline included: the most of two steps. A refused budget names the smallest that can be kept, which is "
    "tried then. *off by*: requested by predicted, of the bytes above the baseline. A baseline is predicted in the "
    "allocator's blocks, which stand there already; what these count above what was requested is taken out."
)


@dataclasses.dataclass(frozen=True)
class Wide:
    """One family at real widths."""

    model: str
    """A class of transformers; its configuration class is that of the same name."""
    tokens: int
    settings: dict[str, Any]
    """Of the configuration."""
    config: str = ""


TWO = {"num_hidden_layers": 2, "use_cache": False, "max_position_embeddings": 131072}


def _decoder(hidden: int, inner: int, heads: int, keys: int, words: int, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads, "vocab_size": words}
    return TWO | sizes | {"num_key_value_heads": keys} | more


KINDS = {"layer_types": ["sliding_attention", "full_attention"]}
WIDE = {
    "llama": Wide("LlamaForCausalLM", 16384, _decoder(4096, 14336, 32, 8, 128256)),
    "mistral": Wide("MistralForCausalLM", 16384, _decoder(4096, 14336, 32, 8, 32000, sliding_window=4096)),
    "qwen2": Wide("Qwen2ForCausalLM", 32768, _decoder(1536, 8960, 12, 2, 151936)),
    "qwen3": Wide("Qwen3ForCausalLM", 16384, _decoder(4096, 12288, 32, 8, 151936, head_dim=128)),
    "gemma3": Wide("Gemma3ForCausalLM", 8192, _decoder(2560, 10240, 8, 4, 262144, head_dim=256, sliding_window=1024,
                   **KINDS), "Gemma3TextConfig"),
    "phi3": Wide("Phi3ForCausalLM", 16384, _decoder(3072, 8192, 32, 32, 32064, pad_token_id=0)),
    "olmo2": Wide("Olmo2ForCausalLM", 8192, _decoder(4096, 11008, 32, 32, 100352)),
    "glm4": Wide("Glm4ForCausalLM", 8192, _decoder(4096, 13696, 32, 2, 151552, head_dim=128, pad_token_id=0)),
    "granite": Wide("GraniteForCausalLM", 16384, _decoder(2048, 8192, 32, 8, 49152, attention_dropout=0.1)),
    "starcoder2": Wide("Starcoder2ForCausalLM", 16384, _decoder(3072, 12288, 24, 2, 49152, residual_dropout=0.1)),
    "gpt2": Wide("GPT2LMHeadModel", 8192, {"n_embd": 1600, "n_layer": 2, "n_head": 25, "n_positions": 8192,
                 "use_cache": False}),
    "mixtral": Wide("MixtralForCausalLM", 8192, _decoder(4096, 14336, 32, 8, 32000, num_local_experts=4)),
    "gpt_oss": Wide("GptOssForCausalLM", 8192, _decoder(2880, 2880, 64, 8, 201088, num_local_experts=8, head_dim=64,
                    **KINDS)),
}  # fmt: skip


def main(
    only: Annotated[str, typer.Option(help="Families, by commas; all of them without.")] = "",
    card: Annotated[str, typer.Option(help="Words of a card's name.")] = "H100",
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "simulated-families",
    limit: Annotated[int, typer.Option(help="Seconds that one family may take.")] = 1800,
) -> None:
    """Measure, print, and write to benchmarks/results after every row."""
    record, rows = harness.Record(name), []
    environment, text = simulator.environment(card), ""
    for family in only.split(",") if only else WIDE:
        process = Process("benchmarks.simulated_families:measure", {"family": family}, environment=environment)
        for row in process.results(limit):
            harness.say(f"{family} {row}")
            rows.append({"family": family} | row)
            body = f"Simulated: {card}. {NOTE}\n\n" + table.markdown(HEADS, map(cells, rows))
            text = record.write("Real widths on a simulated GPU", {"card": card, "rows": rows}, body)
    print(text)


def cells(row: Result) -> list[str]:
    """A row as text, in the order of HEADS."""
    start = [row["family"], f"{row.get('tokens', 0):,}", "" if row.get("budget") is None else table.mib(row["budget"])]
    if "predicted" not in row:
        said = row.get("failure") or f"refused: at least {table.mib(row['minimum'])}"
        return [*start, said, *[""] * (len(HEADS) - 4)]
    budget, off = row["budget"], row["requested"] + row["standing"] - row["predicted"]
    return [
        *start,
        *(table.mib(row[key]) for key in ("predicted", "requested", "allocated", "reserved")),
        f"{off:,}",
        f"{off / (row['predicted'] - row['baseline']):.3%}",
        "" if budget is None else "yes" if row["allocated"] > budget else "no",
        str(row["attempts"]),
    ]


def measure(task: Task) -> Iterator[Result]:
    """The rows of a family, in a process on the simulated card."""
    from memgraph import BudgetError

    wide = WIDE[task["family"]]
    plain = _exact(wide, None)
    yield plain | {"tokens": wide.tokens}
    for share in SHARES:
        budget = plain["baseline"] + int(share * (plain["allocated"] - plain["baseline"]))
        for _ in range(2):
            try:
                yield _exact(wide, budget) | {"tokens": wide.tokens}
                break
            except BudgetError as problem:
                yield {"tokens": wide.tokens, "budget": budget, "minimum": problem.minimum}
                budget = problem.minimum


def _exact(wide: Wide, budget: int | None) -> Result:
    import torch
    import transformers

    import memgraph

    torch._dynamo.reset()
    gc.collect()
    torch.cuda.init()
    torch.cuda.empty_cache()
    config = getattr(
        transformers, wide.config or wide.model.replace("ForCausalLM", "Config").replace("LMHeadModel", "Config")
    )
    with torch.device("meta"):
        model = getattr(transformers, wide.model)(config(**wide.settings)).to(torch.bfloat16).train()
        ids = torch.empty(1, wide.tokens, dtype=torch.long)
    model.loss_type = "ForCausalLM"
    options = {"budget": budget, "cache": False, "progress": False}
    found = memgraph.plan(lambda ids: model(input_ids=ids, labels=ids).loss, ids, options=options, exact=True)
    if found.report is None or found.out_of_memory:
        return {"budget": budget, "failure": found.out_of_memory}
    now = torch.cuda.memory_stats()  # the parameters stand, and what libraries have taken
    run = [phase for phase in found.phases if phase.name != "compiling"]
    return {
        "budget": budget,
        "baseline": found.report.baseline,
        "predicted": found.report.predicted_peak,
        "requested": max(phase.requested for phase in run),
        "allocated": max(phase.allocated for phase in run),
        "standing": now["allocated_bytes.all.current"] - now["requested_bytes.all.current"],
        "reserved": max(phase.reserved for phase in run),
        "attempts": found.report.attempts,
        "source": str(found.report.source_of_peak),
        "notes": list(found.report.notes),
    }


if __name__ == "__main__":
    typer.run(main)
