"""VAR: attributions as distributions over classes, pixel by pixel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError, TargetError, UnsupportedMethod
from sightline.methods.multi_target import MultiTarget, SupportsChosenTargets, multi_target, multi_target_cost
from sightline.models.adapter import Adapter
from sightline.operators.against import check_class, class_of, with_class
from sightline.recipe import parts
from sightline.registry import OPERATORS, is_registered, spec_of
from sightline.types import Attribution, Method, Passes, Target, pixel_grid

Mode = Literal["divide", "multiply"]
At = Literal["pixels", "grid"]
Preset = Literal["text", "table", "recommended", "released"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of the softmax over classes.

    Attributes:
        temperatures: the softmax is averaged over these.
        mode: maps are divided by a temperature, or multiplied by it.
        magnitude: the softmax is over absolute values instead of signed ones.
        threshold: by how much the probability of the target's class must exceed 1/K.
        joint: maps are first divided by their joint largest magnitude, so that their scale does not matter.
    """

    temperatures: tuple[float, ...] = (1, 5, 100)
    mode: Mode = "divide"
    magnitude: bool = False
    threshold: float = 0.0
    joint: bool = False


PRESETS: dict[Preset, Rules] = {
    "text": Rules(),
    "table": Rules(mode="multiply", magnitude=True, threshold=0.01),
    "recommended": Rules(mode="multiply", joint=True),
    "released": Rules(temperatures=(10,), mode="multiply", magnitude=True, threshold=0.01),
}


