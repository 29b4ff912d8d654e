r"""Layer-wise relevance propagation through convolutional networks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.several import Sharing
from sightline.models.adapter import Adapter
from sightline.models.passes import spend
from sightline.models.relevance import Relevance
from sightline.models.relevance_rules import CAPTUM, COMPOSITES, Box, Composite
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid

Name = Literal[
    "epsilon",
    "epsilon_plus",
    "epsilon_plus_flat",
    "epsilon_gamma_box",
    "epsilon_alpha2_beta1",
    "epsilon_alpha2_beta1_flat",
    "excitation_backprop",
]


@METHODS.register(
    "lrp",
    family="relevance",
    cite="bach2015",
    cost="2 forward, 1 backward; twice the way back for the gamma and alpha-beta rules",
    needs=("gradient", "cuts"),
    parity="zennit's composites on three CNNs, 1e-9; captum LRP for preset='captum', 1e-8",
)
@dataclass(frozen=True, slots=True)
class Lrp(Sharing):
    r"""Relevance handed back layer by layer, each unit sharing out what it got.

    .. math:: R_j = \sum_k \frac{a_j w_{jk}}{\sum_{j'} a_{j'} w_{j'k} + b_k \pm \epsilon}\, R_k
        \quad\text{(epsilon)}, \qquad
        R_j = \sum_k \frac{(a_j w_{jk})^+}{\sum_{j'} (a_{j'} w_{j'k})^+ + b_k^+ + \epsilon}\, R_k \quad\text{(plus)}

    starting from :math:`R = z_c\, \partial s / \partial z_c` at the logits: the logit itself for ``Logit``. A composite
    says which rule where :cite:p:`montavon2019`: ``epsilon_plus`` has plus at convolutions and epsilon at linear
    layers; ``_flat`` spreads the first convolution's relevance evenly; ``gamma`` favours contributions of the output's
    sign by a quarter; ``alpha2_beta1`` takes twice the positive less once the negative ones; ``box`` measures pixels
    from their bounds; ``excitation_backprop`` has plus everywhere.

    Activations pass relevance on, a batch norm is merged with the layer it follows and passes on elsewhere, sums and
    average pools share in proportion, a max pool gives to the winner, a gate gets nothing, a layer norm has the epsilon
    rule with its deviation held (experimental). A network that does anything else is refused. Relevance is conserved
    but for what biases and the stabiliser absorb, which on deep networks is most of it.

    Attributes:
        composite: which rule where.
        layer: where relevance is read: None for the pixels, or a site's name or index.
        preset: "captum" for epsilon of 1e-9 everywhere, batch norms and max pools included, with sums that hand all
            relevance to every summand, which makes values explode on residual networks; leave the composite out.
    """

    composite: Name = "epsilon_plus"
    layer: str | int | None = None
    preset: Literal["captum"] | None = None

    def __post_init__(self) -> None:
        if self.composite not in COMPOSITES:
            raise RecipeError(f"got composite={self.composite!r}; lrp knows {', '.join(COMPOSITES)}")
        if self.preset not in (None, "captum"):
            raise RecipeError(f"got preset={self.preset!r}; write 'captum', or leave it out and choose a composite")
        if self.preset and self.composite != "epsilon_plus":
            raise RecipeError(f"got preset='captum' with composite={self.composite!r}; leave out one of them")

    @property
    def _rules(self) -> Composite:
        return CAPTUM if self.preset else COMPOSITES[self.composite]

    def several(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        pixels = images.detach().clone().requires_grad_()
        site = "image" if self.layer is None else model.layer(self.layer)
        with ExitStack() as stack:
            seen = {site: pixels} if self.layer is None else stack.enter_context(model.capture(site, gradient=True))
            stack.enter_context(torch.enable_grad())
            rules = stack.enter_context(Relevance(self._rules, _bounds(model, images)))
            logits = model(pixels)
        if not rules.count:
            raise UnsupportedModel(f"lrp saw no convolution and no linear layer run in {model.name}; use ig or ixg")
        again = len(images) * model.remaining(site) * self._rules.copies
        found = []
        for index, target in enumerate(targets):
            with torch.enable_grad():
                score = (logits * _start(logits, target)).sum(dim=1)
            spend(forward=again, backward=again * (1 - 1 / self._rules.copies))
            relevance = model.gradients(score, seen, retain=index < len(targets) - 1)[site]
            values = (relevance if site == "image" else model.to_map(site, relevance, images)).sum(dim=1)
            found.append(Attribution(values[None], map_grid(values, images)))
        return found

    def several_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        back = count * self._rules.copies * model.remaining("image" if self.layer is None else model.layer(self.layer))
        return Passes(1 + back, back)


def _start(logits: Tensor, target: Target) -> Tensor:
    """Return the relevance of each logit: its value times what the target makes of it."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        (slope,) = torch.autograd.grad(target(leaf).sum(), leaf)
    return leaf.detach() * slope


def _bounds(model: Adapter, images: Tensor) -> Box:
    """Return what black and white pixels are to the model."""
    black = torch.zeros_like(images[:1, :, :1, :1])
    return model.normalise(black), model.normalise(black + 1)
