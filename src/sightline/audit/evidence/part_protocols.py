"""The eight protocols of FunnyBirds on `shapes`, whose parts can be left out when a scene is drawn.

A part is what can be removed: the shape of the label and each distractor; in pictures with a planted shortcut the
watermark too. Removed parts are not painted over: the scene is drawn again without them, so the picture stays one of
the kind the model was trained on :cite:p:`hesse2023`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from sightline import api
from sightline.audit.panel import without_warnings
from sightline.data.shapes import SHORTCUT_CLASS, Shapes, ShapesSample
from sightline.errors import InputError
from sightline.metrics.similarity import spearman
from sightline.models.adapter import Adapter

__all__ = ["PartScores", "part_drops", "part_sums", "samples_and_images", "score_on_parts"]

THRESHOLDS = tuple(step / 10 for step in range(1, 10))
SLIGHT = 0.05  # a part matters where the logit falls by more than this share without it


@dataclass(frozen=True)
class PartScores:
    """The eight scores, each a mean over images in 0..1 but for single deletion, in -1..1; higher is better.

    Attributes:
        accuracy: of the model on the pictures as they are.
        csdc: controlled synthetic data check: share of important sets of parts that hold the label's shape.
        single_deletion: Spearman's correlation of the parts' attribution with the drop of the logit without each.
        preservation: share of images whose prediction stays when all parts but the important ones are left out.
        deletion: share of images whose prediction changes when the important parts are left out.
        target_sensitivity: on pictures with a shape and a watermark: how often the map of the shape's class gives the
            shape more than the map of the watermark's class does, and the other way round.
        distractibility: share of the distractors that do not matter to the model and are not held important.
        background_independence: share of the distractors without which the logit falls by no more than 5 %.
    """

    accuracy: float
    csdc: float
    single_deletion: float
    preservation: float
    deletion: float
    target_sensitivity: float
    distractibility: float
    background_independence: float

    def as_dict(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def score_on_parts(model: Adapter, recipe: Any, *, count: int = 32, seed: int = 0, size: int = 64) -> PartScores:
    """Explain `count` pictures of `shapes` and judge the maps by what happens when parts are really left out.

    Which parts a map holds important is read at nine thresholds, 0.1 to 0.9 of its largest sum over a part, and the
    scores that need it are averaged over them.

    Args:
        model: a classifier of shapes, such as the bundled ones.
        recipe: the method.
        count: how many pictures.
        seed: of the pictures.
        size: of the pictures.
    """
    if count < 1:
        raise InputError(f"got count={count}; judge one picture at least")
    shapes = Shapes(seed=seed, size=size)
    samples, images = samples_and_images(model, shapes, count)
    labels = torch.tensor([sample.label for sample in samples])
    sums = part_sums(_maps(model, images, recipe, labels), samples)
    each = [_Picture(model, shapes, index, sample) for index, sample in enumerate(samples)]
    judged = [_judge(picture, importance) for picture, importance in zip(each, sums, strict=True)]
    means = {name: _mean([scores[name] for scores in judged]) for name in judged[0]}
    sensitivity = _target_sensitivity(model, recipe, Shapes(seed=seed, size=size, variant="conflict"), count)
    return PartScores(target_sensitivity=sensitivity, **means)


def part_sums(maps: Tensor, samples: Sequence[ShapesSample]) -> list[Tensor]:
    """Return the attribution of each part: the shape first, then the distractors.

    It is the sum over the part of the map less its mean over the picture: an even map gives nothing to any part, while
    its plain sum would be the size of the part, and shapes are larger than distractors.
    """
    centred = maps.double().cpu() - maps.double().cpu().mean(dim=(1, 2), keepdim=True)
    return [
        torch.stack([each[torch.from_numpy(mask)].sum() for mask in (sample.evidence, *sample.distractors)])
        for each, sample in zip(centred, samples, strict=True)
    ]


def part_drops(model: Adapter, shapes: Shapes, index: int, sample: ShapesSample) -> Tensor:
    """Return how much the label's logit falls when each part is left out alone: the shape first, then distractors."""
    return _Picture(model, shapes, index, sample).drops()


