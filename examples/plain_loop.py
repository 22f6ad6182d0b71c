"""A training loop of one's own: AdamW, and gradients that are summed over two micro-batches before each step.

    python examples/plain_loop.py [--budget 9MiB] [--backend inductor]

The budget holds for the whole run: the first call forecasts the optimizer's state, and the second micro-batch, which
finds gradients already, gets a plan of its own where it needs one.
"""

from __future__ import annotations

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import memgraph
from memgraph.base.sizes import format_size

STEPS, MICRO_BATCHES = 4, 2
SIZES = dict(vocab_size=512, hidden_size=64, intermediate_size=192, num_hidden_layers=1, num_attention_heads=4)


def main(backend: str, budget: str) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, use_cache=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.randint(512, (STEPS, MICRO_BATCHES, 4, 256))

    options = {"budget": budget} if backend == "memgraph" else None
    loss_of = torch.compile(lambda ids: model(input_ids=ids, labels=ids).loss, backend=backend, options=options)

    for step, micro_batches in enumerate(batches, start=1):
        for number, ids in enumerate(micro_batches, start=1):
            losses = []

            def forward_and_backward(ids=ids, losses=losses):
                loss = loss_of(ids) / MICRO_BATCHES
                loss.backward()
                losses.append(loss.item())

            peak = memgraph.measure_peak(forward_and_backward)
            loss = losses[0] * MICRO_BATCHES
            print(f"step {step}.{number}  loss {loss:.5f}  peak {format_size(peak)} of {budget}", flush=True)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="9MiB")
    parser.add_argument("--backend", default="memgraph", help="such as inductor or eager, to compare with")
    given = parser.parse_args()
    main(given.backend, given.budget)
