"""How public objects show themselves: overlays, plots, and HTML for notebooks and pages, all of it offline.

`Attribution`, `Ranking`, `SanityCheck` and `Comparison` are plain data; their methods that draw fetch this module when
they are first called.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from html import escape
from typing import Any

from PIL import Image

from sightline import __version__
from sightline.audit.comparison import ComparedImage, Comparison
from sightline.audit.panel import ExplainedImage
from sightline.audit.ranking import Ranking
from sightline.audit.sanity import MethodSanity, SanityCheck
from sightline.errors import ShapeError
from sightline.extras import require
from sightline.formatting import format_interval, format_percent, format_probability, format_score
from sightline.models.inputs import as_picture
from sightline.report.explore import explore_image
from sightline.report.figure import DIVERGING, limit_of, overlay, shown_map, smoothing_note
from sightline.report.layout import Tile, panel, stack, with_scale
from sightline.report.outline import outlined
from sightline.report.page import ExplainPage, embed, image_section, render_page
from sightline.targets.tasks import Box, Region, target_mask
from sightline.types import Attribution

__all__ = [
    "attribution_html",
    "attribution_overlay",
    "comparison_html",
    "comparison_page",
    "comparison_picture",
    "explore_image",
    "plot_attribution",
    "png_bytes",
    "ranking_html",
    "ranking_page",
    "sanity_html",
    "sanity_page",
    "sanity_strip",
]

SHOWN = 4  # images of a batch, or of a ranking, in a notebook
SIDE = 336  # pixels of the longer side of an overlay
SMALL = 180  # pixels of an overlay in a notebook's panel


# ---- attributions --------------------------------------------------------------------------------------------------


def attribution_overlay(
    attribution: Attribution, index: int = 0, *, opacity: float = 0.78, scale: bool = True
) -> Image.Image:
    """Draw one image's map over the pixels the model saw, with a colour scale beside it unless `scale` is off."""
    picture, values = _picture_and_map(attribution, index)
    drawn = outlined(overlay(picture, values, opacity=opacity), _region(attribution, index))
    return with_scale(drawn, limit_of(values)) if scale else drawn


def plot_attribution(attribution: Attribution, ax: Any = None, index: int = 0) -> Any:
    """Draw one image's overlay on matplotlib's axes, titled with what was explained, and return the axes."""
    pyplot = require("matplotlib.pyplot")
    colors = require("matplotlib.colors")
    ax = pyplot.subplots()[1] if ax is None else ax
    picture, values = _picture_and_map(attribution, index)
    limit = limit_of(values) or 1.0
    ax.imshow(overlay(picture, values))
    ax.set_axis_off()
    ax.set_title(_caption(attribution, index))
    scale = pyplot.cm.ScalarMappable(
        colors.Normalize(-limit, limit), colors.ListedColormap(DIVERGING.table / 255, name=DIVERGING.name)
    )
    ax.figure.colorbar(scale, ax=ax, fraction=0.046, pad=0.04, label="against … for the target")
    return ax


def attribution_html(attribution: Attribution) -> str:
    """Return the overlays of the first images of a batch."""
    count = min(len(attribution), SHOWN)
    figures = [
        _figure(
            attribution_overlay(attribution, index),
            _caption(attribution, index),
            (*attribution.flags[index : index + 1], smoothing_note(attribution.pixels()[index].detach().cpu().numpy())),
        )
        for index in range(count)
    ]
    rest = f"<p>… and {len(attribution) - count} more images</p>" if len(attribution) > count else ""
    return _block(f"<code>{escape(repr(attribution))}</code>", "".join(figures) + rest)


def _picture_and_map(attribution: Attribution, index: int) -> tuple[Image.Image, Any]:
    if not -len(attribution) <= index < len(attribution):
        raise ShapeError(f"got index {index}; the attribution has {len(attribution)} images")
    values = shown_map(attribution.pixels()[index].detach().float().cpu().numpy())
    if attribution.seen is None:
        picture = Image.new("RGB", (values.shape[1], values.shape[0]), "white")
    else:
        picture = as_picture(attribution.seen[index].cpu())
    factor = max(1.0, SIDE / max(picture.size))
    size = round(picture.width * factor), round(picture.height * factor)
    return picture.resize(size, Image.Resampling.BICUBIC), values


