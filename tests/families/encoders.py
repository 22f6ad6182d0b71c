"""Encoders that fill in masked tokens."""

from __future__ import annotations

from tests.families import Family, Made, Training, labelled, tokens

SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 128,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip


def _masked(prefix: str, **more: object) -> Made:
    import transformers

    config = getattr(transformers, f"{prefix}Config")(**SIZES | more)
    model = getattr(transformers, f"{prefix}ForMaskedLM")(config)
    return Training(model, labelled), {"input_ids": tokens(8, 64), "labels": tokens(8, 64)}


def bert() -> Made:
    return _masked("Bert")


def modernbert() -> Made:
    return _masked(
        "ModernBert", local_attention=16, global_attn_every_n_layers=2, bos_token_id=1, eos_token_id=2, cls_token_id=1,
        sep_token_id=2,
    )  # fmt: skip


def deberta() -> Made:
    return _masked("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=16)


FAMILIES = tuple(Family(build.__name__, "encoders", "transformers", build) for build in (bert, modernbert, deberta))
