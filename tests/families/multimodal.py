"""Vision and language together."""

from __future__ import annotations

import torch

from tests.families import Family, Made, Training, labelled, tokens

TEXT = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 128,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 127,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 4,
}  # fmt: skip


def clip() -> Made:
    """The contrastive loss of eight images and texts."""
    import transformers

    config = transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=32)

    def loss(model: torch.nn.Module, **inputs: torch.Tensor) -> torch.Tensor:
        return model(**inputs, return_loss=True).loss

    inputs = {"input_ids": tokens(8, 32), "pixel_values": torch.randn(8, 3, 32, 32)}
    return Training(transformers.CLIPModel(config), loss), inputs


def llava() -> Made:
    """CLIP's vision tower before a Llama: 64 patches take the places of 64 image tokens."""
    import transformers

    text = transformers.LlamaConfig(**TEXT, num_key_value_heads=2, use_cache=False)
    config = transformers.LlavaConfig(
        text_config=text, vision_config=transformers.CLIPVisionConfig(**VISION | {"num_hidden_layers": 2}),
        image_token_index=100, vision_feature_layer=-2, vision_feature_select_strategy="default",
    )  # fmt: skip
    words = tokens(4, 32, 100)
    ids = torch.cat([torch.full((4, 64), 100), words], 1)
    labels = torch.cat([torch.full((4, 64), -100), words], 1)
    inputs = {"input_ids": ids, "pixel_values": torch.randn(4, 3, 32, 32), "labels": labels}
    return Training(transformers.LlavaForConditionalGeneration(config), labelled), inputs


FAMILIES = tuple(Family(build.__name__, "multimodal", "transformers", build) for build in (clip, llava))
