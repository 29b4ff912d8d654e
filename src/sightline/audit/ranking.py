"""Look at one image with several methods, measure each map on that very image, and put the most faithful first."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sightline import api
from sightline.audit.panel import is_agnostic, is_control
from sightline.audit.seen import Frame, frame_of
from sightline.errors import SightlineError, SightlineWarning, TargetError
from sightline.metrics.judge import Scores
from sightline.models.adapter import Adapter
from sightline.recipe import parse_metric, text
from sightline.types import Attribution, Logit, Method, Passes

__all__ = ["STEPS", "Class", "Failure", "Look", "Rated", "Study", "metric_step", "ranked"]

STEPS = 28  # of each curve, so 57 forward passes per map
TOP = 5  # classes to name
BACKWARD = 2.0  # a backward pass takes about as long as two forward ones

Advance = Callable[[float, str], None]


@dataclass(frozen=True)
class Class:
    """A class and how likely the model finds it."""

    index: int
    label: str
    probability: float

    def json(self) -> dict[str, Any]:
        return {"index": self.index, "label": self.label, "probability": self.probability}


@dataclass(frozen=True, eq=False)
class Rated:
    """One map of one image with its scores; `rank` is None for a map that says nothing."""

    recipe: str
    map: NDArray[Any]
    insertion: float
    deletion: float
    curves: dict[str, list[float]]
    passes: Passes
    seconds: float
    control: bool
    agnostic: bool
    flags: tuple[str, ...] = ()
    rank: int | None = None

    @property
    def ins_del(self) -> float:
        return self.insertion - self.deletion

    @property
    def mark(self) -> str:
        """What a reader should know of the map, in a word or two."""
        kind = "control" if self.control else "class-agnostic" if self.agnostic else ""
        return ", ".join(filter(None, (kind, *self.flags)))


@dataclass(frozen=True)
class Failure:
    """A map that could not be made, and why."""

    recipe: str
    error: SightlineError


@dataclass(frozen=True, eq=False)
class Look:
    """One image: what the model says of it, and the maps that explain it, the most faithful first."""

    frame: Frame
    target: Class
    top: tuple[Class, ...]
    maps: tuple[Rated, ...]
    failures: tuple[Failure, ...]
    step: int


@dataclass(frozen=True, eq=False)
class Study:
    """How images are looked at.

    Attributes:
        model: the model, which knows its preprocessing.
        methods: what to explain with.
        target: the class to explain, None for the predicted one.
        step: pixels per step of the two curves, None for curves of STEPS steps.
        name: what to call the model.
    """

    model: Adapter
    methods: Sequence[Method]
    target: int | None = None
    step: int | None = None
    name: str = ""

    @property
    def price(self) -> float:
        """What one image costs, in forward passes; an estimate, for the time left."""
        return sum(self._price(method) for method in self.methods)

    def look(self, image: Image.Image, advance: Advance = lambda amount, text: None) -> Look:
        """Explain one image with every method and score each map on it; `advance` hears after each what was spent."""
        batch = api.as_batch(self.model, image)
        top, aim = self._classes(batch)
        step = metric_step(batch) if self.step is None else self.step
        maps, failures = [], []
        for method in self.methods:
            try:
                maps.append(_rate(self.model, batch, method, aim.index, step))
            except SightlineError as error:
                failures.append(Failure(text(method), error))
            advance(self._price(method), text(method))
        return Look(frame_of(self.model, image, batch[0]), aim, top, ranked(maps), tuple(failures), step)

    def _classes(self, batch: Tensor) -> tuple[tuple[Class, ...], Class]:
        """Return the likeliest classes, and the one that is explained."""
        with api.ready(self.model):
            shares = self.model.check_logits(self.model.predict(batch))[0].float().softmax(dim=-1).tolist()
        if self.target is not None and self.target >= len(shares):
            raise TargetError(f"got class {self.target}; {self.model.name} has classes 0 to {len(shares) - 1}")
        every = [Class(index, self.model.label(index), share) for index, share in enumerate(shares)]
        top = tuple(sorted(every, key=lambda one: -one.probability)[:TOP])
        return top, top[0] if self.target is None else every[self.target]

    def _price(self, method: Method) -> float:
        try:
            passes = method.cost(self.model)
        except SightlineError:  # it will say so itself when it is run
            passes = Passes()
        return passes.forward + BACKWARD * passes.backward + 2 * STEPS + 1


def ranked(maps: Iterable[Rated]) -> tuple[Rated, ...]:
    """Put the most faithful map first, by insertion minus deletion; maps that say nothing come last, without a rank."""
    sound: list[Rated] = []
    silent: list[Rated] = []
    for rated in maps:
        (silent if "constant map" in rated.flags or not math.isfinite(rated.ins_del) else sound).append(rated)
    # a method that only equals a control does not stand before it
    sound.sort(key=lambda rated: (-rated.ins_del, not rated.control))
    return (*(replace(rated, rank=place) for place, rated in enumerate(sound, 1)), *silent)


def metric_step(batch: Tensor, steps: int = STEPS) -> int:
    """Return how many pixels change at a time for a curve of this many steps."""
    return max(1, -(-batch.shape[-1] * batch.shape[-2] // steps))


def _rate(model: Adapter, batch: Tensor, method: Method, target: int, step: int) -> Rated:
    """Make one map and measure it."""
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SightlineWarning)  # a constant map has a flag, which is shown
        attribution = api.explain(model, batch, method, target=Logit(target))
    seconds = time.perf_counter() - begun
    insertion, deletion = (text(parse_metric(f"{name}(step={step})")) for name in ("insertion", "deletion"))
    scores = api.evaluate(model, batch, attribution, [insertion, deletion], target=Logit(target))
    return Rated(
        recipe=attribution.recipe,
        map=attribution.pixels()[0].float().cpu().numpy(),
        insertion=float(scores[insertion][0]),
        deletion=float(scores[deletion][0]),
        curves={"insertion": _curve(scores, insertion), "deletion": _curve(scores, deletion)},
        passes=attribution.passes,
        seconds=seconds,
        control=is_control(method),
        agnostic=is_agnostic(method),
        flags=_flags(attribution, scores),
    )


def _curve(scores: Scores, metric: str) -> list[float]:
    values: list[float] = scores.curves[metric][0].tolist()
    return values


def _flags(attribution: Attribution, scores: Scores) -> tuple[str, ...]:
    """Gather what is wrong with a map and with its scores, each once."""
    said = [attribution.flags[0] if attribution.flags else "", *(flags[0] for flags in scores.flags.values())]
    return tuple(dict.fromkeys(filter(None, said)))
