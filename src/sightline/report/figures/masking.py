"""The evidence of each class masked in turn, with the probabilities of the classes before and after."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from sightline.audit.figures.evidence_masking import MaskedEvidence
from sightline.errors import InputError
from sightline.models.inputs import as_picture
from sightline.report.figure import overlay
from sightline.report.figures.sheet import Cell, Row, photograph_of, sheet

__all__ = ["masked_evidence"]


def masked_evidence(found: Sequence[MaskedEvidence], *, title: str = "", width: int = 190) -> Image.Image:
    """Draw a row per method: the image, the map of each class, and the image without the evidence of each class.

    Below the image and below each masked image stand the probabilities of all the classes.

    Args:
        found: what `mask_evidence` returned for each method.
        title: of the figure.
        width: of one picture, in points.
    """
    if not found:
        raise InputError("got no masked evidence; mask that of one method at least")
    return sheet([_row(one) for one in found], title=title, width=width)


def _row(found: MaskedEvidence) -> Row:
    photograph = photograph_of(found.maps[0])
    cells = [Cell(photograph, "image", _scores(found.labels, found.before))]
    for one, label in zip(found.maps, found.labels, strict=True):
        cells.append(Cell(overlay(photograph, one.pixels()[0].cpu().numpy()), label))
    for seen, label, after in zip(found.seen, found.labels, found.after, strict=True):
        cells.append(Cell(as_picture(seen.cpu()), f"without {label}", _scores(found.labels, after)))
    return Row(cells, found.maps[0].recipe)


def _scores(labels: Sequence[str], probabilities: Sequence[float]) -> str:
    return "\n".join(f"{label} {value:.2f}" for label, value in zip(labels, probabilities, strict=True))
