"""What the library that made a model says of it: preprocessing, normalisation, class names."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from torch import nn

from sightline.extras import require

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
IMAGENET_CLASSES = 1000


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
    found: dict[str, Any] = {
        "name": described.get("architecture", ""),
        "preprocess": data.create_transform(**config, is_training=False),
        "mean": config["mean"],
        "std": config["std"],
    }
    labels = tuple(described.get("label_names") or ())
    subset = data.infer_imagenet_subset(model)
    if labels and len(labels) == getattr(model, "num_classes", None):
        found["labels"] = labels
    elif subset is not None:
        found["labels"] = _imagenet_labels(subset)
    return found


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
    found: dict[str, Any] = {**IMAGENET, "preprocess": transforms.ImageClassification(crop_size=224)}
    linear = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    size = getattr(linear[-1], "out_features", getattr(linear[-1], "out_channels", 0)) if linear else 0
    if size == IMAGENET_CLASSES:
        weights = require("torchvision.models").ResNet18_Weights.DEFAULT
        found["labels"] = tuple(weights.meta["categories"])
    return found


def weights_facts(weights: Any) -> dict[str, Any]:
    """Read one entry of a torchvision weights enum: its preprocessing, its class names."""
    transforms = weights.transforms()
    return {
        "preprocess": transforms,
        "mean": tuple(transforms.mean),
        "std": tuple(transforms.std),
        "labels": tuple(weights.meta.get("categories", ())),
    }


# ---- transformers ----------------------------------------------------------------------------------------------


def transformers_facts(model: Any, processor: Any = None) -> dict[str, Any]:
    """Read a transformers model's name and class names, and its image processor's preprocessing."""
    config = getattr(model, "config", None)
    found: dict[str, Any] = {"name": getattr(config, "name_or_path", ""), "labels": _config_labels(config)}
    processor = getattr(processor, "image_processor", processor)
    if processor is not None:
        found["preprocess"] = lambda image: processor(images=image, return_tensors="pt")["pixel_values"][0]
        found |= {"mean": tuple(processor.image_mean), "std": tuple(processor.image_std)}
    return found


def _config_labels(config: Any) -> tuple[str, ...]:
    """Return the class names, unless they are the placeholders that transformers fills in (LABEL_0)."""
    names = dict(getattr(config, "id2label", None) or {})
    if sorted(names) != list(range(len(names))) or all(name == f"LABEL_{index}" for index, name in names.items()):
        return ()
    return tuple(str(names[index]) for index in range(len(names)))
