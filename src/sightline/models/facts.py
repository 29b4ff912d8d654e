"""What the library that made a model says of it: preprocessing, normalisation, class names, what its output is."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from torch import nn

from sightline.extras import require
from sightline.types import Output

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
IMAGENET_CLASSES = 1000
IMAGENET_SIZE = 224  # pixels a side that models are usually built for, cut out of IMAGENET_RESIZE
IMAGENET_RESIZE = 256
IMAGE_SIZES = (IMAGENET_SIZE, 32, 64, 28, 96, 128, 256, 299, 384, 512)  # tried in turn where none is known
CLIP = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}


def ancestor(model: object, package: str, name: str) -> type | None:
    """Return the class of this name that a model is of, itself or by inheritance, without importing its package."""
    return next(
        (cls for cls in type(model).__mro__ if cls.__name__ == name and f"{cls.__module__}.".startswith(f"{package}.")),
        None,
    )


def is_a(model: object, package: str, name: str) -> bool:
    """Tell whether a model is of this class or a subclass, without importing the package it comes from."""
    return ancestor(model, package, name) is not None


# ---- timm ------------------------------------------------------------------------------------------------------


def timm_facts(model: nn.Module) -> dict[str, Any]:
    """Read a timm model's own preprocessing and, where it names them or they are ImageNet's, its class names."""
    data = require("timm.data")
    config = data.resolve_model_data_config(model)
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if size is not None and not getattr(model, "dynamic_img_size", False):
        config["input_size"] = (3, *size)  # a transformer built for another size than its description's
    described: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    facts: dict[str, Any] = {
        "name": described.get("architecture", ""),
        "preprocess": data.create_transform(**config, is_training=False),
        "mean": config["mean"],
        "std": config["std"],
    }
    labels = tuple(described.get("label_names") or ())
    subset = data.infer_imagenet_subset(model)
    if labels and len(labels) == getattr(model, "num_classes", None):
        facts["labels"] = labels
    elif subset is not None:
        facts["labels"] = _imagenet_labels(subset)
    return facts


@lru_cache(maxsize=8)
def _imagenet_labels(subset: str) -> tuple[str, ...]:
    info = require("timm.data").ImageNetInfo(subset)
    return tuple(info.index_to_description(index) for index in range(info.num_classes()))


# ---- torchvision -----------------------------------------------------------------------------------------------


def torchvision_facts(model: nn.Module) -> dict[str, Any]:
    """Return what is usual in torchvision: a model does not carry its weights' description with it.

    The class names are ImageNet's when the classifier has as many classes.
    """
    transforms = require("torchvision.transforms._presets")
    facts: dict[str, Any] = {**IMAGENET, "preprocess": transforms.ImageClassification(crop_size=IMAGENET_SIZE)}
    linear = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    size = getattr(linear[-1], "out_features", getattr(linear[-1], "out_channels", 0)) if linear else 0
    if size == IMAGENET_CLASSES:
        weights = require("torchvision.models").ResNet18_Weights.DEFAULT
        facts["labels"] = tuple(weights.meta["categories"])
    return facts


def weights_facts(weights: Any) -> dict[str, Any]:
    """Read one entry of a torchvision weights enum: its preprocessing, its class names, its output."""
    transforms = weights.transforms()
    classifies = type(transforms).__name__ == "ImageClassification"
    return {
        "preprocess": transforms,
        "mean": tuple(transforms.mean),
        "std": tuple(transforms.std),
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
        facts |= {"mean": tuple(processor.image_mean), "std": tuple(processor.image_std)}
    return facts


def _config_labels(config: Any) -> tuple[str, ...]:
    """Return the class names, unless they are the placeholders that transformers fills in (LABEL_0)."""
    names = dict(getattr(config, "id2label", None) or {})
    if sorted(names) != list(range(len(names))) or all(name == f"LABEL_{index}" for index, name in names.items()):
        return ()
    return tuple(str(names[index]) for index in range(len(names)))


# ---- outputs ---------------------------------------------------------------------------------------------------

PROBLEM_TYPES: dict[str, Output] = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "value",
}


def library_output(model: Any) -> Output | None:
    """Return what the numbers of a model are, where its library's class or configuration says so."""
    library = type(model).__module__.partition(".")[0]
    said = _OUTPUTS[library](model) if library in _OUTPUTS else None
    problem = getattr(getattr(model, "config", None), "problem_type", None)  # of any configuration of transformers
    return said or (PROBLEM_TYPES.get(problem) if isinstance(problem, str) else None)


def _timm_output(model: Any) -> Output | None:
    classifier = model.get_classifier() if hasattr(model, "get_classifier") else None
    heads = classifier if isinstance(classifier, tuple) else (classifier,)
    return "embedding" if all(map(_is_removed, heads)) else None


def _torchvision_output(model: Any) -> Output | None:
    tasks: dict[str, Output] = {"segmentation": "dense", "detection": "boxes"}
    for task, output in tasks.items():
        if type(model).__module__.startswith(f"torchvision.models.{task}."):
            return output
    heads = (getattr(model, name, None) for name in ("fc", "classifier", "heads", "head"))
    return "embedding" if any(map(_is_removed, heads)) else None


def _transformers_output(model: Any) -> Output | None:
    name = type(model).__name__
    if re.search(r"For\w*Segmentation$", name):
        return "dense"
    if re.search(r"For\w*Detection$", name):
        return "boxes"
    has_head = re.search(r"For[A-Z]", name)  # ViTForImageClassification has one, ViTModel has none
    return None if has_head and not _is_removed(getattr(model, "classifier", None)) else "embedding"


def _open_clip_output(model: Any) -> Output:
    return "embedding"


_OUTPUTS: dict[str, Callable[[Any], Output | None]] = {
    "timm": _timm_output,
    "torchvision": _torchvision_output,
    "transformers": _transformers_output,
    "open_clip": _open_clip_output,
}


def _is_removed(head: Any) -> bool:
    """Tell whether the identity stands where a classifier was: the features come out instead."""
    if not isinstance(head, nn.Sequential):
        return isinstance(head, nn.Identity)
    layers = [layer for layer in head if not isinstance(layer, nn.Identity | nn.Dropout)]
    cut = not len(head) or isinstance(head[-1], nn.Identity)
    return cut and not (layers and isinstance(layers[-1], nn.Linear | nn.Conv2d))
