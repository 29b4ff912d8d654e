"""Faithfulness: does the model's answer follow the pixels that the map calls important?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sightline.metrics.case import Case, Measurement
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Curve, Score
from sightline.perturb.fill import FillName, make_fill
from sightline.perturb.order import Tie
from sightline.registry import METRICS
from sightline.types import Passes

PARITY = "eclique/RISE: curves and areas to 1e-4 on a real ViT and a photograph"
USUAL_SIZE = (224, 224)  # assumed in the cost of a model that takes images of any size


@METRICS.register(
    "insertion", family="faithfulness", cite="petsiuk2018", cost="225 forward", direction="higher", parity=PARITY
)
@dataclass(frozen=True, slots=True)
class Insertion:
    r"""Area under the class probability as the most important pixels enter a blurred image.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \frac{p_{k-1} + p_k}{2}, \qquad n = \lceil HW / \mathrm{step} \rceil

    where :math:`p_k` is the target class's probability once the :math:`k \cdot \mathrm{step}` most important pixels of
    the image have replaced those of its blurred copy :cite:p:`petsiuk2018`. A map that names first what the model
    needs lets the probability rise early.

    It rewards finding enough evidence, not all of it. The blur of the protocol is weak (`radius` 5, an 11×11 kernel,
    `sigma` 5): on some photographs the class is still visible in the blurred copy, the curve starts high and says
    little about the map. Read it beside a strong one, ``insertion(radius=15, sigma=31.0)``.

    It costs :math:`n + 1` forward passes.

    Edge cases: a constant map is judged by the order of its ties and flagged; coarse maps are full of ties, so compare
    them under one tie rule. The last step takes the pixels that are left and weighs as much as the others. A step as
    large as the image leaves the two ends, whatever the map. Where the image itself is unlikely to be of the class, the
    area is near zero for every map.

    Attributes:
        step: pixels per step.
        fill: where the curve starts: blur, zero, black, white, mean.
        radius: of the blur, in pixels.
        sigma: of the blur.
        score: what is followed: probability, log_probability, logit, accuracy. A target without a class, such as a
            contrast, is followed itself, and the area is then in its units.
        tie: the order of equal pixels: index (row-major), or random, by the seed.
        seed: of random ties.
    """

    step: int = 224
    fill: FillName = "blur"
    radius: int = 5
    sigma: float = 5.0
    score: Score = "probability"
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        _ = self.curve  # refuses wrong options now, not when the first image arrives

    @property
    def curve(self) -> Curve:
        fill = make_fill(self.fill, self.radius, self.sigma)
        return Curve("insert", fill, self.step, self.score, self.tie, self.seed)

    def __call__(self, case: Case, /) -> Measurement:
        return _area(case, case.curve(self.curve))

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=_points(model, self.curve))


@METRICS.register(
    "deletion", family="faithfulness", cite="petsiuk2018", cost="225 forward", direction="lower", parity=PARITY
)
@dataclass(frozen=True, slots=True)
class Deletion:
    r"""Area under the class probability as the most important pixels leave the image.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \frac{p_{k-1} + p_k}{2}, \qquad n = \lceil HW / \mathrm{step} \rceil

    where :math:`p_k` is the target class's probability once the :math:`k \cdot \mathrm{step}` most important pixels
    have become zero after normalisation, the mean colour, not black :cite:p:`petsiuk2018`. A map that names first what
    the model relies on lets the probability fall early.

    It also rewards scattered maps: holes all over an image disturb a network wherever they are. Read it with insertion.

    It costs :math:`n + 1` forward passes.

    Edge cases: a constant map is judged by the order of its ties and flagged; coarse maps are full of ties, so compare
    them under one tie rule. The last step takes the pixels that are left and weighs as much as the others. A step as
    large as the image leaves the two ends, whatever the map. Where the image itself is unlikely to be of the class, the
    area is near zero for every map.

    Attributes:
        step: pixels per step.
        fill: what pixels become: zero, blur, black, white, mean.
        radius: of the blur, in pixels.
        sigma: of the blur.
        score: what is followed: probability, log_probability, logit, accuracy. A target without a class, such as a
            contrast, is followed itself, and the area is then in its units.
        tie: the order of equal pixels: index (row-major), or random, by the seed.
        seed: of random ties.
    """

    step: int = 224
    fill: FillName = "zero"
    radius: int = 5
    sigma: float = 5.0
    score: Score = "probability"
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        _ = self.curve

    @property
    def curve(self) -> Curve:
        fill = make_fill(self.fill, self.radius, self.sigma)
        return Curve("delete", fill, self.step, self.score, self.tie, self.seed)

    def __call__(self, case: Case, /) -> Measurement:
        return _area(case, case.curve(self.curve))

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=_points(model, self.curve))


@METRICS.register(
    "ins_del",
    family="faithfulness",
    cite="petsiuk2018, caap2026",
    cost="449 forward",
    direction="higher",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class InsDel:
    r"""Insertion minus deletion: one number for both.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \frac{d_{k-1} + d_k}{2}, \qquad d_k = p^{\mathrm{ins}}_k - p^{\mathrm{del}}_k

    the area between the two curves of `insertion` and `deletion` :cite:p:`petsiuk2018`. What raises both for every
    map, such as an easy image, cancels: a map in random order scores near zero.

    It shares both curves with the two metrics when they are asked for together, and costs :math:`2n + 1` forward passes
    alone. The warning about the weak blur is theirs too.

    Edge cases: those of `insertion` and `deletion`; a constant map is flagged.

    Attributes:
        step: pixels per step.
        fill: two names: where insertion starts, and what deletion leaves.
        radius: of the blur among the fills, in pixels.
        sigma: of the blur.
        score: what is followed: probability, log_probability, logit, accuracy. A target without a class, such as a
            contrast, is followed itself, and the area is then in its units.
        tie: the order of equal pixels: index (row-major), or random, by the seed.
        seed: of random ties.
    """

    step: int = 224
    fill: tuple[FillName, FillName] = ("blur", "zero")
    radius: int = 5
    sigma: float = 5.0
    score: Score = "probability"
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        _ = self.curves

    @property
    def curves(self) -> tuple[Curve, Curve]:
        blur = (self.radius, self.sigma)
        if "blur" not in self.fill:
            make_fill(self.fill[0], *blur)  # refuses options that neither fill would use
        start, end = (make_fill(name, *blur) if name == "blur" else make_fill(name) for name in self.fill)
        rest = (self.step, self.score, self.tie, self.seed)
        return Curve("insert", start, *rest), Curve("delete", end, *rest)

    def __call__(self, case: Case, /) -> Measurement:
        inserted, deleted = map(case.curve, self.curves)
        return _area(case, inserted - deleted)

    def cost(self, model: Adapter, /) -> Passes:
        insert, delete = self.curves
        shared = 2 if insert.fill == delete.fill else 1  # the image, and the filled image where it is the same
        return Passes(forward=_points(model, insert) + _points(model, delete) - shared)


def area(curve: Tensor) -> Tensor:
    """Return the mean height of curves with evenly spaced points, (..., points) -> (...), by the trapezoid rule.

    >>> area(torch.tensor([1.0, 0.5, 0.0]))
    tensor(0.5000, dtype=torch.float64)
    """
    return torch.trapezoid(curve.double(), dim=-1) / (curve.shape[-1] - 1)


def _area(case: Case, curve: Tensor) -> Measurement:
    return Measurement(area(curve), curve, case.flags)


def _points(model: Adapter, curve: Curve) -> int:
    height, width = model.input_size or USUAL_SIZE
    return len(curve.counts(height * width))