@dataclass(frozen=True, eq=False, slots=True)
class ClassDistribution:
    """The details of a VAR attribution.

    Attributes:
        classes: the classes of the softmax, the explained one first, shape (batch, K).
        distribution: q, the probability of each class at each pixel, shape (K, layer, batch, height, width), in
            float64; None unless it was asked for.
    """

    classes: Tensor
    distribution: Tensor | None = None

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the details of consecutive batches."""
        counts = sorted({part.classes.shape[1] for part in parts})
        if len(counts) > 1:
            raise TargetError(
                f"got targets with {' and '.join(map(str, counts))} competing classes; let all of them be among the "
                "classes, or none"
            )
        kept = [part.distribution for part in parts if part.distribution is not None]
        return cls(torch.cat([part.classes for part in parts]), torch.cat(kept, dim=2) if kept else None)

    def take(self, rows: Sequence[int]) -> Self:
        """Return the details of these images of the batch."""
        kept = None if self.distribution is None else self.distribution[:, :, list(rows)]
        return replace(self, classes=self.classes[list(rows)], distribution=kept)


def class_distribution(maps: Tensor, rules: Rules) -> Tensor:
    """Return q, the softmax over K maps, shape (K, …), averaged over the temperatures; in float64, summing to one."""
    values = maps.double().abs() if rules.magnitude else maps.double()
    return torch.stack([_scaled(values, t, rules.mode).softmax(dim=0) for t in rules.temperatures]).mean(dim=0)


def share_and_excess(maps: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """Return the probability of the first map's class at each pixel, and its excess over 1/K, both in float64.

    The excess is computed from differences of the maps, so equal maps give exactly zero and maps much smaller than a
    temperature are still told apart.
    """
    values = maps.double().abs() if rules.magnitude else maps.double()
    share, excess = torch.zeros_like(values[0]), torch.zeros_like(values[0])
    differences = values[1:] - values[0]
    for temperature in rules.temperatures:
        lead = torch.expm1(_scaled(differences, temperature, rules.mode)).sum(dim=0)  # sum of exp(z_k - z_0) - 1
        total = len(maps) + lead  # sum of exp(z_k - z_0), so q_0 is 1/total and q_0 - 1/K is -lead / (K total)
        share += total.reciprocal()
        excess -= torch.where(lead.isinf(), 1.0, lead / total)
    return share / len(rules.temperatures), excess / (len(maps) * len(rules.temperatures))


def _scaled(values: Tensor, temperature: float, mode: Mode) -> Tensor:
    return values / temperature if mode == "divide" else values * temperature


def comparable(attribution: Attribution, *, at: At = "pixels", blank: bool = True) -> Tensor:
    """Return a map, (layer, batch, height, width), minus the score of a blank image where known, at image size."""
    values, blank_score = attribution.values, getattr(attribution.details, "blank", None)
    if blank and isinstance(blank_score, Tensor):
        values = values - blank_score[:, None, None]
    grid = attribution.grid
    if at == "grid" or (grid.height, grid.width) == grid.image:
        return values
    return F.interpolate(values, size=grid.image, mode="bilinear", align_corners=False)


def contrasted(maps: Tensor, rules: Rules) -> Tensor:
    """Weight the first of K maps, shape (K, layer, batch, height, width), by the softmax over all of them."""
    share, excess = share_and_excess(jointly_scaled(maps, rules), rules)
    return torch.where(excess > rules.threshold, maps[0].double() * share, 0.0).to(maps.dtype)


def jointly_scaled(maps: Tensor, rules: Rules) -> Tensor:
    """Divide the maps of each image by their joint largest magnitude, if the rules say so."""
    if not rules.joint:
        return maps
    largest = maps.abs().amax(dim=(0, 1, 3, 4), keepdim=True)
    return maps / torch.where(largest > 0, largest, 1.0)


@OPERATORS.register(
    "var", family="contrast", cite="var2025", cost="the method's for K targets; 1 forward more to choose classes"
)
@dataclass(frozen=True, slots=True)
class Var(MultiTarget):
    r"""VAR: an attribution weighted, pixel by pixel, by a softmax over the attributions of several classes.

    .. math:: q_c = \frac1{|T|} \sum_{t \in T} \operatorname{softmax}_{k \in C'}\bigl(A_k / t\bigr)_c, \qquad
        M = A_c \odot q_c \odot \mathbf 1\bigl[q_c > 1/K\bigr]

    at every pixel, for K classes :math:`C'`. Shows what is specific to a class where classes compete; on photographs of
    a single object it lowers AUPR1 (docs/guide/var.md has the figures). Maps are enlarged to the image first. The K
    classes share one forward pass where the method allows; ``caap`` and the sampling methods see all classes in the
    passes of one. The score of a blank image, where a method gives it (``caap``), is subtracted first.

    Attributes:
        classes: the classes of the softmax: class indices, "topK" (for instance "top3": the target, the K - 1 most
            probable others and the least probable class) or "best_worst" (the target and the least probable class).
            The target is always one of them.
        temperatures: the softmax is averaged over these; None for the preset's.
        preset: "text", the paper's formula; "table", which reproduces the paper's table: magnitudes times t, threshold
            .01; "recommended": signed maps divided by their joint maximum and multiplied by t; "released", the first
            published code: magnitudes times 10, threshold .01, and no least probable class for a target outside the
            top K.
        mode: divide by the temperatures or multiply; None for the preset's.
        magnitude: whether the softmax is over absolute values instead of signed ones; None for the preset's.
        threshold: what the class's probability must exceed 1/K by; None for the preset's.
        joint: whether maps are divided by their joint maximum first; None for the preset's.
        at: "pixels" compares maps enlarged to the image, "grid" the cells of the method's own grid.
        blank: whether the score of a blank image is subtracted first, where the method gives it.
        distribution: whether to return q, the distribution over classes at each pixel, in ``details.distribution``.
    """

    method: Method
    classes: tuple[int, ...] | str = "top2"
    temperatures: tuple[float, ...] | None = None
    preset: Preset = "text"
    mode: Mode | None = None
    magnitude: bool | None = None
    threshold: float | None = None
    joint: bool | None = None
    at: At = "pixels"
    blank: bool = True
    distribution: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.classes, str):
            if not re.fullmatch(r"top[1-9]\d*|best_worst", self.classes):
                raise RecipeError(
                    f"got classes={self.classes!r}; write class indices, 'topK' such as 'top3', or 'best_worst'"
                )
        elif len(set(self.classes)) < 2:
            raise RecipeError(f"got classes={self.classes}; a contrast needs two different classes at least")
        if self.temperatures is not None and not (self.temperatures and min(self.temperatures) > 0):
            raise RecipeError(f"got temperatures={self.temperatures}; give one positive number at least")
        if (inner := _class_blind(self.method)) is not None:
            raise UnsupportedMethod(f"{inner} ignores the class, so classes cannot be contrasted in it; choose another")

    @property
    def rules(self) -> Rules:
        """The preset's settings, overridden by the options that are given."""
        preset = PRESETS[self.preset]
        options = {field.name: getattr(self, field.name) for field in fields(Rules)}
        return replace(preset, **{name: value for name, value in options.items() if value is not None})

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        competing: list[Tensor] = []  # the classes of each target's softmax, (batch, K)

        def choose(logits: Tensor | None) -> list[Target]:
            competing.extend(self._classes(model, target, len(images), logits) for target in targets)
            pairs = zip(targets, competing, strict=True)
            return [with_class(target, tuple(column)) for target, classes in pairs for column in classes.T.tolist()]

        if not isinstance(self.classes, str):
            attributions = multi_target(self.method, model, images, choose(None), every_layer=every_layer)
        elif self._chooses_for_free(model):
            assert isinstance(self.method, SupportsChosenTargets)
            attributions = self.method.multi_target_chosen(model, images, choose)
        else:
            chosen = choose(model.check_logits(model.predict(images)))
            attributions = multi_target(self.method, model, images, chosen, every_layer=every_layer)
        remaining = iter(attributions)
        return [
            self._contrast(list(islice(remaining, classes.shape[1])), classes, images, every_layer)
            for classes in competing
        ]

    def _chooses_for_free(self, model: Adapter) -> bool:
        return isinstance(self.method, SupportsChosenTargets) and self.method.can_choose(model)

    def _contrast(
        self, attributions: Sequence[Attribution], classes: Tensor, images: Tensor, every_layer: bool
    ) -> Attribution:
        """Contrast the first of the classes' attributions with the others."""
        kept = slice(None) if every_layer else slice(1)
        maps = torch.stack([comparable(each, at=self.at, blank=self.blank)[kept] for each in attributions])
        values = contrasted(maps, self.rules)
        q = class_distribution(jointly_scaled(maps, self.rules), self.rules) if self.distribution else None
        grid = pixel_grid(images) if self.at == "pixels" else attributions[0].grid
        return Attribution(values, grid, details=ClassDistribution(classes, q))

    def _classes(self, model: Adapter, target: Target, count: int, logits: Tensor | None) -> Tensor:
        """Return the classes of each image's softmax, the target's first, shape (batch, K)."""
        index = class_of(target)
        own = [index] * count if isinstance(index, int) else list(index)
        if logits is None:
            assert not isinstance(self.classes, str)
            return _given_classes(model, own, self.classes)
        order = logits.argsort(dim=1, descending=True, stable=True).tolist()
        chosen = [self._ranked(mine, ranked) for mine, ranked in zip(own, order, strict=True)]
        if len(chosen[0]) < 2:
            raise TargetError(f"{model.name} has {logits.shape[1]} class; a contrast needs two at least")
        return torch.tensor(chosen)

    def _ranked(self, mine: int, ranked: list[int]) -> list[int]:
        """Return the target's class and those it competes with, from classes ranked by probability."""
        others = [index for index in ranked if index != mine]
        if self.classes == "best_worst":
            return [mine, others[-1]] if others else [mine]
        top = int(str(self.classes).removeprefix("top"))
        if self.preset == "released" and mine not in ranked[:top]:
            return [mine, *ranked[:top]]
        return [mine, *others[: top - 1], *others[top - 1 :][-1:]]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        competing = self._count(model)
        choosing = Passes(1 if isinstance(self.classes, str) and not self._chooses_for_free(model) else 0, 0)
        return choosing + multi_target_cost(self.method, model, count * competing, every_layer=every_layer)

    def _count(self, model: Adapter) -> int:
        """Return K; a target outside the given classes makes one more."""
        if not isinstance(self.classes, str):
            return len(set(self.classes))
        wanted = 2 if self.classes == "best_worst" else int(self.classes.removeprefix("top")) + 1
        return min(wanted, model.num_classes or wanted)


def _given_classes(model: Adapter, own: list[int], classes: tuple[int, ...]) -> Tensor:
    """Return the given classes, each image's own first, shape (batch, K)."""
    for index in classes:
        check_class(model, index)
    distinct = list(dict.fromkeys(classes))
    chosen = [[mine, *(index for index in distinct if index != mine)] for mine in own]
    longest = max(map(len, chosen))
    if any(len(rows) != longest for rows in chosen):
        raise TargetError(
            f"got targets {own}, some among classes={classes} and some not; let all of them compete, or none"
        )
    return torch.tensor(chosen)


def _class_blind(method: Method) -> str | None:
    """Return the name of the innermost method if it does not depend on the class, else None."""
    inner = parts(method)[-1]
    return spec_of(inner).name if is_registered(inner) and spec_of(inner).agnostic else None
