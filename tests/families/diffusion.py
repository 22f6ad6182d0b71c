"""Transformers and a U-Net that take noise out of images and videos."""

from __future__ import annotations

import torch

from tests.families import Family, Made, Training, squared

TIMES = torch.tensor([1, 500])


def _video(channels: int = 4) -> torch.Tensor:
    return torch.randn(2, channels, 3, 16, 16)


def _image(channels: int = 4) -> torch.Tensor:
    return torch.randn(2, channels, 16, 16)


def wan() -> Made:
    import diffusers

    model = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, text_dim=16,
        freq_dim=16, ffn_dim=64, num_layers=1, cross_attn_norm=True, rope_max_seq_len=32,
    )  # fmt: skip
    inputs = {"hidden_states": _video(), "timestep": TIMES, "encoder_hidden_states": torch.randn(2, 8, 16)}
    return Training(model, squared("noise")), inputs | {"noise": _video()}


def hunyuan_video() -> Made:
    import diffusers

    model = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=16, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, patch_size=2, patch_size_t=1, guidance_embeds=True, text_embed_dim=16,
        pooled_projection_dim=16, rope_axes_dim=(4, 6, 6),
    )  # fmt: skip
    inputs = {
        "hidden_states": _video(), "timestep": TIMES, "encoder_hidden_states": torch.randn(2, 8, 16),
        "pooled_projections": torch.randn(2, 16), "encoder_attention_mask": torch.ones(2, 8),
        "guidance": torch.tensor([6000.0, 6000.0]), "noise": _video(),
    }  # fmt: skip
    return Training(model, squared("noise")), inputs


def sd3() -> Made:
    import diffusers

    model = diffusers.SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=16, caption_projection_dim=32, pooled_projection_dim=16, out_channels=4,
        pos_embed_max_size=16,
    )  # fmt: skip
    inputs = {
        "hidden_states": _image(), "timestep": TIMES, "encoder_hidden_states": torch.randn(2, 8, 16),
        "pooled_projections": torch.randn(2, 16), "noise": _image(),
    }  # fmt: skip
    return Training(model, squared("noise")), inputs


def pixart() -> Made:
    import diffusers

    model = diffusers.PixArtTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, num_layers=1,
        cross_attention_dim=32, sample_size=16, patch_size=2, caption_channels=16, use_additional_conditions=False,
    )  # fmt: skip
    inputs = {"hidden_states": _image(), "timestep": TIMES, "encoder_hidden_states": torch.randn(2, 8, 16)}
    return Training(model, squared("noise")), inputs | {"noise": _image()}


def flux() -> Made:
    import diffusers

    model = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=16, pooled_projection_dim=16, guidance_embeds=False, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    places = torch.cartesian_prod(torch.zeros(1), torch.arange(8.0), torch.arange(8.0))
    inputs = {
        "hidden_states": torch.randn(2, 64, 16), "encoder_hidden_states": torch.randn(2, 8, 16),
        "pooled_projections": torch.randn(2, 16), "timestep": torch.tensor([0.1, 0.9]), "img_ids": places,
        "txt_ids": torch.zeros(8, 3), "noise": torch.randn(2, 64, 16),
    }  # fmt: skip
    return Training(model, squared("noise")), inputs


def unet() -> Made:
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=16, in_channels=4, out_channels=4, block_out_channels=(16, 32), layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16, attention_head_dim=8, norm_num_groups=8,
    )  # fmt: skip
    inputs = {"sample": _image(), "timestep": TIMES, "encoder_hidden_states": torch.randn(2, 8, 16)}
    return Training(model, squared("noise")), inputs | {"noise": _image()}


FAMILIES = tuple(
    Family(build.__name__, "diffusion", "diffusers", build) for build in (wan, hunyuan_video, sd3, pixart, flux, unet)
)
