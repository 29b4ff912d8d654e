"""FullGrad: input times gradient, and every bias times its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.gradient.full_grad_cnn import full_grad_map
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.backward.biases import BiasTerm, watch_biases
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid


@dataclass(frozen=True, eq=False, slots=True)
class Account:
    """What adds up to the target: one sum for the inputs, one for the biases, per start layer.

    Attributes:
        inputs: input times gradient of each token that enters a block, shape (layer, batch, token).
        biases: bias times gradient, of all biases from that block on, at the token they act on, (layer, batch, token).
        rest: bias times gradient where there is no token any more, behind the pooling, shape (batch,).
    """

    inputs: Tensor
    biases: Tensor
    rest: Tensor

    @property
    def total(self) -> Tensor:
        """What inputs and biases sum to, shape (layer, batch): the logit, where gradients are balanced."""
        return self.inputs.sum(dim=-1) + self.biases.sum(dim=-1) + self.rest


def accounts(model: VisionTransformer, images: Tensor, targets: Sequence[Target]) -> list[Account]:
    """Return what each target is made of, from one pass forward and one backward per target."""
    sites = [*model.every("input"), f"block.{model.depth - 1}.output"]
    with model.capture(*sites, gradient=True) as seen:
        with watch_biases(lambda: len(seen) - 1) as found:  # the block that runs; depth once all have
            logits = model(images)
        scores = [target(logits) for target in targets]
    terms = [term for term in found if term.time >= 0]
    inputs = {name: seen[name] for name in model.every("input")}
    wanted = inputs | {f"block.{term.time}.bias{index}": term.output for index, term in enumerate(terms)}
    every = model.gradients_each(scores, wanted, unused=True)
    return [_account(inputs, terms, list(gradients.values()), model.depth) for gradients in every]


def _account(
    inputs: Mapping[str, Tensor], terms: Sequence[BiasTerm], gradients: Sequence[Tensor], depth: int
) -> Account:
    times = torch.stack([(x.detach() * g).sum(dim=-1) for x, g in zip(inputs.values(), gradients, strict=False)])
    here = torch.zeros_like(times)  # the biases of each block; those of the final norm count with the last
    rest = times.new_zeros(times.shape[1])
    for term, gradient in zip(terms, gradients[depth:], strict=True):
        scores = term.token_scores(gradient)
        if scores.shape == times.shape[1:] and (term.time < depth or term.function is F.layer_norm):
            here[min(term.time, depth - 1)] += scores
        elif len(scores) == len(rest):  # a learned query's own norm has no batch, and says nothing of the image
            rest += scores.reshape(len(rest), -1).sum(dim=1)
    return Account(times, here.flip(0).cumsum(dim=0).flip(0), rest)


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
    r"""Input times gradient, and every bias times its gradient at the place it acts on.

    .. math:: A_{\ell,i} = \sum_d x_{\ell,i,d} \frac{\partial s}{\partial x_{\ell,i,d}}
        + \sum_{b \in B_{\ge \ell}} \sum_d b_d \frac{\partial s}{\partial z^b_{i,d}}

    where :math:`B_{\ge\ell}` are the biases of all norms and linear maps from block :math:`\ell` on, the final norm's
    included, and :math:`z^b` is what bias b is added to. Signed. Biases behind the pooling belong to no patch; they are
    in ``details.rest``, and ``details.total`` says what everything sums to: the logit for ``libra(full_grad)``, and no
    particular number for plain gradients, because norms, GELU and softmax are not homogeneous.

    On a CNN the terms are :math:`\psi(x \odot \nabla s) + \sum_b \psi(b \odot \nabla_b s)` at pixels, batch norms with
    their implicit bias :math:`\beta - \mu\gamma/\sigma`, and :math:`\psi` takes magnitudes, scales them to [0, 1] and
    enlarges them to the image.

    Attributes:
        variant: for CNNs: "paper" scales over channels and places together; "pgc" is the pytorch-grad-cam package,
            which knows convolutions and batch norms only and scales each channel; "simple" leaves the biases
            themselves out and shows the gradients at them; "smooth" averages every term over noisy copies of the image,
            0.15 of its range, before it is shown. Transformers have one form.
        samples: noisy copies, for variant="smooth".
        seed: of the noise.
    """

    variant: Literal["paper", "pgc", "simple", "smooth"] = "paper"
    samples: int = 25
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise RecipeError(f"got samples={self.samples}; give 1 or more")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if not isinstance(model, VisionTransformer):
            grid = pixel_grid(images)
            return [Attribution(x[None], grid) for x in self._maps(model, images, targets)]
        if self.variant != "paper":
            raise UnsupportedModel(
                f"got variant={self.variant!r}, which is for convolutional networks; {model.name} is a transformer, so "
                "write full_grad"
            )
        grid = model.grid_of(images)
        found = accounts(model, images, targets)
        return [Attribution(grid.to_map(x.inputs + x.biases), grid, details=x) for x in found]

    def _maps(self, model: Adapter, images: Tensor, targets: Sequence[Target]) -> list[Tensor]:
        return full_grad_map(model, images, targets, self.variant, self.samples, self.seed)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        smooth = self.variant == "smooth" and not isinstance(model, VisionTransformer)
        return Passes(1, count) * (self.samples if smooth else 1)
