"""Batches of several lengths: one dynamic graph, planned anew before a length runs that its plans do not cover.

    python examples/varying_lengths.py [--budget 10MiB] [--backend inductor]

Where the greatest length is known, the option `"largest_size": 384` has all lengths planned at once.
"""

from __future__ import annotations

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import memgraph
from memgraph.base.sizes import format_size

LENGTHS = (128, 192, 384, 64, 256, 384)
SIZES = dict(vocab_size=512, hidden_size=64, intermediate_size=192, num_hidden_layers=1, num_attention_heads=4)


def main(backend: str, budget: str) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, use_cache=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    options = {"budget": budget} if backend == "memgraph" else None
    loss_of = torch.compile(lambda ids: model(input_ids=ids, labels=ids).loss, backend=backend, options=options)

    for step, length in enumerate(LENGTHS, start=1):
        ids = torch.randint(512, (4, length))
        losses = []

        def forward_and_backward(ids=ids, losses=losses):
            loss = loss_of(ids)
            loss.backward()
            losses.append(loss.item())

        peak = memgraph.measure_peak(forward_and_backward)
        print(
            f"step {step}  length {length:>3}  loss {losses[0]:.5f}  peak {format_size(peak)} of {budget}", flush=True
        )
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="10MiB")
    parser.add_argument("--backend", default="memgraph", help="such as inductor or eager, to compare with")
    given = parser.parse_args()
    main(given.backend, given.budget)
