"""The page of ranked images: one HTML file that needs nothing else.

Pictures are embedded, style and script are inline, and every text is escaped, since file names and labels may hold
anything. The order of the maps and the verdict are the audit's; this module draws them.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from PIL import Image

from sightline.audit.explained_image import ExplainedImage
from sightline.audit.scored_map import ScoredMap
from sightline.audit.verdict import Verdict
from sightline.citations import keys_of, references, specs_of
from sightline.errors import RecipeError
from sightline.extras import require
from sightline.files import write_output
from sightline.formatting import format_count, format_probability, format_score
from sightline.report.charts.curve import line_chart
from sightline.report.figure import heat, overlay
from sightline.report.palette import DIVERGING, SEQUENTIAL, css_gradient

__all__ = ["ExplainPage", "ImageSection", "MapCard", "embed", "image_section", "render_page", "write_page"]

JUDGE = "ins_del"
SCORE_NAMES = {"insertion": "insertion", "deletion": "deletion", JUDGE: "insertion \N{MINUS SIGN} deletion"}
DIRECTIONS = {"insertion": "higher is better", "deletion": "lower is better", JUDGE: "higher is better"}
_LARGEST = 560  # pixels of the longer side of an embedded picture: sharp in a card, small in the file


@dataclass(frozen=True)
class MapCard:
    """One map of one image, drawn and scored; `note` may hold "control", "class-agnostic" or "constant map"."""

    recipe: str
    picture: Image.Image
    heat: Image.Image
    scores: Mapping[str, float | None]
    curves: Mapping[str, Sequence[float]]
    passes_forward: float
    passes_backward: float
    seconds: float
    rank: int | None
    note: str = ""
    cite: str = ""

    @property
    def is_control(self) -> bool:
        """Return whether this map knows nothing of the model and only serves for comparison."""
        return "control" in self.note.lower()


@dataclass(frozen=True)
class ImageSection:
    """One image: what the model says about it, and the maps that explain the target."""

    name: str
    picture: Image.Image
    classes: Sequence[tuple[str, float]]
    target: str
    target_probability: float | None
    maps: Sequence[MapCard]
    verdict: Verdict


@dataclass(frozen=True)
class ExplainPage:
    """Everything one run has to show."""

    title: str
    model: str
    sections: Sequence[ImageSection]
    command: str
    versions: Mapping[str, str] = field(default_factory=dict)
    metric_notes: Mapping[str, str] = field(default_factory=dict)
    bibtex: str = ""


def write_page(page: ExplainPage, path: Path | str) -> Path:
    """Write the page, whole or not at all; raise `OutputError` when the folder cannot be written."""
    # A file name may hold bytes that are no text; they become "?" instead of stopping the run at its last step.
    return write_output(path, render_page(page).encode("utf-8", errors="replace"))


def image_section(image: ExplainedImage, name: str = "") -> ImageSection:
    """Draw what the page shows of an image: the picture, the classes, every map over what the model saw."""
    return ImageSection(
        name=name or image.name,
        picture=image.view.picture,
        classes=[(each.label, each.probability or 0.0) for each in image.top],
        target=image.target.label,
        target_probability=image.target.probability,
        maps=[_map_card(image, scored) for scored in image.maps],
        verdict=image.verdict,
    )


def _map_card(image: ExplainedImage, scored: ScoredMap) -> MapCard:
    picture = image.view.picture
    return MapCard(
        recipe=scored.recipe,
        picture=overlay(picture, scored.map),
        heat=heat(scored.map, picture.size),
        scores={JUDGE: scored.ins_del, "insertion": scored.insertion, "deletion": scored.deletion},
        curves=scored.curves,
        passes_forward=scored.passes.forward,
        passes_backward=scored.passes.backward,
        seconds=scored.seconds,
        rank=scored.rank,
        note=scored.note,
        cite=_cited(scored.recipe),
    )


def _cited(recipe: str) -> str:
    """Return the papers behind a recipe in a few words: first author and year of each."""
    try:
        keys = keys_of(specs_of(recipe))
    except RecipeError:  # an object from outside the registries
        return ""
    known = references()
    return "; ".join(known[key].brief for key in keys if key in known)


def render_page(page: ExplainPage) -> str:
    """Return the page as HTML text."""
    jinja2 = require("jinja2")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(score=format_score, percent=format_probability, count=format_count)
    template = resources.files("sightline.report").joinpath("templates/explain.html.j2").read_text("utf-8")
    text = environment.from_string(template).render(
        page=page,
        sections=[_section(section, f"image-{index}") for index, section in enumerate(page.sections, 1)],
        score_names=SCORE_NAMES,
        directions=DIRECTIONS,
        judge=JUDGE,
        gradients={"signed": css_gradient(DIVERGING), "unsigned": css_gradient(SEQUENTIAL)},
    )
    return str(text)


def ranked(maps: Sequence[MapCard]) -> list[MapCard]:
    """Return the maps in the order of their rank; those without one come last, as they came."""
    return sorted(maps, key=lambda card: math.inf if card.rank is None else card.rank)


def _section(section: ImageSection, anchor: str) -> dict[str, Any]:
    """Gather what the template needs to know about one image."""
    cards = ranked(section.maps)
    names = list(dict.fromkeys(name for card in cards for name in card.scores))
    return {
        "anchor": anchor,
        "image": section,
        "photo": embed(section.picture),
        "thumb": embed(section.picture, 96),
        "verdict": section.verdict,
        "cards": [_card(card, f"{anchor}-map-{number}") for number, card in enumerate(cards, 1)],
        "metrics": sorted(names, key=lambda name: name != JUDGE),  # the judge first, the others as they came
        "ordered": bool(cards) and cards[0].rank is not None,
        "charts": [chart for kind in ("insertion", "deletion") if (chart := _compare(cards, kind, anchor))],
    }


def _card(card: MapCard, anchor: str) -> dict[str, Any]:
    chart = line_chart(
        card.curves, x_label="share of pixels", y_label="", title="", size=(280, 104), identifier=f"{anchor}-curves"
    )
    return {
        "map": card,
        "overlay": embed(card.picture),
        "heat": embed(card.heat),
        "size": card.picture.size,
        "chart": chart if card.curves else "",
    }


def _compare(cards: Sequence[MapCard], kind: str, anchor: str) -> str:
    """Draw one kind of curve for all maps of an image, the controls in grey; nothing when no map has it."""
    curves = {card.recipe: card.curves[kind] for card in cards if kind in card.curves}
    if not curves:
        return ""
    return line_chart(
        curves,
        x_label=f"share of pixels {'shown' if kind == 'insertion' else 'removed'}, most important first",
        y_label="probability of the target",
        title=f"{kind.capitalize()} ({DIRECTIONS[kind]})",
        muted=[card.recipe for card in cards if card.is_control],
        identifier=f"{anchor}-{kind}",
    )


def embed(image: Image.Image, largest: int = _LARGEST) -> str:
    """Return a picture as a data URI: JPEG, or PNG where a picture of few colours is smaller that way."""
    small = image.convert("RGB")
    small.thumbnail((largest, largest), Image.Resampling.LANCZOS)
    jpeg = io.BytesIO()
    small.save(jpeg, format="JPEG", quality=86, optimize=True)
    kind, data = "jpeg", jpeg.getvalue()
    if small.getcolors(256) is not None:
        png = io.BytesIO()
        small.quantize(256, dither=Image.Dither.NONE).save(png, format="PNG", optimize=True)
        kind, data = min((kind, data), ("png", png.getvalue()), key=lambda pair: len(pair[1]))
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
