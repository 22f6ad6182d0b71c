"""transformers' Trainer with `MemgraphCallback`: the model is compiled when training begins, and the plan is logged.

    python examples/trainer.py [--budget 9.5MiB] [--backend inductor]

The last batch is smaller than the others: memgraph plans for its size before it runs.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import memgraph
from memgraph.base.sizes import format_size
from memgraph.integrations.transformers import MemgraphCallback

SIZES = dict(vocab_size=512, hidden_size=64, intermediate_size=192, num_hidden_layers=1, num_attention_heads=4)


class MeasuredTrainer(Trainer):
    """A Trainer that measures each forward with its backward. Only this example needs it: memgraph does not."""

    budget = ""

    def training_step(self, *args, **kwargs):
        losses = []
        peak = memgraph.measure_peak(lambda: losses.append(super(MeasuredTrainer, self).training_step(*args, **kwargs)))
        step = self.state.global_step + 1
        print(f"step {step}  loss {losses[0].item():.5f}  peak {format_size(peak)} of {self.budget}", flush=True)
        return losses[0]


def main(backend: str, budget: str) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, use_cache=False))
    texts = [{"input_ids": ids, "labels": ids} for ids in torch.randint(512, (14, 256))]

    callbacks = [MemgraphCallback({"budget": budget})] if backend == "memgraph" else []
    if not callbacks:
        model.compile(backend=backend)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=4,
            num_train_epochs=1,  # batches of 4, 4, 4, 2 texts
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = MeasuredTrainer(model, arguments, train_dataset=texts, callbacks=callbacks)
        trainer.budget = budget
        trainer.train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="9.5MiB")
    parser.add_argument("--backend", default="memgraph", help="such as inductor or eager, to compare with")
    given = parser.parse_args()
    main(given.backend, given.budget)
