"""Tiny real Hugging Face models with random weights, wrapped so that the training loss is the output."""

from __future__ import annotations

import inspect

import torch


class Loss(torch.nn.Module):
    """`model(**inputs).loss` as a module's output."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**inputs).loss


def _ids(batch: int = 2, length: int = 32, vocabulary: int = 128) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(3))


def _decoder(name: str, layers: int = 2, **more) -> tuple[torch.nn.Module, dict]:
    import transformers

    config = getattr(transformers, f"{name}Config")(
        hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=128, max_position_embeddings=64, use_cache=False, pad_token_id=0, **more,
    )  # fmt: skip
    return getattr(transformers, f"{name}ForCausalLM")(config), {"input_ids": _ids(), "labels": _ids()}


def llama(dropout: float = 0.0):
    return _decoder("Llama", attention_dropout=dropout)


def qwen3():
    return _decoder("Qwen3")


def gemma3():
    import transformers

    config = transformers.Gemma3TextConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=128, max_position_embeddings=64, use_cache=False, sliding_window=16,
    )  # fmt: skip
    return transformers.Gemma3ForCausalLM(config), {"input_ids": _ids(), "labels": _ids()}


def gpt2(dropout: float = 0.1, batch: int = 2, length: int = 32, layers: int = 2):
    import transformers

    config = transformers.GPT2Config(
        n_embd=64, n_layer=layers, n_head=4, vocab_size=128, n_positions=64, use_cache=False,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # else transformers logs a warning, which breaks the graph
    ids = _ids(batch, length)
    return model, {"input_ids": ids, "labels": ids}


def bert(dropout: float = 0.1):
    import transformers

    config = transformers.BertConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=128,
        max_position_embeddings=64, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config), {"input_ids": _ids(), "labels": _ids()}


def vit(dropout: float = 0.1, batch: int = 2):
    import transformers

    config = transformers.ViTConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=32,
        patch_size=8, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, num_labels=10,
        problem_type="single_label_classification",
    )  # fmt: skip
    pixels = torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    return transformers.ViTForImageClassification(config), {
        "pixel_values": pixels,
        "labels": torch.arange(batch) % 9 + 1,
    }


def t5(dropout: float = 0.1):
    import transformers

    config = transformers.T5Config(
        d_model=64, d_kv=16, d_ff=128, num_layers=2, num_decoder_layers=2, num_heads=4, vocab_size=128,
        dropout_rate=dropout, use_cache=False, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config), {"input_ids": _ids(), "labels": _ids()}


def gemma4():
    """The last two of four layers read the keys and values of the two before."""
    import transformers

    config = transformers.Gemma4TextConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, global_head_dim=16, vocab_size=128, vocab_size_per_layer_input=128, hidden_size_per_layer_input=16,
        max_position_embeddings=64, use_cache=False, sliding_window=16, num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )  # fmt: skip
    return transformers.Gemma4ForCausalLM(config), {"input_ids": _ids(), "labels": _ids()}


def gpt_oss():
    import transformers

    config = transformers.GptOssConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=128, max_position_embeddings=64, use_cache=False, sliding_window=16,
        num_local_experts=4, num_experts_per_tok=2, pad_token_id=0,
    )  # fmt: skip
    return transformers.GptOssForCausalLM(config), {"input_ids": _ids(), "labels": _ids()}


def qwen3_moe(experts: str = "grouped_mm", layers: int = 2):
    more = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "decoder_sparse_step": 1}
    return _decoder("Qwen3Moe", layers, experts_implementation=experts, **more)


FAMILIES = {"llama": llama, "qwen3": qwen3, "gemma3": gemma3, "gpt2": gpt2, "bert": bert, "vit": vit, "t5": t5}
MORE = {"gemma4": gemma4, "gpt_oss": gpt_oss}
EXPERTS = {"qwen3_moe": qwen3_moe}


def build(name: str, **options) -> tuple[Loss, dict]:
    """A model in training mode from a fixed seed, and its inputs."""
    torch.manual_seed(0)
    model, inputs = (FAMILIES | MORE | EXPERTS)[name](**options)
    model.train()
    return Loss(model), inputs


def build_without_dropout(name: str) -> tuple[Loss, dict]:
    """As `build`, with a rate of 0 where the model has one."""
    parameters = inspect.signature((FAMILIES | MORE | EXPERTS)[name]).parameters
    return build(name, **({"dropout": 0.0} if "dropout" in parameters else {}))
