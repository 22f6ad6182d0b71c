"""Image classifiers of torchvision: batch norm, depthwise convolutions, shifted windows, stochastic depth."""

from __future__ import annotations

import torch

from tests.families import Family, Made, Training


def _classifier(model: torch.nn.Module, side: int) -> Made:
    def loss(model: torch.nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(pixels), labels, label_smoothing=0.1)

    return Training(model, loss), {"pixels": torch.randn(8, 3, side, side), "labels": torch.arange(8)}


def tv_resnet() -> Made:
    from torchvision.models.resnet import BasicBlock, ResNet

    class Narrow(ResNet):
        """Sixteen channels in the first stage where a ResNet has 64; the last two stages are left out."""

        def __init__(self) -> None:
            super().__init__(BasicBlock, [1, 1, 1, 1], num_classes=10, width_per_group=64)
            self.inplanes = 16
            self.conv1 = torch.nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False)
            self.bn1 = torch.nn.BatchNorm2d(16)
            self.layer1 = self._make_layer(BasicBlock, 16, 1)
            self.layer2 = self._make_layer(BasicBlock, 32, 1, stride=2)
            self.layer3, self.layer4 = torch.nn.Identity(), torch.nn.Identity()
            self.fc = torch.nn.Linear(32, 10)

    return _classifier(Narrow(), 64)


def tv_convnext() -> Made:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)]
    return _classifier(ConvNeXt(blocks, stochastic_depth_prob=0.1, num_classes=10), 32)


def tv_swin() -> Made:
    from torchvision.models.swin_transformer import SwinTransformer

    model = SwinTransformer(
        patch_size=[2, 2], embed_dim=16, depths=[2, 1], num_heads=[1, 2], window_size=[4, 4], num_classes=10
    )
    return _classifier(model, 32)


FAMILIES = tuple(
    Family(build.__name__, "torchvision_models", "torchvision", build) for build in (tv_resnet, tv_convnext, tv_swin)
)
