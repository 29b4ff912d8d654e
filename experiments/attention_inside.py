"""Where in a transformer do the patches of an object attend to each other?

    python experiments/attention_inside.py --limit 4 --png attention.png

For each block, the mean attention weight from a patch of the object to a patch of the object, from the object to the
background, and within the background, averaged over heads and then over pets, in units of the uniform weight, one over
the number of tokens (CAAP, figure 6). A patch belongs to what covers more than half of it; patches on the border belong
to neither. A patch is one of its own object's, as in the paper; --others leaves its weight on itself out. ± is one
standard error over pictures.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from panel import parser, place_of, run, say, set_threads
from pictures import load_shots
from results import mean_and_error
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn import functional as F

import sightline
from sightline.errors import InputError
from sightline.extras import require
from sightline.models.vit.adapter import VisionTransformer

PAIRS = {"object → object": (1, 1), "object → background": (1, 0), "background → background": (0, 0)}


def patch_labels(mask: Tensor, height: int, width: int) -> Tensor:
    """Return what each patch of the grid belongs to, (height·width,): 1 object, 0 background, -1 neither."""
    shares = [F.adaptive_avg_pool2d((mask == kind).float()[None], (height, width)).flatten() for kind in (0, 1)]
    labels = torch.full((height * width,), -1)
    for kind, share in enumerate(shares):
        labels[share > 0.5] = kind
    return labels


def mean_weights(probabilities: Tensor, labels: Tensor, prefix: int, *, others: bool = False) -> Tensor:
    """Return the mean weight of each of PAIRS, times the number of tokens.

    Args:
        probabilities: of one image, (head, token, token).
        labels: of the patches.
        prefix: tokens before the patches.
        others: leave out a patch's weight on itself.
    """
    among = probabilities.mean(dim=0)[prefix:, prefix:]
    apart = ~torch.eye(len(labels), dtype=torch.bool) if others else torch.ones(among.shape, dtype=torch.bool)
    means = []
    for source, to in PAIRS.values():
        chosen = (labels == source)[:, None] & (labels == to)[None] & apart
        means.append(among[chosen].mean() if chosen.any() else among.new_tensor(float("nan")))
    return torch.stack(means) * probabilities.shape[-1]


def observe(model: VisionTransformer, image: Tensor, mask: Tensor, *, others: bool = False) -> Tensor:
    """Return the mean weights of one picture in every block, (block, pair)."""
    names = [f"block.{block}.probabilities" for block in range(model.depth)]
    grid = model.grid_of(image[None])
    labels = patch_labels(mask, grid.height, grid.width)
    with torch.no_grad(), model.evaluating(), model.capture(*names) as seen:
        model(image[None])
    return torch.stack([mean_weights(seen[name][0], labels, grid.prefix, others=others) for name in names])


def draw(found: Tensor, path: Path) -> None:
    """Draw the mean of each pair over the blocks, with a band of one standard error."""
    matplotlib = require("matplotlib")
    matplotlib.use("Agg")
    plot = require("matplotlib.pyplot")
    figure, axes = plot.subplots(figsize=(6.4, 4.0), constrained_layout=True)
    blocks = range(found.shape[1])
    for pair, name in enumerate(PAIRS):
        values = found[:, :, pair]
        mean, error = values.nanmean(dim=0), _errors(values)
        (line,) = axes.plot(blocks, mean, marker="o", markersize=3, label=name)
        axes.fill_between(blocks, mean - error, mean + error, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.axhline(1, color="0.6", linewidth=0.8, linestyle="--")
    axes.set(xlabel="block", ylabel="mean attention weight, uniform = 1", xticks=list(blocks))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plot.close(figure)


def _errors(values: Tensor) -> Tensor:
    """Return the standard error of each column, NaN left out."""
    kept = [column[~column.isnan()] for column in values.T]
    return torch.stack([c.std() / len(c) ** 0.5 if len(c) > 1 else c.new_tensor(0.0) for c in kept])


def rows_of(found: Tensor) -> list[str]:
    """Return a Markdown table, one row per block."""
    heads = ["block", *PAIRS, "object − background"]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    for block in range(found.shape[1]):
        columns = [found[:, block, pair] for pair in range(len(PAIRS))]
        columns.append(columns[0] - columns[1])
        cells = [mean_and_error(_known(column), digits=2) for column in columns]
        lines.append(f"| {block} | {' | '.join(cells)} |")
    return lines


def _known(values: Tensor) -> Sequence[float]:
    return [value for value in values.tolist() if not math.isnan(value)]


def main(options: argparse.Namespace) -> None:
    """Observe, and write the table and the picture."""
    set_threads(options)
    model = sightline.load(options.model)
    if not isinstance(model, VisionTransformer):
        raise InputError(f"{model.name} has no attention to look into; choose a vision transformer")
    shots = load_shots("pets", model, options.limit, options.shared, options.shuffle)
    known, rows, place = _earlier(options.json), [], place_of(options.model, "pets")
    for shot in track(shots, description="pictures", console=Console(stderr=True)):
        key = f"{place}{' (others)' if options.others else ''}, {shot.name}"
        if key not in known or options.redo:
            assert shot.mask is not None
            known[key] = observe(model, shot.image, shot.mask, others=options.others).tolist()
        rows.append(known[key])
    found = torch.tensor(rows)
    if options.json:
        options.json.write_text(json.dumps(known), encoding="utf-8")
    say(f"{model.name}, {len(shots)} pictures, attention weight in units of the uniform one", "", *rows_of(found))
    if options.png:
        draw(found, options.png)
        say("", f"drawn in {options.png}")


def _earlier(path: Path | None) -> dict[str, list[list[float]]]:
    found: dict[str, list[list[float]]] = {}
    if path is not None and path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--png", type=Path, default=Path("attention_inside.png"), help="(default: %(default)s)")
    arguments.add_argument("--others", action="store_true", help="leave out the weight of a patch on itself")
    run(main, arguments.parse_args())
