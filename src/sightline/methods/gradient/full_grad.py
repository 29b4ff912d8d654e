"""FullGrad: input times gradient plus bias times gradient, of every bias of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import UnsupportedModel
from sightline.methods.gradient.full_grad_cnn import full_grad_map
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.backward.biases import BiasTerm, watch_biases
from sightline.models.memory import held
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid

TERMS = 2.7  # graphs: that of the pass, copies of what biases are added to, the gradients there


@dataclass(frozen=True, eq=False, slots=True)
class FullGradTerms:
    """The terms of FullGrad on a transformer, which add up to the logit where gradients are balanced.

    Attributes:
        inputs: input times gradient of each token that enters a block, shape (layer, batch, token).
        biases: bias times gradient, of all biases from that block on, at the token they act on, (layer, batch, token).
        rest: bias times gradient where there are no tokens any more, after the pooling, shape (batch,).
    """

    inputs: Tensor
    biases: Tensor
    rest: Tensor

    @property
    def total(self) -> Tensor:
        """The sum of inputs and biases, shape (layer, batch): the logit, where gradients are balanced."""
        return self.inputs.sum(dim=-1) + self.biases.sum(dim=-1) + self.rest

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the terms of consecutive batches."""
        inputs, biases = ([getattr(part, name) for part in parts] for name in ("inputs", "biases"))
        return cls(torch.cat(inputs, dim=1), torch.cat(biases, dim=1), torch.cat([part.rest for part in parts]))

    def take(self, rows: Sequence[int]) -> Self:
        """Return the terms of these images of the batch."""
        chosen = list(rows)
        return type(self)(self.inputs[:, chosen], self.biases[:, chosen], self.rest[chosen])


def full_grad_terms(model: VisionTransformer, images: Tensor, targets: Sequence[Target]) -> list[FullGradTerms]:
    """Return the terms of each target, from one forward pass and one backward pass per target."""
    sites = [*model.every("input"), f"block.{model.depth - 1}.output"]
    with model.capture(*sites, gradient=True) as seen:
        with watch_biases(lambda: len(seen) - 1) as every_bias:  # the block that runs; depth once all have
            logits = model(images)
        scores = [target(logits) for target in targets]
    biases = [term for term in every_bias if term.time >= 0]
    inputs = {name: seen[name] for name in model.every("input")}
    wanted = inputs | {f"block.{term.time}.bias{index}": term.output for index, term in enumerate(biases)}
    gradients = model.gradients_each(scores, wanted, unused=True)
    return [_terms(inputs, biases, list(of_target.values()), model.depth) for of_target in gradients]


def _terms(
    inputs: Mapping[str, Tensor], biases: Sequence[BiasTerm], gradients: Sequence[Tensor], depth: int
) -> FullGradTerms:
    """Multiply inputs and biases with their gradients, which come in this order."""
    products = torch.stack([(x.detach() * g).sum(dim=-1) for x, g in zip(inputs.values(), gradients, strict=False)])
    of_block = torch.zeros_like(products)  # the biases of each block; those of the final norm count with the last
    rest = products.new_zeros(products.shape[1])
    for bias, gradient in zip(biases, gradients[depth:], strict=True):
        scores = bias.token_scores(gradient)
        if scores.shape == products.shape[1:] and (bias.time < depth or bias.function is F.layer_norm):
            of_block[min(bias.time, depth - 1)] += scores
        elif len(scores) == len(rest):  # the norm of a learned query has no batch, and does not depend on the image
            rest += scores.reshape(len(rest), -1).sum(dim=1)
    return FullGradTerms(products, of_block.flip(0).cumsum(dim=0).flip(0), rest)


@METHODS.register(
    "full_grad",
    family="gradient",
    cite="srinivas2019",
    cost="1 forward, 1 backward",
    needs=("gradient",),
    parity="completeness under libra from every start layer, 1e-5; authors' code on CNNs, 1e-9",
)
@dataclass(frozen=True, slots=True)
class FullGrad(MultiTarget):
    r"""FullGrad: input times gradient plus bias times gradient, each bias at the position where it acts.

    .. math:: A_{\ell,i} = \sum_d x_{\ell,i,d} \frac{\partial s}{\partial x_{\ell,i,d}}
        + \sum_{b \in B_{\ge \ell}} \sum_d b_d \frac{\partial s}{\partial z^b_{i,d}}

    where :math:`B_{\ge\ell}` are the biases of all norms and linear layers from block :math:`\ell` on, the final norm's
    included, and :math:`z^b` is what bias b is added to. Signed. Biases after the pooling belong to no patch; they are
    in ``details.rest``, and ``details.total`` is the sum of everything: the logit for ``libra(full_grad)``, and no
    particular number for plain gradients, because norms, GELU and softmax are not homogeneous.

    On a CNN the terms are :math:`\psi(x \odot \nabla s) + \sum_b \psi(b \odot \nabla_b s)` at pixels, batch norms with
    their implicit bias :math:`\beta - \mu\gamma/\sigma`, and :math:`\psi` takes magnitudes, scales them to [0, 1] and
    upsamples them to the image.

    Attributes:
        variant: for CNNs: "paper" scales over channels and positions together; "pgc" is the package pytorch-grad-cam,
            which sees convolutions and batch norms only and scales each channel; "simple" leaves out the biases
            themselves and takes the gradients at them; "smooth" averages every term over noisy copies of the image,
            0.15 of its range, before :math:`\psi`. Transformers have one form.
        samples: number of noisy copies, for variant="smooth".
        seed: of the noise.
    """

    variant: Literal["paper", "pgc", "simple", "smooth"] = "paper"
    samples: int = 25
    seed: int = 0

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if not isinstance(model, VisionTransformer):
            grid = pixel_grid(images)
            maps = full_grad_map(model, images, targets, self.variant, self.samples, self.seed)
            return [Attribution(values[None], grid) for values in maps]
        if self.variant != "paper":
            raise UnsupportedModel(
                f"got variant={self.variant!r}, which is for convolutional networks; {model.name} is a transformer, so "
                "write full_grad"
            )
        grid = model.grid_of(images)
        terms = full_grad_terms(model, images, targets)
        blocks = tuple(range(model.depth))
        return [
            Attribution(grid.to_map(each.inputs + each.biases), grid, details=each, layers=blocks) for each in terms
        ]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        smooth = self.variant == "smooth" and not isinstance(model, VisionTransformer)
        return Passes(1, count) * (self.samples if smooth else 1)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: a graph, what biases are added to, and the gradients there."""
        smooth = self.variant == "smooth" and not isinstance(model, VisionTransformer)
        return held(model, graphs=TERMS * (min(model.batch, self.samples) if smooth else 1))
