"""One map of one image, scored on that very image by insertion and deletion."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from sightline import api
from sightline.audit.panel import is_agnostic, is_control
from sightline.errors import SightlineError, SightlineWarning
from sightline.metrics.judge import Scores
from sightline.models.adapter import Adapter
from sightline.recipe import parse_metric, text
from sightline.types import Attribution, Logit, LogProbability, Method, Passes, Probability, Target, Value

__all__ = ["STEPS", "Failure", "ScoredMap", "map_cost", "metric_step", "ranked", "score_map"]

STEPS = 28  # of each curve, so 57 forward passes per map
BACKWARD = 2.0  # a backward pass takes about as long as two forward ones


@dataclass(frozen=True, eq=False)
class ScoredMap:
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
    def note(self) -> str:
        """What a reader should know of the map, in a word or two."""
        kind = "control" if self.control else "class-agnostic" if self.agnostic else ""
        return ", ".join(filter(None, (kind, *self.flags)))

    def json(self) -> dict[str, Any]:
        """Return what was measured, as plain data."""
        return {
            "recipe": self.recipe,
            "rank": self.rank,
            "insertion": self.insertion,
            "deletion": self.deletion,
            "ins_del": self.ins_del,
            "passes": {"forward": self.passes.forward, "backward": self.passes.backward},
            "seconds": round(self.seconds, 4),
            "control": self.control,
            "class_agnostic": self.agnostic,
            "flags": list(self.flags),
        }


@dataclass(frozen=True)
class Failure:
    """A map that could not be made, and why."""

    recipe: str
    error: SightlineError


def score_map(model: Adapter, batch: Tensor, method: Method, target: Target, step: int) -> ScoredMap:
    """Make the map of one image and score it."""
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SightlineWarning)  # a constant map has a flag, which is shown
        attribution = api.explain(model, batch, method, target=target)
    seconds = time.perf_counter() - begun
    insertion, deletion = (_metric(name, step, model, target) for name in ("insertion", "deletion"))
    scores = api.evaluate(model, batch, attribution, [insertion, deletion], target=target)
    return ScoredMap(
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


def _metric(name: str, step: int, model: Adapter, target: Target) -> str:
    """Return the metric's recipe: the probability of a class, or the number itself where there is no probability."""
    of_class = isinstance(target, Logit | Probability | LogProbability | Value)
    number = of_class and (isinstance(target, Value) or not model.has_probabilities)
    return text(parse_metric(f"{name}(step={step}, score='logit')" if number else f"{name}(step={step})"))


def ranked(maps: Iterable[ScoredMap]) -> tuple[ScoredMap, ...]:
    """Put the most faithful map first, by insertion minus deletion; maps that say nothing come last, without a rank."""
    meaningful: list[ScoredMap] = []
    constant: list[ScoredMap] = []
    for scored in maps:
        useless = "constant map" in scored.flags or not math.isfinite(scored.ins_del)
        (constant if useless else meaningful).append(scored)
    # a method that only equals a control does not stand before it
    meaningful.sort(key=lambda scored: (-scored.ins_del, not scored.control))
    return (*(replace(scored, rank=rank) for rank, scored in enumerate(meaningful, 1)), *constant)


def metric_step(batch: Tensor, steps: int = STEPS) -> int:
    """Return how many pixels change at a time for a curve of this many steps."""
    return max(1, -(-batch.shape[-1] * batch.shape[-2] // steps))


def map_cost(method: Method, model: Adapter) -> float:
    """Return what making and scoring one map costs, in forward passes; an estimate, for the time left."""
    try:
        passes = method.cost(model)
    except SightlineError:  # it will say so itself when it is run
        passes = Passes()
    return passes.forward + BACKWARD * passes.backward + 2 * STEPS + 1


def _curve(scores: Scores, metric: str) -> list[float]:
    values: list[float] = scores.curves[metric][0].tolist()
    return values


def _flags(attribution: Attribution, scores: Scores) -> tuple[str, ...]:
    """Gather what is wrong with a map and with its scores, each once."""
    flags = [attribution.flags[0] if attribution.flags else "", *(flags[0] for flags in scores.flags.values())]
    return tuple(dict.fromkeys(filter(None, flags)))
