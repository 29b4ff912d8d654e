"""Insertion and deletion: the area under the model's response as pixels enter or leave in the order of the map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sightline.metrics.case import Case, CurveArea, Measurement
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.models.adapter import Adapter
from sightline.perturb.curve import STEP, Curve, Direction, Score, Tie
from sightline.perturb.fill import FillOption, removing_fill
from sightline.registry import METRICS
from sightline.types import Passes

PARITY = "eclique/RISE: curves and areas to 1e-4 on a real ViT and a photograph"


@METRICS.register(
    "insertion", family="faithfulness", cite="petsiuk2018", cost="225 forward", direction="higher", parity=PARITY
)
@dataclass(frozen=True, slots=True)
class Insertion(CurveArea):
    r"""Area under the class probability as the most important pixels enter a blurred image.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \frac{p_{k-1} + p_k}{2}, \qquad n = \lceil HW / \mathrm{step} \rceil

    where :math:`p_k` is the target class's probability once the :math:`k \cdot \mathrm{step}` most important pixels of
    the image have replaced those of its blurred copy :cite:p:`petsiuk2018`. A map that ranks first the pixels the model
    needs lets the probability rise early.

    It rewards finding enough evidence, not all of it. The blur of the protocol is weak (`radius` 5, an 11×11 kernel,
    `sigma` 5): on some photographs the class is still recognised in the blurred copy, the curve starts high and says
    little about the map. Read it beside a strong one, ``insertion(radius=15, sigma=31.0)``.

    It costs :math:`n + 1` forward passes.

    Edge cases: a constant map is judged by the order of its ties and flagged; coarse maps are full of ties, so compare
    them under one tie rule. The last step takes the remaining pixels and weighs as much as the others. A step as large
    as the image leaves the two endpoints, whatever the map. Where the image itself is unlikely to be of the class, the
    area is near zero for every map.

    Attributes:
        fill: the image that the curve starts from: blur, zero (after normalisation), black, white, mean; from Python
            also an in-painter, a function of pictures in 0..1 and of the missing pixels that gives whole pictures.
    """

    fill: FillOption = "blur"
    direction: ClassVar[Direction] = "insert"


@METRICS.register(
    "deletion", family="faithfulness", cite="petsiuk2018", cost="225 forward", direction="lower", parity=PARITY
)
@dataclass(frozen=True, slots=True)
class Deletion(CurveArea):
    r"""Area under the class probability as the most important pixels are removed from the image.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \frac{p_{k-1} + p_k}{2}, \qquad n = \lceil HW / \mathrm{step} \rceil

    where :math:`p_k` is the target class's probability once the :math:`k \cdot \mathrm{step}` most important pixels
    have become zero after normalisation, the mean colour, not black :cite:p:`petsiuk2018`. A map that ranks first the
    pixels the model relies on lets the probability fall early.

    It also rewards scattered maps: holes all over an image disturb a network wherever they are. Read it with insertion.

    It costs :math:`n + 1` forward passes.

    Edge cases: those of `insertion`; a constant map is flagged.

    Attributes:
        fill: what removed pixels become: zero (after normalisation), blur, black, white, mean; from Python also an
            in-painter, a function of pictures in 0..1 and of the missing pixels that gives whole pictures.
    """

    direction: ClassVar[Direction] = "delete"


@METRICS.register(
    "ins_del",
    family="faithfulness",
    cite="petsiuk2018, caap2026",
    cost="449 forward",
    direction="higher",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class InsDel(PerturbationOptions):
    r"""Insertion minus deletion: one number for both.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \frac{d_{k-1} + d_k}{2}, \qquad d_k = p^{\mathrm{ins}}_k - p^{\mathrm{del}}_k

    the area between the two curves of `insertion` and `deletion` :cite:p:`petsiuk2018`. What raises both for every
    map, such as an easy image, cancels: a map in random order scores near zero.

    It shares both curves with the two metrics when they are asked for together, and costs :math:`2n + 1` forward passes
    alone. The warning about the weak blur is theirs too.

    Edge cases: those of `insertion` and `deletion`; a constant map is flagged.

    Attributes:
        fill: two names: the image that insertion starts from, and what pixels removed by deletion become.
    """

    step: int = STEP
    fill: tuple[FillOption, FillOption] = ("blur", "zero")
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
            removing_fill(self.fill[0], *blur)  # refuses options that neither fill would use
        start, end = (removing_fill(name, *blur) if name == "blur" else removing_fill(name) for name in self.fill)
        rest = (self.step, self.score, self.tie, self.seed)
        return Curve("insert", start, *rest), Curve("delete", end, *rest)

    def __call__(self, case: Case, /) -> Measurement:
        inserted, deleted = map(case.curve, self.curves)
        return case.measure_area(inserted - deleted)

    def cost(self, model: Adapter, /) -> Passes:
        insert, delete = self.curves
        shared = 2 if insert.fill == delete.fill else 1  # the image, and the filled image where it is the same
        return Passes(forward=insert.passes(model) + delete.passes(model) - shared)
