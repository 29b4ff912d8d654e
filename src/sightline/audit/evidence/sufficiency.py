"""Sufficiency of explanations: how often images with like maps get the same answer. A property of a set of images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from sightline.errors import InputError

__all__ = ["sufficiency"]


def sufficiency(maps: Tensor, predictions: Sequence[int] | Tensor, *, threshold: float = 0.6) -> Tensor:
    r"""Return, for each image, the share of images with a like map that the model answers in the same way.

    .. math:: \frac{|\{j : d(a_i, a_j) \le t,\; \hat y_j = \hat y_i\}|}{|\{j : d(a_i, a_j) \le t\}|}

    over the other images, where d is the Euclidean distance of maps, each pixel divided by its standard deviation over
    the set, and all distances by the largest :cite:p:`dasgupta2022`. If an explanation suffices, images with the same
    explanation have the same class. It is no metric of one map: the numbers depend on the set of images, and few images
    are like each other.

    Args:
        maps: shape (batch, height, width).
        predictions: the class the model gives to each image.
        threshold: how far apart like maps may be, as a share of the largest distance.

    Returns:
        One number per image, NaN where no other image has a like map.
    """
    answers = torch.as_tensor(predictions)
    if maps.ndim != 3 or len(answers) != len(maps) or len(maps) < 2:
        raise InputError(
            f"got maps of shape {tuple(maps.shape)} and {len(answers)} predictions; "
            "give (batch, height, width) with two images or more, and a prediction for each"
        )
    values = maps.detach().cpu().double().flatten(1)
    values = values[:, values.var(dim=0) > 0]  # where all maps are equal there is no distance
    distance = torch.from_numpy(cdist(values, values, "seuclidean"))
    like = distance <= threshold * distance.max()
    like.fill_diagonal_(False)
    same = like & (answers[:, None] == answers[None])
    return same.sum(dim=1).double() / torch.where(like.any(dim=1), like.sum(dim=1), torch.nan)
