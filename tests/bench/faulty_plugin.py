"""A package from outside, for tests: small models, and methods and metrics that fail on purpose.

The fixture `outside` installs it for the test's own process and for its workers.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sightline.errors import NumericalError
from sightline.metrics.case import Case, Measurement
from sightline.models.inputs import adapt
from sightline.models.zoo import ids as zoo
from sightline.registry import METHODS, METRICS
from sightline.types import Attribution, Passes, Target, pixel_grid

WHITE = 0.99  # of a normalised white image, and of no other in the tests


class Small(nn.Module):
    """Two convolutions and five classes; NaN for a white image where `nan` says so."""

    def __init__(self, seed: int, *, nan: bool) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8, 5)
        self.nan = nan

    def forward(self, images: Tensor) -> Tensor:
        logits = 20 * self.head(self.second(self.first(images).relu()).relu().mean((2, 3)))
        white = images.flatten(1).amin(dim=1) > WHITE
        return logits.masked_fill(white[:, None], float("nan")) if self.nan else logits


def prepare(picture: Any) -> Tensor:
    """Squeeze a picture to 32×32 and normalise it."""
    pixels = np.array(picture.resize((32, 32)), dtype=np.float32) / 127.5 - 1
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def load_small(name: str, pretrained: bool, options: dict[str, Any]) -> Any:
    model = Small(seed=2 if name == "other" else 1, nan=name == "nan").eval()
    return adapt(model, name=f"tests/{name}", preprocess=prepare, input_size=(32, 32))


zoo.LIBRARIES["tests"] = load_small


@METHODS.register("fatal", family="gradient", parity="none")
@dataclass(frozen=True, slots=True)
class Fatal:
    """Kill its own process, a number of times; then answer.

    Attributes:
        folder: where deaths are counted.
        times: how often it kills.
    """

    folder: str = ""
    times: int = 1

    def __call__(self, model: Any, images: Tensor, target: Target) -> Attribution:
        if len(list(Path(self.folder).iterdir())) < self.times:
            (Path(self.folder) / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Attribution(images.sum(dim=1)[None], pixel_grid(images))

    def cost(self, model: Any) -> Passes:
        return Passes()


@METHODS.register("picky", family="gradient", parity="none")
@dataclass(frozen=True, slots=True)
class Picky:
    """Refuse a batch that holds a white image."""

    def __call__(self, model: Any, images: Tensor, target: Target) -> Attribution:
        if (images.flatten(1).amin(dim=1) > WHITE).any():
            raise NumericalError("picky was shown a white image")
        return Attribution(images.sum(dim=1)[None], pixel_grid(images))

    def cost(self, model: Any) -> Passes:
        return Passes()


@METRICS.register("squeamish", family="tests", direction="higher", parity="none")
@dataclass(frozen=True, slots=True)
class Squeamish:
    """Refuse a batch that holds a white image."""

    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __call__(self, case: Case) -> Measurement:
        if (case.images.flatten(1).amin(dim=1) > WHITE).any():
            raise ZeroDivisionError("a white image has no edges")
        return Measurement(case.maps.flatten(1).abs().mean(dim=1))

    def cost(self, model: Any) -> Passes:
        return Passes()
