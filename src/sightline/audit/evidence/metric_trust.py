"""Which metrics can be trusted: how well each orders methods whose true order is known, on `shapes`.

The truth of a map is how well it predicts what happens when parts of the scene are really left out: Spearman's
correlation of the parts' attribution with the drop of the logit, scenes being drawn again without the part and not
painted over. A metric that knows nothing of the parts is then judged by whether it puts the methods in the same order,
and whether it prefers a map to the same map with its pixels shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from sightline import api
from sightline.audit.evidence.part_protocols import part_drops, part_sums, samples_and_images
from sightline.audit.panel import is_control, without_warnings
from sightline.data.shapes import Shapes
from sightline.errors import InputError
from sightline.metrics.similarity import spearman
from sightline.models.adapter import Adapter
from sightline.recipe import parse, parse_metric
from sightline.registry import spec_of

__all__ = ["Trust", "metric_trust", "order_agreement", "shuffle_wins"]

Floats = NDArray[np.float64]
CONFIDENCE = (2.5, 97.5)
ROUNDING = 1e-9  # relative difference below which scores are the same


@dataclass(frozen=True)
class Trust:
    """What was measured of one metric.

    Attributes:
        metric: its recipe.
        agreement: Spearman's correlation of its order of the methods with the true one.
        low: lower end of the 95 % bootstrap interval over images.
        high: upper end.
        wins: share of maps that it prefers to their shuffle, ties counting half; None where the metric runs the method
            itself and cannot be given a shuffled map.
        wins_low: lower end of its interval.
        wins_high: upper end.
    """

    metric: str
    agreement: float
    low: float
    high: float
    wins: float | None = None
    wins_low: float | None = None
    wins_high: float | None = None

    @property
    def tells(self) -> bool | None:
        """Whether it tells a map from its shuffle, beyond chance; None where that was not asked."""
        return None if self.wins_low is None else self.wins_low > 0.5

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"tells": self.tells}


def metric_trust(
    model: Adapter,
    metrics: Sequence[str],
    methods: Sequence[str],
    *,
    count: int = 16,
    seed: int = 0,
    resamples: int = 1000,
) -> list[Trust]:
    """Measure metrics on `count` pictures of shapes, against the true order of the methods.

    Args:
        model: a classifier of shapes, such as the bundled ones.
        metrics: recipes.
        methods: recipes; good ones, bad ones and controls, so that there is an order to find.
        count: how many pictures.
        seed: of pictures, shuffles and resampling.
        resamples: of the bootstrap over pictures.
    """
    if len(methods) < 3 or count < 2:
        raise InputError(f"got {len(methods)} methods and count={count}; an order needs three methods and two pictures")
    shapes = Shapes(seed=seed)
    samples, images = samples_and_images(model, shapes, count)
    labels, masks = [sample.label for sample in samples], torch.stack([_mask(sample.evidence) for sample in samples])
    drops = [part_drops(model, shapes, index, sample) for index, sample in enumerate(samples)]
    truth, scores, others = [], [], []
    for method in methods:
        maps = _quietly(lambda method=method: api.explain(model, images, method, labels)).pixels().detach()
        pairs = zip(part_sums(maps, samples), drops, strict=True)
        truth.append([float(spearman(sums[None], drop[None])[0]) for sums, drop in pairs])
        given = {"target": labels, "masks": masks, "method": method}
        scores.append(_scores(model, images, maps, metrics, given))
        if not is_control(parse(method)):
            of_maps = [metric for metric in metrics if "method" not in spec_of(parse_metric(metric)).needs]
            others.append((scores[-1], _scores(model, images, _shuffled(maps, seed), of_maps, given)))
    random = np.random.default_rng(seed)
    draws = random.integers(count, size=(resamples, count))
    return [_trust(metric, np.array(truth), scores, others, draws) for metric in metrics]


def order_agreement(truth: Floats, scores: Floats) -> float:
    """Return Spearman's correlation of the methods' mean scores with their mean truth, (method, image) each.

    A method without a single defined score is left out of both orders.
    """
    known = ~(np.isnan(truth).all(axis=1) | np.isnan(scores).all(axis=1))
    first, second = (rankdata(np.nanmean(values[known], axis=1)) for values in (truth, scores))
    if known.sum() < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0  # an order of which all are equal agrees with nothing
    return float(np.corrcoef(first, second)[0, 1])


def shuffle_wins(maps: Floats, shuffled: Floats) -> Floats:
    """Return for each pair of scores 1 where the map's is better, 0 where worse, a half where equal or not defined.

    Scores that rounding alone may have parted are equal: sums over shuffled pixels are taken in another order.
    """
    difference = maps - shuffled
    near = np.abs(difference) <= ROUNDING * np.maximum(np.abs(maps), np.abs(shuffled))
    return np.where(near | np.isnan(difference), 0.5, (difference > 0).astype(float))


def _trust(metric: str, truth: Floats, scores: list[Any], others: list[Any], draws: Any) -> Trust:
    sign = 1.0 if spec_of(parse_metric(metric)).direction == "higher" else -1.0
    values = sign * np.array([found[metric] for found in scores])
    found = [order_agreement(truth[:, draw], values[:, draw]) for draw in draws]
    low, high = np.percentile(found, CONFIDENCE)
    agreement = order_agreement(truth, values)
    pairs = [(own[metric], other[metric]) for own, other in others if metric in other]
    if not pairs:
        return Trust(metric, agreement, float(low), float(high))
    wins = np.array([shuffle_wins(sign * own, sign * other) for own, other in pairs])
    spread = [wins[:, draw].mean() for draw in draws]
    wins_low, wins_high = np.percentile(spread, CONFIDENCE)
    return Trust(metric, agreement, float(low), float(high), float(wins.mean()), float(wins_low), float(wins_high))


def _scores(
    model: Adapter, images: Tensor, maps: Tensor, metrics: Sequence[str], given: dict[str, Any]
) -> dict[str, Floats]:
    found = _quietly(lambda: api.evaluate(model, images, maps, list(metrics), **given))
    return {metric: found[metric].double().cpu().numpy() for metric in metrics}


def _shuffled(maps: Tensor, seed: int) -> Tensor:
    flat = maps.flatten(1)
    order = torch.randperm(flat.shape[1], generator=torch.Generator().manual_seed(seed))
    return flat[:, order].reshape(maps.shape)


def _mask(evidence: Any) -> Tensor:
    return torch.from_numpy(evidence).long()


def _quietly(work: Any) -> Any:
    with without_warnings():
        return work()