def _region(attribution: Attribution, index: int) -> Any:
    """Return where in an image the target lies, as a bool array; None for a target without a place."""
    if not isinstance(attribution.target, Box | Region):
        return None
    size = attribution.grid.image
    mask = target_mask(attribution.target.take([index % len(attribution)]), (size[0], size[1]))
    return None if mask is None else mask.numpy()


def _caption(attribution: Attribution, index: int) -> str:
    label = attribution.labels[index] if attribution.labels else ""
    return f"{attribution.recipe}: {label}" if label else attribution.recipe


# ---- rankings ------------------------------------------------------------------------------------------------------


def ranking_html(ranking: Ranking) -> str:
    """Return the ranked panel of the first images: verdict, overlays in order, scores."""
    sections = [_ranked_image(image) for image in ranking.images[:SHOWN]]
    rest = f"<p>… and {len(ranking) - SHOWN} more images</p>" if len(ranking) > SHOWN else ""
    return _block(f"<code>{escape(repr(ranking))}</code>", "".join(sections) + rest)


def _ranked_image(image: ExplainedImage) -> str:
    probability = "" if image.target.probability is None else f" {format_probability(image.target.probability)}"
    photograph = outlined(_small(image.view.picture), image.region)
    figures = [_figure(photograph, f"{image.name}: {image.target.label}{probability}")]
    for scored in image.maps:
        rank = "–" if scored.rank is None else str(scored.rank)
        title = f"{rank} {scored.recipe}: {format_score(scored.score)}"
        drawn = outlined(overlay(_small(image.view.picture), shown_map(scored.map)), image.region)
        figures.append(_figure(drawn, title, (scored.note, smoothing_note(scored.map))))
    reached = image.verdict
    verdict = f"<p><b>{escape(reached.headline)}.</b> {escape(reached.reason)}</p>"
    return f"{verdict}<div>{''.join(figures)}</div>{_fills_table(image)}"


def _fills_table(image: ExplainedImage) -> str:
    """Return what every map scores under each fill; nothing where the main ones alone were used."""
    judged = [(scored, scored.fills) for scored in image.maps if scored.fills is not None]
    if not judged:
        return ""
    names = [room.fill.replace("_", " ") for room in image.rooms]
    heads = ("map", *names, "mean", "interval", "beats controls")
    rows = [
        (
            scored.recipe,
            *map(format_score, fills.means.values()),
            format_score(fills.score),
            format_interval(*fills.interval),
            format_percent(scored.share),
        )
        for scored, fills in judged
    ]
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    caption = "<caption>Insertion \N{MINUS SIGN} deletion under each fill</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def ranking_page(ranking: Ranking) -> str:
    """Return the page of a ranking, as ``sightline explain`` writes it."""
    sections = [image_section(image) for image in ranking.images]
    page = ExplainPage(
        title="What did the model look at?",
        model=ranking.model,
        sections=sections,
        command="sightline.rank(model, images).save('page.html')",
        versions={"sightline": __version__},
    )
    return render_page(page)


# ---- sanity checks -------------------------------------------------------------------------------------------------


def sanity_strip(check: SanityCheck, method: MethodSanity) -> Image.Image:
    """Draw the first image's map by the model, then by ever more random copies of it."""
    stages = len(method.strip) - 1
    names = ["the model", *(f"{100 * stage // stages} % random" for stage in range(1, stages + 1))]
    notes = ["", *(f"Spearman {format_score(value)}" for value in method.scores.curve[1:])]
    shown = [shown_map(map) for map in method.strip]
    tiles = [Tile(*tile) for tile in zip(names, shown, notes, strict=True)]
    smoothed = "; maps of single pixels shown smoothed" if any(map(smoothing_note, method.strip)) else ""
    title = f"{method.recipe} (Spearman: mean over {check.images} images{smoothed})"
    return panel(check.picture, tiles, title=title, line=str(method.verdict), width=150)


def sanity_html(check: SanityCheck) -> str:
    """Return the strip of every method with its verdict."""
    strips = [
        f"<p><b><code>{escape(method.recipe)}</code> {escape(method.verdict.word)}.</b> "
        f"{escape(method.verdict.sentence)}</p>"
        + _wide_picture(sanity_strip(check, method), f"{method.recipe} on ever more random models")
        for method in check.methods
    ]
    return _block(f"<code>{escape(repr(check))}</code>", "".join(strips))


