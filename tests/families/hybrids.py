"""State-space layers, alone and between attention. Sequences are short: some scans are unrolled, step by step."""

from __future__ import annotations

from tests.families import Family, Made, Training, labelled, tokens
from tests.families.decoders import next_token


def mamba2() -> Made:
    import transformers

    config = transformers.Mamba2Config(
        hidden_size=32, num_hidden_layers=2, num_heads=4, head_dim=16, state_size=16, n_groups=1, chunk_size=16,
        vocab_size=128, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    ids = tokens(4, 32)
    return Training(transformers.Mamba2ForCausalLM(config), labelled), {"input_ids": ids, "labels": ids}


def jamba() -> Made:
    return next_token(
        "Jamba", batch=16, length=8, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
        expert_layer_offset=1, num_experts=4, num_experts_per_tok=2, mamba_d_state=8, mamba_dt_rank=4,
    )  # fmt: skip


def falcon_h1() -> Made:
    return next_token(
        "FalconH1", batch=4, length=32, num_hidden_layers=1, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16,
        mamba_n_groups=1, mamba_d_state=16, mamba_chunk_size=16,
    )  # fmt: skip


def qwen3_next() -> Made:
    return next_token(
        "Qwen3Next", batch=2, length=32, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2,
        linear_num_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=16, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32, decoder_sparse_step=2,
    )  # fmt: skip


FAMILIES = tuple(
    Family(build.__name__, "hybrids", "transformers", build) for build in (mamba2, jamba, falcon_h1, qwen3_next)
)
