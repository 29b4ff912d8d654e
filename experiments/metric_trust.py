"""Which metrics put methods in their true order, on shapes, where removing a part of a scene shows what it is worth.

    python experiments/metric_trust.py --model bundled/shapes-cnn --limit 30 --json trust.json

Prints a table: Spearman's correlation of each metric's order of the methods with the true order, with its 95 %
bootstrap interval over images, and the share of maps that the metric prefers to the same map with its pixels shuffled.
With --json the figures are written to a file, family by family, and those that the file has of the same model, images
and methods are not measured again; src/sightline/catalogue/metric_trust.json, which the cards of the metrics read, is
such a file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import sightline
from sightline.audit.evidence.metric_trust import metric_trust
from sightline.recipe import parse_metric
from sightline.registry import METRICS, spec_of

Figures = dict[str, Any]  # by name, as a Trust has them
METHODS = {
    "bundled/shapes-cnn": ["ixg", "gradient(variant='norm')", "ig(steps=10)", "grad_cam", "layer_cam"],
    "bundled/shapes-vit": ["ixg", "gradient(variant='norm')", "plus(libra(ixg))", "gae", "rollout"],
}
CONTROLS = ["random", "centre", "sobel"]
# Fewer samples where a metric takes many: on shapes of 64 pixels they are enough, and the run stays short.
SHORTER = {
    "faithfulness_correlation": "faithfulness_correlation(samples=40)",
    "mu_fidelity": "mu_fidelity(samples=40)",
    "sensitivity_n": "sensitivity_n(samples=6)",
    "non_sensitivity": "non_sensitivity(samples=1)",
    "smooth_mprt": "smooth_mprt(stages=2, samples=3)",
    "infidelity": "infidelity(samples=32)",
    "monotonicity_nguyen": "monotonicity_nguyen(samples=1)",
    "irof": "irof(segments=(8, 8))",
    "selectivity": "selectivity(patch=12)",
}
# Left out unless they are asked for: each takes as long as all others together.
SLOW = ("aic", "monotonicity", "sic", "smooth_mprt")


def table(rows: list[Figures]) -> str:
    """Return the figures as a table, the metrics that agree best first."""
    lines = [
        "| metric | agreement | interval | prefers the map to its shuffle | interval |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda each: -each["agreement"]):
        wins = "–" if row["wins"] is None else f"{row['wins']:.2f}"
        spread = "" if row["wins"] is None else f"{row['wins_low']:.2f} to {row['wins_high']:.2f}"
        agreed = f"{row['agreement']:.2f} | {row['low']:.2f} to {row['high']:.2f}"
        lines.append(f"| `{row['metric']}` | {agreed} | {wins} | {spread} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print a table, and write the figures where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled/shapes-cnn", choices=list(METHODS))
    parser.add_argument("--metric", action="append", help="a metric, instead of all; may be given several times")
    parser.add_argument("--limit", type=int, default=30, help="how many images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 leaves it alone")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    metrics = given.metric or [SHORTER.get(name, name) for name in METRICS if name not in SLOW]
    methods = [*METHODS[given.model], *CONTROLS]
    facts = {"model": given.model, "images": given.limit, "seed": given.seed, "methods": methods}
    known = earlier(given.json, facts)
    model = sightline.load(given.model)
    for family in families(metric for metric in metrics if metric not in known):
        for row in metric_trust(model, family, methods, count=given.limit, seed=given.seed):
            known[row.metric] = {key: _short(value) for key, value in row.as_dict().items()}
        if given.json:
            draft = given.json.with_suffix(".part")
            found = dict(sorted((name, known[name]) for name in known))
            draft.write_text(json.dumps(facts | {"metrics": found}, indent=1) + "\n", encoding="utf-8")
            draft.replace(given.json)
    screen = Console(markup=False, highlight=False, soft_wrap=True)
    shown = table([known[metric] for metric in metrics])
    screen.print(f"{given.model}, {given.limit} images of shapes, methods {', '.join(methods)}\n\n{shown}")


def families(metrics: Iterable[str]) -> list[list[str]]:
    """Return metrics by family, those that share what they compute together."""
    found: dict[str, list[str]] = {}
    for metric in metrics:
        found.setdefault(spec_of(parse_metric(metric)).family, []).append(metric)
    return list(found.values())


def earlier(path: Path | None, facts: Figures) -> dict[str, Figures]:
    """Return the figures that a file has of the same facts, none where it has others."""
    if path is None or not path.exists():
        return {}
    whole = json.loads(path.read_text(encoding="utf-8"))
    same = all(whole[name] == fact for name, fact in facts.items())
    return dict(whole["metrics"]) if same else {}


def _short(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
