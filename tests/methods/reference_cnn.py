"""The three random CNNs of the reference numbers, in float64, and the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests import tiny
from torch import Tensor, nn

from sightline.extras import require

FOLDER = tiny.GOLDEN / "cnn"
NAMES = ("tiny_cnn", "tiny_resnet", "tiny_vgg")
TARGET = 2
LAYERS = {"tiny_cnn": "features.8", "tiny_resnet": "layer4", "tiny_vgg": "features.8"}


def _stage(channels: int, more: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, more, 3, stride, 1), nn.BatchNorm2d(more), nn.ReLU()]


def _shortcut(channels: int, more: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, more, 1, 2, bias=False), nn.BatchNorm2d(more))


class Plain(nn.Module):
    """tiny_cnn."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*_stage(3, 8, 2), *_stage(8, 12, 2), *_stage(12, 16, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 6)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.fc(torch.flatten(self.pool(self.features(images)), 1))
        return found


class Vgg(nn.Module):
    """tiny_vgg."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*_stage(3, 8, 2), *_stage(8, 12, 2), *_stage(12, 16, 1), nn.MaxPool2d(2))
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.classifier = nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 6))

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.classifier(torch.flatten(self.pool(self.features(images)), 1))
        return found


class Residual(nn.Module):
    """tiny_resnet."""

    def __init__(self) -> None:
        super().__init__()
        resnet = require("torchvision.models.resnet")
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.layer2 = nn.Sequential(resnet.BasicBlock(8, 8))
        self.layer3 = nn.Sequential(resnet.BasicBlock(8, 12, 2, _shortcut(8, 12)))
        self.layer4 = nn.Sequential(resnet.BasicBlock(12, 16, 2, _shortcut(12, 16)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 6)

    def forward(self, images: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(images)))
        x = self.layer4(self.layer3(self.layer2(x)))
        found: Tensor = self.fc(torch.flatten(self.pool(x), 1))
        return found


def network(name: str) -> tuple[nn.Module, Tensor]:
    """Return a network and its image."""
    numbers = np.load(FOLDER / f"model_{name}.npz")
    model = {"tiny_cnn": Plain, "tiny_resnet": Residual, "tiny_vgg": Vgg}[name]()
    model.load_state_dict({k[2:]: torch.from_numpy(numbers[k]) for k in numbers if k.startswith("w.")})
    return model.double().eval(), torch.from_numpy(numbers["input"]).double()


def numbers(name: str) -> Any:
    """Return the reference numbers of a file, by key."""
    return np.load(FOLDER / f"{name}.npz")


def want(name: str, key: str = "pixels") -> Tensor:
    """Return a reference map."""
    return torch.from_numpy(numbers(name)[key]).double()


def assert_same(got: Tensor, wanted: Tensor, tolerance: float) -> None:
    """Compare two maps after both are divided by the reference's largest absolute value."""
    error = float((got - wanted).abs().max() / wanted.abs().max())
    assert error < tolerance, f"off by {error:.2g} of the maximum, {tolerance:g} is allowed"


def photograph(shared: Path) -> Tensor:
    """Return the photograph of the reference numbers as EfficientNet-Lite0 is fed it."""
    pixels = torch.from_numpy(np.load(shared / "golden" / "cnn_photo" / "inputs_lite0.npz")["rgb_uint8"])
    return (pixels.permute(2, 0, 1)[None].float() / 255 - 0.5) / 0.5
