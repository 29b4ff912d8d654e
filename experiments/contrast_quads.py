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

from panel import CNN, VIT, begin, measure, parser, place_of, run, say, say_reasons
from pictures import load_shots
from results import Column, Results, table

import sightline

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


def study(model_id: str, options: argparse.Namespace, results: Results) -> None:
    """Measure one model and write its table."""
    model = sightline.load(model_id)
    methods = options.recipe or RECIPES.get(model.kind, RECIPES["transformer"])
    base = {contrasted(method, preset): method for method in methods for preset in options.preset or PRESETS}
    recipes = [one for method in methods for one in (method, *(key for key, value in base.items() if value == method))]
    place = place_of(model_id, options.set)
    shots = load_shots(options.set, model, options.limit, options.shared, options.shuffle)
    measure(model, place, shots, recipes, list(METRICS.values()), results, redo=options.redo)
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
