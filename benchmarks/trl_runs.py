"""Is the budget kept when TRL trains, and is what TRL runs between two compiled graphs named?

    python -m benchmarks.trl_runs --only sft        (needs trl: pip install trl)

As `benchmarks.training_runs`, with a Trainer of TRL and `MemgraphCallback`. TRL's own head and loss are in no graph:
where they pass a budget, no plan can keep it. The row says when memgraph told of it first; the next row has the budget
that it named.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from benchmarks import harness, table, training_runs
from benchmarks.harness import Process, Result, Task
from benchmarks.training_runs import MIB

# What is done, and under which budget in MiB: those that were broken when users tried memgraph first.
RUNS = {"sft": 35, "dpo": 45, "grpo": 45}
STEPS, BATCH, TOKENS, VOCABULARY = 20, 4, 256, 128
SHOWN = (0, 1, 2, 4, STEPS - 1)  # steps
NAMED = re.compile(r"a budget of about ([\d.]+) MiB would do")
HEADS = ("run", "budget", *(f"step {n + 1}" for n in SHOWN), "largest", "told in step", "losses")


def main(
    only: Annotated[str, typer.Option(help="Which runs, by commas.")] = ",".join(RUNS),
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "cpu-trl-runs",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads()
    record, rows = harness.Record(name), []
    with training_runs.allocator_hook() as environment:
        for run in only.split(","):
            plain = _run({"run": run, "budget": None}, environment)
            row = training_runs.compared(_run({"run": run, "budget": RUNS[run] * MIB}, environment), plain)
            rows += [plain, row]
            if row["told"]:
                named = max(float(found) for _, text in row["told"] for found in NAMED.findall(text))
                task = {"run": run, "budget": int((named + 0.05) * MIB)}  # it is named to a tenth
                rows.append(training_runs.compared(_run(task, environment), plain))
            print(record.write("TRL", {"rows": rows}, table.markdown(HEADS, map(_cells, rows))), flush=True)


def _run(task: Task, environment: dict[str, str]) -> Result:
    (row,) = Process("benchmarks.trl_runs:measure", task, None, environment).results()
    if "failure" in row:
        raise RuntimeError(f"{task}: {row['failure']}")
    return task | row


def _cells(row: Result) -> list[str]:
    peaks = [peak / MIB for peak in row["peaks"]]
    budget = "plain Inductor" if row["budget"] is None else f"{row['budget'] / MIB:.1f}"
    told = str(row["told"][0][0]) if row["told"] else ""
    difference = f"{row['difference']:.0e}" if "difference" in row else ""
    return [row["run"], budget, *(f"{peaks[step]:.1f}" for step in SHOWN), f"{max(peaks):.1f}", told, difference]


# Within the process of one run


def measure(task: Task) -> Iterator[Result]:
    """Losses and peaks of the steps of one run, and the warnings: (the step, the text)."""
    import warnings

    import torch
    from transformers import TrainerCallback

    import memgraph
    from memgraph.integrations.transformers import MemgraphCallback

    hook, told, peaks, losses, begun = training_runs.counters(), [], [], [], []

    class Watch(TrainerCallback):
        def on_step_begin(self, *args: Any, **others: Any) -> None:
            begun.append(len(begun) + 1)
            hook.mh_reset()

        def on_pre_optimizer_step(self, *args: Any, **others: Any) -> None:
            peaks.append(hook.mh_peak())

        def on_log(self, *args: Any, logs: dict[str, Any], **others: Any) -> None:
            if "loss" in logs:
                losses.append(float(logs["loss"]))

    def tell(message: Any, kind: type[Warning], *where: Any) -> None:
        if issubclass(kind, memgraph.PlanWarning):
            told.append((len(begun), str(message)))

    torch.manual_seed(0)
    warnings.showwarning = tell
    warnings.simplefilter("always", memgraph.PlanWarning)
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(task["run"], folder)
        if task["budget"] is None:
            trainer.model.compile()
        else:
            trainer.add_callback(MemgraphCallback({"budget": task["budget"]}))
        trainer.add_callback(Watch())
        trainer.train()
    yield {"losses": losses, "peaks": peaks, "told": told}


def _trainer(run: str, folder: str) -> Any:
    import torch
    import trl
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    from benchmarks.training_loops import llama

    words = {f"w{number}": number for number in range(VOCABULARY - 2)}
    plain = Tokenizer(WordLevel(words | {"<unknown>": VOCABULARY - 2, "<pad>": VOCABULARY - 1}, unk_token="<unknown>"))
    plain.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<pad>")

    def text(tokens: int) -> str:
        return " ".join(f"w{number}" for number in torch.randint(VOCABULARY - 2, (tokens,)).tolist())

    arguments: dict[str, Any] = dict(
        output_dir=folder, per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=1e-3, logging_steps=1,
        save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    given: dict[str, Any] = dict(model=llama(2, VOCABULARY), processing_class=tokenizer)
    count, half = STEPS * BATCH, TOKENS // 2
    if run == "sft":
        data = Dataset.from_dict({"text": [text(TOKENS) for _ in range(count)]})
        return trl.SFTTrainer(args=trl.SFTConfig(**arguments, max_length=TOKENS), train_dataset=data, **given)
    if run == "dpo":
        columns = {name: [text(half) for _ in range(count)] for name in ("prompt", "chosen", "rejected")}
        data = Dataset.from_dict(columns)
        given["ref_model"] = llama(2, VOCABULARY)  # by itself TRL looks for the model's name in the hub
        return trl.DPOTrainer(args=trl.DPOConfig(**arguments, max_length=TOKENS), train_dataset=data, **given)
    data = Dataset.from_dict({"prompt": [text(32) for _ in range(count)]})
    config = trl.GRPOConfig(**arguments, num_generations=4, max_completion_length=32)

    def reward(completions: list[str], **columns: Any) -> list[float]:
        return [float(len(set(completion.split()))) for completion in completions]

    return trl.GRPOTrainer(args=config, reward_funcs=reward, train_dataset=data, **given)


if __name__ == "__main__":
    typer.run(main)
