"""Write the page of a benchmark: one HTML file that needs nothing else, and the same table in three formats.

Everything on it comes from the rows of a store and the statistics made of them; every text is escaped, since recipes,
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

from sightline.extras import require
from sightline.report.benchmark.breakdown import class_table, worst_table
from sightline.report.benchmark.comparisons import agreement_table, significance
from sightline.report.benchmark.curves import curve_groups
from sightline.report.benchmark.failures import trouble
from sightline.report.benchmark.gallery import Exhibit, hang
from sightline.report.benchmark.leaderboard import board, findings, overview, ranked
from sightline.report.benchmark.sanity import Soundness, sanity_groups
from sightline.report.figure import write_bytes
from sightline.report.palette import DIVERGING, css_gradient

if TYPE_CHECKING:
    from sightline.bench.table import Table
    from sightline.bench.table_rows import Line

__all__ = ["TABLES", "BenchmarkPage", "render_benchmark", "write_benchmark"]

TABLES = ("table.csv", "table.md", "table.tex")
OPEN = 4  # images of the gallery that are seen without a click


@dataclass(frozen=True, eq=False)
class BenchmarkPage:
    """Everything a run has to show.

    Attributes:
        title: the page's heading.
        rows: the frame of the store.
        table: its statistics.
        plan: the plan as plain data, shown as it is.
        models: in the order to show them; as the table has them where it is empty.
        metrics: likewise.
        lede: sentences below the heading: the source of the table, notes of the plan.
        facts: (name, value) pairs below them: data set, images, when.
        warnings: what a reader must know before believing any of it.
        exhibits: images of the gallery with their maps.
        gallery_metric: the metric whose values stand below the maps.
        labels: model -> class -> what it is called.
        soundness: sanity verdicts, where such metrics were run.
        left_out: by model, the recipes and metrics that were not run on it, and why.
        skipped: (image, reason) pairs of the data set.
        versions: (package, version) pairs.
        command: what to type to run it again.
        bibtex: the papers behind everything used.
    """

    title: str
    rows: Any
    table: Table
    plan: Mapping[str, Any] = field(default_factory=dict)
    models: Sequence[str] = ()
    metrics: Sequence[str] = ()
    lede: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    exhibits: Sequence[Exhibit] = ()
    gallery_metric: str = ""
    labels: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    soundness: Sequence[Soundness] = ()
    left_out: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    skipped: Sequence[tuple[str, str]] = ()
    versions: Sequence[tuple[str, str]] = ()
    command: str = ""
    bibtex: str = ""


def write_benchmark(page: BenchmarkPage, folder: Path | str) -> list[Path]:
    """Write ``index.html`` and the tables beside it, each whole or not at all; return their paths."""
    folder = Path(folder)
    texts = (render_benchmark(page), page.table.to_csv(), page.table.to_markdown(), page.table.to_latex())
    names = ("index.html", *TABLES)
    # A file name may hold bytes that are no text; they become "?" instead of stopping the report at its last step.
    return [
        write_bytes(text.encode("utf-8", "replace"), folder / name) for name, text in zip(names, texts, strict=True)
    ]


def render_benchmark(page: BenchmarkPage) -> str:
    """Return the page as HTML text."""
    jinja2 = require("jinja2")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["breakable"] = _breakable
    models = _models(page)
    curves = _curves(page, models)
    gallery = _gallery(page, models)
    sanity = sanity_groups(page.soundness, [model["name"] for model in models])
    agreement = [
        one
        for model in models
        if (one := agreement_table(model["name"], page.table.agreement, [board["metric"] for board in model["boards"]]))
    ]
    text = environment.from_string(_template("benchmark.html.j2")).render(
        page=page,
        facts=page.facts,
        warnings=page.warnings,
        contents=_contents(models, curves=curves, gallery=gallery, sanity=sanity, agreement=agreement),
        models=models,
        curves=curves,
        gallery=gallery,
        sanity=sanity,
        agreement=agreement,
        trouble=trouble(page.rows, page.left_out),
        versions=page.versions,
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
    """Gather the leaderboards of each model."""
    every: dict[str, dict[str, list[Line]]] = {}
    order = {name: place for place, name in enumerate((*page.models, *page.metrics))}
    last = len(order)
    for line in sorted(page.table.lines, key=lambda one: (order.get(one.model, last), order.get(one.metric, last))):
        every.setdefault(line.model, {}).setdefault(line.metric, []).append(line)
    models = []
    for place, (name, metrics) in enumerate(every.items(), 1):
        anchor = f"model-{place}"
        boards = [
            _board(page, name, metric, lines, f"{anchor}-{number}")
            for number, (metric, lines) in enumerate(metrics.items(), 1)
        ]
        whole = overview(boards)
        models.append(
            {
                "name": name,
                "anchor": anchor,
                "boards": boards,
                "overview": whole,
                "findings": findings(boards),
                "order": [one["line"].recipe for one in whole["rows"]],
            }
        )
    return models


def _board(page: BenchmarkPage, model: str, metric: str, lines: Sequence[Line], anchor: str) -> dict[str, Any]:
    made = board(lines, anchor)
    pairs = _of(page.table.comparisons, model, metric)
    recipes, names = [line.recipe for line in ranked(lines)], page.labels.get(model, {})
    return {
        **made,
        "anchor": anchor,
        "matrix": significance(ranked(lines), pairs, higher=made["higher"]),
        "reduction": page.table.reductions.get(metric, "mean over images"),
        "worst": worst_table(_of(page.table.worst, model, metric), names),
        "classes": class_table(_of(page.table.breakdown, model, metric), recipes, names),
    }


def _of(found: Sequence[Any], model: str, metric: str) -> list[Any]:
    return [one for one in found if one.model == model and one.metric == metric]


def _controls(page: BenchmarkPage) -> set[str]:
    return {line.recipe for line in page.table.lines if line.control}


def _curves(page: BenchmarkPage, models: Sequence[dict[str, Any]]) -> list[Any]:
    controls = _controls(page)
    order = {model["name"]: sorted(model["order"], key=controls.__contains__) for model in models}
    best = {name: next((one for one in recipes if one in controls), "") for name, recipes in order.items()}
    shown = {model["name"]: [one["metric"] for one in model["boards"]] for model in models}
    return curve_groups(page.rows, order, shown, controls, best)


def _gallery(page: BenchmarkPage, models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    frames = hang(page.exhibits)
    if not frames:
        return {}
    names = [model["name"] for model in models]
    groups = [{"model": name, "frames": [one for one in frames if one["model"] == name]} for name in names]
    groups = [group for group in groups if group["frames"]]
    return {
        "groups": groups,
        "open": OPEN if len(groups) == 1 else OPEN // 2,
        "photos": any(frame["photo"] for frame in frames),
        "controls": _controls(page),
        "gradient": css_gradient(DIVERGING),
        "told": _gallery_words(page, frames),
    }


def _gallery_words(page: BenchmarkPage, frames: Sequence[dict[str, Any]]) -> str:
    count, of = len({frame["image"] for frame in frames}), page.rows["image"].nunique()
    words = [f"{count} of {of} images, from those where the methods do best to those where they do worst."]
    if page.gallery_metric:
        words.append(f"Below each map its {page.gallery_metric} on that image.")
    if not all(frame["photo"] for frame in frames):
        words.append("Where the photograph is not at hand, the maps stand alone.")
    return " ".join(words)


def _contents(models: Sequence[dict[str, Any]], **sections: Any) -> list[tuple[str, str]]:
    """Return the links of the navigation bar."""
    names = {"curves": "Curves", "gallery": "Gallery", "sanity": "Sanity", "agreement": "Agreement"}
    found = [(model["anchor"], "Leaderboard" if len(models) == 1 else model["name"]) for model in models]
    found += [(key, names[key]) for key, value in sections.items() if value]
    return [*found, ("trouble", "Failures"), ("rerun", "Run it again")]
