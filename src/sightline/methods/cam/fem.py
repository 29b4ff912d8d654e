"""FEM: a layer's channels weighted by how many of their cells stand out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.cam.activation import ActivationCam
from sightline.methods.cam.base import weighted
from sightline.registry import METHODS


@METHODS.register(
    "fem",
    family="cam",
    cite="fuad2020",
    cost="1 forward",
    needs=("layers",),
    agnostic=True,
    parity="grad-cam FEM, CNN and ViT, 1e-5",
)
@dataclass(frozen=True, slots=True)
class FeatureExplanation(ActivationCam):
    r"""FEM: channels weighted by the share of their cells that lie k standard deviations above their mean.

    .. math:: A_{ij} = \sum_c w_c F_{cij}, \qquad
        w_c = \frac{1}{hw} \bigl|\{uv : F_{cuv} > \mu_c + k\,\sigma_c\}\bigr|

    where :math:`\mu_c` and :math:`\sigma_c` are the mean and standard deviation of a channel over its cells. The same
    map for every class; a first look at what stands out in a layer.

    Attributes:
        deviations: how many standard deviations, k.
        variant: "paper", or "stream" for the tokens that enter each block of a transformer.
    """

    deviations: float = 2.0
    variant: Literal["paper", "stream"] = "paper"

    def __post_init__(self) -> None:
        ActivationCam.__post_init__(self)
        if self.deviations < 0:
            raise RecipeError(f"got deviations={self.deviations}; give 0 or more")

    def map_of(self, activation: Tensor) -> Tensor:
        flat = activation.flatten(2)
        threshold = flat.mean(dim=-1) + self.deviations * flat.std(dim=-1, correction=0)
        weights = (flat > threshold[..., None]).to(flat.dtype).mean(dim=-1)
        values: Tensor = weighted(weights, flat).unflatten(1, activation.shape[-2:])
        return values
