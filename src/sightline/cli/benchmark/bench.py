"""``sightline bench``: run a plan, go on with one, do a share of one, show how far one is, fold its files together.

Each command calls one function of `sightline.bench` and shows what it returns.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli import console
from sightline.cli.options import AsJson, Enlargement
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.bench.plan import Plan
    from sightline.bench.run import Callback, Outcome
    from sightline.bench.store.compact import Compaction

    Start = Callable[[Callback], Outcome]

__all__ = ["bench"]

_STORE = "The folder, or fsspec url such as s3://bucket/run, that holds the rows."

PlanGiven = Annotated[
    str,
    typer.Argument(metavar="PLAN", help="A TOML file, or the name of a plan such as var-table-1.", show_default=False),
]
PanelNames = Annotated[
    list[str] | None,
    typer.Option(
        "--panel", metavar="NAME", help="A panel of the plan, may be repeated. Default: all.", show_default=False
    ),
]
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
Shard = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Which share, from 0, of how many. Default: what a Slurm array (SLURM_ARRAY_TASK_ID) or RANK and "
        "WORLD_SIZE say; all units without them.",
        show_default=False,
    ),
]
OptionalPlan = Annotated[
    str | None,
    typer.Option(
        "--plan", metavar="PLAN", help="The plan's file or name, where the store may be empty.", show_default=False
    ),
]
Tasks = Annotated[int, typer.Option("--tasks", metavar="N", min=1, help="Tasks of the array; each does one share.")]
Processors = Annotated[int, typer.Option("--cpus", metavar="N", min=1, help="Processors of a task.")]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="Of a task.")]
Time = Annotated[str, typer.Option("--time", metavar="TIME", help="Limit of a task.")]
Partition = Annotated[
    str | None, typer.Option("--partition", metavar="NAME", help="Where to submit to.", show_default=False)
]
ScriptFile = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write the script there instead of printing it.", show_default=False),
]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Read every pack and compare its digest.")]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Images at most.", show_default=False)]


def _override(long: str, metavar: str, what: str) -> Any:
    return typer.Option(f"--{long}", metavar=metavar, help=f"{what} in place of the plan's.", show_default=False)


Models = Annotated[list[str] | None, _override("model", "ID", "A model, may be repeated,")]
Recipes = Annotated[list[str] | None, _override("method", "RECIPE", "A recipe, may be repeated,")]
Metrics = Annotated[list[str] | None, _override("metric", "RECIPE", "A metric, may be repeated,")]
Data = Annotated[str | None, _override("dataset", "TEXT", "A data set, or a folder of images,")]
Seed = Annotated[int | None, _override("seed", "N", "The seed that chooses images")]


def run(
    plan: PlanGiven,
    store: StoreOption = None,
    engine: EngineName = "local",
    workers: Workers = None,
    limit: Limit = None,
    panel: PanelNames = None,
    model: Models = None,
    method: Recipes = None,
    metric: Metrics = None,
    dataset: Data = None,
    seed: Seed = None,
    enlarge: Enlargement = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Run a plan: every model, method and metric on every image, into a store.

    A plan of several panels runs them one after the other, each into a store of its own inside the store. What is there
    already is not done again, so a run that was stopped goes on when it is started again. Images that cannot be scored
    are recorded with the reason, the rest is done, and the exit code is 1. A plan that describes a figure is drawn into
    the folder of the store instead.
    """
    from sightline.bench.panels import Panel, read_plan_file, write_panels

    changes: dict[str, Any] = {
        "limit": limit,
        "models": model or None,
        "methods": method or None,
        "metrics": metric or None,
        "dataset": dataset,
        "seed": seed,
        "enlarge": None if enlarge is None else str(enlarge),
    }
    read = read_plan_file(plan, panels=panel or (), **changes)
    where = store or str(Path("bench-out") / read.name)
    if any(each.plan.figure is not None for each in read.panels):
        from sightline.cli.figures.figure import show_figures
        from sightline.cli.figures.plans import planned_figures

        show_figures(plan, planned_figures(read, Path(where)), as_json=as_json)
        return
    words = ["sightline", "bench", "run", plan, "--store", where]
    options = {"limit": limit, "model": model, "method": method, "metric": metric, "dataset": dataset, "seed": seed}
    options["enlarge"] = changes["enlarge"]
    for name, given in options.items():
        for value in given if isinstance(given, list) else [given]:
            words += [] if value is None else [f"--{name}", str(value)]

    def starter(one: Panel) -> Start:
        def start(callback: Callback) -> Outcome:
            from sightline.bench.run import run as run_plan

            return run_plan(
                one.plan,
                one.store(where),
                base=read.path.parent,
                engine=engine,
                workers=workers,
                address=address,
                callback=callback,
                command=shlex.join([*words, *(["--panel", one.name] if one.name else [])]),
            )

        return start

    write_panels(where, read)
    _show_runs({one.store(where): starter(one) for one in read.panels}, where, as_json=as_json)


