"""Attention within an object, between objects and to the background, over the blocks of a transformer, as SVG."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sightline.audit.figures.attention_pairs import PAIRS
from sightline.errors import InputError
from sightline.report.figures.band_chart import Band, Chart, charts_document

__all__ = ["attention_chart"]


def attention_chart(pairs: npt.NDArray[np.float64], *, title: str = "") -> str:
    """Return the mean weight of each kind of pair over the blocks, with 95 % confidence bands over images.

    A kind of pair that no image has is left out.

    Args:
        pairs: what `attention_pairs` returned, (image, block, pair).
        title: of the figure.
    """
    values = np.asarray(pairs, dtype=np.float64)
    known = [k for k in range(values.shape[2]) if np.isfinite(values[:, :, k]).all(axis=1).any()]
    if not known:
        raise InputError("no image has patches of an object and of the background; give masks that cover some patches")
    bands = [Band(PAIRS[k], values[:, :, k], k) for k in known]
    ticks = [str(block) for block in range(values.shape[1])]
    chart = Chart("mean attention weight, uniform = 1", bands, ticks)
    return charts_document([chart], title=title, x_label="block")
