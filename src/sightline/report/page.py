"""Write the page of one `sightline explain` run: one HTML file that needs nothing else.

Pictures are embedded, style and script are inline, and every text is escaped, since file names and labels may hold
anything. The order of the maps is the caller's `rank`; this module only says in words what that order is worth.
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

from sightline.extras import require
from sightline.report.charts.curve import line_chart
from sightline.report.figure import write_bytes
from sightline.report.palette import DIVERGING, SEQUENTIAL, css_gradient

__all__ = ["ExplainPage", "ImageSection", "MapCard", "render_page", "write_page"]

JUDGE = "ins_del"
SCORE_NAMES = {"insertion": "insertion", "deletion": "deletion", JUDGE: "insertion \N{MINUS SIGN} deletion"}
DIRECTIONS = {"insertion": "higher is better", "deletion": "lower is better", JUDGE: "higher is better"}
_JUDGED = f"Judged by {SCORE_NAMES[JUDGE]}, measured on this very image."
_MISSING = "\N{EN DASH}"
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
    target_probability: float
    maps: Sequence[MapCard]


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


@dataclass(frozen=True)
class Verdict:
    """What the ranking of one image says: `headline` in one line, `reason` in a few, `badge` on the first map."""

    headline: str
    reason: str
    badge: str = ""


def write_page(page: ExplainPage, path: Path | str) -> Path:
    """Write the page, whole or not at all; raise `OutputError` when the folder cannot be written."""
    # A file name may hold bytes that are no text; they become "?" instead of stopping the run at its last step.
    return write_bytes(render_page(page).encode("utf-8", errors="replace"), path)


def render_page(page: ExplainPage) -> str:
    """Return the page as HTML text."""
    jinja2 = require("jinja2")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(score=_score, percent=_percent, count=_count)
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


def verdict(maps: Sequence[MapCard]) -> Verdict:
    """Say which map comes first on this image, how that was judged, and how far it can be believed."""
    scored = [card for card in ranked(maps) if card.rank is not None]
    if not scored:
        return Verdict("These maps were not scored", "Without scores on this image no order among them can be trusted.")
    first, methods = scored[0], [card for card in scored if not card.is_control]
    if first.is_control:
        best = f" The best method, {methods[0].recipe}, comes in place {methods[0].rank}." if methods else ""
        reason = f"{_JUDGED} The control {first.recipe} comes first, and it knows nothing of the model.{best}"
        return Verdict("No method beat the controls on this image", reason, "a control comes first")
    reason = f"{_JUDGED} {_comparison(first, [card for card in scored if card.is_control])}"
    value = _number(first.scores.get(JUDGE))
    if value is not None and value <= 0:
        reason += " Even so its score is not above zero: trust none of these maps here."
    return Verdict(f"{first.recipe} is the most faithful map here", reason, "most faithful on this image")


def _comparison(first: MapCard, controls: Sequence[MapCard]) -> str:
    """Say by how much the first map beats the best control."""
    if not controls:
        return "No control was run, so chance is not ruled out."
    names = ", ".join(card.recipe for card in controls)
    value, best = _number(first.scores.get(JUDGE)), _number(controls[0].scores.get(JUDGE))
    lead = "" if value is None or best is None else f" It leads the best of them by {value - best:.2f}."
    return f"Controls that know nothing of the model stand beside it for comparison ({names}).{lead}"


def _section(section: ImageSection, anchor: str) -> dict[str, Any]:
    """Gather what the template needs to know about one image."""
    cards = ranked(section.maps)
    names = list(dict.fromkeys(name for card in cards for name in card.scores))
    return {
        "anchor": anchor,
        "image": section,
        "photo": _embed(section.picture),
        "thumb": _embed(section.picture, 96),
        "verdict": verdict(cards),
        "cards": [_card(card, f"{anchor}-map-{place}") for place, card in enumerate(cards, 1)],
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
        "overlay": _embed(card.picture),
        "heat": _embed(card.heat),
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


def _embed(image: Image.Image, largest: int = _LARGEST) -> str:
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


def _number(value: float | None) -> float | None:
    """Return a finite number, or None for a score that is missing or undefined."""
    return None if value is None or not math.isfinite(value) else float(value)


def _score(value: float | None) -> str:
    number = _number(value)
    return _MISSING if number is None else f"{number:.3f}".replace("-", "\N{MINUS SIGN}")


def _percent(value: float) -> str:
    number = _number(value)
    if number is None:
        return _MISSING
    return "< 0.1 %" if 0 < number < 0.001 else f"{100 * number:.1f} %"


def _count(value: float) -> str:
    """Write a count of passes, with one digit where a part of the model ran: 3, 12.5, 4,000."""
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:.1f}"
