"""DeepLIFT: contributions of pixels or tokens to the difference of the score from that of a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sightline.errors import UnsupportedModel, warn
from sightline.methods.gradient.gradient import At, on_grid, tokens_or_pixels
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.backward.deeplift import DeepLiftBackward, RecordCalls, saving_nothing
from sightline.models.memory import held
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.fill import make_fill
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid

TOLERANCE = 0.01  # of the difference of the scores: an image whose contributions miss it by more is flagged


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
    r"""DeepLIFT, rescale rule: contributions to the difference of the score from that of a baseline image.

    .. math:: A_{\ell,i} = \sum_d m_{\ell,i,d}\,(x_{\ell,i,d} - x'_{\ell,i,d}), \qquad
        \sum_i A_{\ell,i} = s(x) - s(x')

    The multipliers :math:`m` follow the chain rule, with the slope :math:`(f(z) - f(z')) / (z - z')` in place of the
    derivative at every activation function. A max pool's difference goes to the largest value on the image as far as it
    exceeds the baseline's, and to the largest on the baseline as far as it is missing. A product gives each factor the
    mean of the other over both inputs; in a norm, and in any quotient, the difference of the values meets the smaller
    of both inverses, so that a baseline whose activations are constant does not blow it up. Softmax and attention are
    made of these, so transformers and gates have rules as well. A model in which the contributions do not add up,
    because it makes a call that has no rule, is refused; an image whose sum is off by more than 1 % of the difference,
    by rounding, is flagged.

    At the tokens of a transformer every start layer comes from the same passes. Prefix tokens take their part of the
    sum, none before the first block.

    Attributes:
        blank: the baseline: zero (the mean colour), black, white, mean or blur.
        at: tokens or pixels; by default tokens on a transformer.
    """

    blank: Literal["zero", "black", "white", "mean", "blur"] = "zero"
    at: At = None

    def __post_init__(self) -> None:
        make_fill(self.blank)

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        at = tokens_or_pixels(model, self.at)
        of_targets = _propagated(model, images, make_fill(self.blank)(model, images), targets, at)
        grid = pixel_grid(images) if at == "pixels" else model.grid_of(images)
        channels = 1 if at == "pixels" else -1
        maps = [[values.sum(dim=channels) for values in of_target.values.values()] for of_target in of_targets]
        flags = [_flags(model, of_target) for of_target in of_targets]
        return [replace(on_grid(layers, grid, at), flags=each) for layers, each in zip(maps, flags, strict=True)]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(2, count)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image."""
        return pair_memory(model)


def pair_memory(model: Adapter) -> int:
    """Return the bytes held for one image and its baseline: the graph, the values of both and the multipliers."""
    return held(model, graphs=3, attention=4)


class _Propagated(NamedTuple):
    """What every value contributes to a target, by place, and the target's scores on the image and on the baseline."""

    values: dict[str, Tensor]
    score: Tensor
    baseline_score: Tensor


def contributions(
    model: Adapter, images: Tensor, baseline: Tensor, targets: Sequence[Target], at: str = "pixels"
) -> list[dict[str, Tensor]]:
    """Return what every value at the image, or at each block's input, contributes to each target."""
    return [of_target.values for of_target in _propagated(model, images, baseline, targets, at)]


def _propagated(
    model: Adapter, images: Tensor, baseline: Tensor, targets: Sequence[Target], at: str
) -> list[_Propagated]:
    recorded = RecordCalls()
    with saving_nothing():
        baseline_scores, baseline_values = _run(model, baseline, targets, at, recorded)
    baseline_values = {name: value.detach() for name, value in baseline_values.items()}
    baseline_scores = [score.detach() for score in baseline_scores]
    scores, values = _run(model, images, targets, at, DeepLiftBackward(recorded.calls))
    of_targets = [
        {name: multiplier * (values[name].detach() - baseline_values[name]) for name, multiplier in multipliers.items()}
        for multipliers in model.gradients_each(scores, values)
    ]
    for by_name, score, baseline_score in zip(of_targets, scores, baseline_scores, strict=True):
        check_sum(model, next(iter(by_name.values())), score.detach(), baseline_score, instead="ig")
    return [
        _Propagated(by_name, score.detach(), baseline_score)
        for by_name, score, baseline_score in zip(of_targets, scores, baseline_scores, strict=True)
    ]


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


def check_sum(model: Adapter, contribution: Tensor, score: Tensor, baseline_score: Tensor, *, instead: str) -> None:
    """Refuse contributions that do not add up to the difference of the scores, rounding aside; `instead` may do."""
    eps = torch.finfo(contribution.dtype).eps
    flat = contribution.flatten(1)
    missing = (flat.sum(dim=1) - (score - baseline_score)).abs()
    allowed = max(1e-4, 20 * eps) * flat.abs().sum(dim=1) + 100 * eps * (score.abs() + baseline_score.abs())
    if (missing > allowed).any():
        raise UnsupportedModel(
            f"DeepLIFT's contributions do not add up to the score: {model.name}, or the target, makes a nonlinear call "
            f"that has no rule; use {instead}"
        )


def _flags(model: Adapter, of_target: _Propagated) -> tuple[str, ...]:
    """Flag the images whose contributions miss the difference of the scores, and warn of them."""
    contribution = next(iter(of_target.values.values()))
    difference = of_target.score - of_target.baseline_score
    missing = (contribution.flatten(1).sum(dim=1) - difference).abs()
    size = of_target.score.abs() + of_target.baseline_score.abs()
    off = missing > TOLERANCE * difference.abs() + 100 * torch.finfo(contribution.dtype).eps * size
    if off.any():
        warn(
            f"deep_lift's contributions miss the difference of the scores of {model.name} by more than "
            f"{TOLERANCE:.0%} for {int(off.sum())} of {len(off)} images, which are flagged; explain the model in "
            "float64, or use ig",
            stacklevel=2,
        )
    return tuple("contributions do not add up" if bad else "" for bad in off.tolist())
