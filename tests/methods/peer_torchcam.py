"""The package torchcam in the same process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def torchcam_map(name: str, model: nn.Module, layer: Any, images: Tensor, target: int, **options: Any) -> Tensor:
    """Return the peer's map after its ReLU, not scaled, of one layer and one image or several."""
    import torchcam.methods as peer

    noise = options.pop("noise", None)
    with getattr(peer, name)(model, layer, input_shape=tuple(images.shape[1:]), **options) as cam:
        if noise is not None:
            draws = iter(noise)
            cam._distrib = type("Noise", (), {"sample": lambda self, size: next(draws)})()
        with torch.enable_grad():
            scores = model(images.clone().requires_grad_())
        given = {"scores": scores} if name not in ("CAM", "SSCAM", "ISCAM", "ScoreCAM", "SmoothGradCAMpp") else {}
        (found,) = cam(class_idx=target, normalized=False, **given)
    result: Tensor = found.detach()
    return result
