"""Random logit: whether the map changes when another class is explained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from sightline.errors import InputError
from sightline.metrics.case import Case, Measurement, constant, flags_where
from sightline.metrics.re_explain import re_explained_maps
from sightline.metrics.similarity import SIMILARITIES, Similarity
from sightline.models.adapter import Adapter
from sightline.registry import METRICS, HasOptions
from sightline.seeds import generators
from sightline.types import Logit, LogProbability, Passes, Probability, Target, Value

Against = Literal["random", "likeliest", "unlikeliest"]


@METRICS.register(
    "random_logit",
    family="sanity",
    cite="sixt2020",
    cost="1 attribution, for another class",
    direction="lower",
    needs=("method",),
    parity="closed form; the similarities are scipy's and scikit-image's",
)
@dataclass(frozen=True, slots=True)
class RandomLogit(HasOptions):
    r"""Similarity of the map to the same method's map for another class.

    .. math:: \operatorname{sim}\bigl(a(f, c),\, a(f, c')\bigr), \qquad c' \ne c

    A map that explains one class cannot be the same for every other :cite:p:`sixt2020`; a class-agnostic method scores
    1. It runs the method once, and the model once to know its classes.

    Where the output is a value or an embedding, another value takes the place of the other class.

    Edge cases: a constant map of either class is NaN and flagged, and so is a model of a single class. A target without
    a class, such as a contrast, is an error.

    Attributes:
        similarity: spearman, pearson, cosine or ssim.
        against: the other class: one at random, by `seed` and image; the likeliest other one; or the unlikeliest.
        absolute: compare absolute values.
        seed: of the choice.
    """

    similarity: Similarity = "spearman"
    against: Against = "random"
    absolute: bool = False
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __call__(self, case: Case, /) -> Measurement:
        own = explained(case)
        if case.clean.shape[1] < 2:
            nothing = torch.full((len(own),), torch.nan, dtype=torch.float64)
            return Measurement(nothing, None, ("a single class",) * len(own))
        target = replace(case.target, index=self._others(case, own))  # type: ignore[type-var]
        maps = re_explained_maps(case, target=target)
        first, second = (values.abs() if self.absolute else values for values in (case.maps, maps))
        similarities = SIMILARITIES[self.similarity](first, second).cpu()
        undefined = constant(first) | constant(second)
        flags = flags_where(undefined, "constant map")
        return Measurement(similarities.masked_fill(undefined.cpu(), torch.nan), None, flags)

    def _others(self, case: Case, own: tuple[int, ...]) -> tuple[int, ...]:
        if self.against == "random":
            draws = [self._drawn(case, random) for random in generators(self.seed, case.images)]
            return tuple(draw + (draw >= index) for draw, index in zip(draws, own, strict=True))
        sign = 1.0 if self.against == "likeliest" else -1.0
        logits = sign * case.clean.double()
        logits[torch.arange(len(own)), list(own)] = -torch.inf
        return tuple(logits.argmax(dim=1).tolist())

    @staticmethod
    def _drawn(case: Case, generator: torch.Generator) -> int:
        return int(torch.randint(case.clean.shape[1] - 1, (1,), generator=generator))

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=1)


def explained(case: Case) -> tuple[int, ...]:
    """Return the class, or the value, that was explained for each image."""
    target: Target = case.target
    if not isinstance(target, Logit | Probability | LogProbability | Value):
        raise InputError(
            f"a {type(target).__name__} names no class, so there is no other to compare with; "
            "explain a Logit, a Probability, a LogProbability or a Value"
        )
    return (target.index,) * len(case.images) if isinstance(target.index, int) else target.index
