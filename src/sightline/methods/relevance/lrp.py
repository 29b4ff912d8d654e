"""Layer-wise relevance propagation (LRP) to the pixels, or to a layer, of convolutional networks and transformers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import Literal, Self

import torch
from torch import Tensor

from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.multi_target import MultiTarget
from sightline.methods.relevance.vit_pixels import transformer_cost, transformer_relevance
from sightline.methods.relevance.vit_rules import Rules
from sightline.models.adapter import Adapter
from sightline.models.backward.lrp import Relevance
from sightline.models.backward.lrp_rules import ALIASES, CAPTUM, COMPOSITES, Box, Composite, Tally
from sightline.models.memory import held
from sightline.models.passes import spend
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid

Name = Literal[
    "epsilon",
    "epsilon_plus",
    "epsilon_plus_flat",
    "epsilon_gamma_box",
    "epsilon_alpha2_beta1",
    "epsilon_alpha2_beta1_flat",
    "alpha2_beta1",
    "alpha2_beta1_flat",
    "excitation_backprop",
]


Bound = float | tuple[float, ...] | None


@dataclass(frozen=True, eq=False, slots=True)
class Conservation:
    """How much of the relevance each part received, per image, shape (batch,) each.

    Attributes:
        start: the relevance at the logits.
        map: the sum of the map.
        biases: the relevance of biases.
        stabiliser: the relevance lost to the stabiliser of denominators.
    """

    start: Tensor
    map: Tensor
    biases: Tensor
    stabiliser: Tensor

    @property
    def gap(self) -> Tensor:
        """The rest: zero but for rounding, unless a sum passes all relevance to every summand."""
        return self.start - self.map - self.biases - self.stabiliser

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate those of consecutive batches."""
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def take(self, rows: Sequence[int]) -> Self:
        """Return those of these images of the batch."""
        return type(self)(*(getattr(self, field.name)[list(rows)] for field in fields(self)))


