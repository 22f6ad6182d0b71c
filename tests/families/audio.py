"""Speech: waveforms and spectrograms."""

from __future__ import annotations

import torch

from tests.families import Family, Made, Training, labelled, tokens


def wav2vec2() -> Made:
    """A classifier of utterances; SpecAugment is off, it draws with numpy."""
    import transformers

    config = transformers.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, conv_dim=(16, 16),
        conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2, num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2, apply_spec_augment=False, layerdrop=0.0, classifier_proj_size=16,
        num_labels=8, vocab_size=32,
    )  # fmt: skip
    model = transformers.Wav2Vec2ForSequenceClassification(config)
    return Training(model, labelled), {"input_values": torch.randn(8, 1280), "labels": torch.arange(8)}


def whisper() -> Made:
    import transformers

    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=128, num_mel_bins=16, max_source_positions=32,
        max_target_positions=32, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    return Training(model, labelled), {"input_features": torch.randn(8, 16, 64), "labels": tokens(8, 32)}


FAMILIES = tuple(Family(build.__name__, "audio", "transformers", build) for build in (wav2vec2, whisper))
