"""Quantus as an oracle: the library, and models of one channel that it and sightline can both be fed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sightline
from sightline.metrics.case import Case
from sightline.torchvision_repair import repair_torchvision
from sightline.types import Logit

repair_torchvision()
quantus: Any = pytest.importorskip("quantus")

SIDE = 12


class OneChannel(nn.Module):
    """A small network on images of one channel: for Quantus every channel of a pixel is a feature of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.head = nn.Linear(6 * 9, 3)

    def forward(self, images: Tensor) -> Tensor:
        seen = nn.functional.adaptive_avg_pool2d(torch.relu(self.conv(images)), 3)
        return self.head(seen.flatten(1))


class ThreeChannels(nn.Module):
    """The same network for images whose three channels are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = OneChannel()

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images[:, :1])


def adapter() -> Any:
    return sightline.adapt(ThreeChannels().eval(), mean=(0.0,) * 3, std=(1.0,) * 3, input_size=(SIDE, SIDE))


def pictures(count: int = 3) -> Tensor:
    grey = torch.rand(count, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(5))
    grey[:, :, 0, :2] = torch.tensor([0.0, 1.0])  # Quantus' black is an image's own smallest value
    return grey.expand(-1, 3, -1, -1).contiguous()


def maps(count: int = 3) -> Tensor:
    return torch.randn(count, SIDE, SIDE, generator=torch.Generator().manual_seed(6))


def case(count: int = 3, method: Any = None, **more: Any) -> Case:
    return Case(adapter(), pictures(count), Logit(tuple(range(count))), maps(count), method=method, **more)


def batch(count: int = 3) -> dict[str, Any]:
    """Return what Quantus' evaluate_batch takes: its wrapped model, images, classes and maps."""
    model = quantus.helpers.model.pytorch_model.PyTorchModel(OneChannel().eval(), channel_first=True, softmax=True)
    return {
        "model": model,
        "x_batch": pictures(count)[:, :1].numpy(),
        "y_batch": np.arange(count),
        "a_batch": maps(count)[:, None].numpy(),
    }


def plain(**options: Any) -> dict[str, Any]:
    """Return options that keep Quantus from scaling maps, printing and showing progress."""
    return {"normalise": False, "abs": False, "disable_warnings": True, "display_progressbar": False} | options
