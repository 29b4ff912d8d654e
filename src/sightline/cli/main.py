"""The command line: ``sightline explain``, ``compare``, ``sanity``, ``bench``, ``report``, ``list`` and the others.

Nothing here imports torch: a command fetches what it needs when it runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sightline import __version__
from sightline.allocator import keep_freed_memory
from sightline.cli import console
from sightline.cli.app import app as web_page
from sightline.cli.benchmark.bench import bench
from sightline.cli.benchmark.report import report
from sightline.cli.compare import compare
from sightline.cli.demo import demo
from sightline.cli.explain import explain
from sightline.cli.figures.figure import figure
from sightline.cli.lookup.card import card
from sightline.cli.lookup.cite import cite
from sightline.cli.lookup.doctor import doctor
from sightline.cli.lookup.listing import listing
from sightline.cli.sanity import sanity
from sightline.cli.tune import tune

__all__ = ["app", "main"]

LOOK, KNOW, TRY = "Explain images", "Look things up", "Try it and check it"


class Group(TyperGroup):
    """The group of all commands; whatever goes wrong in one becomes a sentence and an exit code."""

    def main(self, args: Sequence[str] | None = None, *_: Any, standalone_mode: bool = True, **settings: Any) -> Any:
        """Run a command; ``--debug`` is understood wherever it stands."""
        given = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in given
        try:
            with console.told():
                kept = [word for word in given if word != "--debug"]
                code = super().main(args=kept, standalone_mode=False, **settings)
        except (Exception, KeyboardInterrupt) as error:
            code = console.report(error, debug=debug)
        if standalone_mode:
            sys.exit(console.finish(code if isinstance(code, int) else 0))
        return code

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and catch Ctrl-C before typer turns it into something else."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Exit(console.report(error)) from None


app = typer.Typer(
    cls=Group,
    name="sightline",
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sightline {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="Start with [bold]sightline demo[/bold], or: "
    "[bold]sightline explain dog.jpg --model timm/vit_base_patch16_224[/bold]",
)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    """Explain what a vision model looked at, and say how far that explanation can be trusted."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def _flowing(text: str) -> str:
    """Join the lines of each paragraph, for the terminal to break them where it ends."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


VIT = "timm/vit_base_patch16_224"
COMMANDS: dict[str, tuple[Callable[..., None], str, tuple[str, ...]]] = {
    "explain": (
        explain,
        LOOK,
        (
            f"sightline explain dog.jpg --model {VIT}",
            "sightline explain photos/ -m package/efficientnet_lite0 --method grad_cam --method ig --target tabby",
        ),
    ),
    "compare": (
        compare,
        LOOK,
        (
            f"sightline compare dog.jpg --model {VIT} --method gae --method rollout --method grad_cam",
            f"sightline compare dog.jpg --model {VIT} --model torchvision/resnet50 --method grad_cam",
        ),
    ),
    "sanity": (
        sanity,
        LOOK,
        (
            "sightline sanity --model bundled/shapes-vit --method gae --method rollout --method sobel",
            f"sightline sanity --model {VIT} --images photos/ --method grad_cam --out sanity-out",
        ),
    ),
    "figure": (
        figure,
        LOOK,
        (
            f"sightline figure classes desk.jpg --model {VIT} --method ixg --target laptop --target mouse",
            "sightline figure distribution --data 'shapes(count=2)' --model bundled/shapes-cnn --method grad_cam",
        ),
    ),
    "tune": (
        tune,
        LOOK,
        (
            f"sightline tune {VIT} photos/ --store tuning.jsonl",
            "sightline tune bundled/shapes-cnn photos/ --recipe grad_cam --recipe 'ig(steps={10,20,40})'",
        ),
    ),
    "report": (report, "Benchmark", ("sightline report runs/first-look", "sightline report runs/first-look --json")),
    "list": (listing, KNOW, ("sightline list methods --family attention", "sightline list models vit_tiny")),
    "card": (card, KNOW, ("sightline card grad_cam",)),
    "cite": (cite, KNOW, ('sightline cite "skip_plus(ixg)" insertion --bibtex',)),
    "app": (web_page, LOOK, ("sightline app --open", f"sightline app --model {VIT} --port 8080")),
    "demo": (demo, TRY, ("sightline demo --out demo-out",)),
    "doctor": (doctor, TRY, ("sightline doctor", "sightline doctor --json")),
}
for _name, (_command, _panel, _examples) in COMMANDS.items():
    _epilog = "\n\n".join(["[bold]Examples[/bold]" if len(_examples) > 1 else "[bold]Example[/bold]", *_examples])
    app.command(_name, rich_help_panel=_panel, epilog=_epilog, help=_flowing(_command.__doc__ or ""))(_command)
app.add_typer(
    bench,
    name="bench",
    rich_help_panel="Benchmark",
    help="Run a plan of models, methods and metrics on a data set, on this machine or a cluster.",
    epilog="[bold]Example[/bold]\n\nsightline bench run plan.toml --store runs/first",
)


def main() -> None:
    """Run the command line."""
    # Threads that wait without spinning: beside other work on a machine, spinning made the demo ten times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    keep_freed_memory()
    app(prog_name="sightline")


if __name__ == "__main__":
    main()
