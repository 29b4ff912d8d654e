"""Contrastive excitation backprop: winning probabilities of a class less those of all that speaks against it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sightline.errors import UnsupportedModel
from sightline.methods.multi_target import MultiTarget
from sightline.methods.scored import target_derivative
from sightline.models.adapter import Adapter
from sightline.models.backward.lrp import Relevance
from sightline.models.backward.lrp_rules import COMPOSITES
from sightline.models.capture import Site, capture
from sightline.models.passes import spend
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid


@METHODS.register(
    "contrastive_excitation",
    family="relevance",
    cite="zhang2018",
    cost="2 forward, 1 backward, each from the output to the layer but for the first forward",
    needs=("gradient", "layers", "cuts"),
    parity="zennit ExcitationBackprop started from the same features, 1e-9; closed form at the last feature map",
)
@dataclass(frozen=True, slots=True)
class ContrastiveExcitation(MultiTarget):
    r"""Contrastive excitation backprop: excitation backprop of a class less that of the class's negation.

    .. math:: A = \sum_k \bigl(R_k[p^+] - R_k[p^-]\bigr), \qquad
        p^\pm_j = \frac{x_j\,[\pm w_{cj}]^+}{\sum_{j'} x_{j'}\,[\pm w_{cj'}]^+}

    where x are the features that the last linear layer reads, w its weights, and :math:`R[p]` propagates p from them to
    the layer by the rule of ``lrp(composite='excitation_backprop')``, in proportion to positive contributions. Where
    plain excitation backprop shows whatever is prominent, the difference is specific to the class. It sums to zero
    but for what biases absorb; ``rectify(contrastive_excitation)`` is the map as it is usually shown.

    Attributes:
        layer: where it is read: a layer's name or index, by default the last feature map; an earlier one such as -2
            gives a finer map.
    """

    layer: str | int | None = None

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        site, linear = model.layer(self.layer), last_linear(model)
        pixels = images.detach().clone().requires_grad_()
        with ExitStack() as stack:
            seen = stack.enter_context(model.capture(site, gradient=True))
            head = stack.enter_context(capture({"head": Site(linear, "input")}, gradient=True))
            stack.enter_context(torch.enable_grad())
            unbounded = (images[:1], images[:1])  # no rule of this composite asks for the bounds of pixels
            stack.enter_context(Relevance(COMPOSITES["excitation_backprop"], unbounded, images))
            logits = model(pixels)
        features = head["head"]
        attributions = []
        for index, target in enumerate(targets):
            start = contrast(features.detach(), target_derivative(target, logits) @ linear.weight.detach())
            with torch.enable_grad():
                score = (features * start).flatten(1).sum(dim=1)
            spend(forward=len(images) * model.remaining(site))  # rules run layers again
            relevance = model.gradients(score, {site: seen[site]}, retain=index < len(targets) - 1)[site]
            values = model.to_map(site, relevance, images).sum(dim=1)
            attributions.append(Attribution(values[None], map_grid(values, images)))
        return attributions

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        remaining = count * model.remaining(model.layer(self.layer))
        return Passes(1 + remaining, remaining)


def contrast(features: Tensor, weights: Tensor) -> Tensor:
    """Return the winning probabilities of features, (batch, feature), under weights less those under their negation."""
    excited = features.clamp(min=0)
    parts = [excited * sign for sign in (weights.clamp(min=0), -weights.clamp(max=0))]
    tiny = torch.finfo(features.dtype).tiny
    positive, negative = (part / part.sum(dim=1, keepdim=True).clamp(min=tiny) for part in parts)
    return positive - negative


def last_linear(model: Adapter) -> nn.Linear:
    """Return the classifier's last linear layer."""
    linear = [module for module in model.modules if isinstance(module, nn.Linear)]
    if not linear:
        raise UnsupportedModel(
            f"{model.name} has no linear layer whose weights could be contrasted; use grad_cam or ixg"
        )
    return linear[-1]
