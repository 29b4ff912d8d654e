"""``sightline bench``: run a plan, go on with one, show how far one is.

Each command calls one function of `sightline.bench` and shows what it returns.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli import console
from sightline.cli.options import AsJson

if TYPE_CHECKING:
    from sightline.bench.run import Callback, Outcome

__all__ = ["bench"]

_STORE = "The folder, or fsspec url such as s3://bucket/run, that holds the rows."

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A TOML file.", show_default=False)]
StoreArgument = Annotated[str, typer.Argument(metavar="DIR", help=_STORE, show_default=False)]
StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="DIR", help=f"{_STORE} Default: bench-out/NAME.", show_default=False)
]
EngineName = Annotated[str, typer.Option("--engine", metavar="NAME", help="local (processes) or ray (a cluster).")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", min=0, help="Default: one per core. 0 works in one process.", show_default=False
    ),
]
Address = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="Of a Ray cluster.", show_default=False)
]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Images at most.", show_default=False)]


def _override(long: str, metavar: str, what: str) -> Any:
    return typer.Option(f"--{long}", metavar=metavar, help=f"{what} in place of the plan's.", show_default=False)


Models = Annotated[list[str] | None, _override("model", "ID", "A model, may be repeated,")]
Recipes = Annotated[list[str] | None, _override("method", "RECIPE", "A recipe, may be repeated,")]
Metrics = Annotated[list[str] | None, _override("metric", "RECIPE", "A metric, may be repeated,")]
Data = Annotated[str | None, _override("dataset", "TEXT", "A data set, or a folder of images,")]
Seed = Annotated[int | None, _override("seed", "N", "The seed that chooses images")]


def run(
    plan: PlanFile,
    store: StoreOption = None,
    engine: EngineName = "local",
    workers: Workers = None,
    limit: Limit = None,
    model: Models = None,
    method: Recipes = None,
    metric: Metrics = None,
    dataset: Data = None,
    seed: Seed = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Run a plan: every model, method and metric on every image, into a store.

    What the store holds already is not done again, so a run that was stopped goes on when it is started again. Images
    that cannot be scored are recorded with the reason, the rest is done, and the exit code is 1.
    """
    from sightline.bench.plan import read_plan

    changes: dict[str, Any] = {
        "limit": limit,
        "models": model or None,
        "methods": method or None,
        "metrics": metric or None,
        "dataset": dataset,
        "seed": seed,
    }
    read = read_plan(plan, **changes)
    where = store or str(Path("bench-out") / read.name)
    words = ["sightline", "bench", "run", str(plan), "--store", where]
    options = {"limit": limit, "model": model, "method": method, "metric": metric, "dataset": dataset, "seed": seed}
    for name, given in options.items():
        for value in given if isinstance(given, list) else [given]:
            words += [] if value is None else [f"--{name}", str(value)]

    def start(callback: Callback) -> Outcome:
        from sightline.bench.run import run as run_plan

        return run_plan(
            read,
            where,
            base=plan.parent,
            engine=engine,
            workers=workers,
            address=address,
            callback=callback,
            command=shlex.join(words),
        )

    _show_run(start, where, as_json=as_json)


def resume(
    store: StoreArgument,
    engine: EngineName = "local",
    workers: Workers = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped, and try again what failed in it."""

    def start(callback: Callback) -> Outcome:
        from sightline.bench.run import resume as resume_run

        return resume_run(store, engine=engine, workers=workers, address=address, callback=callback)

    _show_run(start, store, as_json=as_json)


def status(store: StoreArgument, as_json: AsJson = False) -> None:
    """Say how far a run is and what failed in it; nothing is changed, no model is loaded."""
    from sightline.bench.store.status import status_of
    from sightline.cli.screen import show_status

    read = status_of(store)
    if as_json:
        console.print_json(read.to_json())
    else:
        show_status(read, store)


def _show_run(start: Callable[[Callback], Outcome], store: str, *, as_json: bool) -> None:
    """Show a run while it goes on and what it has done, and set the exit code."""
    from sightline.cli.screen import RunDisplay, show_outcome

    again = shlex.join(["sightline", "bench", "resume", store])
    try:
        with RunDisplay() as display:
            outcome = start(display)
    except KeyboardInterrupt:
        console.note(f"stopped; what is done is in {store}, go on with `{again}`")
        raise typer.Exit(console.STOPPED) from None
    if as_json:
        console.print_json(outcome.to_json())
    else:
        show_outcome(outcome)
    if not outcome.complete:
        raise typer.Exit(console.FAILED)


bench = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
)
EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    run: (
        "sightline bench run plan.toml --store runs/first",
        "sightline bench run plan.toml --limit 8 --model bundled/shapes-vit --workers 2",
    ),
    resume: ("sightline bench resume runs/first",),
    status: ("sightline bench status runs/first --json",),
}
for _command, _examples in EXAMPLES.items():
    _epilog = "\n\n".join(["[bold]Examples[/bold]" if len(_examples) > 1 else "[bold]Example[/bold]", *_examples])
    _paragraphs = [" ".join(paragraph.split()) for paragraph in (_command.__doc__ or "").split("\n\n")]
    bench.command(_command.__name__, epilog=_epilog, help="\n\n".join(_paragraphs))(_command)
