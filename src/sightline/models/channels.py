"""Channels: how many a model takes, and what its library says of colours carried over to another number of them.

Colour photographs have 3, X-rays 1, satellite images 4, 13 or more. What a library says of its normalisation is said of
3; a model built for another number has another normalisation, which the user knows: ``adapt(model, mean=…, std=…)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor, nn

from sightline.errors import InputError

__all__ = ["COLOURS", "UNKNOWN", "Grey", "check_normalisation", "for_channels", "input_channels"]

COLOURS = 3
UNKNOWN = 0.5  # mean and standard deviation of a channel of which nothing is said
LIBRARIES = ("timm", "torchvision", "transformers", "open_clip")
SPACE_TO_DEPTH = 16  # cells of an image that timm's TResNet stacks into one before its first convolution


def input_channels(model: Any) -> int:
    """Return how many channels a model's images have, read off its first convolution; 3 where that does not tell.

    The modules of a user's own model may be listed in any order: one with a convolution for colours takes colours.
    """
    if not isinstance(model, nn.Module):
        return COLOURS
    said = getattr(getattr(model, "config", None), "num_channels", None)
    if isinstance(said, int):
        return said
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d) and module.in_channels]
    if not convolutions:
        return int(getattr(getattr(model, "embeds", None), "in_chans", COLOURS))  # timm's NaFlexViT
    own = type(model).__module__.partition(".")[0] not in LIBRARIES
    if own and any(module.in_channels == COLOURS for module in convolutions):
        return COLOURS
    first = convolutions[0].in_channels
    stacked = any(type(module).__name__ == "SpaceToDepth" for module in model.modules())
    return first // SPACE_TO_DEPTH if stacked else first


def check_normalisation(
    mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Refuse a mean and a standard deviation of different lengths; one that is not given is 0.5 everywhere."""
    if mean is None and std is None:
        return None, None
    centre = tuple(mean) if mean is not None else (UNKNOWN,) * len(std or ())
    spread = tuple(std) if std is not None else (UNKNOWN,) * len(centre)
    if len(centre) != len(spread) or not centre:
        raise InputError(
            f"got a mean of {len(centre)} numbers and a std of {len(spread)}; give one of each for every channel"
        )
    if not all(value > 0 for value in spread):
        raise InputError(f"got std={spread}; numbers above 0 are needed")
    return centre, spread


@dataclass(frozen=True, slots=True)
class Grey:
    """A library's preprocessing of colours, for a model of one channel: that of the grey picture, with mean statistics.

    Attributes:
        preprocess: from a PIL image to three normalised channels.
        mean: of those, per channel.
        std: of those, per channel.
    """

    preprocess: Callable[[Any], Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def transforms(self) -> Any:
        """The steps of the library's preprocessing, where it names them."""
        return getattr(self.preprocess, "transforms", ())

    def __call__(self, image: Image.Image) -> Tensor:
        colours = self.preprocess(image.convert("L").convert("RGB"))
        mean, std = (colours.new_tensor(values)[:, None, None] for values in (self.mean, self.std))
        raw = (colours * std + mean).mean(dim=0, keepdim=True)
        return (raw - _average(self.mean)) / _average(self.std)


def for_channels(facts: dict[str, Any], channels: int) -> dict[str, Any]:
    """Return what a library says of a model, as far as it holds for this number of channels.

    One channel is grey, normalised by the average of the colours' mean and standard deviation; of other numbers
    nothing is known.
    """
    mean, std = facts.get("mean", ()), facts.get("std", ())
    if channels == len(mean) or (not mean and channels == COLOURS):
        return facts
    rest = {name: value for name, value in facts.items() if name not in ("mean", "std", "preprocess")}
    if channels != 1 or not mean:
        return rest
    grey: dict[str, Any] = {"mean": (_average(mean),), "std": (_average(std),)}
    if facts.get("preprocess") is not None:
        grey["preprocess"] = Grey(facts["preprocess"], tuple(mean), tuple(std))
    return rest | grey


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)
