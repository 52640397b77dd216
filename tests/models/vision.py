"""Vision models: a transformer from its configuration, convolution networks written here."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from models.zoo import Model, model


@model("vit")
def vit(size: str) -> Model:
    """ViT: patches, encoder, class token."""
    from transformers import ViTConfig, ViTForImageClassification

    from models.language import Picked

    small = {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "image_size": 32,
        "patch_size": 8,
    }
    config = ViTConfig(**(small if size == "small" else {}))
    images = torch.randn(2 if size == "small" else 64, 3, config.image_size, config.image_size)
    return Model(
        Picked(ViTForImageClassification(config), "logits"), kwargs={"pixel_values": images}
    )


@model("swin")
def swin(size: str) -> Model:
    """Swin-T: attention in windows that shift from block to block."""
    from transformers import SwinConfig, SwinForImageClassification

    from models.language import Picked

    small = {"image_size": 32, "patch_size": 2, "embed_dim": 32, "depths": [2, 2]}
    small |= {"num_heads": [2, 4], "window_size": 4}
    # Blocks are left out at random in training otherwise, and no two steps can be compared.
    config = SwinConfig(**(small if size == "small" else {}), drop_path_rate=0.0)
    images = torch.randn(2 if size == "small" else 64, 3, config.image_size, config.image_size)
    return Model(
        Picked(SwinForImageClassification(config), "logits"), kwargs={"pixel_values": images}
    )


class Bottleneck(nn.Module):
    """ResNet's residual block of three convolutions."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut = (
            nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if stride != 1 or channels != out
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's activation."""
        return F.relu(self.body(x) + self.shortcut(x))


