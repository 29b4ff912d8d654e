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
    is reported as far as it is. The plan of a published table is also printed as the paper lays it out, all its panels
    together, with the printed numbers in brackets where images and models are the paper's.

    With `--json` the table is printed, and files are written only where `--out` says so.
    """
    from sightline.bench.panels import panel_stores
    from sightline.extras import check_installed
    from sightline.report.benchmark.paper import paper_report, save_paper_table

    check_installed("duckdb", "fsspec", "jinja2", "pandas", "pyarrow")
    with console.waiting("resampling"):
        reports, paper = paper_report(panel_stores(store), run=run, resamples=resamples)
    files = []
    for name, results in reports.items():
        for sentence in results.warnings:
            console.note(f"{name}: {sentence}" if name else sentence)
        if out is not None or not as_json:
            with console.waiting("drawing the page"):
                reports[name] = results.save(out / name if out else None, gallery=gallery)
    if paper is not None and (out is not None or not as_json):
        files = save_paper_table(paper, store, out)
    if as_json:
        alone = reports.get("")
        contents = {} if alone else {name: results.json() for name, results in reports.items()}
        whole = alone.json_parts() if alone else {"panels": contents}
        console.print_json_parts(whole | ({} if paper is None else {"paper": paper.to_json()}))
        return
    for results in reports.values():
        _show(results)
    if paper is not None:
        console.show(fields_table(paper.lines(), paper.heads(), title=f"{paper.title}: {paper.source}"), "")
        for path in files[:1]:
            console.show(Text(f"as published: {console.plain(path)}"))


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
