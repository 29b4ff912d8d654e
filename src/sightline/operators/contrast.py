"""Contrast a method's map for a class with its maps for other classes, place by place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError, TargetError, UnsupportedMethod
from sightline.methods.multi_target import MultiTarget, SupportsChosenTargets, multi_target, multi_target_cost
from sightline.models.adapter import Adapter
from sightline.operators.against import with_class
from sightline.recipe import parts
from sightline.registry import OPERATORS, is_registered, spec_of
from sightline.types import Attribution, Logit, LogProbability, Method, Passes, Probability, Target, pixel_grid

Mode = Literal["divide", "multiply"]
At = Literal["pixels", "grid"]
Preset = Literal["text", "table", "recommended", "released"]


@dataclass(frozen=True, slots=True)
class Rules:
    """How maps compete.

    Attributes:
        temperatures: the softmax is averaged over these.
        mode: maps are divided by a temperature, or multiplied by it.
        magnitude: magnitudes compete instead of signed values.
        threshold: by how much a class must beat an even share of 1/K.
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
class Contrasted:
    """What a contrast knows beside its map.

    Attributes:
        classes: the classes that competed, the explained one first, shape (batch, K).
        distribution: q, how the classes share each place, shape (K, layer, batch, height, width), in float64; None
            unless it was asked for.
    """

    classes: Tensor
    distribution: Tensor | None = None


def shares(maps: Tensor, rules: Rules) -> Tensor:
    """Return q, how K maps, shape (K, …), share each place; in float64, summing to one."""
    competing = maps.double().abs() if rules.magnitude else maps.double()
    found = [_tempered(competing, t, rules.mode).softmax(dim=0) for t in rules.temperatures]
    return torch.stack(found).mean(dim=0)


