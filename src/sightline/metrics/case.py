"""A case: a batch of maps to be scored with their model, images and target; metrics of a case share computations.

Beside it stand what a metric returns, and the bases of metrics that only read a case.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.models.adapter import Adapter
from sightline.models.passes import counting, full_precision, spend
from sightline.perturb.curve import (
    STEP,
    Curve,
    Direction,
    Importance,
    Score,
    Tie,
    finite_maps,
    importance_order,
    read_scores,
    response_curve,
    scored,
)
from sightline.perturb.fill import Fill, FillOption, removing_fill
from sightline.registry import HasOptions
from sightline.types import Enlarge, Logit, LogProbability, Method, Passes, Probability, Target

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
        enlarge: how such a metric enlarges the new maps; None as the method does.
        known: what other cases of the same model and images have computed that does not depend on the maps, with the
            passes it took; the case adds to it. None keeps that to itself.
    """

    model: Adapter
    images: Tensor
    target: Target
    maps: Tensor
    masks: Tensor | None = None
    labels: tuple[int, ...] | None = None
    method: Method | None = None
    enlarge: Enlarge | None = None
    known: dict[Hashable, tuple[Any, Passes]] | None = field(default=None, repr=False)
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

    def once_for_images(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` gives, remembered for every case of these images; it must not depend on the maps.

        A case that takes what another has computed counts the passes as its own, so that costs do not depend on order.
        """
        return self.once(key, lambda: self._known(key, make))

    def _known(self, key: Hashable, make: Callable[[], T]) -> T:
        if self.known is None:
            return make()
        if key in self.known:
            value, passes = self.known[key]
            spend(passes.forward, passes.backward)
            return cast(T, value)
        with counting() as meter:
            made = make()
        self.known[key] = made, meter.passes
        return made

    @property
    def clean(self) -> Tensor:
        """The logits of the images, shape (batch, class)."""
        return self.once_for_images("clean", lambda: self.model.predict(self.images))

    def predict_with_clean(self, images: Tensor) -> Tensor:
        """Return the logits of one changed copy of each image; one pass has those of the images too, if not known.

        A copy that equals its image has the same logits to the last bit, wherever both stand in a batch. A case that
        shares what it computes with others makes two passes, so that no number depends on which of them came first.
        """
        if "clean" in self._memo or self.known is not None:
            return self.model.predict(images)
        clean, changed = self.model.predict(torch.cat([self.images, images])).chunk(2)
        self._memo["clean"] = clean
        pairs = zip(self.images, images, clean, changed, strict=True)
        return torch.stack([own if torch.equal(image, copy) else other for image, copy, own, other in pairs])

    def filled(self, fill: Fill) -> Tensor:
        """Return the logits of the images when every pixel is filled."""
        return self.once_for_images(("filled", fill), lambda: self.model.predict(fill(self.model, self.images)))

    def order(self, tie: Tie = "index", seed: int = 0, by: Importance = "value") -> Tensor:
        """Return the pixels by importance, shape (batch, height·width)."""
        return self.once(("order", tie, seed, by), lambda: importance_order(self.maps, tie, seed, by))

    def curve(self, curve: Curve) -> Tensor:
        """Return a response curve of the maps, shape (batch, points)."""
        return self.once(curve, lambda: self._curve(curve))

    def _curve(self, curve: Curve) -> Tensor:
        order = self.order(curve.tie, curve.seed, curve.by)
        known = {"clean": self.clean, "filled": self.filled(curve.fill)}

        def make() -> Tensor:
            return response_curve(self.model, self.images, self.target, order, curve, **known)

        if self.known is None or not _can_be_key(self.target):
            return make()
        same = hashlib.blake2b(order.cpu().numpy().tobytes(), digest_size=16).digest()  # maps of the same order
        return self.once_for_images((curve, self.target, same), make)

    def measure_area(self, curve: Tensor) -> Measurement:
        """Return the area under a curve of the maps, (batch, points), with the flags of the maps."""
        return Measurement(area(curve), curve, self.flags)

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


@dataclass(frozen=True, slots=True)
class CurveArea(PerturbationOptions):
    """Base of the metrics that are the area under one response curve, such as insertion and deletion."""

    step: int = STEP
    fill: FillOption = "zero"
    radius: int = 5
    sigma: float = 5.0
    score: Score = "probability"
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    direction: ClassVar[Direction]

    def __post_init__(self) -> None:
        _ = self.curve  # refuses wrong options now, not when the first image arrives

    @property
    def curve(self) -> Curve:
        fill = removing_fill(self.fill, self.radius, self.sigma)
        return Curve(self.direction, fill, self.step, self.score, self.tie, self.seed)

    def __call__(self, case: Case, /) -> Measurement:
        return case.measure_area(case.curve(self.curve))

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=self.curve.passes(model))


def area(curve: Tensor) -> Tensor:
    """Return the mean height of curves with evenly spaced points, (..., points) -> (...), by the trapezoid rule.

    >>> area(torch.tensor([1.0, 0.5, 0.0]))
    tensor(0.5000, dtype=torch.float64)
    """
    return torch.trapezoid(curve.double(), dim=-1) / (curve.shape[-1] - 1)


def constant(maps: Tensor) -> Tensor:
    """Tell which maps, shape (batch, height, width), have the same value everywhere, shape (batch,)."""
    flat = maps.flatten(1)
    return flat.amin(dim=1) == flat.amax(dim=1)


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


def _can_be_key(target: Target) -> bool:
    """Tell whether a target can be compared with others; one that holds a mask or a box cannot."""
    try:
        hash(target)
    except TypeError:
        return False
    return True


def _text(size: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, size))})"
