"""Image classifiers of transformers."""

from __future__ import annotations

import torch

from tests.families import Family, Made, Training, labelled

CLASSES = {"num_labels": 10, "problem_type": "single_label_classification"}
SIZES = CLASSES | {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 4,
}  # fmt: skip


def _classifier(prefix: str, **sizes: object) -> Made:
    import transformers

    config = getattr(transformers, f"{prefix}Config")(**sizes)
    model = getattr(transformers, f"{prefix}ForImageClassification")(config)
    return Training(model, labelled), {"pixel_values": torch.randn(8, 3, 32, 32), "labels": torch.arange(8)}


def vit() -> Made:
    return _classifier("ViT", **SIZES, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)


def dinov2() -> Made:
    return _classifier("Dinov2", **SIZES, mlp_ratio=2)


def swin() -> Made:
    return _classifier(
        "Swin", **CLASSES, image_size=32, patch_size=2, embed_dim=16, depths=[2, 1], num_heads=[1, 2], window_size=4
    )


def convnext() -> Made:
    return _classifier("ConvNext", **CLASSES, hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, patch_size=2)


FAMILIES = tuple(Family(build.__name__, "vision", "transformers", build) for build in (vit, dinov2, swin, convnext))