def share_and_excess(maps: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """Return the first map's share of each place, and by how much it exceeds 1/K, both in float64.

    The excess is computed from differences of the maps, so equal maps give exactly zero and maps much smaller than a
    temperature are still told apart.
    """
    competing = maps.double().abs() if rules.magnitude else maps.double()
    share, excess = torch.zeros_like(competing[0]), torch.zeros_like(competing[0])
    behind = competing[1:] - competing[0]
    for temperature in rules.temperatures:
        lead = torch.expm1(_tempered(behind, temperature, rules.mode)).sum(dim=0)  # sum of exp(z_k - z_0) - 1
        total = len(maps) + lead  # sum of exp(z_k - z_0), so q_0 is 1/total and q_0 - 1/K is -lead / (K total)
        share += total.reciprocal()
        excess -= torch.where(lead.isinf(), 1.0, lead / total)
    return share / len(rules.temperatures), excess / (len(maps) * len(rules.temperatures))


def _tempered(values: Tensor, temperature: float, mode: Mode) -> Tensor:
    return values / temperature if mode == "divide" else values * temperature


def placed(one: Attribution, *, at: At = "pixels", blank: bool = True) -> Tensor:
    """Return a map as it competes, (layer, batch, height, width): less what a blank image gets, at image size."""
    values, empty = one.values, getattr(one.details, "blank", None)
    if blank and isinstance(empty, Tensor):
        values = values - empty[:, None, None]
    if at == "grid" or (one.grid.height, one.grid.width) == one.grid.image:
        return values
    return F.interpolate(values, size=one.grid.image, mode="bilinear", align_corners=False)


def contrasted(maps: Tensor, rules: Rules) -> Tensor:
    """Contrast the first of K maps, shape (K, layer, batch, height, width), with the others."""
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
    r"""VAR: a map where its class beats the others, weighted by how clearly it does.

    .. math:: q_c = \frac1{|T|} \sum_{t \in T} \operatorname{softmax}_{k \in C'}\bigl(A_k / t\bigr)_c, \qquad
        M = A_c \odot q_c \odot \mathbf 1\bigl[q_c > 1/K\bigr]

    at every place, for K classes :math:`C'`. Maps are enlarged to the image first. The K classes share one forward pass
    where the method allows, and methods that see all classes anyway (``caap``, sampling) pay nothing extra. A method
    that also says what it would answer for a blank image (``caap``) has that subtracted first, per class: on composed
    photographs this raised region attribution from .75 to .87. On photographs of one object a contrast costs 2.5 to 8
    points of AUPR1, so it is worth asking for where classes compete.

    Attributes:
        classes: the competing classes: class indices, "topK" (for instance "top3": the target, the K - 1 most probable
            others and the least probable class) or "best_worst" (the target and the least probable class). The target
            is always one of them.
        temperatures: the softmax is averaged over these; None for the preset's.
        preset: "text", the paper's formula; "table", the softmax over magnitudes times t with a threshold of .01, which
            reproduces the paper's table; "recommended", signed maps divided by their joint maximum and multiplied by t,
            the best in region attribution for nearly every method; "released", the first published code: one factor of
            10 on magnitudes, a threshold of .01, and no least probable class for a target outside the top K.
        mode: divide by the temperatures or multiply; None for the preset's.
        magnitude: whether magnitudes compete instead of signed values; None for the preset's.
        threshold: what a class must have beyond 1/K; None for the preset's.
        joint: whether maps are divided by their joint maximum first; None for the preset's.
        at: "pixels" contrasts maps enlarged to the image, "grid" the cells as they are.
        blank: whether the method's answer for a blank image is subtracted first, where it gives one.
        distribution: whether to return q in ``details.distribution``: which classes share a place.
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
        """The preset's rules with what was said otherwise."""
        preset = PRESETS[self.preset]
        said = {name: getattr(self, name) for name in ("temperatures", "mode", "magnitude", "threshold", "joint")}
        return Rules(**{name: getattr(preset, name) if value is None else value for name, value in said.items()})

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        chosen: list[Tensor] = []  # the competing classes of each target, (batch, K)

        def choose(logits: Tensor | None) -> list[Target]:
            chosen.extend(self._classes(model, target, len(images), logits) for target in targets)
            pairs = zip(targets, chosen, strict=True)
            return [with_class(target, tuple(column)) for target, rows in pairs for column in rows.T.tolist()]

        if not isinstance(self.classes, str):
            found = multi_target(self.method, model, images, choose(None), every_layer=every_layer)
        elif self._chooses_for_free(model):
            assert isinstance(self.method, SupportsChosenTargets)
            found = self.method.multi_target_chosen(model, images, choose)
        else:
            wanted = choose(model.check_logits(model.predict(images)))
            found = multi_target(self.method, model, images, wanted, every_layer=every_layer)
        ends = list(accumulate(rows.shape[1] for rows in chosen))
        parted = zip([0, *ends], ends, chosen, strict=False)
        return [self._contrast(found[first:last], rows, images, every_layer) for first, last, rows in parted]

    def _chooses_for_free(self, model: Adapter) -> bool:
        return isinstance(self.method, SupportsChosenTargets) and self.method.can_choose(model)

    def _contrast(self, found: list[Attribution], rows: Tensor, images: Tensor, every_layer: bool) -> Attribution:
        kept = slice(None) if every_layer else slice(1)
        maps = torch.stack([placed(one, at=self.at, blank=self.blank)[kept] for one in found])
        values = contrasted(maps, self.rules)
        share = shares(jointly_scaled(maps, self.rules), self.rules) if self.distribution else None
        grid = pixel_grid(images) if self.at == "pixels" else found[0].grid
        return Attribution(values, grid, details=Contrasted(rows, share))

    def _classes(self, model: Adapter, target: Target, count: int, logits: Tensor | None) -> Tensor:
        """Return the competing classes of each image, the target's first, shape (batch, K)."""
        if not isinstance(target, Logit | Probability | LogProbability):
            raise TargetError(
                f"a contrast needs a target of one class, and got {type(target).__name__}; give Logit, "
                "Probability or LogProbability"
            )
        own = [target.index] * count if isinstance(target.index, int) else list(target.index)
        if logits is None:
            assert not isinstance(self.classes, str)
            return _given(model, own, self.classes)
        order = logits.argsort(dim=1, descending=True, stable=True).tolist()
        chosen = [self._ranked(mine, ranked) for mine, ranked in zip(own, order, strict=True)]
        if len(chosen[0]) < 2:
            raise TargetError(f"{model.name} has {logits.shape[1]} class; a contrast needs two at least")
        return torch.tensor(chosen)

    def _ranked(self, mine: int, ranked: list[int]) -> list[int]:
        """Return the target and its rivals, from classes ranked by probability."""
        others = [one for one in ranked if one != mine]
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


def _given(model: Adapter, own: list[int], classes: tuple[int, ...]) -> Tensor:
    for one in classes:
        if one < 0 or (model.num_classes is not None and one >= model.num_classes):
            raise TargetError(f"got class {one} to contrast with; {model.name} has {model.num_classes} classes")
    distinct = list(dict.fromkeys(classes))
    chosen = [[mine, *(one for one in distinct if one != mine)] for mine in own]
    longest = max(map(len, chosen))
    if any(len(rows) != longest for rows in chosen):
        raise TargetError(
            f"got targets {own}, some among classes={classes} and some not; let all of them compete, or none"
        )
    return torch.tensor(chosen)


def _class_blind(method: Method) -> str | None:
    """Return the name of the innermost method if it ignores the class."""
    inner = parts(method)[-1]
    return spec_of(inner).name if is_registered(inner) and spec_of(inner).agnostic else None
