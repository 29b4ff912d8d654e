"""Several fills to judge maps under: what removed pixels become, and what a map scores under each of them.

A map that is faithful under one fill only may owe it to the fill: a blur that leaves the class visible, a blank colour
that a model takes for evidence. So a map is judged under all of them, at coarser steps, and the passes that do not
depend on the map are run once per image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from sightline.metrics.case import Case, CurveArea, area
from sightline.metrics.faithfulness.token_masking import DeletionAopc, InsertionAopc
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.curve import Curve, read_scores, scored
from sightline.perturb.fill import Blur, Fill, Noise, Zero
from sightline.types import Logit, LogProbability, Probability, Target

__all__ = [
    "COARSER", "DRAWS", "FILLS", "LEFT", "TOKENS", "FillRoom", "FillScores", "Judge", "fill_cost",
]  # fmt: skip

COARSER = 4  # a step under these fills is this many of the main curves, so 7 steps instead of 28
DRAWS = 2  # of noise
FILLS: dict[str, tuple[Fill, ...]] = {
    "blur": (Blur(),),
    "strong_blur": (Blur(15, 31.0),),
    "zero": (Zero(),),
    "noise": tuple(Noise(seed) for seed in range(DRAWS)),
}
TOKENS = "tokens"  # patches are removed by dropping their tokens, on transformers
TOKEN_STEPS = 7
LEFT = 0.5  # a filled image that keeps more than this share of the class's probability leaves no room
LEVEL = 0.95  # of the interval
RESAMPLES = 1000


@dataclass(frozen=True)
class FillRoom:
    """How much of the class a fill removes: the score of the wholly filled image beside the image's own.

    Attributes:
        fill: its name.
        filled: the score when every pixel is filled, the mean over draws; None where nothing is filled.
        clean: the score of the image.
        room: whether maps can differ under it.
    """

    fill: str
    filled: float | None
    clean: float
    room: bool = True


@dataclass(frozen=True)
class FillScores:
    """What one map scores under several fills.

    Attributes:
        draws: by fill, insertion minus deletion, one number for each draw.
        counted: the fills that have room, by which the map is judged; all of them where none has.
    """

    draws: Mapping[str, tuple[float, ...]]
    counted: tuple[str, ...]

    @cached_property
    def means(self) -> dict[str, float]:
        """Insertion minus deletion under each fill, the mean over its draws."""
        return {fill: sum(values) / len(values) for fill, values in self.draws.items()}

    @property
    def score(self) -> float:
        """The mean over the fills that count."""
        return sum(self.means[fill] for fill in self.counted) / len(self.counted)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The bootstrap interval of the score: fills are drawn anew, and of each fill its draws.

        >>> FillScores({"blur": (0.25,), "zero": (0.25,)}, ("blur", "zero")).interval
        (0.25, 0.25)
        """
        random = np.random.default_rng(0)
        longest = math.lcm(*(len(self.draws[fill]) for fill in self.counted))
        table = np.array([self.draws[fill] * (longest // len(self.draws[fill])) for fill in self.counted])
        count = len(self.counted)
        fills = random.integers(count, size=(RESAMPLES, count, 1))
        # as many draws of a fill as it has: those of a fill with one draw are all the same
        draws = random.integers(longest, size=(RESAMPLES, count, longest))
        means = table[fills, draws].mean(axis=(1, 2))
        low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)

    def share(self, controls: Mapping[str, float]) -> float:
        """Return the share of the fills that count under which the map beats the best control's score."""
        return sum(self.means[fill] > controls[fill] for fill in self.counted) / len(self.counted)


class Judge:
    """Scores the maps of one image under every fill; passes that do not depend on the map are run once.

    Args:
        model: the model, in eval mode.
        batch: the image, shape (1, 3, height, width).
        target: what is explained, resolved.
        clean: the logits of the image.
        metrics: insertion and deletion as the main scores are measured; the fills keep their score and take
            coarser steps.
    """

    def __init__(
        self, model: Adapter, batch: Tensor, target: Target, clean: Tensor, metrics: tuple[CurveArea, CurveArea]
    ) -> None:
        self.metrics = metrics
        self._clean = clean
        self._filled = {fill: model.predict(fill(model, batch)) for draws in FILLS.values() for fill in draws}
        self.fills = (*FILLS, TOKENS) if drops_tokens(model, target) else (*FILLS,)
        followed = scored(target, metrics[0].score, model)
        whole = float(read_scores(model, followed, clean)[0])
        is_share = metrics[0].score == "probability" and isinstance(followed, Probability)
        self.rooms = tuple(self._room(model, followed, fill, whole, is_share) for fill in self.fills)

    def _room(self, model: Adapter, followed: Target, fill: str, clean: float, is_share: bool) -> FillRoom:
        if fill == TOKENS:
            return FillRoom(fill, None, clean)
        logits = torch.cat([self._filled[draw] for draw in FILLS[fill]])
        values = read_scores(model, followed.take([0] * len(logits)), logits)
        filled = float(values.mean())
        return FillRoom(fill, filled, clean, not is_share or filled <= LEFT * clean)

    @property
    def counted(self) -> tuple[str, ...]:
        """The fills that have room, or all of them where none has."""
        return tuple(room.fill for room in self.rooms if room.room) or self.fills

    def share_with(self, case: Case) -> Case:
        """Give a case the logits that every map of the image needs."""
        case.once("clean", lambda: self._clean)
        for fill, logits in self._filled.items():
            case.once(("filled", fill), partial(Tensor.detach, logits))
        return case

    def scores(self, case: Case) -> FillScores:
        """Return what the map of a case scores under each fill."""
        for metric in self.metrics:  # the main curves, once every few points, are curves of two of the fills
            case.once(self._coarser(metric), partial(_every, case.curve(metric.curve), COARSER))
        return FillScores({name: self._draws(case, name) for name in self.fills}, self.counted)

    def _draws(self, case: Case, name: str) -> tuple[float, ...]:
        if name == TOKENS:
            return (_dropped(case),)
        return tuple(self._filled_score(case, fill) for fill in FILLS[name])

    def _filled_score(self, case: Case, fill: Fill) -> float:
        inserted, deleted = (case.curve(self._coarser(metric, fill)) for metric in self.metrics)
        return float(area(inserted - deleted)[0])

    def _coarser(self, metric: CurveArea, fill: Fill | None = None) -> Curve:
        main = metric.curve
        return Curve(main.direction, fill or main.fill, COARSER * main.step, main.score, main.tie, main.seed)


def _every(curve: Tensor, points: int) -> Tensor:
    """Return a curve, (batch, point), at coarser steps: every few points, and the last."""
    last = curve.shape[1] - 1
    return curve[:, [*range(0, last, points), last]]


def drops_tokens(model: Adapter, target: Target) -> bool:
    """Tell whether patches can be dropped and the class's probability followed."""
    of_class = isinstance(target, Logit | Probability | LogProbability)
    return isinstance(model, VisionTransformer) and of_class and model.has_probabilities


def _dropped(case: Case) -> float:
    """Return insertion minus deletion when the tokens of patches are dropped; both areas lie over their curves."""
    over_insertion, over_deletion = InsertionAopc(steps=TOKEN_STEPS)(case), DeletionAopc(steps=TOKEN_STEPS)(case)
    return float((over_deletion.values - over_insertion.values)[0])


def fill_cost(steps: int, model: Adapter) -> float:
    """Return about how many passes the fills add to a map whose main curves have this many steps."""
    curves = 2 * sum(map(len, FILLS.values())) - 2  # two are part of the main ones
    between = -(-steps // COARSER) - 1
    tokens = TOKEN_STEPS - 1 if isinstance(model, VisionTransformer) else 0  # two curves of passes half as long
    return curves * between + tokens
