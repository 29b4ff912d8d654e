"""Sanity curves: how alike maps stay while the layers of the model are re-initialised, as an SVG file."""

from __future__ import annotations

from collections.abc import Sequence

from sightline.audit.figures.randomisation_curves import RandomisationCurves
from sightline.errors import InputError
from sightline.report.figures.band_chart import Band, Chart, charts_document

__all__ = ["randomisation_chart"]

_TITLES = {"spearman": "Spearman", "pearson": "Pearson", "cosine": "cosine similarity", "ssim": "SSIM"}


def randomisation_chart(found: Sequence[RandomisationCurves], *, title: str = "") -> str:
    """Return four charts, one per similarity: the mean over images with its 95 % confidence band at each stage.

    A method and the same method inside an operator have one colour; the method alone is dashed. Lower is better.

    Args:
        found: what `randomisation_curves` returned.
        title: of the figure.
    """
    if not found:
        raise InputError("got no curves; randomise the model for one method at least")
    colours = {name: place for place, name in enumerate(dict.fromkeys(one.method for one in found))}
    paired = {one.method for one in found if one.recipe != one.method}
    ticks = [f"{100 * share:.0f} %" for share in found[0].shares]
    charts = [
        Chart(
            name,
            [
                Band(one.recipe, one.curves[similarity], colours[one.method], one.method == one.recipe in paired)
                for one in found
            ],
            ticks,
        )
        for similarity, name in _TITLES.items()
    ]
    return charts_document(charts, title=title or "similarity to the trained model's map", x_label="layers randomised")
