"""Encoders whose output a decoder attends to."""

from __future__ import annotations

from tests.families import Family, Made, Training, labelled, tokens


def _pair(source: int = 64, target: int = 32) -> dict:
    return {"input_ids": tokens(8, source), "labels": tokens(8, target)}


def t5() -> Made:
    import transformers

    config = transformers.T5Config(
        d_model=32, d_kv=16, d_ff=64, num_layers=1, num_decoder_layers=1, num_heads=2, vocab_size=128, use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    return Training(transformers.T5ForConditionalGeneration(config), labelled), _pair()


def bart() -> Made:
    import transformers

    config = transformers.BartConfig(
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=128, max_position_embeddings=64, use_cache=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, forced_eos_token_id=2,
    )  # fmt: skip
    return Training(transformers.BartForConditionalGeneration(config), labelled), _pair()


FAMILIES = tuple(Family(build.__name__, "encoder_decoders", "transformers", build) for build in (t5, bart))
