"""What the experiments share: their loop and their command line."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import torch
from pictures import SHARED, USUAL, Shot
from results import Results, reasons
from rich.console import Console
from rich.progress import track

import sightline
from sightline.errors import (
    InputError,
    MissingExtra,
    RecipeError,
    SightlineError,
    SightlineWarning,
    UnsupportedMethod,
    UnsupportedModel,
)
from sightline.recipe import parse_metric, text
from sightline.registry import spec_of

VIT = f"file:{SHARED}/weights/vit_tiny_patch16_224.safetensors@timm/vit_tiny_patch16_224"
CNN = "package/efficientnet_lite0"
STEPS = 28  # of insertion and deletion
HOPELESS = (RecipeError, UnsupportedModel, UnsupportedMethod, MissingExtra)  # no image will do any better


# ---- metrics ---------------------------------------------------------------------------------------------------


def curves(model: sightline.Adapter) -> dict[str, str]:
    """Return insertion and deletion in STEPS steps, and insertion from a strong blur, by short name."""
    height, width = model.input_size or (224, 224)
    step = height * width // STEPS
    return {
        "insertion": f"insertion(step={step})",
        "deletion": f"deletion(step={step})",
        "strong": f"insertion(step={step}, radius=15, sigma=31.0)",
    }


def usable(metrics: Sequence[str], *, masks: bool) -> tuple[list[str], dict[str, str]]:
    """Split metrics into those that exist and suit a set with or without masks, and the reasons for the others."""
    kept, missing = [], {}
    for metric in metrics:
        try:
            built = parse_metric(metric)
        except RecipeError as error:
            missing[metric] = str(error)
            continue
        if ("masks" in spec_of(built).needs) == masks:
            kept.append(text(built))
    return kept, missing


# ---- the loop --------------------------------------------------------------------------------------------------


def measure(
    model: sightline.Adapter,
    place: str,
    shots: Sequence[Shot],
    recipes: Sequence[str],
    metrics: Sequence[str],
    results: Results,
    *,
    redo: bool = False,
) -> None:
    """Explain and judge every picture by every recipe, except what is known already.

    Args:
        model: the model.
        place: the name under which the values are kept: model and set.
        shots: the pictures; those of one image are done together.
        recipes: may hold ``{classes}``, for the classes of the picture.
        metrics: canonical texts.
        results: where values are looked up and added.
        redo: compute everything again.
    """
    groups = [list(group) for _, group in groupby(shots, key=lambda shot: shot.name.partition("#")[0])]
    jobs = []
    for recipe in recipes:
        for group in groups:
            names = [shot.name for shot in group]
            wanted = list(metrics) if redo else results.lacking(place, recipe, names, metrics)
            if wanted:
                jobs.append((recipe, group, wanted))
    console = Console(stderr=True)
    for recipe, group, wanted in track(jobs, description=f"{place}", console=console, disable=not jobs):
        if (place, recipe) in results.refused:
            continue
        names = [shot.name for shot in group]
        try:
            results.add(place, recipe, names, _judged(model, group, recipe, wanted))
        except HOPELESS as error:
            results.refused[place, recipe] = str(error)
        except SightlineError as error:
            results.failed[place, recipe, group[0].name] = str(error)


def _judged(
    model: sightline.Adapter, group: Sequence[Shot], recipe: str, metrics: Sequence[str]
) -> Mapping[str, Sequence[float]]:
    """Return the values of some pictures by metric, and their passes."""
    images, labels = torch.stack([shot.image for shot in group]), torch.tensor([shot.label for shot in group])
    known = [shot.mask for shot in group if shot.mask is not None]
    masks = torch.stack(known) if len(known) == len(group) else None
    written = recipe.replace("{classes}", repr(group[0].classes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SightlineWarning)  # a constant map scores as badly as it deserves
        attribution = sightline.explain(model, images, written, labels)
        scores = sightline.evaluate(model, images, attribution, metrics, labels, masks)
    count = len(group)
    spent = {
        "forward": [attribution.passes.forward / count] * count,
        "backward": [attribution.passes.backward / count] * count,
    }
    return {metric: scores[metric].tolist() for metric in metrics} | spent


# ---- the command line ------------------------------------------------------------------------------------------


def parser(description: str | None, model: str | None = VIT) -> argparse.ArgumentParser:
    """Return the options that every experiment has."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--model", default=model, help="a model id (default: %(default)s)")
    found.add_argument("--shared", type=Path, default=SHARED, help="the folder with data/ (default: %(default)s)")
    found.add_argument("--recipe", action="append", help="a row, instead of the usual ones; may be repeated")
    found.add_argument("--limit", type=int, help=f"images of each set (default: {_usual()})")
    found.add_argument("--shuffle", type=int, metavar="SEED", help="mix the sets first (default: the table's order)")
    found.add_argument("--threads", type=int, help="threads of torch (default: its own choice)")
    found.add_argument("--json", type=Path, metavar="FILE", help="keep every value here; what is here is not redone")
    found.add_argument("--also", type=Path, action="append", default=[], metavar="FILE", help="values of another run")
    found.add_argument("--redo", action="store_true", help="compute also what the file has")
    return found


def _usual() -> str:
    return ", ".join(f"{count} {kind}" for kind, count in USUAL.items())


def begin(options: argparse.Namespace) -> Results:
    """Check the options and read what earlier runs found."""
    set_threads(options)
    return Results.open(options.json, options.also)


def set_threads(options: argparse.Namespace) -> None:
    """Use as many threads as asked for, and refuse a limit that leaves nothing."""
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.limit is not None and options.limit < 1:
        raise InputError(f"got --limit {options.limit}; at least one image is needed")


def place_of(model: str, kind: str) -> str:
    """Return the name under which the values of a model on a set are kept; of a weights file, its name alone."""
    weights, at, _ = model.partition("@")
    return f"{Path(weights).name if at else model} on {kind}"


def run(main: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    """Run an experiment; a mistake of the user's is one sentence and exit code 2."""
    try:
        main(options)
    except (SightlineError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None


def say(*lines: str) -> None:
    """Write lines to the standard output."""
    sys.stdout.write("\n".join(lines) + "\n")


def say_reasons(results: Results, recipes: Sequence[str]) -> None:
    """Write why something is missing, where something is."""
    if found := reasons(results, recipes):
        say(found)
