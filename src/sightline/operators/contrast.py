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
from sightline.models.targets import find_class
from sightline.operators.against import check_class, class_of, with_class
from sightline.operators.class_softmax import (
    PRESETS,
    Mode,
    Preset,
    Rules,
    Variant,
    class_distribution,
    contrasted,
    jointly_scaled,
)
from sightline.recipe import parts
from sightline.registry import OPERATORS, is_registered, spec_of
from sightline.types import Attribution, Method, Passes, Target, pixel_grid

At = Literal["pixels", "grid"]


NOBODY = -1  # in place of a class where an image has fewer than others of its batch


@dataclass(frozen=True, eq=False, slots=True)
class ClassDistribution:
    """The details of a VAR attribution.

    Attributes:
        classes: the classes of the softmax, the explained one first, shape (batch, K); -1 where an image has fewer
            than K.
        distribution: q, the probability of each class at each pixel, shape (K, layer, batch, height, width), in
            float64, 0 where an image has fewer classes; None unless it was asked for.
    """

    classes: Tensor
    distribution: Tensor | None = None

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the details of consecutive batches; those of fewer classes are filled up."""
        most = max(part.classes.shape[1] for part in parts)
        classes = [F.pad(part.classes, (0, most - part.classes.shape[1]), value=NOBODY) for part in parts]
        kept = [
            F.pad(part.distribution, (*(0,) * 8, 0, most - part.classes.shape[1]))
            for part in parts
            if part.distribution is not None
        ]
        return cls(torch.cat(classes), torch.cat(kept, dim=2) if kept else None)

    def take(self, rows: Sequence[int]) -> Self:
        """Return the details of these images of the batch."""
        kept = None if self.distribution is None else self.distribution[:, :, list(rows)]
        return replace(self, classes=self.classes[list(rows)], distribution=kept)


def comparable(attribution: Attribution, *, at: At = "pixels", blank: bool = True) -> Tensor:
    """Return a map, (layer, batch, height, width), minus the score of a blank image where known, at image size."""
    values, blank_score = attribution.values, getattr(attribution.details, "blank", None)
    if blank and isinstance(blank_score, Tensor):
        values = values - blank_score[:, None, None]
    grid = attribution.grid
    if at == "grid" or (grid.height, grid.width) == grid.image:
        return values
    options = {} if attribution.enlarge == "nearest" else {"align_corners": False}
    return F.interpolate(values, size=grid.image, mode=attribution.enlarge, **options)


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
        classes: the classes of the softmax: numbers or labels of classes; "picture", those that the picture shows, as
            ``explain(…, classes=…)`` or the data set of a benchmark says, as many as there are; "topK" (for instance
            "top3": the target, the K - 1 most probable others and the least probable class); or "best_worst" (the
            target and the least probable class). The target is always one of them. A picture that shows no other class
            keeps its map.
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
        variant: "weight", the formula above; or one of the forms that the paper rejects in its section 3.2, to see why,
            without a threshold: "minus_all", :math:`A_c - \sum_k q_k A_k`, which vanishes where the class dominates,
            and "minus_rivals", the same sum without the class itself, which overshoots. (A threshold of -1 keeps every
            pixel of "weight"; the gradient of the softmax is any gradient method with a `Probability` as its target.)
    """

    method: Method
    classes: tuple[int | str, ...] | str = "top2"
    temperatures: tuple[float, ...] | None = None
    preset: Preset = "text"
    mode: Mode | None = None
    magnitude: bool | None = None
    threshold: float | None = None
    joint: bool | None = None
    at: At = "pixels"
    blank: bool = True
    distribution: bool = False
    variant: Variant = "weight"

    def __post_init__(self) -> None:
        if isinstance(self.classes, str):
            if not re.fullmatch(r"top[1-9]\d*|best_worst|picture", self.classes):
                raise RecipeError(
                    f"got classes={self.classes!r}; write classes such as (3, 'cat'), 'picture', 'topK' such as "
                    "'top3', or 'best_worst'"
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
            return [with_class(target, column) for target, classes in pairs for column in _columns(classes)]

        if not self.asks_the_model:
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

    @property
    def asks_the_model(self) -> bool:
        """Whether the classes are chosen by the logits."""
        return isinstance(self.classes, str) and self.classes != "picture"

    def with_picture_classes(self) -> Self:
        """Return the same for the classes of the picture, which the target brings along."""
        return replace(self, classes="picture")

    def competing(self, model: Adapter, images: Tensor, target: Target) -> Tensor:
        """Return the classes of each image's softmax, the target's first, (batch, K); -1 where there are fewer."""
        logits = model.check_logits(model.predict(images)) if self.asks_the_model else None
        return self._classes(model, target, len(images), logits)

    def _chooses_for_free(self, model: Adapter) -> bool:
        return isinstance(self.method, SupportsChosenTargets) and self.method.can_choose(model)

    def _contrast(
        self, attributions: Sequence[Attribution], classes: Tensor, images: Tensor, every_layer: bool
    ) -> Attribution:
        """Contrast the first of the classes' attributions with the others."""
        first = attributions[0]
        kept = slice(None) if every_layer else slice(first.own, first.own + 1)
        maps = torch.stack([comparable(each, at=self.at, blank=self.blank)[kept] for each in attributions])
        present = (classes != NOBODY).T[:, None, :, None, None].to(maps.device)
        fewer = None if present.all() else present
        values = contrasted(maps, self.rules, fewer, self.variant)
        q = class_distribution(jointly_scaled(maps, self.rules), self.rules, fewer) if self.distribution else None
        grid = pixel_grid(images) if self.at == "pixels" else attributions[0].grid
        details = ClassDistribution(classes, q)
        if not every_layer:
            return Attribution(values, grid, details=details, layers=first.layers[kept], enlarge=first.enlarge)
        return replace(first, values=values, grid=grid, details=details, flags=())

    def _classes(self, model: Adapter, target: Target, count: int, logits: Tensor | None) -> Tensor:
        """Return the classes of each image's softmax, the target's first, shape (batch, K)."""
        index = class_of(target)
        own = [index] * count if isinstance(index, int) else list(index)
        if logits is None:
            return _filled(
                [_first(mine, each) for mine, each in zip(own, self._sets(model, target, count), strict=True)]
            )
        order = logits.argsort(dim=1, descending=True, stable=True).tolist()
        chosen = [self._ranked(mine, ranked) for mine, ranked in zip(own, order, strict=True)]
        if len(chosen[0]) < 2:
            raise TargetError(f"{model.name} has {logits.shape[1]} class; a contrast needs two at least")
        return torch.tensor(chosen)

    def _sets(self, model: Adapter, target: Target, count: int) -> list[list[int]]:
        """Return the classes that are given or that the picture shows, for each image."""
        if isinstance(self.classes, str):
            shown = getattr(target, "classes", None)
            if shown is None:
                raise TargetError(
                    "nobody says which classes the picture shows; give explain(…, classes=[…]), or write the classes "
                    "or 'topK' in the recipe"
                )
            sets = [list(each) for each in shown] * (count if len(shown) == 1 else 1)
        else:
            sets = [[find_class(model, one) if isinstance(one, str) else one for one in self.classes]] * count
        for index in {index for each in sets for index in each}:
            check_class(model, index)
        return sets

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
        return self._choosing(model) + multi_target_cost(self.method, model, count * competing, every_layer=every_layer)

    def _choosing(self, model: Adapter) -> Passes:
        """Return what the logits cost by which classes are chosen, per image."""
        if not self.asks_the_model:
            return Passes()
        if isinstance(self.method, SupportsChosenTargets) and self.method.can_choose(model):
            return self.method.choosing_cost(model)
        return Passes(1)

    def _count(self, model: Adapter) -> int:
        """Return K; a target outside the given classes makes one more, and a picture may show more than two."""
        if not isinstance(self.classes, str):
            return len(set(self.classes))
        wanted = 2 if self.classes in ("best_worst", "picture") else int(self.classes.removeprefix("top")) + 1
        return min(wanted, model.num_classes or wanted)


def _first(mine: int, classes: Sequence[int]) -> list[int]:
    """Return classes with the image's own first, each once."""
    return list(dict.fromkeys([mine, *classes]))


def _filled(classes: Sequence[list[int]]) -> Tensor:
    """Return the classes of each image as one tensor, (batch, K), -1 where an image has fewer."""
    most = max(map(len, classes))
    return torch.tensor([[*each, *[NOBODY] * (most - len(each))] for each in classes])


def _columns(classes: Tensor) -> list[tuple[int, ...]]:
    """Return the K classes to explain, one per image; an image that has fewer is explained for its own again."""
    return [tuple(column) for column in torch.where(classes == NOBODY, classes[:, :1], classes).T.tolist()]


def _class_blind(method: Method) -> str | None:
    """Return the name of the innermost method if it does not depend on the class, else None."""
    inner = parts(method)[-1]
    return spec_of(inner).name if is_registered(inner) and spec_of(inner).agnostic else None