def sanity_page(check: SanityCheck) -> str:
    """Return a page with the strip of every method."""
    return _page(f"Sanity check of {check.model}", sanity_html(check))


# ---- comparisons ---------------------------------------------------------------------------------------------------


def comparison_picture(image: ComparedImage) -> Image.Image:
    """Draw what every model sees of an image, and its maps in the order they were asked for."""
    return stack([_compared_row(name, explained) for name, explained in image.views])


def _compared_row(name: str, explained: ExplainedImage) -> Image.Image:
    tiles = [
        Tile(
            ", ".join(filter(None, (scored.recipe, smoothing_note(scored.map)))),
            shown_map(scored.map),
            f"insertion {format_score(scored.insertion)}  deletion {format_score(scored.deletion)}",
        )
        for scored in explained.maps
    ]
    probability = explained.target.probability
    line = explained.target.label + ("" if probability is None else f", {format_probability(probability)}")
    return panel(explained.view.picture, tiles, title=name, line=line)


def comparison_html(comparison: Comparison) -> str:
    """Return one picture per image, and the agreement of its maps."""
    parts = []
    for image in comparison.images[:SHOWN]:
        parts.append(f"<p><b>{escape(image.name)}</b></p>{_wide_picture(comparison_picture(image), image.name)}")
        parts.append(_agreement_table(image))
    return _block(f"<code>{escape(repr(comparison))}</code>", "".join(parts))


def comparison_page(comparison: Comparison) -> str:
    """Return a page with one picture per image."""
    return _page("Models and methods side by side", comparison_html(comparison))


def _agreement_table(image: ComparedImage) -> str:
    names = [f"{name}, {of.target.label}: {scored.recipe}" for name, of, scored in image.maps]
    heads = "".join(f"<th scope='col'>{number}</th>" for number in range(1, len(names) + 1))
    rows = "".join(
        f"<tr><th scope='row' style='text-align: left'>{number} {escape(name)}</th>"
        + "".join(f"<td>{format_score(value)}</td>" for value in values)
        + "</tr>"
        for number, (name, values) in enumerate(zip(names, image.agreement, strict=True), 1)
    )
    caption = "<caption>Spearman's rank correlation of every two maps</caption>"
    table = f"<table>{caption}<thead><tr><td></td>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return _scrolling(table, f"How far the maps of {image.name} agree")


# ---- pieces --------------------------------------------------------------------------------------------------------


def _wide_picture(picture: Image.Image, text: str) -> str:
    """Return a picture as wide as the page, which scrolls where the page is too narrow to read it."""
    width = min(picture.width // 2, 900)
    style = f"max-width: 100%; min-width: {width}px"
    image = f'<img alt="{escape(text)}" style="{style}" src="{embed(picture, 1200)}">'
    return _scrolling(image, f"Picture: {text}")


def _scrolling(html: str, label: str) -> str:
    return f'<div tabindex="0" role="region" aria-label="{escape(label)}" style="overflow-x: auto">{html}</div>'


def png_bytes(picture: Image.Image) -> bytes:
    """Return a picture as the bytes of a PNG file."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _small(picture: Image.Image) -> Image.Image:
    small = picture.copy()
    small.thumbnail((SMALL, SMALL), Image.Resampling.LANCZOS)
    return small


def _figure(picture: Image.Image, caption: str, notes: Iterable[str] = ()) -> str:
    more = "".join(f" <small>({escape(note)})</small>" for note in notes if note)
    return (
        '<figure style="display: inline-block; margin: 0 .6em .6em 0; vertical-align: top">'
        f'<img alt="{escape(caption)}" src="{embed(picture)}">'
        f'<figcaption style="font-size: .85em; max-width: {picture.width}px">{escape(caption)}{more}</figcaption>'
        "</figure>"
    )


def _block(head: str, body: str) -> str:
    return f'<div class="sightline"><p>{head}</p>{body}</div>'


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 1240px; "
        "margin: 2rem auto; padding: 0 1rem } th, td { padding: .2rem .6rem; text-align: right }</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )
