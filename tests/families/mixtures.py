"""Decoders with a mixture of experts."""

from __future__ import annotations

from tests.families import Family, Made
from tests.families.decoders import next_token


def qwen3_moe() -> Made:
    return next_token("Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1)


def gpt_oss() -> Made:
    return next_token("GptOss", intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=16)


def mixtral() -> Made:
    return next_token("Mixtral", intermediate_size=32, num_local_experts=4, num_experts_per_tok=2)


def deepseek_v3() -> Made:
    """Latent attention; the first layer is dense."""
    return next_token(
        "DeepseekV3", num_key_value_heads=2, head_dim=8, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        n_shared_experts=1, n_group=2, topk_group=1, first_k_dense_replace=1,
    )  # fmt: skip


FAMILIES = tuple(
    Family(build.__name__, "mixtures", "transformers", build) for build in (qwen3_moe, gpt_oss, mixtral, deepseek_v3)
)
