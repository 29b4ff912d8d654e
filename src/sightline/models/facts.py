"""What the library that made a model says of it: preprocessing, normalisation, class names."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from torch import nn

from sightline.extras import require


def is_a(model: object, package: str, name: str) -> bool:
    """Tell whether a model is of this class or a subclass, without importing the package it comes from."""
    return any(cls.__name__ == name and f"{cls.__module__}.".startswith(f"{package}.") for cls in type(model).__mro__)


def timm_facts(model: nn.Module) -> dict[str, Any]:
    """Read a timm model's own preprocessing and, for the ImageNet label sets, its class names."""
    data = require("timm.data", extra="timm")
    config = data.resolve_model_data_config(model)
    found: dict[str, Any] = {
        "name": (getattr(model, "pretrained_cfg", None) or {}).get("architecture", ""),
        "preprocess": data.create_transform(**config, is_training=False),
        "mean": config["mean"],
        "std": config["std"],
    }
    subset = data.infer_imagenet_subset(model)
    if subset is not None:
        found["labels"] = _imagenet_labels(subset)
    return found


@lru_cache(maxsize=8)
def _imagenet_labels(subset: str) -> tuple[str, ...]:
    info = require("timm.data", extra="timm").ImageNetInfo(subset)
    return tuple(info.index_to_description(index) for index in range(info.num_classes()))
