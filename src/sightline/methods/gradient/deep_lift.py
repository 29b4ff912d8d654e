"""DeepLIFT: what each pixel or token contributes to the difference from a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sightline.errors import UnsupportedModel
from sightline.methods.gradient.gradient import At, on_grid, place
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.backward.deeplift import DeepLiftBackward, RecordCalls
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.fill import make_fill
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid


@METHODS.register(
    "deep_lift",
    family="gradient",
    cite="shrikumar2017",
    cost="2 forward, 1 backward",
    needs=("gradient",),
    parity="captum DeepLift on random CNNs, 1e-9, and EfficientNet-Lite0, 1e-5; but captum's max pools lose mass",
)
@dataclass(frozen=True, slots=True)
class DeepLift(MultiTarget):
    r"""DeepLIFT by its rescale rule: differences from a reference, shared out layer by layer.

    .. math:: A_{\ell,i} = \sum_d m_{\ell,i,d}\,(x_{\ell,i,d} - x'_{\ell,i,d}), \qquad
        \sum_i A_{\ell,i} = s(x) - s(x')

    The multipliers :math:`m` follow the chain rule, and at every activation function the slope between its two values,
    :math:`(f(z) - f(z')) / (z - z')`, stands in for the derivative; it is the derivative where both are the same. A
    max pool's difference goes to the largest value on the image as far as it exceeds the reference, and to the largest
    on the reference as far as it is missing. Products give each factor the other's mean of both, and softmaxes, norms
    and attention are made of these, so that transformers and gates are served as well. A model in which the
    contributions do not add up, because it makes a call that has no rule, is refused.

    At the tokens of a transformer every block's input gets its contributions from the same passes; prefix tokens take
    their part of the sum, none before the first block.

    Attributes:
        blank: the reference: zero (the mean colour), black, white, mean or blur.
        at: tokens or pixels; by default tokens on a transformer.
    """

    blank: Literal["zero", "black", "white", "mean", "blur"] = "zero"
    at: At = None

    def __post_init__(self) -> None:
        make_fill(self.blank)

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        at = place(model, self.at)
        found = contributions(model, images, make_fill(self.blank)(model, images), targets, at)
        grid = pixel_grid(images) if at == "pixels" else model.grid_of(images)
        channels = 1 if at == "pixels" else -1
        maps = [[values.sum(dim=channels) for values in layers.values()] for layers in found]
        return [Attribution(on_grid(layers, grid, at), grid) for layers in maps]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(2, count)


def contributions(
    model: Adapter, images: Tensor, reference: Tensor, targets: Sequence[Target], at: str = "pixels"
) -> list[dict[str, Tensor]]:
    """Return what every value at the image, or at each block's input, contributes to each target."""
    recorded = RecordCalls()
    low, beginning = _run(model, reference, targets, at, recorded)
    beginning = {name: value.detach() for name, value in beginning.items()}
    low = [score.detach() for score in low]  # the graph of this pass is done with
    scores, seen = _run(model, images, targets, at, DeepLiftBackward(recorded.calls))
    found = [
        {name: multiplier * (seen[name].detach() - beginning[name]) for name, multiplier in multipliers.items()}
        for multipliers in model.gradients_each(scores, seen)
    ]
    for shares, score, start in zip(found, scores, low, strict=True):
        check_sum(model, next(iter(shares.values())), score.detach(), start, instead="ig")
    return found


def _run(
    model: Adapter, images: Tensor, targets: Sequence[Target], at: str, mode: TorchFunctionMode
) -> tuple[list[Tensor], Mapping[str, Tensor]]:
    """Run the model with its calls watched; return the scores, and the tensors whose contributions are wanted."""
    sites = model.every("input") if isinstance(model, VisionTransformer) and at == "tokens" else ()
    with model.capture(*sites, gradient=True) as seen:
        pixels = images.detach().clone()
        pixels = pixels if sites else pixels.requires_grad_()
        with mode:
            logits = model(pixels)
            scores = [target(logits) for target in targets]
    return scores, seen if sites else {"image": pixels}


def check_sum(model: Adapter, shares: Tensor, score: Tensor, start: Tensor, *, instead: str) -> None:
    """Refuse contributions that do not add up to the rise of each image's score, rounding aside; `instead` may do."""
    eps = torch.finfo(shares.dtype).eps
    missing = (shares.flatten(1).sum(dim=1) - (score - start)).abs()
    allowed = max(1e-4, 20 * eps) * shares.flatten(1).abs().sum(dim=1) + 100 * eps * (score.abs() + start.abs())
    if (missing > allowed).any():
        raise UnsupportedModel(
            f"DeepLIFT's contributions do not add up to the score: {model.name}, or the target, makes a call that "
            f"bends its input and has no rule; use {instead}"
        )
