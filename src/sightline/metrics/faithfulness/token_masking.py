"""True token masking: insertion and deletion of patches by dropping their tokens instead of filling pixels.

The tokens of removed patches leave the sequence after their positions were added :cite:p:`skipplus2024`. No fill can
act as evidence of its own, and the passes are shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, area, flags_where, join_flags
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.models.adapter import Adapter
from sightline.models.passes import in_batches
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.curve import Direction, Tie, importance_order, ranks, responses
from sightline.perturb.fill import FillName, make_fill
from sightline.perturb.patch_values import patch_values
from sightline.perturb.tokens import run_kept
from sightline.registry import METRICS
from sightline.targets.classes import Logits
from sightline.types import Passes, Target

Drop = Literal["probability", "log_probability"]
PARITY = "closed form; dropping tokens equals running the model on the remaining sequence"
READ_PATCHES = ("mean", "cls+mean", "map")  # classifiers that need a patch at least


@dataclass(frozen=True, slots=True)
class _TokenMasking(PerturbationOptions):
    """Base of the metrics of true token masking.

    Attributes:
        steps: the curve has this many points, one share 1/steps apart.
        fill: what pixels become on a model without tokens: zero (after normalisation), blur, black, white, mean.
    """

    steps: int = 10
    fill: FillName = "zero"
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    direction: ClassVar[Direction]

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise RecipeError(f"got steps={self.steps}; a curve needs two points at least, so give 2 or more")

    def __call__(self, case: Case, /) -> Measurement:
        target = self.followed(case)
        clean = case.read(target, case.clean[:, None])
        masked = case.read(target, _masked_logits(case, self))
        curve = torch.cat([clean, masked] if self.direction == "delete" else [masked, clean], dim=1)
        curve = self.height(curve, clean)
        filled = torch.full((len(curve),), not isinstance(case.model, VisionTransformer))
        flags = flags_where(filled, f"no tokens to drop: pixels filled ({self.fill})")
        return Measurement(area(curve), curve, join_flags(case.flags, flags))

    def followed(self, case: Case) -> Target:
        """Return what is read from the logits."""
        return case.followed("accuracy", truth=True)

    def height(self, curve: Tensor, clean: Tensor) -> Tensor:
        """Return what the area is taken of, from the score at each point and on the image."""
        return curve

    def cost(self, model: Adapter, /) -> Passes:
        if not isinstance(model, VisionTransformer) or not model.input_size:
            return Passes(forward=float(self.steps))
        grid = model.grid
        kept = [len(keep) for keep in _kept(torch.arange(grid.cells), self, model)]
        return Passes(forward=1 + sum((grid.prefix + count) / grid.tokens for count in kept))


@dataclass(frozen=True, slots=True)
class _Aopc(_TokenMasking):
    """Base of the areas over the perturbation curve.

    Attributes:
        score: whose drop is followed: the probability's, or its logarithm's (log_probability).
    """

    score: Drop = "probability"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def followed(self, case: Case) -> Target:
        return case.followed(self.score, truth=True)

    def height(self, curve: Tensor, clean: Tensor) -> Tensor:
        return clean - curve


@METRICS.register(
    "deletion_accuracy",
    family="token_masking",
    cite="skipplus2024",
    cost="10 forward, shortened: about 6",
    direction="lower",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class DeletionAccuracy(_TokenMasking):
    r"""Area under the accuracy as the tokens of the most important patches are dropped.

    .. math:: \frac{1}{0.9} \int_0^{0.9} \mathbb{1}[\arg\max_k y_k(x^{-f}) = c]\, df

    where :math:`x^{-f}` are the tokens without the most important share :math:`f` of the patches, removed after the
    positions were added and not painted over; prefix tokens stay :cite:p:`skipplus2024`. The integral is the trapezoid
    rule over f = 0, 0.1, …, 0.9, and :math:`c` the label of the image where labels are given, else the target's class.
    Of a model with several labels at once, :math:`c` is right where its probability is a half or more.
    The value is the curve's mean height; the paper prints 100 minus 90 times the mean over images.

    A patch's importance is the map's value where the map is an enlarged grid of patches, and its mean over the patch
    otherwise. It costs one pass and nine shortened ones, shared with `deletion_aopc`.

    Edge cases: on a model without tokens, such as a convolutional one, the most important pixels are filled instead,
    and every image is flagged: do not compare those numbers with true masking. A classifier that averages patches
    always keeps one. A constant map is judged by the order of its ties and flagged.
    """

    direction: ClassVar[Direction] = "delete"


@METRICS.register(
    "insertion_accuracy",
    family="token_masking",
    cite="skipplus2024",
    cost="10 forward, shortened: about 5.5",
    direction="higher",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class InsertionAccuracy(_TokenMasking):
    r"""Area under the accuracy when only the tokens of the most important patches are kept.

    .. math:: \frac{1}{0.9} \int_{0.1}^{1} \mathbb{1}[\arg\max_k y_k(x^{+f}) = c]\, df

    where :math:`x^{+f}` are the prefix tokens and the most important share :math:`f` of the patches, nothing standing
    in for the rest :cite:p:`skipplus2024`. The integral is the trapezoid rule over f = 0.1, …, 0.9, 1, and :math:`c`
    the label of the image where labels are given, else the target's class. The value is the curve's mean height; the
    paper prints 90 times the mean over images.

    It costs one pass and nine shortened ones, shared with `insertion_aopc`. A patch's importance is that of
    `deletion_accuracy`.

    Edge cases: as in `deletion_accuracy`, models without tokens among them; a constant map is flagged.
    """

    direction: ClassVar[Direction] = "insert"


@METRICS.register(
    "deletion_aopc",
    family="token_masking",
    cite="skipplus2024",
    cost="10 forward, shortened: about 6",
    direction="higher",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class DeletionAopc(_Aopc):
    r"""Area over the class probability (AOPC) as the tokens of the most important patches are dropped.

    .. math:: \frac{1}{0.9} \int_0^{0.9} \bigl( p_c(x) - p_c(x^{-f}) \bigr)\, df

    the mean drop of the probability, with the tokens :math:`x^{-f}` and the class :math:`c` of `deletion_accuracy`,
    whose passes it shares :cite:p:`skipplus2024`. ``score='log_probability'`` gives the log-odds instead,
    :math:`\log p_c(x) - \log p_c(x^{-f})`. The value is the mean height; the paper prints 90 times the mean over
    images. Negative where the class becomes likelier without its patches.

    A patch's importance is that of `deletion_accuracy`.

    Edge cases: as in `deletion_accuracy`, models without tokens among them; a constant map is flagged.
    """

    direction: ClassVar[Direction] = "delete"


@METRICS.register(
    "insertion_aopc",
    family="token_masking",
    cite="skipplus2024",
    cost="10 forward, shortened: about 5.5",
    direction="lower",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class InsertionAopc(_Aopc):
    r"""Area over the class probability (AOPC) when only the tokens of the most important patches are kept.

    .. math:: \frac{1}{0.9} \int_{0.1}^{1} \bigl( p_c(x) - p_c(x^{+f}) \bigr)\, df

    with the tokens :math:`x^{+f}` and the class :math:`c` of `insertion_accuracy`, whose passes it shares
    :cite:p:`skipplus2024`. ``score='log_probability'`` gives the log-odds. The value is the mean height; the paper
    prints 100 minus 90 times the mean over images. Negative where the chosen patches alone are clearer than the image.

    A patch's importance is that of `deletion_accuracy`.

    Edge cases: as in `deletion_accuracy`, models without tokens among them; a constant map is flagged.
    """

    direction: ClassVar[Direction] = "insert"


def _masked_logits(case: Case, metric: _TokenMasking) -> Tensor:
    """Return the logits at every share between none and all, (batch, points, class), once for metrics that agree."""
    dropped = isinstance(case.model, VisionTransformer)
    key = ("masked", metric.direction, metric.steps, metric.tie, metric.seed, None if dropped else metric.fill)
    return case.once(key, lambda: (_dropped if dropped else _filled)(case, metric))


def _dropped(case: Case, metric: _TokenMasking) -> Tensor:
    model = case.model
    assert isinstance(model, VisionTransformer)
    cells = case.once("patch values", lambda: patch_values(case.maps, model.grid_of(case.images)))
    order = importance_order(cells, metric.tie, metric.seed)

    def work(rows: slice) -> Tensor:
        tokens = model.start(case.images[rows])
        kept = _kept(order[rows].T, metric, model)
        return torch.stack([run_kept(model, tokens, keep.T.sort(dim=1).values) for keep in kept], dim=1)

    with torch.no_grad():
        return torch.cat(in_batches(work, len(case.images), model.batch))


def _kept(order: Tensor, metric: _TokenMasking, model: VisionTransformer) -> list[Tensor]:
    """Cut an order of patches, (patch, …), into what stays at each share: its beginning or its end."""
    least = 1 if model.pool in READ_PATCHES else 0
    counts = _counts(len(order), metric.steps)
    if metric.direction == "insert":
        return [order[: max(count, least)] for count in counts]
    return [order[min(count, len(order) - least) :] for count in counts]


def _counts(items: int, steps: int) -> list[int]:
    """Return how many items are the shares 1/steps, …, (steps − 1)/steps of all.

    >>> _counts(196, 10)[:3]
    [19, 39, 58]
    """
    return [items * step // steps for step in range(1, steps)]


def _filled(case: Case, metric: _TokenMasking) -> Tensor:
    """Fill the most important pixels, or all others, of a model that has no tokens."""
    before, after = case.images, make_fill(metric.fill)(case.model, case.images)
    if metric.direction == "insert":
        before, after = after, before
    pixel_ranks = ranks(case.order(metric.tie, metric.seed))
    counts = _counts(pixel_ranks.shape[1], metric.steps)
    return responses(case.model, before, after, Logits(), pixel_ranks, counts)