def samples_and_images(model: Adapter, shapes: Shapes, count: int) -> tuple[list[ShapesSample], Tensor]:
    """Return the first samples of a set of shapes, and their images as the model is fed."""
    samples = [shapes[index] for index in range(count)]
    return samples, _tensor(model, samples)


class _Picture:
    """A picture whose parts can be left out: 0 is the shape, 1, 2, … are the distractors."""

    def __init__(self, model: Adapter, shapes: Shapes, index: int, sample: ShapesSample) -> None:
        self.model, self.shapes, self.index, self.label = model, shapes, index, sample.label
        self.parts = 1 + len(sample.distractors)
        self._known: dict[frozenset[int], Tensor] = {}

    def logits(self, removed: frozenset[int]) -> Tensor:
        """Return the logits of the picture without these parts."""
        if removed not in self._known:
            distractors = [part - 1 for part in removed if part]
            sample = self.shapes.without(self.index, evidence=0 in removed, distractors=distractors)
            self._known[removed] = self.model.predict(_tensor(self.model, [sample]))[0].double()
        return self._known[removed]

    def predicted(self, removed: frozenset[int] = frozenset()) -> int:
        return int(self.logits(removed).argmax())

    def drops(self) -> Tensor:
        """Return how much the label's logit falls without each part alone."""
        whole = self.logits(frozenset())[self.label]
        return torch.stack([whole - self.logits(frozenset({part}))[self.label] for part in range(self.parts)])


def _judge(picture: _Picture, importance: Tensor) -> dict[str, float]:
    drops, nothing = picture.drops(), frozenset[int]()
    whole = picture.logits(nothing)[picture.label].abs().clamp(min=1e-9)
    unneeded = [part for part in range(1, picture.parts) if drops[part] <= SLIGHT * whole]
    predicted, everything = picture.predicted(), frozenset(range(picture.parts))
    sets = [_important(importance, threshold) for threshold in THRESHOLDS]
    kept = [picture.predicted(everything - held) == predicted for held in sets]
    lost = [picture.predicted(held) != predicted for held in sets]
    quiet = [part not in held for held in sets for part in unneeded]
    return {
        "accuracy": float(predicted == picture.label),
        "csdc": _mean([float(0 in held) for held in sets]),
        "single_deletion": float(spearman(importance[None], drops[None])[0]),
        "preservation": _mean([float(value) for value in kept]),
        "deletion": _mean([float(value) for value in lost]),
        "distractibility": _mean([float(value) for value in quiet]),
        "background_independence": len(unneeded) / (picture.parts - 1),
    }


def _important(importance: Tensor, threshold: float) -> frozenset[int]:
    """Return the parts whose sum is at least this share of the largest; none where no sum is positive."""
    most = float(importance.max())
    if most <= 0:
        return frozenset()
    return frozenset(torch.nonzero(importance >= threshold * most)[:, 0].tolist())


def _target_sensitivity(model: Adapter, recipe: Any, shapes: Shapes, count: int) -> float:
    samples, images = samples_and_images(model, shapes, count)
    labels = torch.tensor([sample.label for sample in samples])
    own = _maps(model, images, recipe, labels)
    other = _maps(model, images, recipe, torch.full_like(labels, SHORTCUT_CLASS))
    hits = []
    for mine, theirs, sample in zip(own, other, samples, strict=True):
        shape, mark = torch.from_numpy(sample.evidence), torch.from_numpy(sample.shortcut)
        hits.append(float(mine[shape].sum() > theirs[shape].sum()))
        hits.append(float(theirs[mark].sum() > mine[mark].sum()))
    return _mean(hits)


def _maps(model: Adapter, images: Tensor, recipe: Any, targets: Tensor) -> Tensor:
    with without_warnings():  # a constant map scores as badly as it deserves
        maps: Tensor = api.explain(model, images, recipe, targets).pixels()
        return maps.detach().cpu()


def _tensor(model: Adapter, samples: Sequence[ShapesSample]) -> Tensor:
    pixels = torch.stack([torch.from_numpy(sample.image).permute(2, 0, 1) for sample in samples])
    return model.normalise(pixels.float() / 255).to(model.device, model.dtype)


def _mean(values: Sequence[float]) -> float:
    """Return the mean of what is a number, NaN where nothing is."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else float("nan")
