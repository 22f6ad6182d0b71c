"""An 8B Llama in bfloat16 without its weights, to be planned for a card that is not here:

memgraph plan examples/llama_8b.py:step --exact --budget 76GiB --tile --optimizer "adamw(fused=True)"
"""

from __future__ import annotations

from typing import Any

import torch
import transformers


def step(sequence: int = 8192) -> tuple[Any, tuple[torch.Tensor]]:
    """Return the loss as a function of the ids, and ids [1, sequence], all on the meta device."""
    config = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=131072,
        use_cache=False,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
        ids = torch.empty(1, sequence, dtype=torch.long)
    return lambda ids: model(input_ids=ids, labels=ids).loss, (ids,)
