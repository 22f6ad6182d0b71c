"""PEFT: LoRA adapters on the attention and on the head, and the head with its loss in tiles.

    python examples/peft_lora.py [--budget 7MiB] [--backend inductor]

What is compiled in place is the model that `get_peft_model` returns; its adapters are saved under their plain names.
"""

from __future__ import annotations

import argparse

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from transformers import LlamaConfig, LlamaForCausalLM

import memgraph
from memgraph.base.sizes import format_size

SIZES = dict(vocab_size=512, hidden_size=64, intermediate_size=192, num_hidden_layers=1, num_attention_heads=4)


def main(backend: str, budget: str) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, use_cache=False))
    adapters = LoraConfig(r=8, target_modules=["q_proj", "v_proj", "lm_head"], task_type="CAUSAL_LM")
    model = get_peft_model(model, adapters)
    # Only the loss is used of what the model returns: the logits need not be whole.
    options = {"budget": budget, "tile": {"logits": "drop"}}
    model.compile(backend=backend, options=options if backend == "memgraph" else None)

    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    for step, ids in enumerate(torch.randint(512, (4, 4, 256)), start=1):
        losses = []

        def forward_and_backward(ids=ids, losses=losses):
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            losses.append(loss.item())

        peak = memgraph.measure_peak(forward_and_backward)
        print(f"step {step}  loss {losses[0]:.5f}  peak {format_size(peak)} of {budget}", flush=True)
        optimizer.step()
        optimizer.zero_grad()
    print(
        f"{len(get_peft_model_state_dict(model))} adapter weights to save, such as "
        f"{next(iter(get_peft_model_state_dict(model)))}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="7MiB")
    parser.add_argument("--backend", default="memgraph", help="such as inductor or eager, to compare with")
    given = parser.parse_args()
    main(given.backend, given.budget)
