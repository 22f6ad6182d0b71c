"""Dense decoders that predict the next token."""

from __future__ import annotations

from tests.families import Family, Made, Training, labelled, tokens

SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 128, "max_position_embeddings": 64, "use_cache": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
BATCH, LENGTH = 8, 64


def next_token(prefix: str, *, config: str = "", batch: int = BATCH, length: int = LENGTH, **more: object) -> Made:
    """transformers' `<prefix>ForCausalLM` on random tokens; `more` over the sizes that all have in common."""
    import transformers

    made = getattr(transformers, config or f"{prefix}Config")(**SIZES | more)
    ids = tokens(batch, length, 128)
    return Training(getattr(transformers, f"{prefix}ForCausalLM")(made), labelled), {"input_ids": ids, "labels": ids}


def llama() -> Made:
    return next_token("Llama", attention_dropout=0.1)


def qwen3() -> Made:
    return next_token("Qwen3")


def gemma3() -> Made:
    kinds = ["sliding_attention", "full_attention"]
    return next_token("Gemma3", config="Gemma3TextConfig", sliding_window=16, layer_types=kinds)


def gemma4() -> Made:
    """The last two of four layers read the keys and values of the two before."""
    return next_token(
        "Gemma4", config="Gemma4TextConfig", num_hidden_layers=4, sliding_window=16, num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2, global_head_dim=16, vocab_size_per_layer_input=128,
        hidden_size_per_layer_input=8,
    )  # fmt: skip


def gpt2() -> Made:
    import transformers

    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=2, vocab_size=128, n_positions=64, use_cache=False, bos_token_id=1, eos_token_id=2
    )
    model = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # unset, transformers warns while it is traced, which breaks the graph
    ids = tokens(BATCH, LENGTH)
    return Training(model, labelled), {"input_ids": ids, "labels": ids}


def glm4() -> Made:
    return next_token("Glm4")


def phi3() -> Made:
    return next_token("Phi3", resid_pdrop=0.1, embd_pdrop=0.1)


def olmo2() -> Made:
    return next_token("Olmo2")


FAMILIES = tuple(
    Family(build.__name__, "decoders", "transformers", build)
    for build in (llama, qwen3, gemma3, gemma4, gpt2, glm4, phi3, olmo2)
)
