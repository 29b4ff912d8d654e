"""How do the methods behave on a real transformer: faithful, well placed, at what cost?

    python experiments/behaviour.py --limit 2 --recipe gae --recipe centre
    python experiments/behaviour.py --json behaviour.json

Insertion and deletion in 28 steps on photographs: from RISE's blur (11×11, sigma 5), which can leave the class
visible, and beside it from a strong one (31×31, sigma 31). AUPR of the animal and of the background and the pointing
game on pets, with the margin over a map that is merely centred, since pets stand in the middle of their pictures.
Values are percent, ± one standard error over images; differences under two of them are noise.
"""

from __future__ import annotations

import argparse

from panel import begin, curves, measure, parser, place_of, run, say, say_reasons
from pictures import load_shots
from results import Column, table

import sightline

RECIPES = [
    "plus(libra(ixg))",
    "skip_plus(decompx)",
    "gae",
    "t_attr",
    "caap",
    "plus(ixg)",
    "tam",
    "bi_attn",
    "rollout",
    "grad_cam",
    "iia2",
    "iia3",
    "mda",
    "mda(seed=caap)",
    "random",
    "centre",
]
CONTROL = "centre"
LOCATED = ["aupr1", "aupr0", "pointing_game"]


def main(options: argparse.Namespace) -> None:
    """Measure, and write the table."""
    results, model = begin(options), sightline.load(options.model)
    recipes = options.recipe or RECIPES
    faithful = curves(model)
    photographs, pets = place_of(options.model, "photographs"), place_of(options.model, "pets")
    columns, shown = [], {}
    for kind, place, metrics in (("photographs", photographs, list(faithful.values())), ("pets", pets, LOCATED)):
        if kind in options.sets:
            shots = load_shots(kind, model, options.limit, options.shared, options.shuffle)
            shown[place] = {shot.name for shot in shots}
            measure(model, place, shots, recipes, metrics, results, redo=options.redo)
    if photographs in shown:
        columns += [
            Column("deletion ↓", photographs, faithful["deletion"]),
            Column("insertion ↑", photographs, faithful["insertion"]),
            Column("insertion − deletion", photographs, faithful["insertion"], minus=faithful["deletion"]),
            Column("insertion, strong blur", photographs, faithful["strong"]),
            Column("strong − deletion", photographs, faithful["strong"], minus=faithful["deletion"]),
        ]
    if pets in shown:
        columns += [
            Column("AUPR1", pets, "aupr1"),
            Column(f"AUPR1 − {CONTROL}", pets, "aupr1", against=CONTROL),
            Column("AUPR0", pets, "aupr0"),
            Column(f"AUPR0 − {CONTROL}", pets, "aupr0", against=CONTROL),
            Column("pointing", pets, "pointing_game"),
        ]
    say(table(results, recipes, columns, shown))
    say_reasons(results, recipes)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument(
        "--sets", nargs="+", choices=("photographs", "pets"), default=["photographs", "pets"], help="which half to run"
    )
    run(main, arguments.parse_args())
