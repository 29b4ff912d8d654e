"""CAM, the original: the last feature map weighted by the classifier's own weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sightline.errors import UnsupportedModel
from sightline.methods.cam.ablation import activations_and_logits
from sightline.methods.cam.base import weighted
from sightline.methods.cam.fusion import Layer
from sightline.methods.multi_target import MultiTarget
from sightline.methods.scored import target_derivative
from sightline.models.adapter import Adapter
from sightline.models.capture import Site, capture
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid


@METHODS.register(
    "cam",
    family="cam",
    cite="zhou2016",
    cost="1 forward",
    needs=("layers", "cuts"),
    parity="torchcam CAM on random CNNs, 1e-6; grad_cam times the number of cells, 1e-9",
)
@dataclass(frozen=True, slots=True)
class ClassActivationMap(MultiTarget):
    r"""CAM: the last feature map's channels weighted by the classifier's weights for the class; no gradients.

    .. math:: A_{ij} = \sum_k w_{ck} F_{kij}

    where :math:`w_c` are the weights of the linear layer that follows the global average pooling of the feature map
    :math:`F`. Its mean over cells is the logit less its bias. A model that does not end in global average pooling and
    one linear layer has no such map and is refused; ``grad_cam`` is the generalisation. The target may be any function
    of the logits: their weights are combined by its derivative.

    Attributes:
        layer: the feature map's name or index; by default the last.
    """

    layer: Layer = None

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        site = model.layer(self.layer)
        linear = _last_linear(model)
        if linear is None or site not in model.sites:
            raise self._refusal(model, site)
        with capture({"head": Site(linear, "input")}) as seen:
            activations, logits = activations_and_logits(model, images, site)
        activation = self._pooled(model, site, activations[site], seen["head"], linear, logits)
        maps = []
        for target in targets:
            weights = target_derivative(target, logits) @ linear.weight.detach()
            values = weighted(weights, activation.flatten(2)).unflatten(1, activation.shape[-2:])
            maps.append(Attribution(values[None], map_grid(values, images)))
        return maps

    def _pooled(
        self, model: Adapter, site: str, activation: Tensor, pooled: Tensor, linear: nn.Linear, logits: Tensor
    ) -> Tensor:
        """Return the feature map whose means the linear layer read: the layer's output, or that after a ReLU."""
        with torch.no_grad():
            direct = pooled.ndim == 2 and _same(linear(pooled), logits)
        if direct and pooled.shape[1] == activation.shape[1]:
            for candidate in (activation, activation.relu()):
                if _same(candidate.mean(dim=(2, 3)), pooled):
                    return candidate
        raise self._refusal(model, site)

    def _refusal(self, model: Adapter, site: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"cam needs global average pooling and one linear layer after the feature map; {model.name} has something "
            f"else after {site}: use grad_cam"
        )

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, 0)


def _same(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors hold the same numbers, the rounding of half precision aside."""
    return torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().mean()))


def _last_linear(model: Adapter) -> nn.Linear | None:
    linear = [module for module in model.modules if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None
