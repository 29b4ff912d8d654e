"""What does each choice inside a method do? One table per question, as in the methods' own papers.

    python experiments/ablations.py --list
    python experiments/ablations.py caap_neighbourhood --limit 4
    python experiments/ablations.py mda_tau --json mda.json

Every ablation is a list of recipes, judged by some metrics on some sets. Localisation is measured on pets and quads,
the rest on photographs; a recipe or metric that does not exist is named under its table. ± is one standard error over
images, and `−` columns are paired differences to the first row.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from panel import begin, curves, measure, parser, place_of, run, say, say_reasons, usable
from pictures import load_shots
from results import Column, table

import sightline
from sightline.recipe import text
from sightline.registry import METRICS

FAITHFUL = ("insertion", "deletion")  # short for 28 steps, see panel.curves
BOTH_BLURS = ("insertion", "strong", "deletion")
LOCATED = ("pointing_game", "aupr1", "aupr0")
MAS = ("insertion_mda", "deletion_mda", "mas_insertion", "mas_deletion")
REGIONS = ("region_attribution", "iou", "f1", "precision", "recall")
PERTURBED = ("negative", "positive", "probability_negative", "probability_positive")
MASKED = ("average_drop", "increase_in_confidence", "sic", "aic")
BLOCKS = range(12)


@dataclass(frozen=True)
class Ablation:
    """A question: recipes, the first being what the others are compared with, metrics, and sets."""

    question: str
    recipes: tuple[str, ...]
    metrics: tuple[str, ...]
    data: tuple[str, ...]


ABLATIONS: dict[str, Ablation] = {
    "caap_blank": Ablation(
        "What is the image that patches are put into? (CAAP, figure 4)",
        ("caap", *(f"caap(blank='{name}')" for name in ("black", "mean", "noise", "blurred_noise"))),
        (*BOTH_BLURS, *LOCATED),
        ("photographs", "pets"),
    ),
    "caap_neighbourhood": Ablation(
        "Which neighbours go with a patch? (CAAP, figure 5)",
        ("caap", "caap(radius=0)", "caap(radius=2)", "caap(shape='manhattan')"),
        (*BOTH_BLURS, *LOCATED),
        ("photographs", "pets"),
    ),
    "caap_depth": Ablation(
        "Up to which layer are patches held? (CAAP, figure 7)",
        ("caap", *(f"caap(last={layer + 1})" for layer in BLOCKS)),
        (*BOTH_BLURS, *LOCATED),
        ("photographs", "pets"),
    ),
    "caap_score": Ablation(
        "Which score is read, and what do the faster forms lose?",
        (
            "caap",
            "caap(score='log_probability')",
            "caap(score='probability')",
            "caap(frozen=True)",
            "e_caap",
            "e_caap(blank_mean='uniform')",
            "simple_insertion",
            "simple_deletion",
        ),
        (*BOTH_BLURS, *LOCATED),
        ("photographs", "pets"),
    ),
    "skip_plus_start": Ablation(
        "Where should DecompX start, and where the sum over start layers? (SkipPLUS, figures 2 and 7)",
        (
            "skip_plus(decompx)",
            *(f"layers(decompx, first={layer}, last={layer + 1})" for layer in BLOCKS),
            *(f"skip_plus(decompx, start={layer})" for layer in BLOCKS),
        ),
        (*FAITHFUL, "deletion_aopc", "insertion_aopc", *LOCATED),
        ("photographs", "pets"),
    ),
    "full_grad_plus": Ablation(
        "Do biases help once every layer is summed? (SkipPLUS, equation of FullGrad+)",
        (
            "ixg",
            "full_grad",
            "plus(ixg)",
            "skip_plus(ixg)",
            "full_grad_plus",
            "full_grad_plus(start='half')",
            "libra(full_grad_plus)",
            "libra(full_grad_plus(start='half'))",
        ),
        (*FAITHFUL, *LOCATED),
        ("photographs", "pets"),
    ),
    "iia": Ablation(
        "What does each integral add? (IIA, table 5)",
        ("iia2", "img", "act", "ig", "iia2(layer=-2)", "iia3"),
        (*FAITHFUL, *PERTURBED, *MASKED),
        ("photographs",),
    ),
    "mda_tau": Ablation(
        "How much of the response must insertion reach before deletion takes over? (MDA, figure 7 and table 8)",
        ("mda", *(f"mda(tau={tenth / 10})" for tenth in range(10, -1, -1) if tenth != 9)),
        (*FAITHFUL, *MAS),
        ("photographs",),
    ),
    "mda_gamma": Ablation(
        "What does a denser map cost? (MDA, table 12)",
        ("mda", "mda(gamma=0.5)", "mda(gamma=1.0)"),
        (*FAITHFUL, *MAS, *LOCATED),
        ("photographs", "pets"),
    ),
    "mda_kappa": Ablation(
        "How important must a patch be to enter the dense map? (MDA, figure 9)",
        (
            "mda(gamma=1.0)",
            *(
                f"mda(gamma=1.0, kappa={percent / 100})"
                for percent in (0.0, 0.1, 0.25, 0.75, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 25.0)
            ),
        ),
        MAS,
        ("photographs",),
    ),
    "mda_seed": Ablation(
        "Does a better first order give a better search?",
        ("mda", "mda(seed=caap)", "mda(seed=gae)", "mda(seed=plus(libra(ixg)))", "mda(seed=random)", "bi_attn", "caap"),
        (*FAITHFUL, *MAS, *LOCATED),
        ("photographs", "pets"),
    ),
    "var_classes": Ablation(
        "Which classes should compete? (VAR, appendix A.1)",
        (
            "gae",
            "var(gae, classes={classes})",
            *(f"var(gae, classes='{which}')" for which in ("top2", "top3", "top5", "top10", "best_worst")),
            "caap",
            "var(caap, classes={classes})",
            *(f"var(caap, classes='{which}')" for which in ("top2", "top3", "top5", "top10", "best_worst")),
        ),
        (*REGIONS, *FAITHFUL),
        ("quads", "photographs"),
    ),
    "var_temperatures": Ablation(
        "Does averaging over temperatures matter? (VAR, section 3.3)",
        (
            "gae",
            *(
                f"var(gae, classes={{classes}}, preset='{preset}'{one})"
                for preset in ("text", "table", "recommended")
                for one in ("", *(f", temperatures=({t}.0,)" for t in (1, 5, 100)))
            ),
        ),
        REGIONS,
        ("quads",),
    ),
}


def listing() -> str:
    """Return the names and questions."""
    width = max(map(len, ABLATIONS))
    return "\n".join(f"{name:{width}}  {one.question} [{', '.join(one.data)}]" for name, one in ABLATIONS.items())


def columns_of(place: str, metrics: list[str], short: dict[str, str], first: str) -> list[Column]:
    """Return a column and a paired one for each metric, and insertion minus deletion where both are there."""
    names = {metric: name for name, metric in short.items()}
    columns = []
    for metric in metrics:
        arrow = {"lower": " ↓", "higher": " ↑"}.get(METRICS[metric.partition("(")[0]].direction, "")
        columns.append(Column(f"{names.get(metric, metric)}{arrow}", place, metric))
        columns.append(Column("− first", place, metric, against=first))
    if {short["insertion"], short["deletion"]} <= set(metrics):
        columns.append(Column("insertion − deletion", place, short["insertion"], minus=short["deletion"]))
    return columns


def main(options: argparse.Namespace) -> None:
    """Measure one ablation, and write a table for each of its sets."""
    chosen = ABLATIONS[options.name]
    results, model = begin(options), sightline.load(options.model)
    recipes = options.recipe or list(chosen.recipes)
    short = {name: text(sightline.recipe.parse_metric(metric)) for name, metric in curves(model).items()}
    say(chosen.question, "")
    for kind in options.sets or chosen.data:
        shots = load_shots(kind, model, options.limit, options.shared, options.shuffle)
        place = place_of(options.model, kind)
        # a set without four classes to a picture has nothing to fill in
        rows = [recipe for recipe in recipes if "{classes}" not in recipe or shots[0].classes]
        metrics, missing = usable([short.get(name, name) for name in chosen.metrics], masks=shots[0].mask is not None)
        if metrics:
            measure(model, place, shots, rows, metrics, results, redo=options.redo)
            columns = columns_of(place, metrics, short, rows[0])
            say(f"{place}", "", table(results, rows, columns, {place: {shot.name for shot in shots}}), "")
        if missing:
            say("\n".join(f"- {metric}: {why}" for metric, why in missing.items()), "")
        say_reasons(results, rows)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("name", nargs="?", choices=ABLATIONS, metavar="NAME", help="one of those that --list names")
    arguments.add_argument("--list", action="store_true", help="name the ablations")
    arguments.add_argument("--sets", nargs="+", choices=("photographs", "pets", "quads", "pet_quads"))
    given = arguments.parse_args()
    if given.list:
        say(listing())
    elif given.name is None:
        arguments.error("name an ablation; --list names them all")
    else:
        run(main, given)
