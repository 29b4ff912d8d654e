"""How many samples does a scheme need for the standard error that plain sampling has?

Plain sampling draws every mask, coalition or permutation independently; for `kernel_shap` that is what the paper and
captum draw, and what the package shap draws is a second comparison. Each scheme explains several images with
several seeds, with N samples and with N/2; the variance of a map is that of a cell's value over seeds, mean over cells.

* *share* is the variance of a scheme over that of plain sampling, both with N samples: the share of plain's samples
  that the scheme needs where the variance falls with their number.
* *half* is the variance of the scheme with N/2 samples over that of plain sampling with N. No law is needed: one or
  less says that half of the samples reach the same standard error.

Both are geometric means over images, with a 95 % interval of a bootstrap over images and seeds. The claim, half of the
samples are enough, *holds* where the interval of *half* ends below one, *FAILS* where it begins above, and is *open*
else.

With 3 × 4 cells all 4096 combinations of cells that are kept or removed go through the model once. `lime`,
`kernel_shap`, `shapley_sampling` and `hsic` look their logits up, so that many seeds cost little. The masks of `rise`
are shifted and blended; it runs the model for each, as all methods do with larger grids.

Run with ``python benchmarks/sample_error.py [MODEL] [--image PHOTO ...] [--seeds 24] [--only rise lime] [--blank
dropped] [--grid 7 7 --samples 256] [--schemes orthogonal balanced] [--cache FOLDER]``; MODEL is a model id, by default
bundled/shapes-vit with six images of its own. ``--seeds`` is for what runs the model, look-ups have four times as many.
In the folder of ``--cache`` a stopped run is continued.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
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
FEW = 12  # cells, of which all combinations are run
DRAWS = 1000  # of the bootstrap
CELLS_OF_RISE = 4  # from side to side, beside 3 × 4 cells of the others
SAMPLES = {"rise": (64,), "lime": (64,), "kernel_shap": (64, 128), "shapley_sampling": (8, 16), "hsic": (64,)}


@dataclass(frozen=True, slots=True)
class Game:
    """An image whose cells are kept or removed.

    Attributes:
        model: the model, or a table of its logits.
        image: shape (1, channel, height, width); of one pixel per cell for a table.
        grid: rows and columns of cells.
        blank: the fill, or dropped.
    """

    model: Adapter
    image: Tensor
    grid: tuple[int, int]
    blank: Any

    def scores(self, coalitions: Tensor) -> Tensor:
        """Return the predicted class's logit for coalitions of the cells, shape (1, coalition)."""
        piece = grid_segments((self.image.shape[-2], self.image.shape[-1]), self.grid)
        fill = coalition_fill(self.model, self.image, self.blank)
        with torch.no_grad(), self.model.evaluating():
            target = sightline.Logit(int(self.model(self.image).argmax()))
            return coalition_scores(self.model, self.image, fill, [piece], [coalitions], [target])[0]


