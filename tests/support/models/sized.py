"""Models of any size with random weights, and a batch to train each on: what the benchmarks measure.

`case.loss(*case.inputs)` is the training loss, which is what gets compiled: the loss alone, because a
compiled function that returns the logits as well has to keep them whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from tests.support.models.tiny import Loss
from tests.support.models.unet import UNet


@dataclasses.dataclass(frozen=True)
class Shape:
    """How large a model and its batch are."""

    layers: int = 8
    hidden: int = 512
    sequence: int = 2048
    vocabulary: int = 8192
    batch: int = 1
    dropout: float = 0.0
    """The rate, where the model's configuration has one."""

    @property
    def heads(self) -> int:
        return max(2, self.hidden // 64)


@dataclasses.dataclass
class Case:
    """A model to train and a batch for it."""

    model: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    loss: Callable[..., torch.Tensor]
    """What is compiled."""

    def clear(self) -> None:
        """Drop the gradients: a step then starts from the same allocations each time."""
        self.model.zero_grad(set_to_none=True)


def make(name: str, shape: Shape, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Case:
    """The model `name` with weights from seed 0, in training mode, and its batch."""
    if name not in FAMILIES | MORE:
        raise ValueError(f"no model {name!r}; there are: {', '.join(FAMILIES | MORE)}")
    torch.manual_seed(0)
    with torch.device(device):
        model, inputs, loss = (FAMILIES | MORE)[name](shape)
    model.to(dtype)
    model.train()
    inputs = tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs)
    return Case(model, inputs, loss)


Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]


def _decoder(shape: Shape) -> dict[str, Any]:
    """What the configurations of Llama and its descendants have in common."""
    return {
        "hidden_size": shape.hidden,
        "intermediate_size": 3 * shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": max(4096, shape.sequence),
        "attention_dropout": shape.dropout,
        "use_cache": False,
    }


def _tokens(shape: Shape, length: int | None = None) -> torch.Tensor:
    return torch.randint(0, shape.vocabulary, (shape.batch, length or shape.sequence))


def _with_labels(model: torch.nn.Module, shape: Shape) -> Made:
    """The loss of a language model on its own input."""

    def loss(ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, labels=ids).loss

    return model, (_tokens(shape),), loss


def llama(shape: Shape) -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    return _with_labels(LlamaForCausalLM(LlamaConfig(**_decoder(shape))), shape)


def qwen3(shape: Shape) -> Made:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return _with_labels(Qwen3ForCausalLM(Qwen3Config(**_decoder(shape), head_dim=64)), shape)


def gemma3(shape: Shape) -> Made:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    # Both kinds of attention: a window shorter than the sequence, but for every sixth layer and the last one.
    full = {*range(5, shape.layers, 6), shape.layers - 1}
    kinds = ["full_attention" if layer in full else "sliding_attention" for layer in range(shape.layers)]
    config = Gemma3TextConfig(
        **_decoder(shape), head_dim=64, sliding_window=max(16, shape.sequence // 4), layer_types=kinds
    )
    return _with_labels(Gemma3ForCausalLM(config), shape)


def gpt2(shape: Shape) -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=max(1024, shape.sequence),
        n_embd=shape.hidden,
        n_layer=shape.layers,
        n_head=shape.heads,
        resid_pdrop=shape.dropout,
        embd_pdrop=shape.dropout,
        attn_pdrop=shape.dropout,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # unset, transformers warns while it is traced, which breaks the graph
    return _with_labels(model, shape)


def bert(shape: Shape) -> Made:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.hidden,
        max_position_embeddings=max(512, shape.sequence),
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=shape.dropout,
    )
    return _with_labels(BertForMaskedLM(config), shape)


def vit(shape: Shape) -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    side = 4 * max(4, int(shape.sequence**0.5))  # patches of 4 x 4: about `sequence` tokens
    config = ViTConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.hidden,
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=shape.dropout,
        image_size=side,
        patch_size=4,
        num_labels=16,
    )
    model = ViTForImageClassification(config)
    inputs = torch.randn(shape.batch, 3, side, side), torch.randint(0, 16, (shape.batch,))
    return model, inputs, lambda pixels, labels: model(pixel_values=pixels, labels=labels).loss


def t5(shape: Shape) -> Made:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=shape.vocabulary,
        d_model=shape.hidden,
        d_kv=64,
        d_ff=4 * shape.hidden,
        num_layers=shape.layers,
        num_heads=shape.heads,
        dropout_rate=shape.dropout,
        use_cache=False,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config)
    inputs = _tokens(shape), _tokens(shape, max(16, shape.sequence // 2))
    return model, inputs, lambda ids, labels: model(input_ids=ids, labels=labels).loss


def gemma4(shape: Shape) -> Made:
    """Both kinds of attention, and the last half of the layers reads the keys and values of the first."""
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    config = Gemma4TextConfig(
        **_decoder(shape),
        head_dim=64,
        global_head_dim=64,
        sliding_window=max(16, shape.sequence // 4),
        layer_types=["sliding_attention", "full_attention"] * (shape.layers // 2),
        num_kv_shared_layers=shape.layers // 2,
        vocab_size_per_layer_input=shape.vocabulary,
        hidden_size_per_layer_input=shape.hidden // 4,
    )
    return _with_labels(Gemma4ForCausalLM(config), shape)


def gpt_oss(shape: Shape) -> Made:
    """A mixture of eight experts, of which each token takes two; a window in every other layer."""
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        **_decoder(shape) | {"intermediate_size": shape.hidden},
        head_dim=64,
        num_local_experts=8,
        num_experts_per_tok=2,
        sliding_window=max(16, shape.sequence // 4),
    )
    return _with_labels(GptOssForCausalLM(config), shape)


def unet(shape: Shape) -> Made:
    """A U-Net of convolutions with `layers` levels, for an image of `sequence` pixels."""
    side = 2**shape.layers * max(1, round(shape.sequence**0.5) // 2**shape.layers)
    model = UNet(shape.hidden // 4, shape.layers)
    image, noise = (torch.randn(shape.batch, 4, side, side) for _ in range(2))
    return model, (image, noise), model


FAMILIES: dict[str, Callable[[Shape], Made]] = {
    family.__name__: family for family in (llama, qwen3, gemma3, gpt2, bert, vit, t5)
}
MORE = {"gemma4": gemma4, "gpt_oss": gpt_oss, "unet": unet}  # for benchmarks of one lever


UNMASKED = "sdpa_unmasked"
LONGEST = 1 << 20  # tokens: the positions of `long_llama`


def long_llama(shape: dict[str, int], device: str, dtype: str, mask: bool = True) -> Loss:
    """A Llama for long sequences; `shape` has layers, hidden, inner, heads and vocabulary.

    With `mask` attention reads a mask of sequence x sequence, which transformers makes while torch compiles. Without it
    the kernel is told that attention is causal, as where nothing is compiled.
    """
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    torch.manual_seed(0)
    AttentionInterface.register(UNMASKED, sdpa_attention_forward)  # no mask is made for a name without a mask function
    config = LlamaConfig(
        hidden_size=shape["hidden"],
        intermediate_size=shape["inner"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["heads"],
        vocab_size=shape["vocabulary"],
        max_position_embeddings=LONGEST,
        use_cache=False,
        attn_implementation="sdpa" if mask else UNMASKED,
    )
    with torch.device(device):
        model = LlamaForCausalLM(config)
    return Loss(model.to(getattr(torch, dtype)).train())