def resume(
    store: StoreArgument,
    engine: EngineName = "local",
    workers: Workers = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped, and try again what failed in it."""
    from sightline.bench.panels import panel_stores

    def starter(one: str) -> Start:
        def start(callback: Callback) -> Outcome:
            from sightline.bench.run import resume as resume_run

            return resume_run(one, engine=engine, workers=workers, address=address, callback=callback)

        return start

    _show_runs({one: starter(one) for one in panel_stores(store).values()}, store, as_json=as_json)


def status(store: StoreArgument, as_json: AsJson = False) -> None:
    """Say how far a run is and what failed in it; nothing is changed, no model is loaded."""
    from sightline.bench.panels import panel_stores
    from sightline.bench.store.status import status_of

    stores = panel_stores(store)
    read = {one: status_of(one) for one in stores.values()}
    if as_json:
        console.print_json(_alone_or_panels(stores, [one.to_json() for one in read.values()]))
    else:
        from sightline.cli.benchmark.screen import show_status

        for one, state in read.items():
            show_status(state, one)


def work(
    store: StoreArgument,
    shard: Shard = None,
    plan: OptionalPlan = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Do a share of a run, as one task of an array job; any number of them may share a store.

    Without `--plan` the store has to hold a plan already.
    """
    from sightline.bench.engines.shards import shard_of

    with _wrong_usage():
        shard_of(shard)  # says what is wrong before anything is loaded

    from sightline.bench.panels import panel_stores, read_plan_file, write_panels

    def starter(one: str, panel: Plan | None, base: Path | str, command: Sequence[str]) -> Start:
        def start(callback: Callback) -> Outcome:
            from sightline.bench.run import work as work_on

            return work_on(
                one, shard, plan=panel, base=base, workers=workers, callback=callback, command=shlex.join(command)
            )

        return start

    if plan is None:
        starts = {one: starter(one, None, "", ()) for one in panel_stores(store).values()}
    else:
        read = read_plan_file(plan)
        write_panels(store, read)
        again = ["sightline", "bench", "run", plan, "--store", store]
        starts = {
            each.store(store): starter(
                each.store(store),
                each.plan,
                read.path.parent,
                [*again, *(["--panel", each.name] if each.name else [])],
            )
            for each in read.panels
        }
    _show_runs(starts, store, as_json=as_json)


def slurm(
    plan: PlanGiven,
    store: StoreOption = None,
    tasks: Tasks = 8,
    processors: Processors = 4,
    memory: Memory = "16G",
    time: Time = "24:00:00",
    partition: Partition = None,
    out: ScriptFile = None,
    as_json: AsJson = False,
) -> None:
    """Write the script of a Slurm array job that runs a plan: each task does a share with `bench work`.

    The store and the plan have to lie where all nodes reach them.
    """
    from sightline.bench.engines.slurm import slurm_script
    from sightline.bench.panels import read_plan_file
    from sightline.files import write_output

    read = read_plan_file(plan)
    where = store or str(Path("bench-out") / read.name)
    options: dict[str, Any] = {"processors": processors, "memory": memory, "time": time, "partition": partition}
    with _wrong_usage():
        first = read.panels[0].plan.model_copy(update={"name": read.name})
        script = slurm_script(first, plan, where, tasks=tasks, **options)
    if out is not None:
        write_output(out, script.encode())
    if as_json:
        console.print_json({"script": script, "tasks": tasks, "store": where, "file": str(out) if out else None})
    elif out is None:
        typer.echo(script, nl=False)
    else:
        console.note(f"submit it with `sbatch {shlex.quote(str(out))}`")


def compact(store: StoreArgument, check: Check = True, as_json: AsJson = False) -> None:
    """Fold the finished units of a store into large files, so that it opens in seconds; safe beside running drivers.

    A driver does so by itself when it has finished many units. Nothing is lost if it is stopped.
    """
    from sightline.bench.panels import panel_stores
    from sightline.bench.store.compact import compact as compact_store

    stores = panel_stores(store)
    with console.waiting("folding units"):
        done = [compact_store(one, check=check) for one in stores.values()]
    if as_json:
        console.print_json(_alone_or_panels(stores, [one.to_json() for one in done]))
    for one in done:
        if not as_json:
            _show_compaction(one)
        for name in one.damaged:
            console.note(
                f"the pack {name} was damaged and put aside; `sightline bench resume` makes its units anew", "error"
            )
    if any(one.damaged for one in done):
        raise typer.Exit(console.FAILED)


def _show_compaction(done: Compaction) -> None:
    if done.busy:
        console.note(f"another process is compacting {done.store}; nothing was done")
    else:
        left = f", {done.left} stay in files of their own" if done.left else ""
        console.show(console.plain(f"{done.units} units folded; {done.packed} in {done.packs} packs{left}"))


@contextmanager
def _wrong_usage() -> Iterator[None]:
    """Tell what is wrong with an option as wrong usage."""
    try:
        yield
    except InputError as error:
        raise typer.BadParameter(str(error)) from None


def _show_runs(starts: Mapping[str, Start], store: str, *, as_json: bool) -> None:
    """Show runs while they go on, one after the other, and what they have done, and set the exit code."""
    from sightline.bench.panels import panel_stores
    from sightline.cli.benchmark.screen import RunDisplay, show_outcome

    again = shlex.join(["sightline", "bench", "resume", store])
    outcomes: list[Outcome] = []
    for one, start in starts.items():
        if len(starts) > 1:
            console.note(f"panel {Path(one).name}")
        try:
            with RunDisplay() as display:
                outcomes.append(start(display))
        except KeyboardInterrupt:
            console.note(f"stopped; what is done is in {store}, go on with `{again}`")
            raise typer.Exit(console.STOPPED) from None
        if not as_json:
            show_outcome(outcomes[-1])
    if as_json:
        console.print_json(_alone_or_panels(panel_stores(store), [outcome.to_json() for outcome in outcomes]))
    if not all(outcome.complete for outcome in outcomes):
        raise typer.Exit(console.FAILED)


def _alone_or_panels(stores: Mapping[str, str], contents: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is said of a plan without panels as it is, and of several panels as a list."""
    return contents[0] if "" in stores else {"panels": contents}


bench = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
)
EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    run: (
        "sightline bench run plan.toml --store runs/first",
        "sightline bench run caap-table-1 --limit 8 --model bundled/shapes-vit --dataset shapes",
    ),
    resume: ("sightline bench resume runs/first",),
    status: ("sightline bench status runs/first --json",),
    work: (
        "sightline bench work runs/first --shard 0/8",
        "torchrun --nproc-per-node 4 --no-python sightline bench work runs/first --workers 1",
    ),
    slurm: ("sightline bench slurm plan.toml --store /shared/runs/first --tasks 64 --out first.sh",),
    compact: ("sightline bench compact runs/first",),
}
for _command, _examples in EXAMPLES.items():
    _epilog = "\n\n".join(["[bold]Examples[/bold]" if len(_examples) > 1 else "[bold]Example[/bold]", *_examples])
    _paragraphs = [" ".join(paragraph.split()) for paragraph in (_command.__doc__ or "").split("\n\n")]
    bench.command(_command.__name__, epilog=_epilog, help="\n\n".join(_paragraphs))(_command)
