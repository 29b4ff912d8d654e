"""IBA: a bottleneck of noise at a layer, optimised per image, and the information that still passes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError
from sightline.methods.cam.fusion import Layer
from sightline.methods.layer_tail import LayerAndTail, layer_and_tail, layer_memory, tail_cost, trunk_cost
from sightline.methods.multi_target import MultiTarget
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.models.memory import held
from sightline.models.passes import spend
from sightline.registry import METHODS
from sightline.seeds import generators, normal
from sightline.types import Attribution, Passes, Target, map_grid

COPIES = 16  # of the layer's activation: gate, noise, information, and the optimiser's
OPEN = 5.0  # α at the beginning: the bottleneck passes almost everything, as the authors'
SMALLEST = 1e-2  # standard deviation of a channel, as the authors'


@METHODS.register(
    "iba",
    family="information",
    cite="schulz2020",
    cost="1 forward, and steps × samples forward and backward of the part of the model after the layer",
    needs=("gradient", "layers"),
    parity="the divergence in closed form and one step by hand, 1e-9; no reference numbers",
)
@dataclass(frozen=True, slots=True)
class InformationBottleneck(MultiTarget):
    r"""IBA: how many bits of each cell of a layer are needed for the class, when noise replaces the others.

    .. math:: z = \lambda F + (1 - \lambda)\,\varepsilon, \quad \lambda = \operatorname{sigmoid}(\alpha), \qquad
        \min_\alpha\; -\mathbb E_\varepsilon\bigl[s(z)\bigr] + \beta\, \overline{I}, \qquad
        A_{ij} = \sum_k I_{kij}, \quad I = D_{KL}\bigl[p(z \mid F)\,\|\,q(z)\bigr]

    where :math:`\varepsilon` is normal with each channel's mean and deviation and q that distribution, so that
    :math:`I = \tfrac12 (\mu_z^2 + \sigma_z^2 - 1) - \log \sigma_z` with :math:`\mu_z = \lambda (F - \mu)/\sigma` and
    :math:`\sigma_z = 1 - \lambda`. What carries no information about the class becomes noise. The map is in bits and
    never negative: a cell of zero bits provably did not matter to the bottlenecked model. The authors take the
    channels' statistics from a data set; here they are those of the image's own cells.

    Attributes:
        layer: a layer's name or index, by default that of class activation maps; the paper's is in the middle.
        beta: weight of the mean information.
        steps: of the optimiser, Adam.
        rate: its learning rate.
        samples: draws of noise for each step.
        sigma: standard deviation in cells of the Gaussian that smooths λ; None for no smoothing.
        seed: of the noise, which depends on the seed and the image alone.
        score: the score of the class: log_probability, the paper's; probability or logit; None for the target itself.
    """

    layer: Layer = None
    beta: float = 10.0
    steps: int = 10
    rate: float = 1.0
    samples: int = 10
    sigma: float | None = 1.0
    seed: int = 0
    score: Score | None = "log_probability"

    def __post_init__(self) -> None:
        if min(self.steps, self.samples) < 1:
            raise RecipeError(f"got steps={self.steps}, samples={self.samples}; give one of each at least")
        if self.beta < 0 or not self.rate > 0 or not (self.sigma is None or self.sigma > 0):
            raise RecipeError(f"got beta={self.beta}, rate={self.rate}, sigma={self.sigma}; give positive numbers")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        targets = [scored(target, self.score, model) for target in targets]
        layer = layer_and_tail(model, images, self.layer)
        bottleneck = Bottleneck.around(layer.activation, self.sigma)
        maps = []
        for target in targets:
            bits = self._optimised(bottleneck, layer, target, images)
            maps.append(bits.sum(dim=1) / math.log(2))
        return [Attribution(values[None], map_grid(values, images)) for values in maps]

    def _optimised(self, bottleneck: Bottleneck, layer: LayerAndTail, target: Target, images: Tensor) -> Tensor:
        """Return the information at every value of the layer, in nats, after the last step."""
        random, rows = generators(self.seed, images), list(range(len(images)))
        with torch.inference_mode(False), torch.enable_grad():
            alpha = torch.full_like(bottleneck.activation, OPEN).requires_grad_()
            optimiser = torch.optim.Adam([alpha], lr=self.rate)
            for _ in range(self.steps):
                gate = bottleneck.gate(alpha)
                information = bottleneck.information(gate).flatten(1).mean(dim=1)
                opened, slope = gate.detach().requires_grad_(), torch.zeros_like(gate)
                for _ in range(self.samples):  # one draw after another, each with a graph of its own that is let go
                    noise = torch.stack([normal(x, g) for x, g in zip(gate, random, strict=True)])
                    score = target(layer.tail(bottleneck.passed(opened, noise), rows)).sum() / self.samples
                    slope -= _gradient(score, opened)
                loss = self.beta * information.sum()
                (alpha.grad,) = torch.autograd.grad([loss, gate], alpha, [torch.ones_like(loss), slope])
                spend(backward=len(images) * self.samples * layer.share)
                optimiser.step()
        with torch.no_grad():
            return bottleneck.information(bottleneck.gate(alpha.detach()))

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        runs = count * self.steps * self.samples
        backward = runs * (1 - trunk_cost(model, self.layer).forward)
        return trunk_cost(model, self.layer) + tail_cost(model, self.layer, [1] * runs) + Passes(0, backward)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: a draw's graph behind the layer, and copies of the activation."""
        share = 1 - trunk_cost(model, self.layer).forward
        return max(held(model, forwards=1), held(model, graphs=share)) + COPIES * layer_memory(model, self.layer)


