"""``sightline tune``: which recipe explains this model best on images like these?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli import console
from sightline.cli.options import AsJson, Classes, Device, Enlargement, Target
from sightline.cli.request import ErrorLog, Request

if TYPE_CHECKING:
    from rich.table import Table

    from sightline.audit.tuning import Tuning
    from sightline.data.dataset import Dataset

__all__ = ["tune"]

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model id, such as timm/vit_base_patch16_224.")]
Recipes = Annotated[
    list[str] | None,
    typer.Option(
        "--recipe",
        metavar="RECIPE",
        help="A recipe to search, such as 'ig(steps={10,20,40})'; may be repeated. Default: those that suit the model.",
        show_default=False,
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        metavar="METRIC",
        help="What to search by, such as 'insertion(step=1792)'. Default: average precision where the data has masks, "
        "else insertion minus deletion.",
        show_default=False,
    ),
]
Store = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Keeps every score; run it again to go on.", show_default=False),
]
Vary = Annotated[
    bool | None,
    typer.Option(
        "--vary/--no-vary",
        help="Vary the options of the finalists too. Default: unless recipes are named.",
        show_default=False,
    ),
]
Data = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA",
        help="Images, folders, patterns; or one data set, such as 'shapes(count=40)' or a folder with labels.csv.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the split of the images.")]


def tune(
    model: Model,
    paths: Data,
    recipe: Recipes = None,
    metric: Metric = None,
    target: Target = None,
    enlarge: Enlargement = None,
    store: Store = None,
    vary: Vary = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    classes: Classes = None,
    device: Device = "auto",
) -> None:
    """Search for the recipe that explains a model best, on one half of the images, and report it on the other half.

    All recipes are scored on a few images, the better half on twice as many, and so on; then the options of those that
    are left are varied. A data set with masks is searched by average precision, its labels being explained. The images
    held out have no part in the choice; controls that know nothing of the model are scored on them too, and a recipe is
    given to paste only where it clearly beats the best of them.
    """
    request = Request.of(paths, model, None, classes, target=target, seed=seed, device=device, enlarge=enlarge)
    errors = ErrorLog()
    found = tune_files(request, errors, recipe, metric, store, vary)
    if as_json:
        console.print_json({**({} if found is None else found.json()), "errors": errors})
    elif found is not None:
        _show(found)
    if errors:
        raise typer.Exit(console.FAILED)


def tune_files(
    request: Request,
    errors: ErrorLog,
    recipes: list[str] | None,
    metric: str | None,
    store: Path | None,
    vary: bool | None = None,
) -> Tuning | None:
    """Search on the data set or the images that are named; None where none of them can be found."""
    from sightline.audit import tuning

    images = _data_set(request.paths) or list(map(str, request.files(errors.add)))
    if not images:
        return None
    model, targets = request.opened()
    options: dict[str, Any] = {"store": store, "seed": request.seed or 0, "enlarge": request.enlarge}
    target, bar = next(iter(targets), None), console.err.is_terminal
    return tuning.tune(model, images, recipes or None, metric, target, vary=vary, **options, progress=bar)


def _data_set(paths: Sequence[str]) -> Dataset | None:
    """Open the data set that one word names: a call of a registered one, or a folder with labels.csv."""
    from sightline.data.dataset import DATASETS, open_dataset

    if len(paths) != 1:
        return None
    (given,) = paths
    named = given.partition("(")[0].strip() in DATASETS and not Path(given).exists()
    return open_dataset(given) if named or (Path(given) / "labels.csv").is_file() else None


def _show(found: Tuning) -> None:
    """Print the finalists and controls, the verdict, and the recipe to paste."""
    from rich.text import Text

    console.show(_table(found), "")
    console.show(Text(found.verdict))
    if found.best is not None:
        console.show(Text(f"recipe: {found.best}"))


def _table(found: Tuning) -> Table:
    from sightline.cli.tables import fields_table
    from sightline.formatting import format_difference, format_interval, format_score

    rows = [
        (
            each.recipe,
            format_score(each.searched),
            format_score(each.held_out),
            format_interval(*each.interval),
            format_difference(each.margin),
            "control" if each.control else format_interval(*(each.margin_interval or (None, None))),
        )
        for each in found.recipes
    ]
    heads = ("recipe", "searched", "held out", "interval", "over best control", "interval of that")
    title = (
        f"{found.metric}, {found.direction} is better; {found.images[0]} images chose, {found.images[1]} were held out"
    )
    return fields_table(rows, heads, title)
