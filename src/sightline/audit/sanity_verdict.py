"""The verdict of a sanity check: from similarities between maps to a word and a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sightline.formatting import format_score as score

__all__ = [
    "ALIKE",
    "DOUBTFUL",
    "FAILS",
    "NO_VERDICT",
    "PASSES",
    "SAME",
    "SLOW",
    "SanityScores",
    "SanityVerdict",
    "sanity_verdict",
]

PASSES, DOUBTFUL, FAILS, NO_VERDICT = "passes", "doubtful", "fails", "no verdict"

# Measured on the bundled models: methods that pass end below 0.4 and average below 0.5 (integrated gradients, in
# absolute values, end at 0.36); guided backprop averages 0.68, controls stay at 1.
ALIKE = 0.8  # with every layer random a map this alike does not depend on the model
SLOW = 0.5  # a mean over the stages from which a map hardly depends on the later layers
SAME = 0.95  # maps of different images, or for different classes, this alike are the same


@dataclass(frozen=True)
class SanityScores:
    """The similarities a verdict rests on, each a mean over images; NaN where there is none.

    Attributes:
        curve: Spearman's correlation of the map with those of ever more random models, the model itself first.
        absolute: the last of them, of absolute values.
        pearson: mean over the stages; so are `cosine` and `ssim`.
        other_class: Spearman's correlation with the map for another class.
        other_image: Spearman's correlation with the maps of other images.
    """

    curve: tuple[float, ...]
    absolute: float
    pearson: float
    cosine: float
    ssim: float
    other_class: float
    other_image: float

    @property
    def mean(self) -> float:
        return sum(self.curve[1:]) / len(self.curve[1:])

    @property
    def last(self) -> float:
        return self.curve[-1]

    def json(self) -> dict[str, Any]:
        """Return the numbers for a script to read."""
        return {
            "stages": list(self.curve[1:]),
            "spearman": self.mean,
            "spearman_all_random": self.last,
            "spearman_all_random_absolute": self.absolute,
            "pearson": self.pearson,
            "cosine": self.cosine,
            "ssim": self.ssim,
            "random_logit": self.other_class,
            "other_image": self.other_image,
        }


@dataclass(frozen=True)
class SanityVerdict:
    """A word, and the sentence that gives the reason."""

    word: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.word}: {self.sentence}"


def sanity_verdict(scores: SanityScores, *, agnostic: bool = False) -> SanityVerdict:
    """Judge a method by its similarities; `agnostic` says that it does not claim to explain a class."""
    if math.isnan(scores.last):
        return SanityVerdict(NO_VERDICT, "Gives constant maps, which depend on nothing and say nothing.")
    faults = [fault for fault in (_ignores_model(scores), _ignores_image(scores)) if fault]
    if faults:
        return SanityVerdict(FAILS, f"Does not depend on {'; nor on '.join(faults)}.")
    doubts = [doubt for doubt in (_ignores_later_layers(scores), "" if agnostic else _ignores_class(scores)) if doubt]
    if doubts:
        return SanityVerdict(DOUBTFUL, f"{_capital('; '.join(doubts))}.")
    other = ", though by design not with the class" if agnostic else ""
    return SanityVerdict(
        PASSES, f"Changes with the model (Spearman {score(scores.last)} when all of it is random){other}."
    )


def _ignores_model(scores: SanityScores) -> str:
    if max(scores.last, scores.absolute) < ALIKE:
        return ""
    how = f"Spearman {score(scores.last)}" if scores.last >= ALIKE else f"Spearman of sizes {score(scores.absolute)}"
    return f"the model: with every layer random the map is still the same ({how})"


def _ignores_image(scores: SanityScores) -> str:
    return f"the image: other images get the same map (Spearman {score(scores.other_image)})" * (
        scores.other_image >= SAME
    )


def _ignores_later_layers(scores: SanityScores) -> str:
    if scores.mean < SLOW:
        return ""
    numbers = ", ".join(score(value) for value in scores.curve[1:])
    return f"hardly depends on the later layers: as they become random, Spearman is {numbers}"


def _ignores_class(scores: SanityScores) -> str:
    return f"hardly depends on the class: another class gets the same map (Spearman {score(scores.other_class)})" * (
        scores.other_class >= SAME
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