def _gradient(score: Tensor, at: Tensor) -> Tensor:
    """Return the gradient of a score, zero where it does not depend on what is given."""
    (gradient,) = torch.autograd.grad(score, at, allow_unused=True) if score.requires_grad else (None,)
    return torch.zeros_like(at) if gradient is None else gradient


@dataclass(frozen=True, eq=False, slots=True)
class Bottleneck:
    """A layer's activation, (batch, channel, height, width), and the noise that can replace it."""

    activation: Tensor
    mean: Tensor
    deviation: Tensor
    sigma: float | None

    @classmethod
    def around(cls, activation: Tensor, sigma: float | None) -> Bottleneck:
        """Return the bottleneck whose noise has the mean and deviation of each channel over its cells."""
        mean = activation.mean(dim=(2, 3), keepdim=True)
        deviation = torch.std(activation, dim=(2, 3), keepdim=True).clamp(min=SMALLEST)
        return cls(activation, mean, deviation, sigma)

    def gate(self, alpha: Tensor) -> Tensor:
        """Return λ, smoothed over cells."""
        gate = torch.sigmoid(alpha)
        if self.sigma is None:
            return gate
        radius = round(2 * self.sigma)
        offsets = torch.arange(-radius, radius + 1, device=gate.device).to(gate)
        line = torch.exp(-offsets.square() / (2 * self.sigma**2))
        kernel = (line[:, None] * line / line.sum() ** 2).expand(gate.shape[1], 1, -1, -1)
        padded = F.pad(gate, (radius,) * 4, mode="replicate")
        smoothed: Tensor = F.conv2d(padded, kernel, groups=gate.shape[1])
        return smoothed

    def passed(self, gate: Tensor, noise: Tensor) -> Tensor:
        """Return z, with standard normal `noise` in place of what the gate holds back."""
        return gate * self.activation + (1 - gate) * (self.mean + self.deviation * noise)

    def information(self, gate: Tensor) -> Tensor:
        """Return how much z says about the activation, at every value, in nats."""
        mean = gate * (self.activation - self.mean) / self.deviation
        variance = (1 - gate).square().clamp(min=torch.finfo(gate.dtype).eps ** 2)
        return 0.5 * (mean.square() + variance - 1 - variance.log())
