"""FSDP2: two processes on this machine, each layer sharded and compiled by itself.

    python examples/fsdp2_per_layer.py [--budget 16MiB] [--backend inductor]

All layers share one compiled graph, which is launched once for each layer in a step. Nobody knows the whole step before
it has run once: the first one runs on the tightest plan, and the next on plans for which all launches together keep the
budget. They are not agreed upon while torch's profiler runs, which `measure_peak` needs on the CPU: so the first
steps are not measured. What FSDP2's transfers hold depends on when the other process answers, and so on no plan: the
option `reserve` keeps 1 MiB free for it.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import memgraph
from memgraph.base.sizes import format_size

PROCESSES, STEPS, UNMEASURED = 2, 5, 2
SIZES = dict(vocab_size=256, hidden_size=128, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4)


def train(rank: int, port: int, backend: str, budget: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=PROCESSES)
    mesh = dist.init_device_mesh("cpu", (PROCESSES,))
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, use_cache=False))
    for layer in model.model.layers:
        layer.compile(backend=backend, options={"budget": budget, "reserve": "1MiB"} if backend == "memgraph" else None)
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.randint(256, (STEPS, PROCESSES, 4, 128))

    for step, batch in enumerate(batches, start=1):
        losses = []

        def forward_and_backward(ids=batch[rank], losses=losses):
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            losses.append(loss.item())

        peak = 0
        if step <= UNMEASURED:
            forward_and_backward()
        else:
            peak = memgraph.measure_peak(forward_and_backward)
        optimizer.step()
        optimizer.zero_grad()

        every = [None] * PROCESSES
        dist.all_gather_object(every, (losses[0], peak))
        if rank == 0:
            loss, peak = sum(loss for loss, _ in every) / PROCESSES, max(peak for _, peak in every)
            shown = f"{format_size(peak)} of {budget}" if peak else "not measured"
            print(f"step {step}  loss {loss:.5f}  peak {shown}", flush=True)
    dist.destroy_process_group()


def main(backend: str, budget: str) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # finds a port that is free
    port = store.port
    del store
    torch.multiprocessing.spawn(train, (port, backend, budget), nprocs=PROCESSES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="16MiB")
    parser.add_argument("--backend", default="memgraph", help="such as inductor or eager, to compare with")
    given = parser.parse_args()
    main(given.backend, given.budget)
