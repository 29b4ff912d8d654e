"""``sightline report``: the page and tables of a benchmark run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sightline.cli import console
from sightline.cli.options import AsJson
from sightline.cli.tables import fields_table
from sightline.formatting import format_score

if TYPE_CHECKING:
    from sightline.report.benchmark import BenchmarkReport

__all__ = ["report"]

SHOWN = 12  # rows per metric in the terminal

Store = Annotated[
    str,
    typer.Argument(metavar="STORE", help="The store of `sightline bench run`: a folder or a url.", show_default=False),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="The folder to write into. Default: report/ in the store, or sightline-report/ here for a url.",
        show_default=False,
    ),
]
Run = Annotated[
    str | None, typer.Option(metavar="NAME", help="The plan's name. Default: the last one run.", show_default=False)
]
GalleryCount = Annotated[
    int, typer.Option("--gallery", metavar="N", min=0, help="How many images the gallery shows per model; 0 for none.")
]
Resamples = Annotated[
    int, typer.Option("--resamples", metavar="N", min=1, help="Bootstrap resamples behind each interval.")
]


def report(
    store: Store,
    out: Folder = None,
    as_json: AsJson = False,
    run: Run = None,
    gallery: GalleryCount = 16,
    resamples: Resamples = 2000,
) -> None:
    """Turn the store of a benchmark into one page that needs no network, and CSV, Markdown and LaTeX tables beside it.

    The page holds leaderboards with intervals and ties, quality against passes, curves with bands, the images with all
    maps, sanity verdicts, failures, versions, the command to rerun and the papers to cite. A run that is not finished
    is reported as far as it is.

    With `--json` the table is printed, and files are written only where `--out` says so.
    """
    from sightline.report.benchmark import benchmark_report

    with console.waiting("resampling"):
        results = benchmark_report(store, run=run, resamples=resamples)
    for sentence in results.warnings:
        console.note(sentence)
    if out is not None or not as_json:
        with console.waiting("drawing the page"):
            results = results.save(out, gallery=gallery)
    if as_json:
        console.print_json(results.json())
    else:
        _show(results)


def _show(results: BenchmarkReport) -> None:
    """Print a short table per model and metric, and the path of the page."""
    rows = results.table.rows
    for model, metric in dict.fromkeys((row.model, row.metric) for row in rows):
        of_metric = [row for row in rows if (row.model, row.metric) == (model, metric)]
        better = "lower" if of_metric[0].direction == "lower" else "higher"
        heads = ("rank", "method", "mean", "95 % interval", "ties", "over control", "")
        title = f"{model}, {metric} ({better} is better)"
        console.show(fields_table([_cells(row) for row in of_metric[:SHOWN]], heads, title=title), "")
    for path in results.files[:1]:
        console.show(Text(f"page: {console.plain(path)}"))


def _cells(row: Any) -> tuple[str, ...]:
    return (
        "–" if row.rank is None else str(row.rank),
        row.recipe,
        format_score(row.mean),
        f"{format_score(row.low)} to {format_score(row.high)}",
        row.group or "–",
        "" if row.control else format_score(row.margin),
        "control" if row.control else "class-agnostic" if row.agnostic else "",
    )
