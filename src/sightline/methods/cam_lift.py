"""LIFT-CAM: channels weighted by their Shapley values, as DeepLIFT approximates them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sightline.errors import UnsupportedModel
from sightline.methods.cam import weighted
from sightline.methods.cam_fusion import Fusion, Layers, check_layers, several_layers, several_layers_cost
from sightline.methods.several import Sharing
from sightline.models.adapter import Adapter
from sightline.models.cnn import Convolutional
from sightline.models.rectifiers import RELU, RELU6, writes
from sightline.models.ruled import ruled, run, split, traced
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid

CURVED = {
    *(F.gelu, F.silu, F.hardswish, F.hardsigmoid, F.leaky_relu, F.elu, F.selu, F.mish, F.softplus),
    *(torch.sigmoid, Tensor.sigmoid, torch.tanh, Tensor.tanh),
}
ELEMENTWISE = frozenset({*RELU, *RELU6, *CURVED})


@METHODS.register(
    "lift_cam",
    family="cam",
    cite="jung2021",
    cost="1 forward up to the layer, the rest of the model twice, backward from the output to the layer",
    needs=("gradient", "layers", "cuts"),
    parity="Hyungsik-Jung/LIFT-CAM, weights 1e-9",
)
@dataclass(frozen=True, slots=True)
class LiftCam(Sharing):
    r"""LIFT-CAM: channels weighted by what they contribute to the score, by DeepLIFT from an empty feature map.

    .. math::
        A_{ij} = \sum_k \alpha_k F_{kij}, \qquad \alpha_k = \sum_{uv} m_{kuv} F_{kuv}, \qquad
        \sum_k \alpha_k = s(F) - s(0)

    where m are DeepLIFT's multipliers through the rest of the model, the slope of the line between both values taken
    at every activation function. After a pool of means and a linear layer with weights w,
    :math:`\alpha_k = w_k\, \overline{F_k}`. A model in which the contributions do not add up, because tensors are
    multiplied or normalised after the layer, is refused.

    Attributes:
        layer: a cut's name or an index; by default the last feature map; or a tuple of them, deepest last, each of
            which costs as much as one.
        fusion: of several layers, each rectified: mean of the maps scaled to [0, 1], as the package grad-cam; tanh
            scales all but the last by tanh(2 m / max m) and takes the largest, as Layer-CAM.
    """

    layer: Layers = None
    fusion: Fusion = "mean"

    def __post_init__(self) -> None:
        check_layers(self.layer, self.fusion)

    def several(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        assert isinstance(model, Convolutional)
        if isinstance(self.layer, tuple):
            return several_layers(self, model, images, targets, self.layer, self.fusion)
        site = model.layer(self.layer)
        activation = model.trunk(images, site)
        each = [
            _contributions(model, site, activation[row : row + 1], [target.take([row]) for target in targets])
            for row in range(len(images))
        ]
        alphas = [torch.cat(rows).sum(dim=(2, 3)) for rows in zip(*each, strict=True)]
        maps = [weighted(alpha, activation.flatten(2)).unflatten(1, activation.shape[-2:]) for alpha in alphas]
        return [Attribution(values[None], map_grid(values, images)) for values in maps]

    def several_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        assert isinstance(model, Convolutional)
        if isinstance(self.layer, tuple):
            return several_layers_cost(self, model, count, self.layer)
        site = model.layer(self.layer)
        share = model.share(site)
        return Passes(share + model.leads(site, 2) * share + 2 * (1 - share), count * (1 - share))


def _contributions(model: Convolutional, site: str, activation: Tensor, targets: Sequence[Target]) -> list[Tensor]:
    """Return what each value of one activation, (1, channel, height, width), contributes to each target."""
    with torch.inference_mode(False), torch.enable_grad(), Rescale():
        both = torch.cat([activation, torch.zeros_like(activation)]).requires_grad_()
        logits = model.tail(both, site)
        scores = [target(logits[:1]) for target in targets]
    risen = [score - target(logits[1:]) for score, target in zip(scores, targets, strict=True)]
    found = [gradients[site][:1] * activation for gradients in model.gradients_each(scores, {site: both})]
    for contribution, rise in zip(found, risen, strict=True):
        if abs(contribution.sum() - rise.detach()) > 1e-4 * (contribution.abs().sum() + rise.detach().abs()):
            raise UnsupportedModel(
                f"DeepLIFT's contributions do not add up to the score: after {site!r}, {model.name} multiplies, "
                "normalises or pools in a way that has no rule, or the target is no logit; use ablation_cam"
            )
    return found


class Rescale(TorchFunctionMode):
    """Give every activation function, on the way back, the slope between its two inputs: first row and second.

    Where both inputs are the same the slope is the derivative there.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in ELEMENTWISE:
            return func(*args, **kwargs)
        x, _, _ = split(args, kwargs)
        if not traced(x):
            return func(*args, **kwargs)
        value = run(func, args, kwargs)
        slope = _slope(x.detach(), value, lambda leaf: func(leaf, *args[1:], **kwargs))
        return ruled(
            lambda: value, lambda came, kept: (came * kept,), x, keep=(slope,), replace=writes(func, args, kwargs)
        )


def _slope(x: Tensor, value: Tensor, again: Callable[[Tensor], Tensor]) -> Tensor:
    apart = x[:1] - x[1:]
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        (local,) = torch.autograd.grad(again(leaf.clone()).sum(), leaf)
    near = apart.abs() < 1e-10
    slope = torch.where(near, local[:1], (value[:1] - value[1:]) / torch.where(near, 1.0, apart))
    return torch.cat([slope, torch.zeros_like(slope)])
