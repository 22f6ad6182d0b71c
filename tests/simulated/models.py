"""Models that are trained on the simulated device: bfloat16 with attention of head size 64, and a batch for each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Step = Callable[[], Tensor]
"""Makes a loss."""


def perceptron() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = [layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.GELU())]
    return nn.Sequential(*layers), (torch.zeros(4096, 512, dtype=torch.bfloat16),)


def llama(length: int = 1024, dropout: float = 0.0, batch: int = 2) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Four heads of queries on two of keys, as grouped attention has them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=1024,
        attention_dropout=dropout,
        use_cache=False,
    )
    return LlamaForCausalLM(config), (torch.zeros(batch, length, dtype=torch.long),)


def gpt2(dropout: float = 0.1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Dropout on the embeddings, the residual stream and the attention."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=256,
        n_layer=3,
        n_head=4,
        vocab_size=1024,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # unset, transformers warns while it is traced, which breaks the graph
    return model, (torch.zeros(2, 1024, dtype=torch.long),)


MODELS = {"perceptron": perceptron, "llama": llama, "gpt2": gpt2}


def made(name: str, **arguments) -> tuple[nn.Module, Callable[..., Tensor], tuple[Tensor, ...]]:
    """A model on the device, its loss as a function of a batch, and the batch."""
    torch.manual_seed(0)
    model, batch = MODELS[name](**arguments)
    model = model.to("cuda", torch.bfloat16).train()

    def loss(given: Tensor) -> Tensor:
        if given.is_floating_point():
            return model(given).float().square().mean()
        return model(input_ids=given, labels=given).loss

    return model, loss, tuple(tensor.cuda() for tensor in batch)
