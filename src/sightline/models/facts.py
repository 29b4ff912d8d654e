"""What a library says of its models: normalisation, preprocessing and class names, for as many channels as they have.

Colour photographs have 3 channels, X-rays 1, satellite images 4, 13 or more. What a library says of its normalisation
is said of 3; a model built for another number has another normalisation, which the user knows:
``adapt(model, mean=…, std=…)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor, nn

from sightline.extras import require
from sightline.models.signature import COLOURS, input_channels, library_output
from sightline.models.survey import IMAGENET_SIZE

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
IMAGENET_CLASSES = 1000
IMAGENET_RESIZE = 256  # pixels of the short side, of which IMAGENET_SIZE are cut out
SEGMENTATION_SIZE = 520  # pixels of the short side in torchvision's segmentation models
CLIP = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}


# ---- torchvision -----------------------------------------------------------------------------------------------


def torchvision_facts(model: nn.Module) -> dict[str, Any]:
    """Return what is usual in torchvision: a model does not carry its weights' description with it.

    The class names are ImageNet's when the classifier has as many classes.
    """
    transforms = require("torchvision.transforms._presets")
    if library_output(model) == "boxes":  # they normalise and resize images themselves
        return {"mean": (0.0,) * 3, "std": (1.0,) * 3, "preprocess": transforms.ObjectDetection()}
    channels = input_channels(model)
    if library_output(model) == "dense":
        prepared = transforms.SemanticSegmentation(resize_size=SEGMENTATION_SIZE)
        return for_channels({**IMAGENET, "preprocess": prepared}, channels)
    facts: dict[str, Any] = {**IMAGENET, "preprocess": transforms.ImageClassification(crop_size=IMAGENET_SIZE)}
    linear = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    size = getattr(linear[-1], "out_features", getattr(linear[-1], "out_channels", 0)) if linear else 0
    if size == IMAGENET_CLASSES:
        weights = require("torchvision.models").ResNet18_Weights.DEFAULT
        facts["labels"] = tuple(weights.meta["categories"])
    return for_channels(facts, channels)


def weights_facts(weights: Any) -> dict[str, Any]:
    """Read one entry of a torchvision weights enum: its preprocessing, its class names, its output."""
    transforms = weights.transforms()
    classifies = type(transforms).__name__ == "ImageClassification"
    return {
        "preprocess": transforms,
        "mean": tuple(getattr(transforms, "mean", (0.0,) * 3)),  # a detector normalises images itself
        "std": tuple(getattr(transforms, "std", (1.0,) * 3)),
        "labels": tuple(weights.meta.get("categories", ())),
        **({"output": "softmax"} if classifies else {}),
    }


# ---- transformers ----------------------------------------------------------------------------------------------


def transformers_facts(model: Any, processor: Any = None) -> dict[str, Any]:
    """Read a transformers model's name and class names, and its image processor's preprocessing."""
    config = getattr(model, "config", None)
    facts: dict[str, Any] = {"name": getattr(config, "name_or_path", ""), "labels": _config_labels(config)}
    processor = getattr(processor, "image_processor", processor)
    if processor is not None:
        facts["preprocess"] = lambda image: processor(images=image, return_tensors="pt")["pixel_values"][0]
        facts |= _normalisation(processor)
        facts = for_channels(facts, input_channels(model))
    return facts


def _normalisation(processor: Any) -> dict[str, Any]:
    """Return mean and standard deviation that an image processor normalises with; none at all leaves 0 to 1."""
    if not getattr(processor, "do_normalize", True):
        return {"mean": (0.0,) * COLOURS, "std": (1.0,) * COLOURS}
    return {"mean": tuple(processor.image_mean), "std": tuple(processor.image_std)}


def _config_labels(config: Any) -> tuple[str, ...]:
    """Return the class names, unless they are the placeholders that transformers fills in (LABEL_0)."""
    names = dict(getattr(config, "id2label", None) or {})
    if sorted(names) != list(range(len(names))) or all(name == f"LABEL_{index}" for index, name in names.items()):
        return ()
    return tuple(str(names[index]) for index in range(len(names)))


# ---- channels --------------------------------------------------------------------------------------------------


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
