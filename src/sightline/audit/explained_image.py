"""One image: what the model says of it, and the maps that explain that, the most faithful first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from sightline import api
from sightline.api.explain import describe
from sightline.audit.scored_map import Failure, ScoredMap, map_cost, metric_step, ranked, score_map
from sightline.audit.verdict import Verdict, verdict
from sightline.audit.view import View, view_of
from sightline.errors import SightlineError
from sightline.models.adapter import Adapter
from sightline.models.targets import resolve_target
from sightline.progress import Advance, no_progress
from sightline.recipe import text
from sightline.types import Logit, LogProbability, Method, Probability, Target, Value

__all__ = ["ClassScore", "ExplainedImage", "explain_image"]

TOP = 5  # classes to name


@dataclass(frozen=True)
class ClassScore:
    """A class, label or value; `probability` is None where the model's output has none."""

    index: int | None
    label: str
    probability: float | None

    def json(self) -> dict[str, Any]:
        """Return the class as plain data."""
        return {"index": self.index, "label": self.label, "probability": self.probability}


@dataclass(frozen=True, eq=False)
class ExplainedImage:
    """One image: what the model says of it, and the maps that explain it, the most faithful first.

    Attributes:
        name: what to call the image.
        view: what the model sees of it.
        target: what is explained.
        top: the likeliest classes; empty where the model's output has no probabilities.
        maps: every map with its scores, by rank.
        failures: maps that could not be made.
        step: pixels per step of the two curves.
    """

    name: str
    view: View
    target: ClassScore
    top: tuple[ClassScore, ...]
    maps: tuple[ScoredMap, ...]
    failures: tuple[Failure, ...]
    step: int

    @property
    def verdict(self) -> Verdict:
        """Which map to believe, if any, and why."""
        return verdict(self.maps)

    def target_json(self) -> dict[str, Any]:
        """Return what was explained, as plain data."""
        return {"target": self.target.index, "label": self.target.label, "probability": self.target.probability}

    def json(self) -> dict[str, Any]:
        """Return all that is known of the image, as plain data."""
        return {
            **self.target_json(),
            "top": [each.json() for each in self.top],
            "metric_step": self.step,
            "verdict": self.verdict.sentence,
            "maps": [scored.json() for scored in self.maps],
        }


def explain_image(
    model: Adapter,
    batch: Tensor,
    methods: Sequence[Method],
    target: Any = None,
    *,
    photograph: Image.Image | None = None,
    name: str = "image",
    step: int | None = None,
    advance: Advance = no_progress,
) -> ExplainedImage:
    """Explain a batch of one image with every method and score each map on it; `advance` hears what each has cost."""
    with api.ready(model):
        logits = model.check_logits(model.predict(batch))
        resolved = Logit(int(logits[0].argmax())) if _predicted(target, model) else resolve_target(target, model, batch)
        explained, top = _classes(model, logits, resolved)
    step = metric_step(batch) if step is None else step
    maps, failures = [], []
    for method in methods:
        try:
            maps.append(score_map(model, batch, method, resolved, step))
        except SightlineError as error:
            failures.append(Failure(text(method), error))
        advance(map_cost(method, model), text(method))
    view = view_of(model, batch[0], photograph)
    return ExplainedImage(name, view, explained, top, ranked(maps), tuple(failures), step)


def _predicted(target: Any, model: Adapter) -> bool:
    """Tell whether the predicted class is wanted, which the logits at hand name."""
    return target is None and model.output in ("softmax", "sigmoid")


def _classes(model: Adapter, logits: Tensor, target: Target) -> tuple[ClassScore, tuple[ClassScore, ...]]:
    """Return what is explained, and the likeliest classes."""
    label = describe(target, model, 1)[0]
    index = target.index if isinstance(target, Logit | Probability | LogProbability | Value) else None
    index = index[0] if isinstance(index, tuple) else index
    if not model.has_probabilities:
        return ClassScore(index, label, None), ()
    shares = model.probabilities(logits.float())[0].tolist()
    classes = [ClassScore(number, model.label(number), share) for number, share in enumerate(shares)]
    top = tuple(sorted(classes, key=lambda each: -(each.probability or 0.0))[:TOP])
    return ClassScore(index, label, None if index is None else shares[index]), top
