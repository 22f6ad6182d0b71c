"""accelerate: the model is compiled in place before `prepare`, and accumulates gradients over two batches.

    python examples/accelerate_loop.py [--budget 10.5MiB] [--backend inductor]

accelerate's own `dynamo_backend` and `TorchDynamoPlugin` take no backend but those that accelerate lists.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

import memgraph
from memgraph.base.sizes import format_size

SIZES = dict(vocab_size=512, hidden_size=64, intermediate_size=192, num_hidden_layers=1, num_attention_heads=4)


def main(backend: str, budget: str) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, use_cache=False))
    model.compile(backend=backend, options={"budget": budget} if backend == "memgraph" else None)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = DataLoader(torch.randint(512, (24, 256)), batch_size=4)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

    for step, ids in enumerate(batches, start=1):
        losses = []

        def forward_and_backward(ids=ids, losses=losses):
            loss = model(input_ids=ids, labels=ids).loss
            accelerator.backward(loss)
            losses.append(loss.item())

        with accelerator.accumulate(model):
            peak = memgraph.measure_peak(forward_and_backward)
            optimizer.step()
            optimizer.zero_grad()
        print(f"step {step}  loss {losses[0]:.5f}  peak {format_size(peak)} of {budget}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="10.5MiB")
    parser.add_argument("--backend", default="memgraph", help="such as inductor or eager, to compare with")
    given = parser.parse_args()
    main(given.backend, given.budget)