Explain = Callable[[Game, int, int], Tensor]  # game, samples, seed


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to draw samples.

    Attributes:
        method: the method's name.
        name: of the scheme.
        explain: returns the map of one image.
        beside: the scheme that it is compared with; empty for those themselves.
    """

    method: str
    name: str
    explain: Explain
    beside: str = "plain"


def recipe(text: str) -> Explain:
    """Explain by a recipe with places for the number of samples, the seed, the cells and the fill."""

    def run(game: Game, samples: int, seed: int) -> Tensor:
        rise = CELLS_OF_RISE if game.grid == (3, 4) else max(game.grid)
        filled = text.format(
            n=samples, seed=seed, segments=("grid", *game.grid), most=max(game.grid), rise=rise, blank=repr(game.blank)
        )
        scale = samples if filled.startswith("hsic") else 1  # its sum over pairs is divided by the samples once
        return sightline.explain(game.model, game.image, filled, target=None).map / scale

    return run


def by_hand(
    draw: Callable[[int, int, torch.Generator], Tensor], read: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Explain:
    """Explain by coalitions from `draw(samples, cells, generator)`, read off by `read(coalitions, scores, ends)`."""

    def run(game: Game, samples: int, seed: int) -> Tensor:
        cells = game.grid[0] * game.grid[1]
        coalitions = draw(samples, cells, generators(seed, game.image)[0])
        ends = torch.tensor([[False], [True]]).expand(2, cells)
        scores = game.scores(torch.cat([ends, coalitions]))
        return read(coalitions, scores[:, 2:], scores[:, :2])

    return run


def fair_coins(samples: int, cells: int, generator: torch.Generator) -> Tensor:
    return uniform((samples, cells), generator) < 0.5


def by_kernel(samples: int, cells: int, generator: torch.Generator) -> Tensor:
    """Draw coalitions with the kernel as probability: first the size, then cells, as captum does."""
    sizes = torch.arange(1, cells)
    drawn = sizes[torch.multinomial(1 / (sizes * (cells - sizes)), samples, replacement=True, generator=generator)]
    return uniform((samples, cells), generator).argsort(dim=1).argsort(dim=1) < drawn[:, None]


def criterion(coalitions: Tensor, scores: Tensor, _ends: Tensor) -> Tensor:
    return dependence(coalitions, scores) / len(coalitions)


def unweighted(coalitions: Tensor, scores: Tensor, ends: Tensor) -> Tensor:
    return fit_shapley(coalitions, torch.ones(len(coalitions)), scores, ends[:, 0], ends[:, 1])


def shap_package(game: Game, samples: int, seed: int) -> Tensor:
    """Kernel SHAP of the package shap: small and large coalitions enumerated, the others drawn with complements."""
    import shap

    def play(coalitions: np.ndarray) -> np.ndarray:
        scores: np.ndarray = game.scores(torch.from_numpy(coalitions) != 0)[0].double().numpy()
        return scores

    cells = game.grid[0] * game.grid[1]
    np.random.seed(seed)  # the only seed that it knows
    explainer = shap.KernelExplainer(play, np.zeros((1, cells)))
    values = explainer.shap_values(np.ones((1, cells)), nsamples=samples, l1_reg=False, silent=True)
    return torch.from_numpy(values)


RISE = "rise(samples={n}, seed={seed}, cells={rise}, blank={blank}"
LIME = "lime(samples={n}, seed={seed}, segments={segments}, blank={blank}"
HSIC = "hsic(samples={n}, seed={seed}, cells={most}, blank={blank}"
SHAP = "kernel_shap(samples={n}, seed={seed}, segments={segments}, blank={blank}"
ORDERS = "shapley_sampling(samples={n}, seed={seed}, segments={segments}, blank={blank}"
SCHEMES = (
    Scheme("rise", "plain", recipe(RISE + ")"), beside=""),
    Scheme("rise", "orthogonal", recipe(RISE + ", design='orthogonal')")),
    Scheme("rise", "antithetic", recipe(RISE + ", antithetic=True)")),
    Scheme("lime", "plain", recipe(LIME + ")"), beside=""),
    Scheme("lime", "orthogonal", recipe(LIME + ", design='orthogonal')")),
    Scheme("lime", "antithetic", recipe(LIME + ", antithetic=True)")),
    Scheme("kernel_shap", "plain", by_hand(by_kernel, unweighted), beside=""),
    Scheme("kernel_shap", "shap", shap_package),
    Scheme("kernel_shap", "kernel", recipe(SHAP + ", variant='kernel')")),
    Scheme("kernel_shap", "leverage", recipe(SHAP + ")")),
    Scheme("kernel_shap", "balanced, kernel", recipe(SHAP + ", variant='kernel', design='balanced')")),
    Scheme("kernel_shap", "balanced", recipe(SHAP + ", design='balanced')")),
    Scheme("kernel_shap", "balanced", recipe(SHAP + ", design='balanced')"), beside="shap"),
    Scheme("shapley_sampling", "plain", recipe(ORDERS + ")"), beside=""),
    Scheme("shapley_sampling", "antithetic", recipe(ORDERS + ", antithetic=True)")),
    Scheme("shapley_sampling", "cyclic", recipe(ORDERS + ", design='cyclic')")),
    Scheme("hsic", "plain", by_hand(fair_coins, criterion), beside=""),
    Scheme("hsic", "latin", recipe(HSIC + ", variant='latin')")),
    Scheme("hsic", "orthogonal", recipe(HSIC + ", variant='orthogonal')")),
)


def remembered(folder: Path | None, key: Sequence[Any], compute: Callable[[], Tensor]) -> Tensor:
    """Compute a tensor, or read it where an earlier run kept it."""
    if folder is None:
        return compute()
    file = folder / f"{hashlib.blake2b(repr(key).encode(), digest_size=12).hexdigest()}.pt"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(compute(), file.with_suffix(".new"))
        file.with_suffix(".new").rename(file)
    saved: Tensor = torch.load(file)
    return saved


def digest(image: Tensor) -> str:
    return hashlib.blake2b(image.numpy().tobytes(), digest_size=12).hexdigest()


def tabulated(game: Game, index: int, folder: Path | None) -> Game:
    """Return the game on an image of one pixel per cell, kept where it is not zero: a table of the model's logits."""
    cells = game.grid[0] * game.grid[1]
    piece = grid_segments((game.image.shape[-2], game.image.shape[-1]), game.grid)

    def run() -> Tensor:
        coalitions = torch.tensor(list(itertools.product((False, True), repeat=cells)))
        fill = coalition_fill(game.model, game.image, game.blank)
        classes = [sightline.Logit(index) for index in range(game.model.num_classes or 0)]
        with torch.no_grad(), game.model.evaluating():
            return coalition_scores(game.model, game.image, fill, [piece], [coalitions], classes)[0].T

    logits = remembered(folder, ("table", game.model.name, digest(game.image), game.grid, game.blank), run)
    places = 2 ** torch.arange(cells - 1, -1, -1)
    table = sightline.adapt(lambda pixels: logits[(pixels[:, 0] != 0).flatten(1).long() @ places], output="softmax")
    return Game(table, torch.ones(1, 3, *game.grid) + index, game.grid, "mean")


