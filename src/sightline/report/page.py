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
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from PIL import Image

from sightline.audit.panel import ExplainedImage, ScoredMap, Verdict
from sightline.citations import brief_citation
from sightline.errors import RecipeError
from sightline.extras import require
from sightline.files import write_output
from sightline.formatting import format_count, format_interval, format_percent, format_probability, format_score
from sightline.report.charts.curve import line_chart
from sightline.report.figure import DIVERGING, SEQUENTIAL, css_gradient, draw_map
from sightline.report.outline import outlined

__all__ = [
    "ExplainPage",
    "ImageSection",
    "Link",
    "MapCard",
    "RenderedSection",
    "embed",
    "image_section",
    "load_template",
    "page_bytes",
    "render_page",
    "render_section",
    "write_page",
]

JUDGES = ("score", "ins_del")  # what maps are ranked by: the mean over several fills, or the main ones alone
SCORE_NAMES = {
    "score": "mean over the fills",
    "insertion": "insertion",
    "deletion": "deletion",
    "ins_del": "insertion \N{MINUS SIGN} deletion",
}
DIRECTIONS = {"deletion": "lower is better"} | dict.fromkeys(("score", "insertion", "ins_del"), "higher is better")
GRADIENTS = {"signed": css_gradient(DIVERGING), "unsigned": css_gradient(SEQUENTIAL)}  # of the legend
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
    fills: Mapping[str, float] = field(default_factory=dict)
    interval: tuple[float, float] | None = None
    share: float | None = None

    @property
    def judge(self) -> str:
        """Return the name of the score that the map is ranked by."""
        return next((name for name in JUDGES if name in self.scores), "")

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
class RenderedSection:
    """One image as HTML, and its row in the overview; texts alone, so that it can be kept in a file.

    Attributes:
        name: of the image.
        target: what is explained.
        target_probability: of it; None where the model has no probabilities.
        headline: of the verdict.
        thumb: a small picture, as a data URI.
        anchor: the id of the section.
        html: the section itself.
        page: the file that holds the section, where that is not the page with the overview.
    """

    name: str
    target: str
    target_probability: float | None
    headline: str
    thumb: str
    anchor: str
    html: str
    page: str = ""

    @property
    def href(self) -> str:
        """Where the overview links to."""
        return f"{self.page}#{self.anchor}"


@dataclass(frozen=True)
class Link:
    """A link to another page of the same run."""

    text: str
    href: str


@dataclass(frozen=True)
class ExplainPage:
    """Everything one run has to show, or one of its pages.

    Attributes:
        title: of the page.
        model: what it is called.
        sections: the images, in order.
        command: what makes the page again.
        versions: of the packages that were used.
        metric_notes: by score, a sentence on how to read it.
        bibtex: of the methods and metrics.
        links: to the other pages, where a run has several.
        overview: list the images and show none; they are on pages of their own.
    """

    title: str
    model: str
    sections: Sequence[ImageSection | RenderedSection]
    command: str
    versions: Mapping[str, str] = field(default_factory=dict)
    metric_notes: Mapping[str, str] = field(default_factory=dict)
    bibtex: str = ""
    links: Sequence[Link] = ()
    overview: bool = False


def write_page(page: ExplainPage, path: Path | str) -> Path:
    """Write the page, whole or not at all; raise `OutputError` when the folder cannot be written."""
    return write_output(path, page_bytes(page))


def page_bytes(page: ExplainPage) -> bytes:
    """Return the page as it is written to a file."""
    # A file name may hold bytes that are no text; they become "?" instead of stopping the run at its last step.
    return render_page(page).encode("utf-8", errors="replace")


def image_section(image: ExplainedImage, name: str = "") -> ImageSection:
    """Draw what the page shows of an image: the picture, the classes, every map over what the model saw."""
    picture = image.view.picture
    return ImageSection(
        name=name or image.name,
        picture=picture if image.region is None else outlined(picture, image.region),
        classes=[(each.label, each.probability or 0.0) for each in image.top],
        target=image.target.label,
        target_probability=image.target.probability,
        maps=[_map_card(image, scored) for scored in image.maps],
        verdict=image.verdict,
    )


def _map_card(image: ExplainedImage, scored: ScoredMap) -> MapCard:
    fills = scored.fills
    drawn, heat, shown = draw_map(image.view.picture, scored.map)
    if image.region is not None:
        drawn, heat = outlined(drawn, image.region), outlined(heat, image.region)
    judged = {} if fills is None else {"score": scored.score}
    return MapCard(
        recipe=scored.recipe,
        picture=drawn,
        heat=heat,
        scores={**judged, "ins_del": scored.ins_del, "insertion": scored.insertion, "deletion": scored.deletion},
        curves=scored.curves,
        passes_forward=scored.passes.forward,
        passes_backward=scored.passes.backward,
        seconds=scored.seconds,
        rank=scored.rank,
        note=", ".join(filter(None, (scored.note, shown))),
        cite=_cited(scored.recipe),
        fills={} if fills is None else fills.means,
        interval=None if fills is None else fills.interval,
        share=scored.share,
    )


def _cited(recipe: str) -> str:
    """Return the papers behind a recipe in a few words; none for an object from outside the registries."""
    try:
        return brief_citation(recipe)
    except RecipeError:
        return ""


def render_page(page: ExplainPage) -> str:
    """Return the page as HTML text."""
    rows = [
        section if isinstance(section, RenderedSection) else render_section(section, f"image-{index}")
        for index, section in enumerate(page.sections, 1)
    ]
    text = load_template().render(
        page=page,
        rows=rows,
        sections=[] if page.overview else rows,
        score_names=SCORE_NAMES,
        directions=DIRECTIONS,
        gradients=GRADIENTS,
    )
    return str(text)


def render_section(section: ImageSection, anchor: str) -> RenderedSection:
    """Return one image as HTML text; `anchor` is the id of its section, another for every image of a page."""
    html = load_template("explain_section").render(
        section=_section(section, anchor), score_names=SCORE_NAMES, directions=DIRECTIONS
    )
    return RenderedSection(
        name=section.name,
        target=section.target,
        target_probability=section.target_probability,
        headline=section.verdict.headline,
        thumb=embed(section.picture, 96),
        anchor=anchor,
        html=str(html),
    )


@cache
def load_template(name: str = "explain") -> Any:
    """Read and compile a template of the page; a MissingExtra where jinja2 is not installed."""
    jinja2 = require("jinja2")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["interval"] = format_interval
    environment.filters.update(score=format_score, percent=format_probability, count=format_count, share=format_percent)
    template = resources.files("sightline.report").joinpath(f"templates/{name}.html.j2").read_text("utf-8")
    return environment.from_string(template)


def ranked(maps: Sequence[MapCard]) -> list[MapCard]:
    """Return the maps in the order of their rank; those without one come last, as they came."""
    return sorted(maps, key=lambda card: math.inf if card.rank is None else card.rank)


def _section(section: ImageSection, anchor: str) -> dict[str, Any]:
    """Gather what the template needs to know about one image."""
    cards = ranked(section.maps)
    names = list(dict.fromkeys(name for card in cards for name in card.scores))
    judge = cards[0].judge if cards else ""
    return {
        "anchor": anchor,
        "image": section,
        "photo": embed(section.picture),
        "verdict": section.verdict,
        "cards": [_card(card, f"{anchor}-map-{number}") for number, card in enumerate(cards, 1)],
        "metrics": sorted(names, key=lambda name: name != judge),  # the judge first, the others as they came
        "fills": list(dict.fromkeys(fill for card in cards for fill in card.fills)),
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
