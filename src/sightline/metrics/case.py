"""A case: a batch of maps to be scored with their model, images and target; metrics of a case share computations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from sightline.catalogue.options import HasOptions
from sightline.errors import InputError
from sightline.metrics.scaling import constant
from sightline.models.adapter import Adapter
from sightline.models.precision import full_precision
from sightline.perturb.curve import Curve, Score, read_scores, response_curve, scored
from sightline.perturb.fill import Fill
from sightline.perturb.order import Importance, Tie, finite_maps, importance_order
from sightline.types import Logit, LogProbability, Method, Passes, Probability, Target

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Case:
    """A model, its images, what was explained, and the maps that explain it.

    Attributes:
        model: the model.
        images: shape (batch, 3, height, width), normalised for the model.
        target: what was explained, resolved for the model; see `resolve_target`.
        maps: signed and unscaled, at image size, shape (batch, height, width).
        masks: where the evidence is, integers of the same shape: 1 evidence, 0 background, -1 ignore; None if unknown.
        labels: the true class of each image, for metrics that ask whether the model is right; None takes the
            target's class.
        method: what made the maps, for metrics that run it again on another model or image; None if unknown.
    """

    model: Adapter
    images: Tensor
    target: Target
    maps: Tensor
    masks: Tensor | None = None
    labels: tuple[int, ...] | None = None
    method: Method | None = None
    _memo: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        maps = finite_maps(self.maps.detach().to(self.images.device))
        size = (len(self.images), *self.images.shape[-2:])
        if maps.shape != size:
            raise InputError(
                f"got maps of shape {tuple(maps.shape)} for images of {_text(size)}; give them at image size"
            )
        object.__setattr__(self, "maps", full_precision(maps) if maps.is_floating_point() else maps.float())
        if self.labels is not None and len(self.labels) != len(self.images):
            raise InputError(f"got {len(self.labels)} labels for {len(self.images)} images; give one per image")
        if self.masks is not None:
            object.__setattr__(self, "masks", _sound_masks(self.masks.to(self.images.device), size))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` gives, computed on the first call with this key and remembered."""
        if key not in self._memo:
            self._memo[key] = make()
        return cast(T, self._memo[key])

    @property
    def clean(self) -> Tensor:
        """The logits of the images, shape (batch, class)."""
        return self.once("clean", lambda: self.model.predict(self.images))

    def filled(self, fill: Fill) -> Tensor:
        """Return the logits of the images when every pixel is filled."""
        return self.once(("filled", fill), lambda: self.model.predict(fill(self.model, self.images)))

    def order(self, tie: Tie = "index", seed: int = 0, by: Importance = "value") -> Tensor:
        """Return the pixels by importance, shape (batch, height·width)."""
        return self.once(("order", tie, seed, by), lambda: importance_order(self.maps, tie, seed, by))

    def curve(self, curve: Curve) -> Tensor:
        """Return a response curve of the maps, shape (batch, points)."""
        return self.once(curve, lambda: self._curve(curve))

    def _curve(self, curve: Curve) -> Tensor:
        order = self.order(curve.tie, curve.seed, curve.by)
        known = {"clean": self.clean, "filled": self.filled(curve.fill)}
        return response_curve(self.model, self.images, self.target, order, curve, **known)

    def followed(self, score: Score, *, truth: bool = False) -> Target:
        """Return what a metric reads from the logits: this score of the target, or of the true class; see `scored`."""
        return scored(Logit(self.truth) if truth else self.target, score, self.model)

    def read(self, target: Target, logits: Tensor) -> Tensor:
        """Read a target from logits, shape (batch, class) or (batch, points, class): a number per image or point."""
        if logits.ndim == 2:
            return read_scores(self.model, target, logits)
        batch, points = logits.shape[:2]
        rows = [row for row in range(batch) for _ in range(points)]
        return read_scores(self.model, target.take(rows), logits.flatten(0, 1)).reshape(batch, points)

    @property
    def evidence(self) -> Tensor:
        """The masks, or an error where there are none."""
        if self.masks is None:
            raise InputError(
                "there are no masks to compare the maps with; give masks of shape (batch, height, width): "
                "1 evidence, 0 background, -1 ignore"
            )
        return self.masks

    @property
    def truth(self) -> tuple[int, ...]:
        """The class each image is judged by: its label, or the class that was explained."""
        count = len(self.images)
        if self.labels is not None:
            return self.labels
        if isinstance(self.target, Logit | Probability | LogProbability):
            index = self.target.index
            return (index,) * count if isinstance(index, int) else index
        raise InputError(
            f"a {type(self.target).__name__} names no class to judge the model's answer by; "
            "give labels=…, one per image"
        )

    def explained_by(self) -> Method:
        """Return the method that made the maps, or an error where it is unknown."""
        if self.method is None:
            raise InputError(
                "this metric runs the method again, and a plain map does not say which made it; give the attribution "
                "that explain returned, or method=…"
            )
        return self.method

    @property
    def flags(self) -> tuple[str, ...]:
        """What is wrong with each map, empty where nothing is."""
        return flags_where(self.constant, "constant map")

    @property
    def constant(self) -> Tensor:
        """Which maps have the same value everywhere, shape (batch,)."""
        return constant(self.maps)


@dataclass(frozen=True, eq=False, slots=True)
class Measurement:
    """What a metric says of a case.

    Attributes:
        values: one number per image, shape (batch,); NaN where the metric is not defined.
        curve: what the numbers are the area under, shape (batch, points); None where there is no curve.
        flags: one text per image, empty where all is well.
    """

    values: Tensor
    curve: Tensor | None = None
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.flags:
            object.__setattr__(self, "flags", ("",) * len(self.values))


@runtime_checkable
class Metric(Protocol):
    """Anything that gives one number per image: a frozen dataclass whose fields are the options of its protocol."""

    range: ClassVar[tuple[float, float]]

    def __call__(self, case: Case, /) -> Measurement: ...

    def cost(self, model: Adapter, /) -> Passes:
        """Return the passes one image costs on this model, the target being given and nothing shared."""
        ...


@dataclass(frozen=True, slots=True)
class WithoutPasses(HasOptions):
    """Base of the metrics that read the map, and the masks, alone: they run no model. Scores lie in 0..1 by default."""

    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def cost(self, model: Adapter, /) -> Passes:
        return Passes()


def flags_where(wrong: Tensor, text: str) -> tuple[str, ...]:
    """Return the text for the images where something is wrong, and an empty one for the others."""
    return tuple(text if bad else "" for bad in wrong.tolist())


def join_flags(*flags: tuple[str, ...]) -> tuple[str, ...]:
    """Join the flags of each image, each reason once."""
    return tuple("; ".join(dict.fromkeys(_reasons(texts))) for texts in zip(*flags, strict=True))


def _reasons(texts: Iterable[str]) -> list[str]:
    return [reason for text in texts for reason in text.split("; ") if reason]


def _sound_masks(masks: Tensor, size: tuple[int, ...]) -> Tensor:
    if masks.shape != size:
        raise InputError(
            f"got masks of shape {tuple(masks.shape)} for images of {_text(size)}; they must have the same size"
        )
    if masks.is_floating_point() or masks.is_complex():
        raise InputError(f"got masks of {masks.dtype}; give integers: 1 evidence, 0 background, -1 ignore")
    lowest, highest = int(masks.min()), int(masks.max())
    if lowest < -1 or highest > 1:
        raise InputError(
            f"got mask values from {lowest} to {highest}; a mask has 1 for evidence, 0 for background, -1 for ignore"
        )
    return masks.to(torch.int8)


def _text(size: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, size))})"
