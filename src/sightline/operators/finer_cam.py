"""Finer-CAM: a method applied to the score of a class less those of the classes most like it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError, TargetError
from sightline.methods.multi_target import multi_target_cost
from sightline.models.adapter import Adapter
from sightline.operators.against import class_of
from sightline.operators.wrapper import MultiTargetCall, Wrapper
from sightline.registry import OPERATORS
from sightline.types import Attribution, FinerContrast, Method, Passes, Target

STRENGTH = {"mean": 0.6, "weighted": 1.0}  # of torchcam and of grad-cam


@OPERATORS.register(
    "finer_cam",
    family="contrast",
    cite="zhang2025finer",
    cost="the method's, and 1 forward more",
    parity="torchcam FinerCAM for the mean, 1e-9; grad-cam FinerCAM for the weighted one, 1e-5",
)
@dataclass(frozen=True, slots=True)
class FinerCam(Wrapper):
    r"""Finer-CAM: the attribution of a class's logit less those of the classes whose logits are nearest to it.

    .. math:: s = y_c - \gamma\, \frac1T \sum_{t=1}^{T} y_{d_t} \quad\text{(mean)}, \qquad
        s = \frac{\sum_t p_{d_t}\,(y_c - \gamma\, y_{d_t})}{\sum_t p_{d_t}} \quad\text{(weighted)}

    where the :math:`d_t` are the T other classes whose logits on the image are nearest to that of c, and :math:`p`
    their probabilities. Shows what tells a class from similar ones. Works for any method and not only for class
    activation maps, as does the target ``FinerContrast(c, others)``, which takes classes of your own choice.

    Attributes:
        references: how many classes, T; at most all others.
        gamma: how strongly they count; None for .6 with the mean and 1 with weights, as in the two packages.
        variant: mean, as in the package torchcam, or weighted by probability, as in grad-cam: its gradient passes
            through the weights as well.
    """

    method: Method
    references: int = 3
    gamma: float | None = None
    variant: Literal["mean", "weighted"] = "mean"

    def __post_init__(self) -> None:
        if self.references < 1:
            raise RecipeError(f"got references={self.references}; at least one class to compare with is needed")

    def combine(
        self, multi_target: MultiTargetCall, model: Adapter, images: Tensor, targets: Sequence[Target]
    ) -> list[Attribution]:
        indices = [class_of(target) for target in targets]
        logits = model.check_logits(model.predict(images))
        if logits.shape[1] < 2:
            raise TargetError(f"{model.name} has {logits.shape[1]} class; finer_cam needs two at least")
        gamma = STRENGTH[self.variant] if self.gamma is None else self.gamma
        chosen = [nearest_classes(logits, index, self.references) for index in indices]
        finer = [
            FinerContrast(index, others, gamma, weighted=self.variant == "weighted")
            for index, others in zip(indices, chosen, strict=True)
        ]
        return multi_target(model, images, finer)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, 0) + multi_target_cost(self.method, model, count, every_layer=every_layer)


def nearest_classes(logits: Tensor, index: int | tuple[int, ...], count: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each image, the other classes whose logits, (batch, class), are nearest to that of a class.

    >>> nearest_classes(torch.tensor([[1.0, 5.0, 4.0, 9.0]]), 1, 2)
    ((2, 0),)
    """
    own = torch.as_tensor(index, device=logits.device).expand(len(logits))[:, None]
    distance = (logits - logits.gather(1, own)).abs().scatter(1, own, torch.inf)
    order = distance.argsort(dim=1, stable=True)[:, : min(count, logits.shape[1] - 1)]
    return tuple(tuple(row) for row in order.tolist())
