"""Models that are trained on the simulated device: bfloat16 with attention of head size 64, and a batch for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

Step = Callable[[], Tensor]
"""Makes a loss."""


def perceptron() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = [layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.GELU())]
    return nn.Sequential(*layers), (torch.zeros(4096, 512, dtype=torch.bfloat16),)


def llama(
    length: int = 1024,
    dropout: float = 0.0,
    batch: int = 2,
    layers: int = 3,
    keys: int = 2,
    words: int = 1024,
    masked: bool = True,
    heads: int = 4,
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Heads of 64 queries on `keys` of keys; with fewer keys than heads as grouped attention has them.

    masked: the causal mask is a tensor, as transformers makes it under torch.compile; else flash attention is causal.
    """
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("sdpa_unmasked", sdpa_attention_forward)

    config = LlamaConfig(
        hidden_size=64 * heads,
        intermediate_size=192 * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        vocab_size=words,
        attention_dropout=dropout,
        attn_implementation="sdpa" if masked else "sdpa_unmasked",
        use_cache=False,
    )
    return LlamaForCausalLM(config), (torch.zeros(batch, length, dtype=torch.long),)


class Padded(nn.Module):
    """A model that is told which tokens are padding: its masks say more than causal, and stay."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        return self.model(input_ids=input_ids, labels=labels, attention_mask=torch.ones_like(input_ids))


def padded(**arguments: Any) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A Llama with a mask of padding."""
    model, batch = llama(**arguments)
    return Padded(model), batch


def lora(**arguments: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Adapters on all products of a Llama that is not trained itself."""
    import peft

    model, batch = llama(**arguments)
    adapters = peft.LoraConfig(r=16, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(model, adapters), batch


def mixture(
    length: int = 1024, batch: int = 2, layers: int = 3, words: int = 1024
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Eight experts, two for each token, as grouped products."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=256,
        num_experts=8,
        num_experts_per_tok=2,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=words,
        use_cache=False,
    )
    return Qwen3MoeForCausalLM(config), (torch.zeros(batch, length, dtype=torch.long),)


def gpt2(dropout: float = 0.1, layers: int = 3, words: int = 1024) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Dropout on the embeddings, the residual stream and the attention."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=256,
        n_layer=layers,
        n_head=4,
        vocab_size=words,
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


class FlexBlock(nn.Module):
    """Causal attention by `flex_attention`, and a gated part."""

    def __init__(self, width: int, heads: int, mask: Any) -> None:
        super().__init__()
        self.heads, self.mask = heads, mask
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        split = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = flex_attention(*split, block_mask=self.mask)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def flex(length: int = 1024, layers: int = 3, words: int = 1024) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Embedding, blocks and a head, with a loss; heads of 64."""
    from transformers.modeling_outputs import CausalLMOutput

    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, length, length, device="cuda")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(words, 256)
            self.layers = nn.ModuleList(FlexBlock(256, 4, mask) for _ in range(layers))
            self.head = nn.Linear(256, words, bias=False)

        def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
            x = self.embedding(input_ids)
            for layer in self.layers:
                x = layer(x)
            logits = self.head(x).float()[:, :-1].flatten(0, 1)
            return CausalLMOutput(loss=nn.functional.cross_entropy(logits, labels[:, 1:].flatten()))

    return Model(), (torch.zeros(2, length, dtype=torch.long),)


MODELS = {
    "perceptron": perceptron,
    "llama": llama,
    "padded": padded,
    "lora": lora,
    "mixture": mixture,
    "gpt2": gpt2,
    "flex": flex,
}


def made(
    name: str, *, dtype: torch.dtype = torch.bfloat16, **arguments
) -> tuple[nn.Module, Callable[..., Tensor], tuple[Tensor, ...]]:
    """A model on the device, its loss as a function of a batch, and the batch.

    dtype: of its parameters; float32 is trained under autocast to bfloat16.
    """
    torch.manual_seed(0)
    model, batch = MODELS[name](**arguments)
    model = model.to("cuda", dtype).train()

    def loss(given: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.float32):
            if given.is_floating_point():
                return model(given).float().square().mean()
            return model(input_ids=given, labels=given).loss

    return model, loss, tuple(tensor.cuda() for tensor in batch)
