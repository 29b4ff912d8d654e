"""Mean attention weights between the patches of objects and the background, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from sightline import api
from sightline.errors import ShapeError, UnsupportedModel
from sightline.models.inputs import adapt, as_batch
from sightline.models.vit.adapter import VisionTransformer

__all__ = ["PAIRS", "attention_pairs", "patch_owners"]

PAIRS = ("within an object", "between objects", "object to background")


def attention_pairs(model: Any, images: Any, masks: Sequence[Tensor]) -> npt.NDArray[np.float64]:
    """Return the mean attention weight of each of PAIRS in every block, (image, block, pair).

    Weights are averaged over heads and over pairs of patches, and are in units of the uniform weight, one over the
    number of tokens. A patch belongs to the object, or the background, that covers more than half of it. A pair that an
    image does not have, such as two objects, is NaN.

    Args:
        model: a vision transformer, as for `explain`.
        images: as for `explain`.
        masks: per image, (object, height, width): 1 on the object, 0 off it, -1 where that is not known.
    """
    adapter = adapt(model)
    if not isinstance(adapter, VisionTransformer):
        raise UnsupportedModel(f"{adapter.name} has no attention to look into; choose a vision transformer")
    batch = as_batch(adapter, images)
    if len(masks) != len(batch):
        raise ShapeError(f"got masks of {len(masks)} images for {len(batch)} images; give one stack of masks per image")
    names = [f"block.{block}.probabilities" for block in range(adapter.depth)]
    grid = adapter.grid_of(batch)
    found = []
    for image, mask in zip(batch, masks, strict=True):
        owners = patch_owners(mask, grid.height, grid.width)
        with api.ready(adapter), adapter.capture(*names) as seen:
            adapter.predict(image[None])
            among = [seen[name][0].mean(dim=0)[grid.prefix :, grid.prefix :].double().cpu() for name in names]
        found.append(torch.stack([_means(weights * grid.tokens, owners) for weights in among]))
    pairs: npt.NDArray[np.float64] = torch.stack(found).numpy()
    return pairs


def patch_owners(masks: Tensor, height: int, width: int) -> Tensor:
    """Return the object that each patch belongs to, (patch,): from 0, -1 for the background, -2 for neither."""
    masks = torch.as_tensor(masks)
    if masks.ndim != 3:
        raise ShapeError(f"got masks of shape {tuple(masks.shape)}; (object, height, width) are needed")
    shares = F.adaptive_avg_pool2d((masks == 1).double()[None], (height, width))[0].flatten(1)
    ground = F.adaptive_avg_pool2d((masks == 0).all(dim=0).double()[None], (height, width)).flatten()
    owners = torch.full((height * width,), -2)
    owners[ground > 0.5] = -1
    for index, share in enumerate(shares):
        owners[share > 0.5] = index
    return owners


def _means(weights: Tensor, owners: Tensor) -> Tensor:
    """Return the mean weight of each of PAIRS; NaN where there is no such pair of patches."""
    objects = owners >= 0
    both, same = objects[:, None] & objects[None], owners[:, None] == owners[None]
    chosen = (both & same, both & ~same, objects[:, None] & (owners == -1)[None])
    nothing = torch.tensor(float("nan"), dtype=torch.float64)
    return torch.stack([weights[pairs].mean() if pairs.any() else nothing for pairs in chosen])
