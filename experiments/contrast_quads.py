"""Does a contrast of classes (VAR) put the map of each class into its own corner?

    python experiments/contrast_quads.py --limit 2 --recipe gae --preset text
    python experiments/contrast_quads.py --set pet_quads --json quads.json

Four photographs make a quad, and each of its four classes is explained in turn, its own cell being the region; with
`var` the four compete at every pixel. That is how the paper reads the game: the map of the first quadrant's class is
matched with the first quadrant. Values are averaged over the four classes of a quad; ± is one standard error over
quads. `gain` is the paired difference to the same method without `var`.

Presets: text is the paper's formula, table the one that reproduces its table, recommended the best measured. On
pet_quads the region is the animal in its cell.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import groupby

import torch
from panel import CNN, VIT, begin, parser, place_of, run, say, say_reasons
from pictures import Shot, load_shots
from results import Column, Results, table
from rich.console import Console
from rich.progress import track
from torch import Tensor

import sightline
from sightline.api import as_method, ready
from sightline.errors import SightlineError
from sightline.methods.multi_target import multi_target
from sightline.models.passes import counting
from sightline.operators.class_softmax import PRESETS as CONTRASTS
from sightline.operators.class_softmax import contrasted as contrast
from sightline.operators.contrast import comparable
from sightline.types import Attribution

RECIPES = {
    "transformer": [
        "bi_attn",
        "grad_cam",
        "inflow",
        "grad_rollout",
        "t_attn",
        "t_attr",
        "gradient",
        "gae",
        "plus(libra(ixg))",
        "caap",
    ],
    "convolutional": ["grad_cam", "guided_backprop", "guided_grad_cam", "ixg", "ig", "lrp"],
}
PRESETS = ["text", "table", "recommended"]
METRICS = {"region attribution": "region_attribution", "IoU": "iou", "F1": "f1"}


def contrasted(recipe: str, preset: str) -> str:
    """Return a recipe with its quad's classes competing; they are filled in quad by quad."""
    return f"var({recipe}, classes={{classes}}, preset='{preset}')"


def judge_quads(
    model: sightline.Adapter,
    place: str,
    quads: list[list[Shot]],
    methods: list[str],
    presets: list[str],
    kept: Results,
    *,
    redo: bool = False,
) -> None:
    """Judge every method on every quad, alone and contrasted, except what is known already.

    The four maps are made once, from one forward pass where the method allows, and compete in every way; `var` itself
    would make them anew for each class and preset.
    """
    metrics = list(METRICS.values())
    rows = {method: [method, *(contrasted(method, preset) for preset in presets)] for method in methods}
    jobs = [
        (method, quad)
        for method in methods
        for quad in quads
        if redo or any(kept.lacking(place, row, [shot.name for shot in quad], metrics) for row in rows[method])
    ]
    for method, quad in track(jobs, description=place, console=Console(stderr=True), disable=not jobs):
        if (place, method) in kept.refused:
            continue
        names = [shot.name for shot in quad]
        try:
            maps, spent = four_maps(model, quad, method)
        except SightlineError as error:
            kept.refused[place, method] = str(error)
            continue
        for row, preset in zip(rows[method], [None, *presets], strict=True):
            kept.add(place, row, names, judged(model, quad, compete(maps, preset)) | spent)


def four_maps(model: sightline.Adapter, quad: list[Shot], method: str) -> tuple[Tensor, dict[str, list[float]]]:
    """Return the maps of a quad's four classes at image size, (4, 1, 1, height, width), and what they cost."""
    image, targets = quad[0].image[None], [sightline.Logit(shot.label) for shot in quad]
    with counting() as meter, ready(model):
        found = multi_target(as_method(method), model, model.accept(image), targets)
    cost = {"forward": [meter.passes.forward / 4] * 4, "backward": [meter.passes.backward / 4] * 4}
    return torch.stack([comparable(_own_map(each)) for each in found]), cost


def _own_map(attribution: Attribution) -> Attribution:
    """Return an attribution with the method's own map alone."""
    return replace(attribution, values=attribution.map[None], layers=(), own=0)


def compete(maps: Tensor, preset: str | None) -> Tensor:
    """Contrast each of four maps with the other three, (4, height, width); without a preset leave them alone."""
    if preset is None:
        return maps[:, 0, 0]
    rows = [maps[[row, *(other for other in range(len(maps)) if other != row)]] for row in range(len(maps))]
    return torch.stack([contrast(four, CONTRASTS[preset])[0, 0] for four in rows])  # type: ignore[index]


def judged(model: sightline.Adapter, quad: list[Shot], maps: Tensor) -> dict[str, list[float]]:
    """Return each metric's value for the four maps."""
    images, labels = torch.stack([shot.image for shot in quad]), [shot.label for shot in quad]
    masks = torch.stack([shot.mask for shot in quad if shot.mask is not None])
    scores = sightline.evaluate(model, images, maps, list(METRICS.values()), labels, masks)
    return {metric: scores[metric].tolist() for metric in METRICS.values()}


def study(model_id: str, options: argparse.Namespace, results: Results) -> None:
    """Measure one model and write its table."""
    model = sightline.load(model_id)
    methods = options.recipe or RECIPES.get(model.kind, RECIPES["transformer"])
    base = {contrasted(method, preset): method for method in methods for preset in options.preset or PRESETS}
    recipes = [one for method in methods for one in (method, *(key for key, value in base.items() if value == method))]
    place = place_of(model_id, options.set)
    shots = load_shots(options.set, model, options.limit, options.shared, options.shuffle)
    quads = [list(group) for _, group in groupby(shots, key=lambda shot: shot.name.partition("#")[0])]
    judge_quads(model, place, quads, methods, options.preset or PRESETS, results, redo=options.redo)
    columns = []
    for title, metric in METRICS.items():
        columns.append(Column(title, place, metric, scale=1, digits=3))
        columns.append(Column("gain", place, metric, against=base, scale=1, digits=3))
    say(f"{place}", "", table(results, recipes, columns, {place: {shot.name for shot in shots}}), "")
    say_reasons(results, recipes)


def main(options: argparse.Namespace) -> None:
    """Study the named model, or a transformer and a convolutional network."""
    results = begin(options)
    for model in [options.model] if options.model else [VIT, CNN]:
        study(model, options, results)


if __name__ == "__main__":
    arguments = parser(__doc__, model=None)
    arguments.add_argument("--preset", action="append", choices=PRESETS, help="of var; may be repeated (default: all)")
    arguments.add_argument("--set", choices=("quads", "pet_quads"), default="quads", help="the region: cell or animal")
    run(main, arguments.parse_args())
