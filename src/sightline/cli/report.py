"""``sightline report``: from the store of a benchmark to a page, and to tables for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli import console
from sightline.cli.options import AsJson

__all__ = ["report"]

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
Pictures = Annotated[
    int, typer.Option("--gallery", metavar="N", min=0, help="How many images the gallery shows per model; 0 for none.")
]
Again = Annotated[
    int, typer.Option("--resamples", metavar="N", min=1, help="Bootstrap resamples behind each interval.")
]


def report(
    store: Store,
    out: Folder = None,
    as_json: AsJson = False,
    run: Run = None,
    gallery: Pictures = 16,
    resamples: Again = 2000,
) -> None:
    """Turn the store of a benchmark into one page that needs no network, and CSV, Markdown and LaTeX tables beside it.

    The page holds leaderboards with intervals and ties, quality against passes, curves with bands, the images with all
    maps, sanity verdicts, failures, versions, the command to rerun and the papers to cite. A run that is not finished
    is reported as far as it is.

    With `--json` the table is printed, and files are written only where `--out` says so.
    """
    from sightline.cli.reporting import Question, answer

    question = Question(
        store=store, run=run, out=out, write=out is not None or not as_json, gallery=gallery, resamples=resamples
    )
    found = answer(question)
    if as_json:
        console.print_json(found.json())
    else:
        found.show()
