"""How many samples does a scheme need for the standard error that plain sampling has?

Each recipe is run with several seeds at N and at N/2 samples; the standard error of the map is the standard deviation
of a cell's value over the seeds, as the root of its mean square over cells. Maps are compared at their own grid. With a
standard error e at N samples and f at N/2 the last column is the share of plain sampling's N that a scheme needs for
the same standard error, by the law that it falls with the root of the number of samples: (e / e of plain)². The claim
is a half or less.

Run with ``python benchmarks/sample_error.py [MODEL] [--image PHOTO] [--seeds 12] [--only rise lime]``; MODEL is a model
id, by default bundled/shapes-vit with one of its own images.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch

import sightline
from sightline.data.shapes import Shapes
from sightline.models.adapter import Adapter

CLAIM = 0.5


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to draw samples.

    Attributes:
        method: the method's name.
        name: of the scheme.
        recipe: with places for the number of samples and the seed.
        samples: N.
    """

    method: str
    name: str
    recipe: str
    samples: int


SCHEMES = (
    Scheme("rise", "plain", "rise(samples={0}, seed={1})", 256),
    Scheme("rise", "antithetic", "rise(samples={0}, seed={1}, antithetic=True)", 256),
    Scheme("lime", "plain", "lime(samples={0}, seed={1}, segments=('grid', 7))", 256),
    Scheme("lime", "antithetic", "lime(samples={0}, seed={1}, segments=('grid', 7), antithetic=True)", 256),
    Scheme("shapley_sampling", "plain", "shapley_sampling(samples={0}, seed={1}, segments=('grid', 4))", 16),
    Scheme(
        "shapley_sampling",
        "antithetic",
        "shapley_sampling(samples={0}, seed={1}, segments=('grid', 4), antithetic=True)",
        16,
    ),
    Scheme("kernel_shap", "orders", "kernel_shap(samples={0}, seed={1}, segments=('grid', 7), variant='orders')", 480),
    Scheme(
        "kernel_shap",
        "kernel, paired",
        "kernel_shap(samples={0}, seed={1}, segments=('grid', 7), variant='kernel')",
        480,
    ),
    Scheme("kernel_shap", "leverage, paired", "kernel_shap(samples={0}, seed={1}, segments=('grid', 7))", 480),
)


def standard_error(model: Adapter, images: str | torch.Tensor, scheme: Scheme, samples: int, seeds: int) -> float:
    """Return the root mean square over cells of the standard deviation over seeds."""
    maps = [
        sightline.explain(model, images, scheme.recipe.format(samples, seed), target=None).map.double()
        for seed in range(seeds)
    ]
    return float(torch.stack(maps).var(dim=0).mean().sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="bundled/shapes-vit")
    parser.add_argument("--image", help="a photograph; without it, a bundled image")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--only", nargs="*", help="names of methods")
    asked = parser.parse_args()
    model = sightline.load(asked.model, pretrained=True)
    images = asked.image or model.normalise(Shapes(seed=1).draw(1).images)
    print(f"{model.name}, {asked.seeds} seeds; standard error of the map at N and N/2 samples")
    plain = 0.0
    for scheme in SCHEMES:
        if asked.only and scheme.method not in asked.only:
            continue
        whole, half = (
            standard_error(model, images, scheme, n, asked.seeds) for n in (scheme.samples, scheme.samples // 2)
        )
        first = scheme.name in ("plain", "orders")
        plain = whole if first else plain
        share = (whole / plain) ** 2
        verdict = "" if first else f"  {'holds' if share <= CLAIM else 'FAILS'}"
        print(
            f"{scheme.method:17} {scheme.name:17} N={scheme.samples:4} {whole:.3g}  N/2 {half:.3g}  "
            f"needs {share:.2f} of plain's samples{verdict}",
            flush=True,
        )


if __name__ == "__main__":
    main()
