"""Segmentation metrics: the map, thresholded at its own mean, compared with a mask of the object.

The protocol of :cite:t:`chefer2021transformer`. Each map is scaled to 0..1 and a pixel is object where it exceeds the
mean. Masks say where the object is: 1 object, 0 background, -1 ignored. Two of the four published figures are ratios
of counts over a whole set of images, not means over images: the counts are in the curve of a measurement, and
`pixel_accuracy_of` and `mean_iou_of` reduce them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.metrics.case import Case, Measurement, WithoutPasses, flags_where, join_flags
from sightline.metrics.localisation.evidence import ratio
from sightline.metrics.localisation.pointing import average_precision
from sightline.metrics.scaling import min_max
from sightline.registry import METRICS

PARITY = "hila-chefer/Transformer-Explainability: counts exact, average precision and F1 to 1e-6 on nine cases"
Over = Literal["rows", "pixels"]
Cut = Literal["none", "mean", "best"]


@METRICS.register(
    "pixel_accuracy",
    family="segmentation",
    cite="chefer2021transformer",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class PixelAccuracy(WithoutPasses):
    r"""Pixel accuracy of the map as a segmentation, thresholded at its mean.

    .. math:: \frac{|P \cap M| + |\bar P \cap \bar M|}{|M| + |\bar M|}, \qquad
              P = \{i : r_i > \operatorname{mean}(r)\}, \quad r = \frac{a - \min a}{\max a - \min a}

    where :math:`M` is the object and :math:`\bar M` the background :cite:p:`chefer2021transformer`. Where objects are
    small, a map that marks nothing scores high.

    The published figure is the ratio of the sums over all images: the curve holds the two counts (right, labelled) of
    each image, and `pixel_accuracy_of` reduces them.

    Edge cases: a constant map marks nothing, and is flagged; ignored pixels do not count, though the mean is over all;
    without an object the score stands and is flagged; without a labelled pixel it is NaN.
    """

    def __call__(self, case: Case, /) -> Measurement:
        right, _, labelled = _counts(case)
        counts = torch.stack([right.sum(dim=1), labelled], dim=1)
        return _measure(case, counts[:, 0] / counts[:, 1], counts)


@METRICS.register(
    "mean_iou",
    family="segmentation",
    cite="chefer2021transformer",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class MeanIou(WithoutPasses):
    r"""Mean IoU of the map as a segmentation, thresholded at its mean, over object and background.

    .. math:: \frac{1}{2} \left( \frac{|P \cap M|}{|P \cup M|} + \frac{|\bar P \cap \bar M|}{|\bar P \cup \bar M|}
              \right)

    with the prediction :math:`P` of `pixel_accuracy` :cite:p:`chefer2021transformer`.

    The published figure sums intersections and unions over all images first: the curve holds the four counts of each
    image (intersection with background and object, union with background and object), and `mean_iou_of` reduces them.

    Edge cases: an empty union counts as 0; otherwise as `pixel_accuracy`.
    """

    def __call__(self, case: Case, /) -> Measurement:
        both, either, _ = _counts(case)
        return _measure(case, ratio(both, either).mean(dim=1), torch.cat([both, either], dim=1))


@METRICS.register(
    "mean_ap",
    family="segmentation",
    cite="chefer2021transformer",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class MeanAp(WithoutPasses):
    r"""Average precision of the map as a segmentation of object and background, all pixels of both in one ranking.

    .. math:: \mathrm{AP}\bigl([1 - r,\; r],\; [\bar M,\; M]\bigr), \qquad r = \frac{a - \min a}{\max a - \min a}

    :cite:p:`chefer2021transformer`. Every pixel is in the list twice, once as background and once as object. That is
    not the average precision of the object, `average_precision`: half of the list is right whatever the object's size,
    so a random map scores about one half. The published figure is the mean over images.

    Edge cases: a constant map scores one half, and is flagged; ignored pixels do not count; without an object the score
    stands and is flagged; without a labelled pixel it is NaN.

    Attributes:
        cut: "none", the map as it is; "mean", cut at its mean to zeros and ones, of which this is
            :math:`p^2 + (1 - p)/2` with the pixel accuracy p; "best", cut at the threshold, out of a hundred even ones,
            that is best for this image and mask, as :cite:t:`mda2025` does for its own maps: an upper bound, and no
            fair score beside maps cut otherwise.
    """

    cut: Cut = "none"

    def __call__(self, case: Case, /) -> Measurement:
        if self.cut == "none":
            return self._measured(case, min_max(case.maps))
        scaled = min_max(case.maps)
        if self.cut == "mean":
            return self._measured(case, (scaled > scaled.mean(dim=(1, 2), keepdim=True)).to(scaled))
        every = [self._measured(case, (scaled > threshold / 100).to(scaled)) for threshold in range(100)]
        return _measure(case, torch.stack([each.values for each in every]).nan_to_num(-1.0).amax(dim=0))

    def _measured(self, case: Case, scaled: Tensor) -> Measurement:
        scaled, masks = scaled.flatten(1), case.evidence.flatten(1)
        opposite = (1 - scaled).masked_fill(case.constant[:, None], 0)
        scores, right = torch.cat([opposite, scaled], dim=1), torch.cat([masks == 0, masks > 0], dim=1)
        return _measure(case, average_precision(scores, right, (masks >= 0).repeat(1, 2)))


@METRICS.register(
    "mean_f1",
    family="segmentation",
    cite="chefer2021transformer",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class MeanF1(WithoutPasses):
    r"""F1 of the map as a segmentation, thresholded at its mean, averaged over the rows of the image.

    .. math:: \frac{1}{H} \sum_{h=1}^{H} \frac{2\,|P_h \cap M_h|}{|P_h| + |M_h|}

    with the prediction :math:`P` of `pixel_accuracy`, row by row :cite:p:`chefer2021transformer`. A row that has no
    object counts 0 even when nothing is predicted there, so that a perfect map of a small object scores its height's
    share of the image: this is what the published code computes, and why published values are low. For the F1 of the
    whole image ask ``mean_f1(over='pixels')``. The published figure is the mean over images.

    Edge cases: as `pixel_accuracy`.

    Attributes:
        over: rows, as published; or pixels, all of them together.
    """

    over: Over = "rows"

    def __call__(self, case: Case, /) -> Measurement:
        predicted, wanted = _predicted(case) & (case.evidence >= 0), case.evidence > 0
        both, alone, true = (each.sum(dim=2).double() for each in (predicted & wanted, predicted, wanted))
        if self.over == "pixels":
            both, alone, true = (each.sum(dim=1, keepdim=True) for each in (both, alone, true))
        return _measure(case, ratio(2 * both, alone + true).mean(dim=1))


def pixel_accuracy_of(counts: Tensor) -> float:
    """Reduce the counts of images, (image, 2), to the pixel accuracy of the set: all right pixels by all labelled ones.

    >>> pixel_accuracy_of(torch.tensor([[1.0, 4.0], [0.0, 0.0], [5.0, 6.0]]))
    0.6
    """
    right, labelled = counts.nan_to_num(0.0).double().sum(dim=0).tolist()
    return right / labelled if labelled else float("nan")


def mean_iou_of(counts: Tensor) -> float:
    """Reduce the counts of images, (image, 4), to the mean IoU of the set: ratios of sums, then their mean.

    >>> mean_iou_of(torch.tensor([[1.0, 1.0, 2.0, 4.0], [1.0, 0.0, 2.0, 4.0]]))
    0.3125
    """
    total = counts.nan_to_num(0.0).double().sum(dim=0)
    return float(ratio(total[:2], total[2:]).mean()) if total[2:].any() else float("nan")


def _predicted(case: Case) -> Tensor:
    scaled = min_max(case.maps)
    return scaled > scaled.mean(dim=(1, 2), keepdim=True)


def _counts(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Count intersections and unions with background and object, (batch, 2) each, and labelled pixels, (batch,)."""
    predicted, masks = _predicted(case).flatten(1), case.evidence.flatten(1)
    labelled = masks >= 0
    pairs = ((~predicted & labelled, masks == 0), (predicted & labelled, masks > 0))
    both = torch.stack([(said & true).sum(dim=1) for said, true in pairs], dim=1)
    either = torch.stack([(said | true).sum(dim=1) for said, true in pairs], dim=1)
    return both.double(), either.double(), labelled.sum(dim=1).double()


def _measure(case: Case, values: Tensor, counts: Tensor | None = None) -> Measurement:
    masks = case.evidence.flatten(1)
    blind = ~(masks >= 0).any(dim=1)
    empty = ~(masks > 0).any(dim=1) & ~blind
    flags = join_flags(case.flags, flags_where(empty, "no foreground"), flags_where(blind, "no labelled pixel"))
    return Measurement(values.masked_fill(blind, float("nan")), counts, flags)