def maps(games: Sequence[Game], scheme: Scheme, samples: int, seeds: int, folder: Path | None) -> Tensor:
    """Return the maps of every image and every seed: (image, seed, cell)."""

    def of_image(game: Game) -> Tensor:
        key = (scheme.method, scheme.name, samples, seeds, game.model.name, digest(game.image), game.grid, game.blank)
        explained = (scheme.explain(game, samples, seed).double().flatten() for seed in range(seeds))
        return remembered(folder, key, lambda: torch.stack(list(explained)))

    return torch.stack([of_image(game) for game in games])


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
    parser.add_argument("--schemes", nargs="*", help="names of schemes, beside those they are compared with")
    parser.add_argument("--blank", default="mean", help="the fill, or dropped")
    parser.add_argument("--grid", type=int, nargs=2, default=(3, 4), help="rows and columns of cells")
    parser.add_argument("--samples", type=int, help="N, in place of each method's own")
    parser.add_argument("--cache", type=Path, help="a folder where a stopped run is continued")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = sightline.load(asked.model, pretrained=True)
    images = pictures(model, asked.image).split(1)
    print(f"{model.name}, {len(images)} images, {asked.seeds} seeds, grid={asked.grid}, blank={asked.blank!r}")
    print("| method | scheme | beside | N | share, of N | half: N/2 over N | half of the samples |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    whole = [Game(model, image, tuple(asked.grid), asked.blank) for image in images]
    few = asked.grid[0] * asked.grid[1] <= FEW

    @functools.cache
    def tables() -> list[Game]:
        return [tabulated(game, index, asked.cache) for index, game in enumerate(whole)]

    @functools.cache
    def drawn(method: str, name: str, samples: int) -> Tensor:
        scheme = next(one for one in SCHEMES if (one.method, one.name) == (method, name))
        look_up = few and method != "rise"
        games, seeds = (tables(), 4 * asked.seeds) if look_up else (whole, asked.seeds)
        return maps(games, scheme, samples, seeds, None if look_up else asked.cache)

    for scheme in SCHEMES:
        wanted = not asked.only or scheme.method in asked.only
        if not (scheme.beside and wanted and (not asked.schemes or scheme.name in asked.schemes)):
            continue
        for samples in (asked.samples,) if asked.samples else SAMPLES[scheme.method]:
            beside = drawn(scheme.method, scheme.beside, samples)
            share = ratio(drawn(scheme.method, scheme.name, samples), beside)
            half = ratio(drawn(scheme.method, scheme.name, samples // 2), beside)
            row = (f"`{scheme.method}`", scheme.name, scheme.beside, str(samples), written(share), written(half))
            print(f"| {' | '.join((*row, verdict(*half[1:])))} |", flush=True)


if __name__ == "__main__":
    main()