@model("resnet")
def resnet(size: str) -> Model:
    """ResNet-50 (small: one block a stage, narrow)."""
    blocks, width = ((1, 1, 1, 1), 8) if size == "small" else ((3, 4, 6, 3), 64)
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = width
    for stage, count in enumerate(blocks):
        for index in range(count):
            stride = 2 if stage and not index else 1
            layers.append(Bottleneck(channels, width << stage, stride))
            channels = 4 * (width << stage)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    batch, side = (2, 64) if size == "small" else (64, 224)
    return Model(nn.Sequential(*layers), (torch.randn(batch, 3, side, side),))


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, layer norm over channels, an MLP, a learned scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up = nn.Linear(channels, 4 * channels)
        self.down = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 1e-1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` plus the block's update."""
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.down(F.gelu(self.up(self.norm(y)))) * self.scale
        return x + y.permute(0, 3, 1, 2)


@model("convnext")
def convnext(size: str) -> Model:
    """ConvNeXt-T (small: two stages)."""
    depths, widths = ((1, 1), (16, 32)) if size == "small" else ((3, 3, 9, 3), (96, 192, 384, 768))
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4)]
    for stage, depth in enumerate(depths):
        if stage:
            layers.append(nn.Conv2d(widths[stage - 1], widths[stage], 2, 2))
        layers += [ConvNeXtBlock(widths[stage]) for _ in range(depth)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(widths[-1])]
    layers.append(nn.Linear(widths[-1], 1000))
    batch, side = (2, 32) if size == "small" else (64, 224)
    return Model(nn.Sequential(*layers), (torch.randn(batch, 3, side, side),))


class MBConv(nn.Module):
    """EfficientNet's block: expand, depthwise, squeeze and excite, project."""

    def __init__(self, channels: int, out: int, expand: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = channels * expand
        self.residual = stride == 1 and channels == out
        self.expand = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.SiLU()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.SiLU(),
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(inner, max(1, channels // 4), 1),
            nn.SiLU(),
            nn.Conv2d(max(1, channels // 4), inner, 1),
            nn.Sigmoid(),
        )
        self.project = nn.Sequential(nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, with the shortcut where shapes allow."""
        y = self.depthwise(self.expand(x))
        y = self.project(y * self.squeeze(y))
        return x + y if self.residual else y


@model("efficientnet")
def efficientnet(size: str) -> Model:
    """EfficientNet-B0 (small: three stages)."""
    stages = (
        ((1, 8, 1, 3, 1), (6, 16, 2, 3, 2), (6, 16, 1, 5, 1))
        if size == "small"
        else (
            (1, 16, 1, 3, 1),
            (6, 24, 2, 3, 2),
            (6, 40, 2, 5, 2),
            (6, 80, 3, 3, 2),
            (6, 112, 3, 5, 1),
            (6, 192, 4, 5, 2),
            (6, 320, 1, 3, 1),
        )
    )
    channels = 8 if size == "small" else 32
    layers: list[nn.Module] = [
        nn.Conv2d(3, channels, 3, 2, 1, bias=False),
        nn.BatchNorm2d(channels),
        nn.SiLU(),
    ]
    for expand, out, count, kernel, stride in stages:
        for index in range(count):
            layers.append(MBConv(channels, out, expand, kernel, stride if not index else 1))
            channels = out
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    batch, side = (2, 32) if size == "small" else (64, 224)
    return Model(nn.Sequential(*layers), (torch.randn(batch, 3, side, side),))


class Inverted(nn.Module):
    """MobileNetV3's block: expand, depthwise, perhaps squeeze and excite, project."""

    def __init__(
        self,
        channels: int,
        inner: int,
        out: int,
        kernel: int,
        stride: int,
        squeeze: bool,
        hard: bool,
    ) -> None:
        super().__init__()
        act = nn.Hardswish if hard else nn.ReLU
        self.residual = stride == 1 and channels == out
        self.expand = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), act()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            act(),
        )
        reduced = max(8, inner // 32 * 8)
        self.squeeze = (
            nn.Sequential(
                nn.AdaptiveAvgPool2d(1),
                nn.Conv2d(inner, reduced, 1),
                nn.ReLU(),
                nn.Conv2d(reduced, inner, 1),
                nn.Hardsigmoid(),
            )
            if squeeze
            else None
        )
        self.project = nn.Sequential(nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, with the shortcut where shapes allow."""
        y = self.depthwise(self.expand(x))
        if self.squeeze is not None:
            y = y * self.squeeze(y)
        y = self.project(y)
        return x + y if self.residual else y


@model("mobilenet")
def mobilenet(size: str) -> Model:
    """MobileNetV3-Large (small: four blocks)."""
    # inner channels, channels, window, stride, squeeze and excite, hard swish
    blocks = (
        ((8, 8, 3, 1, False, False), (24, 12, 3, 2, True, False), (36, 12, 5, 1, True, True))
        if size == "small"
        else (
            (16, 16, 3, 1, False, False),
            (64, 24, 3, 2, False, False),
            (72, 24, 3, 1, False, False),
            (72, 40, 5, 2, True, False),
            (120, 40, 5, 1, True, False),
            (120, 40, 5, 1, True, False),
            (240, 80, 3, 2, False, True),
            (200, 80, 3, 1, False, True),
            (184, 80, 3, 1, False, True),
            (184, 80, 3, 1, False, True),
            (480, 112, 3, 1, True, True),
            (672, 112, 3, 1, True, True),
            (672, 160, 5, 2, True, True),
            (960, 160, 5, 1, True, True),
            (960, 160, 5, 1, True, True),
        )
    )
    channels = 8 if size == "small" else 16
    layers: list[nn.Module] = [
        nn.Conv2d(3, channels, 3, 2, 1, bias=False),
        nn.BatchNorm2d(channels),
        nn.Hardswish(),
    ]
    for inner, out, kernel, stride, squeeze, hard in blocks:
        layers.append(Inverted(channels, inner, out, kernel, stride, squeeze, hard))
        channels = out
    last = 6 * channels
    layers += [nn.Conv2d(channels, last, 1, bias=False), nn.BatchNorm2d(last), nn.Hardswish()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 1280), nn.Hardswish()]
    layers.append(nn.Linear(1280, 1000))
    batch, side = (2, 32) if size == "small" else (64, 224)
    return Model(nn.Sequential(*layers), (torch.randn(batch, 3, side, side),))


class UNet(nn.Module):
    """Two convolutions a level, skips by concatenation, upsampling by interpolation."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.down = nn.ModuleList()
        self.up = nn.ModuleList()
        channels = 3
        for width in widths:
            self.down.append(self._level(channels, width))
            channels = width
        for width in reversed(widths[:-1]):
            self.up.append(self._level(channels + width, width))
            channels = width
        self.head = nn.Conv2d(channels, 2, 1)

    @staticmethod
    def _level(channels: int, width: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.SiLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a map of two logits, as large as the image."""
        skips = []
        for index, level in enumerate(self.down):
            x = level(F.max_pool2d(x, 2) if index else x)
            skips.append(x)
        skips.pop()
        for level in self.up:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = level(torch.cat([x, skips.pop()], 1))
        return self.head(x)


@model("unet")
def unet(size: str) -> Model:
    """A U-Net for segmentation."""
    widths = (8, 16, 32) if size == "small" else (64, 128, 256, 512)
    batch, side = (2, 32) if size == "small" else (8, 256)
    return Model(UNet(widths), (torch.randn(batch, 3, side, side),))


class MixerBlock(nn.Module):
    """An MLP across the patches, then one across the channels, each after a norm."""

    def __init__(self, patches: int, channels: int, across: int, within: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.tokens = _mlp(patches, across)
        self.channels = _mlp(channels, within)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activation, (batch, patches, channels)."""
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


def _mlp(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class Mixer(nn.Module):
    """MLP-Mixer: patches, blocks, a mean over the patches, classes."""

    def __init__(self, side: int, patch: int, channels: int, depth: int, classes: int) -> None:
        super().__init__()
        patches = (side // patch) ** 2
        self.patches = nn.Conv2d(3, channels, patch, patch)
        self.blocks = nn.Sequential(
            *[MixerBlock(patches, channels, channels // 2, 4 * channels) for _ in range(depth)]
        )
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits for images (batch, 3, side, side)."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


@model("mixer")
def mixer(size: str) -> Model:
    """MLP-Mixer-B/16 (small: two blocks, narrow)."""
    side, patch, channels, depth = (32, 8, 64, 2) if size == "small" else (224, 16, 768, 12)
    batch = 2 if size == "small" else 64
    module = Mixer(side, patch, channels, depth, 1000)
    return Model(module, (torch.randn(batch, 3, side, side),))
