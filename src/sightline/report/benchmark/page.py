"""The HTML page of a benchmark run: one file that needs nothing else, and the table as CSV, Markdown and LaTeX.

Everything on it comes from the rows of a store and the statistics made of them. Every text is escaped, since recipes,
file names and reasons may hold anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.bench.stats.breakdown import ClassRow, ClassRows
from sightline.extras import require
from sightline.files import write_output
from sightline.report.benchmark.breakdown import class_table, worst_table
from sightline.report.benchmark.comparisons import agreement_matrix, significance_matrix
from sightline.report.benchmark.curves import curve_groups
from sightline.report.benchmark.failures import failure_table
from sightline.report.benchmark.gallery import GalleryImage, render_gallery
from sightline.report.benchmark.leaderboard import findings, leaderboard, overview, ranked
from sightline.report.benchmark.sanity import SanityResult, sanity_tables
from sightline.report.figure import DIVERGING, css_gradient

if TYPE_CHECKING:
    from sightline.bench.tables.columns import TableRow
    from sightline.bench.tables.table import Table

__all__ = ["FILES", "TABLES", "BenchmarkPage", "render_benchmark", "write_benchmark"]

TABLES = ("table.csv", "table.md", "table.tex")
FILES = ("index.html", *TABLES)
OPEN = 4  # images of the gallery that are seen without a click


@dataclass(frozen=True, eq=False)
class BenchmarkPage:
    """Everything that the page of a benchmark run shows.

    Attributes:
        title: the page's heading.
        rows: the frame of the store.
        table: its statistics.
        images: how many the run has; 0 for as many as the frame has.
        plan: the plan as plain data, shown as it is.
        models: in the order to show them; as the table has them where it is empty.
        metrics: likewise.
        intro: sentences below the heading: the source of the table, notes of the plan.
        facts: (name, value) pairs below them: data set, images, when.
        warnings: what a reader must know before relying on the numbers.
        gallery: images with their maps.
        gallery_metric: the metric whose values stand below the maps.
        labels: model -> class -> its label.
        sanity: verdicts of the sanity metrics, where such were run.
        left_out: by model, the recipes and metrics that were not run on it, and why.
        skipped: (image, reason) pairs of the data set.
        versions: (package, version) pairs.
        packages: name, version and source digest of those whose methods, operators and metrics took part.
        command: what to type to run it again.
        bibtex: the references of everything used.
    """

    title: str
    rows: Any
    table: Table
    images: int = 0
    plan: Mapping[str, Any] = field(default_factory=dict)
    models: Sequence[str] = ()
    metrics: Sequence[str] = ()
    intro: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    gallery: Sequence[GalleryImage] = ()
    gallery_metric: str = ""
    labels: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    sanity: Sequence[SanityResult] = ()
    left_out: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    skipped: Sequence[tuple[str, str]] = ()
    versions: Sequence[tuple[str, str]] = ()
    packages: Sequence[Mapping[str, str]] = ()
    command: str = ""
    bibtex: str = ""


def write_benchmark(page: BenchmarkPage, folder: Path | str) -> list[Path]:
    """Write ``index.html`` and the tables beside it, each file atomically; return their paths, the page first."""
    texts = (render_benchmark(page), page.table.to_csv(), page.table.to_markdown(), page.table.to_latex())
    paths = [Path(folder) / name for name in FILES]
    for path, text in reversed(list(zip(paths, texts, strict=True))):  # the page last: what it links to is there
        # A file name may hold bytes that are no text; they become "?" instead of stopping the report at its last step.
        write_output(path, text.encode("utf-8", "replace"))
    return paths


def render_benchmark(page: BenchmarkPage) -> str:
    """Return the page as HTML text."""
    jinja2 = require("jinja2")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["breakable"] = _breakable
    models = _models(page)
    sections = {
        "curves": _curves(page, models),
        "gallery": _gallery(page, models),
        "sanity": sanity_tables(page.sanity, [model["name"] for model in models]),
        "agreement": _agreement(page, models),
    }
    text = environment.from_string(_template("benchmark.html.j2")).render(
        page=page,
        contents=_contents(models, sections),
        models=models,
        **sections,
        failures=failure_table(page.rows, page.left_out),
        plan=json.dumps(dict(page.plan), indent=2, ensure_ascii=False) if page.plan else "",
        tables=TABLES,
        css=_template("benchmark.css"),
        js=_template("benchmark.js"),
    )
    return str(text).lstrip()


def _template(name: str) -> str:
    return resources.files("sightline.report").joinpath(f"templates/{name}").read_text("utf-8")


def _breakable(text: str) -> Any:
    """Let a long name break after an underscore, a bracket or a comma."""
    markup = require("markupsafe").Markup
    return markup(re.sub(r"([_(,])(?=\S)", r"\1<wbr>", str(markup.escape(text))))


def _models(page: BenchmarkPage) -> list[dict[str, Any]]:
    """Return the leaderboards of each model."""
    by_model: dict[str, dict[str, list[TableRow]]] = {}
    order = {name: index for index, name in enumerate((*page.models, *page.metrics))}
    last = len(order)
    for row in sorted(page.table.rows, key=lambda row: (order.get(row.model, last), order.get(row.metric, last))):
        by_model.setdefault(row.model, {}).setdefault(row.metric, []).append(row)
    models = []
    for number, (name, by_metric) in enumerate(by_model.items(), 1):
        anchor = f"model-{number}"
        boards = [
            _board(page, name, metric, rows, f"{anchor}-{index}")
            for index, (metric, rows) in enumerate(by_metric.items(), 1)
        ]
        all_metrics = overview(boards)
        models.append(
            {
                "name": name,
                "anchor": anchor,
                "boards": boards,
                "metrics": [board["metric"] for board in boards],
                "overview": all_metrics,
                "findings": findings(boards),
                "recipes": [entry["row"].recipe for entry in all_metrics["entries"]],
            }
        )
    return models


def _board(page: BenchmarkPage, model: str, metric: str, rows: Sequence[TableRow], anchor: str) -> dict[str, Any]:
    board, ordered = leaderboard(rows, anchor), ranked(rows)
    names = page.labels.get(model, {})
    classes = _classes(page.table.breakdown, model, metric)
    return {
        **board,
        "anchor": anchor,
        "matrix": significance_matrix(ordered, _select(page.table.comparisons, model, metric), higher=board["higher"]),
        "reduction": page.table.reductions.get(metric, "mean over images"),
        "worst": worst_table(_select(page.table.worst, model, metric), names),
        "classes": class_table(classes, [row.recipe for row in ordered], names),
    }


def _select(items: Sequence[Any], model: str, metric: str) -> list[Any]:
    return [item for item in items if item.model == model and item.metric == metric]


def _classes(rows: Sequence[ClassRow], model: str, metric: str) -> list[ClassRow]:
    return list(rows.of(model, metric)) if isinstance(rows, ClassRows) else _select(rows, model, metric)


def _controls(page: BenchmarkPage) -> set[str]:
    return {row.recipe for row in page.table.rows if row.control}


def _curves(page: BenchmarkPage, models: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    controls = _controls(page)
    recipes = {model["name"]: sorted(model["recipes"], key=controls.__contains__) for model in models}
    best = {name: next((recipe for recipe in ordered if recipe in controls), "") for name, ordered in recipes.items()}
    metrics = {model["name"]: model["metrics"] for model in models}
    return curve_groups(page.rows, recipes, metrics, controls, best)


def _agreement(page: BenchmarkPage, models: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    matrices = [agreement_matrix(model["name"], page.table.agreement, model["metrics"]) for model in models]
    return [matrix for matrix in matrices if matrix]


def _gallery(page: BenchmarkPage, models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    images = render_gallery(page.gallery)
    if not images:
        return {}
    names = [model["name"] for model in models]
    groups = [{"model": name, "images": [image for image in images if image["model"] == name]} for name in names]
    groups = [group for group in groups if group["images"]]
    return {
        "groups": groups,
        "open": OPEN if len(groups) == 1 else OPEN // 2,
        "photos": any(image["photo"] for image in images),
        "controls": _controls(page),
        "gradient": css_gradient(DIVERGING),
        "summary": _gallery_summary(page, images),
    }


def _gallery_summary(page: BenchmarkPage, images: Sequence[dict[str, Any]]) -> str:
    count, total = len({image["image"] for image in images}), page.images or page.rows["image"].nunique()
    sentences = [f"{count} of {total} images, from those where the methods do best to those where they do worst."]
    if page.gallery_metric:
        sentences.append(f"Below each map its {page.gallery_metric} on that image.")
    if not all(image["photo"] for image in images):
        sentences.append("Where the photograph cannot be read, maps are shown alone.")
    return " ".join(sentences)


def _contents(models: Sequence[dict[str, Any]], sections: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the links of the navigation bar: anchor and text."""
    links = [(model["anchor"], "Leaderboard" if len(models) == 1 else model["name"]) for model in models]
    links += [(name, name.capitalize()) for name, content in sections.items() if content]
    return [*links, ("failures", "Failures"), ("rerun", "Run it again")]
