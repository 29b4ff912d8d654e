"""MDA: its order as numbered patches, and its maps at several densities without a model pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sightline.errors import InputError
from sightline.operators.density import Refinement
from sightline.report.figure import Numbers, overlay
from sightline.report.figures.sheet import Cell, Row, photograph_of, sheet
from sightline.report.layout import INK, PAPER
from sightline.types import Attribution

__all__ = ["density_sweep", "numbered_patches", "patch_orders"]

GAMMAS = (0.0, 0.25, 0.5, 0.75, 1.0)
_SIDE = 44  # pixels that the number of a patch needs


def numbered_patches(attribution: Attribution, index: int = 0) -> Image.Image:
    """Draw the photograph with the place of each patch in MDA's order, 1 being the most important.

    Patches that the insertion phase placed have white numbers with a dark edge, those of the deletion phase dark ones
    with a white edge.

    Args:
        attribution: of ``mda(…)``.
        index: which image of the attribution.
    """
    found = refinement_of(attribution).images[index]
    labels = found.segments.labels.cpu().numpy()
    smallest = float(np.sqrt(found.segments.pixels.min().item()))
    scale = max(1, round(_SIDE / smallest))
    photograph = photograph_of(attribution, index)
    size = (photograph.width * scale, photograph.height * scale)
    picture = overlay(photograph, attribution.pixels()[index].cpu().numpy()).resize(size, Image.Resampling.BICUBIC)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size=round(0.36 * smallest * scale))
    for place, segment in enumerate(found.search.order, 1):
        rows, columns = np.nonzero(labels == segment)
        centre = ((columns.mean() + 0.5) * scale, (rows.mean() + 0.5) * scale)
        inserted = place <= found.search.inserted
        ink, edge = (PAPER, INK) if inserted else (INK, PAPER)
        draw.text(centre, str(place), fill=ink, stroke_fill=edge, stroke_width=2, font=font, anchor="mm")
    return picture


def patch_orders(
    attributions: Sequence[Attribution],
    names: Sequence[str],
    notes: Sequence[str] = (),
    *,
    columns: int = 3,
    title: str = "",
    width: int = 190,
) -> Image.Image:
    """Draw the orders of several MDA maps of one image: the first patch in full red, the last one in full blue.

    Args:
        attributions: of ``mda(…)``, each of one image.
        names: what stands above each picture.
        notes: what stands below each, such as its scores.
        columns: pictures per row.
        title: of the figure.
        width: of one picture, in points.
    """
    count = len(attributions)
    if len(names) != count or len(notes) not in (0, count):
        raise InputError(f"got {len(names)} names and {len(notes)} notes for {count} maps; give one of each per map")
    pictures = [overlay(photograph_of(one), _order_values(one), fade=1.0) for one in attributions]
    cells = [Cell(*each) for each in zip(pictures, names, notes or [""] * len(pictures), strict=True)]
    rows = [Row(cells[first : first + columns]) for first in range(0, len(cells), columns)]
    return sheet(rows, title=title, line="red: first in the order, blue: last", width=width)


def _order_values(attribution: Attribution) -> Numbers:
    """Return the place of each pixel's patch in the order, from 1 for the first to -1 for the last."""
    found = refinement_of(attribution).images[0]
    places = np.empty(found.segments.count)
    places[list(found.search.order)] = np.linspace(1, -1, found.segments.count)
    values: Numbers = places[found.segments.labels.cpu().numpy()]
    return values


def density_sweep(
    attribution: Attribution,
    index: int = 0,
    *,
    gammas: Sequence[float] = GAMMAS,
    kappas: Sequence[float] | None = None,
    title: str = "",
    width: int = 150,
) -> Image.Image:
    """Draw MDA's map at several densities gamma, one row per kappa; no model pass is spent.

    Args:
        attribution: of ``mda(…)``.
        index: which image of the attribution.
        gammas: the densities, from 0 (sparse) to 1 (dense).
        kappas: the least values that count as important; by default the recipe's own.
        title: of the figure.
        width: of one picture, in points.
    """
    details = refinement_of(attribution)
    photograph = photograph_of(attribution, index)
    rows = []
    for kappa in (details.kappa,) if kappas is None else kappas:
        maps = [details.with_density(gamma, kappa=kappa).pixels()[index].cpu().numpy() for gamma in gammas]
        pairs = zip(gammas, maps, strict=True)
        cells = [Cell(overlay(photograph, values), f"gamma {gamma:g}", _covered(values)) for gamma, values in pairs]
        rows.append(Row([Cell(photograph, "image"), *cells], f"kappa {kappa:g}"))
    return sheet(rows, title=title or attribution.recipe, width=width)


def refinement_of(attribution: Attribution) -> Refinement:
    """Return the order and the magnitudes of an MDA attribution, or say that it is none."""
    if not isinstance(attribution.details, Refinement):
        raise InputError(
            f"{attribution.recipe or 'the attribution'} holds no order of patches; explain with mda(…), in this process"
        )
    return attribution.details


def _covered(values: Numbers) -> str:
    """Say how much of the map is above half of its largest value."""
    peak = values.max()
    return f"{100 * float((values > peak / 2).mean()):.0f} % above half" if peak > 0 else "empty"