@METHODS.register(
    "lrp",
    family="relevance",
    cite="bach2015",
    cost="2 forward, 1 backward; 1 and 1 for epsilon; 3 and 2 for gamma and alpha-beta; ViT: 1 forward, 2 backward",
    needs=("gradient", "layers"),
    parity="zennit EpsilonPlus, EpsilonPlusFlat, EpsilonAlpha2Beta1 and EpsilonGammaBox on CNNs, 1e-9; "
    "zennit's composites on three CNNs and on EfficientNet-Lite0 with a photograph, 1e-8, but for the factor of "
    "1 - 5e-6 that each batch norm it merges leaves behind, up to 2e-4 of the map in all; "
    "captum LRP for preset='captum', 1e-8; "
    "ViT: the rules written out with autograd, 1e-9",
)
@dataclass(frozen=True, slots=True)
class Lrp(MultiTarget):
    r"""Layer-wise relevance propagation: the score is propagated backward layer by layer by relevance rules.

    .. math:: R_j = \sum_k \frac{a_j w_{jk}}{\sum_{j'} a_{j'} w_{j'k} + b_k \pm \epsilon}\, R_k
        \quad\text{(epsilon)}, \qquad
        R_j = \sum_k \frac{(a_j w_{jk})^+}{\sum_{j'} (a_{j'} w_{j'k})^+ + b_k^+ + \epsilon}\, R_k \quad\text{(plus)}

    starting from :math:`R = z_c\, \partial s / \partial z_c` at the logits: the logit itself for ``Logit``. A composite
    assigns a rule to each kind of layer :cite:p:`montavon2019`. Relevance is conserved but for what biases and the
    stabiliser absorb; ``details`` of a CNN's attribution says how much. A network with a layer that has no rule is
    refused. That of layer norms is ConvNeXt's, for which no rules are agreed upon: experimental.

    A plain vision transformer has the rules of ``t_attr``. Warning: they are numerically unstable, and at the pixels of
    a deep model float32 and float64 give different maps; ``libra(ixg(at='pixels'), preset='attn_lrp')`` is stable.

    The guide ``docs/guide/lrp.md`` has every rule and what was measured. The authors of a peer package state that LRP
    is patented; whoever uses it beyond research should take advice of their own.

    Attributes:
        composite: epsilon_plus has the plus rule at convolutions and epsilon at linear layers; ``_flat`` spreads the
            first convolution's relevance evenly; ``gamma`` favours contributions of the output's sign by a quarter;
            ``alpha2_beta1`` takes twice the positive less once the negative contributions; ``box`` bounds the
            pixels; excitation_backprop has plus everywhere.
        layer: where relevance is read: None for the pixels, or a layer's name or index; of a transformer, the tokens
            that enter a block, by its index or as ``block.3.input``.
        preset: "captum" for epsilon of 1e-9 everywhere, batch norms and max pools included, with sums that pass all
            relevance to every summand, so that values explode on residual networks; leave the composite out.
            "chefer", for transformers, for the full LRP in the code of :cite:t:`chefer2021transformer`, whose
            relevance grows without bounds.
        low: the lowest value of a pixel that the box rule assumes, after normalisation, for all channels or one per
            channel; by default that of black.
        high: the highest, likewise; by default that of white.
    """

    composite: Name = "epsilon_plus"
    layer: str | int | None = None
    preset: Literal["captum", "chefer"] | None = None
    low: Bound = None
    high: Bound = None

    def __post_init__(self) -> None:
        if (self.low, self.high) != (None, None) and self.composite != "epsilon_gamma_box":
            raise RecipeError(
                f"got low={self.low} and high={self.high} with composite={self.composite!r}; only "
                "composite='epsilon_gamma_box' has the box rule"
            )
        if self.preset and self.composite != "epsilon_plus":
            raise RecipeError(f"got preset={self.preset!r} with composite={self.composite!r}; leave out one of them")

    @property
    def _rules(self) -> Composite:
        return CAPTUM if self.preset else COMPOSITES[ALIASES.get(self.composite, self.composite)]

    def _transformer_rules(self, model: VisionTransformer) -> Rules:
        if self.preset == "captum" or self.composite != "epsilon_plus":
            raise UnsupportedModel(
                f"{model.name} is a transformer, and composites and preset='captum' are for convolutional networks; "
                "write lrp, or lrp(preset='chefer')"
            )
        return Rules(joint=self.preset is None)

    def _pixel_bounds(self, model: Adapter, images: Tensor) -> Box:
        """Return the bounds of the box rule: as given, else the normalised values of black and of white."""
        black = torch.zeros_like(images[:1, :, :1, :1])
        low = _bound(self.low, model.normalise(black), "low")
        high = _bound(self.high, model.normalise(black + 1), "high")
        if not (low < high).all():
            raise RecipeError(
                f"got low={low.flatten().tolist()} and high={high.flatten().tolist()}; the box rule needs low < high"
            )
        return low, high

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if isinstance(model, VisionTransformer):
            return transformer_relevance(model, images, targets, self._transformer_rules(model), self.layer)
        if self.preset == "chefer":
            raise UnsupportedModel(f"{model.name} is no transformer, and preset='chefer' is for those; write lrp")
        pixels = images.detach().clone().requires_grad_()
        site = "image" if self.layer is None else model.layer(self.layer)
        with ExitStack() as stack:
            seen = {site: pixels} if self.layer is None else stack.enter_context(model.capture(site, gradient=True))
            stack.enter_context(torch.enable_grad())
            rules = stack.enter_context(Relevance(self._rules, self._pixel_bounds(model, images), images))
            logits = model(pixels)
        if not rules.count:
            raise UnsupportedModel(f"lrp saw no convolution and no linear layer run in {model.name}; use ig or ixg")
        again = len(images) * model.remaining(site)
        attributions = []
        for index, target in enumerate(targets):
            start = _initial_relevance(logits, target)
            with torch.enable_grad():
                score = (logits * start).sum(dim=1)
            rules.tally = Tally(images)
            spend(forward=again * self._rules.reruns, backward=again * (self._rules.copies - 1))
            relevance = model.gradients(score, seen, retain=index < len(targets) - 1)[site]
            values = (relevance if site == "image" else model.to_map(site, relevance, images)).sum(dim=1)
            kept = Conservation(start.sum(dim=1), values.sum(dim=(1, 2)), rules.tally.biases, rules.tally.stabiliser)
            attributions.append(Attribution(values[None], map_grid(values, images), details=kept))
        return attributions

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        if isinstance(model, VisionTransformer):
            return transformer_cost(model, count, self.layer)
        site = "image" if self.layer is None else model.layer(self.layer)
        remaining = count * model.remaining(site)
        return Passes(1 + self._rules.reruns * remaining, self._rules.copies * remaining)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: a graph and the relevances, with the attention."""
        return held(model, graphs=2, attention=1)


def _initial_relevance(logits: Tensor, target: Target) -> Tensor:
    """Return the relevance of each logit: its value times the target's gradient there."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(target(leaf).sum(), leaf)
    return leaf.detach() * gradient


def _bound(given: Bound, default: Tensor, name: str) -> Tensor:
    """Return a bound of pixels, (1, channel, 1, 1): as given, for all channels or each, or the default."""
    values = torch.as_tensor(default if given is None else given, dtype=default.dtype, device=default.device)
    if values.numel() not in (1, default.shape[1]) or not torch.isfinite(values).all():
        raise RecipeError(f"got {name}={given}; give one finite number, or one for each of {default.shape[1]} channels")
    return values.reshape(1, -1, 1, 1).expand_as(default)
