"""How many samples does a scheme need for the standard error that plain sampling has?

Plain sampling draws every mask, coalition or permutation independently. Each scheme explains several images with
several seeds, with N samples and with N/2; the variance of a map is that of a cell's value over seeds, mean over cells.

* *share* is the variance of a scheme over that of plain sampling, both with N samples: the share of plain's samples
  that the scheme needs where the variance falls with their number.
* *half* is the variance of the scheme with N/2 samples over that of plain sampling with N. No law is needed: one or
  less says that half of the samples reach the same standard error.

Both are geometric means over images, with a 95 % interval of a bootstrap over images and seeds. The claim, half of the
samples are enough, *holds* where the interval of *half* ends below one, *FAILS* where it begins above, and is *open*
else.

`lime`, `kernel_shap`, `shapley_sampling` and `hsic` see the image as 3 × 4 cells that are kept or removed. All 4096
combinations go through the model once, and the methods look their logits up, so that many seeds cost little. The masks
of `rise` are shifted and blended; it runs the model for each.

Run with ``python benchmarks/sample_error.py [MODEL] [--image PHOTO ...] [--seeds 24] [--only rise lime] [--blank
dropped]``; MODEL is a model id, by default bundled/shapes-vit with six images of its own. ``--seeds`` is for `rise`,
the others have four times as many.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

import sightline
from sightline.data.shapes import Shapes
from sightline.methods.sampling.coalitions import coalition_fill, coalition_scores
from sightline.methods.sampling.hsic import dependence
from sightline.methods.shapley.kernel_shap import fit_shapley
from sightline.models.adapter import Adapter
from sightline.perturb.segments import grid_segments
from sightline.seeds import generators, uniform

IMAGES = 6
GRID = (3, 4)
CELLS = GRID[0] * GRID[1]
DRAWS = 1000  # of the bootstrap
Explain = Callable[[Adapter, Tensor, int, int, str], Tensor]  # model, image, samples, seed, blank


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to draw samples; the first of a method is the plain one.

    Attributes:
        method: the method's name.
        name: of the scheme.
        samples: N.
        explain: returns the map of one image.
    """

    method: str
    name: str
    samples: int
    explain: Explain


def recipe(text: str) -> Explain:
    """Explain by a recipe with places for the number of samples, the seed and the fill."""

    def run(model: Adapter, image: Tensor, samples: int, seed: int, blank: str) -> Tensor:
        filled = text.format(n=samples, seed=seed, blank=repr(blank))
        scale = samples if filled.startswith("hsic") else 1  # its sum over pairs is divided by the samples once
        return sightline.explain(model, image, filled, target=None).map / scale

    return run


def tabulated(model: Adapter, image: Tensor, blank: str) -> Adapter:
    """Return a model of images of one pixel per cell, kept where it is not zero: a table of the model's logits."""
    piece = grid_segments((image.shape[-2], image.shape[-1]), GRID)
    coalitions = torch.tensor(list(itertools.product((False, True), repeat=CELLS)))
    fill = coalition_fill(model, image, blank)  # type: ignore[arg-type]
    classes = [sightline.Logit(index) for index in range(model.num_classes or 0)]
    with torch.no_grad(), model.evaluating():
        logits = coalition_scores(model, image, fill, [piece], [coalitions], classes)[0].T
    places = 2 ** torch.arange(CELLS - 1, -1, -1)
    return sightline.adapt(lambda cells: logits[(cells[:, 0] != 0).flatten(1).long() @ places], output="softmax")


def kept_scores(model: Adapter, image: Tensor, coalitions: Tensor) -> Tensor:
    """Return the predicted class's logit for coalitions of the cells of a tabulated image."""
    target = sightline.Logit(int(model(image).argmax()))
    piece = grid_segments(GRID, GRID)
    return coalition_scores(model, image, torch.zeros_like(image), [piece], [coalitions], [target])[0]


def independent_hsic(model: Adapter, image: Tensor, samples: int, seed: int, _blank: str) -> Tensor:
    """`hsic` with independent masks."""
    masks = uniform((samples, CELLS), generators(seed, image)[0]) < 0.5
    return dependence(masks, kept_scores(model, image, masks)) / samples


def independent_shap(model: Adapter, image: Tensor, samples: int, seed: int, _blank: str) -> Tensor:
    """`kernel_shap` with independent coalitions, their sizes drawn by the kernel, all of the same weight."""
    generator = generators(seed, image)[0]
    sizes = torch.arange(1, CELLS)
    drawn = sizes[torch.multinomial(1 / (sizes * (CELLS - sizes)), samples, replacement=True, generator=generator)]
    coalitions = uniform((samples, CELLS), generator).argsort(dim=1).argsort(dim=1) < drawn[:, None]
    ends = torch.tensor([[False], [True]]).expand(2, CELLS)
    scores = kept_scores(model, image, torch.cat([ends, coalitions]))
    weights = torch.ones(samples, dtype=torch.float64)
    return fit_shapley(coalitions, weights, scores[:, 2:], scores[:, 0], scores[:, 1])


