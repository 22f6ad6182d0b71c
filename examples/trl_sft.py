"""TRL's SFTTrainer with `MemgraphCallback`: TRL's own head and loss run between two graphs, and memgraph measures them.

    python examples/trl_sft.py [--budget 140MiB] [--backend inductor]

TRL computes the logits and the loss of a few tokens at a time, eagerly, between two compiled graphs. What they reach is
in no plan: memgraph measures it in the first step, says it where it passes the budget, and names it in
`memgraph.step_report()`.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import memgraph
from memgraph.base.sizes import format_size
from memgraph.integrations.transformers import MemgraphCallback

SIZES = dict(vocab_size=128, hidden_size=128, intermediate_size=352, num_hidden_layers=2, num_attention_heads=4)
STEPS, BATCH, TOKENS = 4, 4, 256


class MeasuredTrainer(SFTTrainer):
    """An SFTTrainer that measures each forward with its backward. Only this example needs it: memgraph does not.

    A process has one profiler on the CPU: the first two steps are memgraph's.
    """

    budget = ""

    def training_step(self, *args, **kwargs):
        losses, peak = [], "not measured"

        def work():
            losses.append(super(MeasuredTrainer, self).training_step(*args, **kwargs))

        if self.state.global_step < 2:
            work()
        else:
            peak = f"{format_size(memgraph.measure_peak(work))} of {self.budget}"
        print(f"step {self.state.global_step + 1}  loss {losses[0].item():.5f}  peak {peak}", flush=True)
        return losses[0]


def words() -> PreTrainedTokenizerFast:
    """A tokenizer of 128 words: nothing is downloaded."""
    vocabulary = {f"w{number}": number for number in range(126)} | {"<unknown>": 126, "<pad>": 127}
    plain = Tokenizer(WordLevel(vocabulary, unk_token="<unknown>"))
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<pad>")


def main(backend: str, budget: str) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, use_cache=False))
    texts = Dataset.from_dict({"input_ids": torch.randint(126, (STEPS * BATCH, TOKENS)).tolist()})

    callbacks = [MemgraphCallback({"budget": budget})] if backend == "memgraph" else []
    if not callbacks:
        model.compile(backend=backend)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            max_length=TOKENS,
        )
        trainer = MeasuredTrainer(model, arguments, train_dataset=texts, processing_class=words(), callbacks=callbacks)
        trainer.budget = budget
        trainer.train()
    if backend == "memgraph":
        print(memgraph.step_report())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="140MiB")
    parser.add_argument("--backend", default="memgraph", help="such as inductor or eager, to compare with")
    given = parser.parse_args()
    main(given.backend, given.budget)