RISE = "rise(samples={n}, seed={seed}, cells=4, blank={blank}"
LIME = f"lime(samples={{n}}, seed={{seed}}, segments=('grid', {GRID[0]}, {GRID[1]}), blank='mean'"
HSIC = f"hsic(samples={{n}}, seed={{seed}}, cells={max(GRID)}"
SHAP = f"kernel_shap(samples={{n}}, seed={{seed}}, segments=('grid', {GRID[0]}, {GRID[1]})"
ORDERS = f"shapley_sampling(samples={{n}}, seed={{seed}}, segments=('grid', {GRID[0]}, {GRID[1]})"
SCHEMES = (
    Scheme("rise", "plain", 64, recipe(RISE + ")")),
    Scheme("rise", "orthogonal", 64, recipe(RISE + ", design='orthogonal')")),
    Scheme("rise", "antithetic", 64, recipe(RISE + ", antithetic=True)")),
    Scheme("lime", "plain", 64, recipe(LIME + ")")),
    Scheme("lime", "orthogonal", 64, recipe(LIME + ", design='orthogonal')")),
    Scheme("lime", "antithetic", 64, recipe(LIME + ", antithetic=True)")),
    Scheme("kernel_shap", "plain", 64, independent_shap),
    Scheme("kernel_shap", "kernel, paired", 64, recipe(SHAP + ", variant='kernel')")),
    Scheme("kernel_shap", "leverage, paired", 64, recipe(SHAP + ")")),
    Scheme("kernel_shap", "plain", 128, independent_shap),
    Scheme("kernel_shap", "kernel, paired", 128, recipe(SHAP + ", variant='kernel')")),
    Scheme("kernel_shap", "leverage, paired", 128, recipe(SHAP + ")")),
    Scheme("shapley_sampling", "plain", 8, recipe(ORDERS + ")")),
    Scheme("shapley_sampling", "antithetic", 8, recipe(ORDERS + ", antithetic=True)")),
    Scheme("hsic", "plain", 64, independent_hsic),
    Scheme("hsic", "latin", 64, recipe(HSIC + ", variant='latin')")),
    Scheme("hsic", "orthogonal", 64, recipe(HSIC + ", variant='orthogonal')")),
)


def maps(games: Sequence[tuple[Adapter, Tensor]], scheme: Scheme, samples: int, seeds: int, blank: str) -> Tensor:
    """Return the maps of every image, each with its model, and every seed: (image, seed, cell)."""
    of_images = [
        [scheme.explain(model, image, samples, seed, blank).double().flatten() for seed in range(seeds)]
        for model, image in games
    ]
    return torch.stack([torch.stack(of_seeds) for of_seeds in of_images])


def ratio(scheme: Tensor, plain: Tensor) -> tuple[float, float, float]:
    """Return the variance over seeds of a scheme's maps over that of plain ones, and a 95 % interval."""
    generator = torch.Generator().manual_seed(0)

    def resampled(values: Tensor) -> Tensor:
        rows = torch.randint(values.shape[1], values.shape[:2], generator=generator)
        return torch.stack([of_image[row] for of_image, row in zip(values, rows, strict=True)])

    def logs(some: Tensor, others: Tensor) -> Tensor:
        return (some.var(dim=1).mean(dim=1) / others.var(dim=1).mean(dim=1)).log()

    drawn = []
    for _ in range(DRAWS):
        chosen = torch.randint(len(scheme), (len(scheme),), generator=generator)
        drawn.append(logs(resampled(scheme), resampled(plain))[chosen].mean().exp())
    low, high = torch.stack(drawn).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return logs(scheme, plain).mean().exp().item(), low, high


def verdict(low: float, high: float) -> str:
    return "holds" if high <= 1 else "FAILS" if low > 1 else "open"


def written(value: tuple[float, float, float]) -> str:
    return f"{value[0]:.2f} ({value[1]:.2f}–{value[2]:.2f})"


def pictures(model: Adapter, photographs: Sequence[str]) -> Tensor:
    if not photographs:
        return model.normalise(Shapes(seed=1).draw(IMAGES).images)
    return torch.cat([model.preprocess(Image.open(path)).reshape(1, 3, *model.default_size) for path in photographs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="bundled/shapes-vit")
    parser.add_argument("--image", nargs="*", default=[], help="photographs; without them, bundled images")
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--only", nargs="*", help="names of methods")
    parser.add_argument("--blank", default="mean", help="the fill, or dropped")
    asked = parser.parse_args()
    model = sightline.load(asked.model, pretrained=True)
    images = pictures(model, asked.image).split(1)
    chosen = [scheme for scheme in SCHEMES if not asked.only or scheme.method in asked.only]
    print(f"{model.name}, {len(images)} images, {asked.seeds} seeds, blank={asked.blank!r}")
    print("| method | scheme | N | share, of N | half: N/2 over plain's N | half of the samples |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    whole = [(model, image) for image in images]
    cells = []
    if any(scheme.method != "rise" for scheme in chosen):
        ones = torch.ones(1, 3, *GRID)
        cells = [(tabulated(model, image, asked.blank), ones + index) for index, image in enumerate(images)]
    plain = torch.zeros(0)
    for scheme in chosen:
        games, seeds = (whole, asked.seeds) if scheme.method == "rise" else (cells, 4 * asked.seeds)
        all_samples = maps(games, scheme, scheme.samples, seeds, asked.blank)
        if scheme.name == "plain":
            plain = all_samples
            continue
        share, half = (
            ratio(all_samples, plain),
            ratio(maps(games, scheme, scheme.samples // 2, seeds, asked.blank), plain),
        )
        row = (
            f"`{scheme.method}`",
            scheme.name,
            str(scheme.samples),
            written(share),
            written(half),
            verdict(*half[1:]),
        )
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
