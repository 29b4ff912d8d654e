"""Passes of a plan's methods on the same images: each alone, and together with what they share.

::

    python benchmarks/shared_passes.py                                             # plans/pets-vit.toml, untrained
    python benchmarks/shared_passes.py --model file:WEIGHTS@timm/vit_tiny_patch16_224 --folder PHOTOGRAPHS

Every method of the plan explains the images inside one `SharedPasses`, in the plan's order, as a worker of the
benchmark does with a chunk. `alone` is what the method's rows say that it costs, `run` what is left after sharing. A
backward pass counts as a forward pass. The last lines say how far sharing could go. For a transformer, the tokens that
enter its first block are compared: what two methods feed it alike could be run once for both, whatever is done
differently afterwards; tokens that one method feeds it several times it edits differently each time, so they stay.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

import sightline
from sightline.bench.panels import read_plan_file
from sightline.models.passes import SharedPasses, sharing
from sightline.recipe import parse
from sightline.types import Passes

ENDINGS = (".jpg", ".jpeg", ".png")


def load_images(model: Any, folder: Path | None, count: int) -> Tensor:
    """Return the first photographs of a folder as the model sees them, or random images."""
    if folder is None:
        return torch.randn(count, 3, *model.default_size, generator=torch.Generator().manual_seed(0))
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)[:count]
    return torch.stack([model.preprocess(Image.open(path).convert("RGB")) for path in paths])


def account(model: Any, images: Tensor, recipes: tuple[str, ...]) -> dict[str, tuple[Passes, Passes, Passes]]:
    """Return the passes that each recipe declares, costs alone and runs beside the others, per image."""
    passes, target, found = SharedPasses(), torch.ones(len(images), dtype=torch.long), {}
    for recipe in recipes:
        before = passes.saved
        with sharing(images, passes):
            alone = sightline.explain(model, images, recipe, target=target).passes * (1 / len(images))
        forward = (passes.saved.forward - before.forward) / len(images)
        backward = (passes.saved.backward - before.backward) / len(images)
        found[recipe] = parse(recipe).cost(model), alone, Passes(alone.forward - forward, alone.backward - backward)
    return found


def first_inputs(model: Any, images: Tensor, recipes: tuple[str, ...]) -> dict[str, Counter[tuple[float, ...]]]:
    """Return what each recipe feeds the first block of a transformer, and how often, for all images.

    The tokens of one image are known by their number, their sum, their sum of squares and a sum weighted by place.
    """
    fed: Counter[tuple[float, ...]] = Counter()

    def note(_: Any, inputs: tuple[Tensor, ...]) -> None:
        for tokens in inputs[0].detach().double():
            places = torch.arange(len(tokens), dtype=torch.double)
            sums = tokens.sum().item(), tokens.square().sum().item(), (tokens.sum(dim=1) @ places).item()
            fed[len(tokens), *(float(f"{each:.6g}") for each in sums)] += 1

    target, found = torch.ones(len(images), dtype=torch.long), {}
    handle = model.blocks[0].module.register_forward_pre_hook(note)
    try:
        for recipe in recipes:
            fed.clear()
            sightline.explain(model, images, recipe, target=target)
            found[recipe] = Counter(fed)
    finally:
        handle.remove()
    return found


def show_inputs(found: dict[str, Counter[tuple[float, ...]]], whole: int) -> None:
    """Print how many of the runs of the first block two methods could share; `whole` tokens are one run."""
    once: Counter[tuple[float, ...]] = Counter()
    for fed in found.values():
        once |= fed  # of what several methods feed, as often as one of them does
    runs, needed = (sum(times * key[0] for key, times in each.items()) / whole for each in (_added(found), once))
    print(f"runs of the first block: {runs:.1f}; {needed:.1f} with every input run once, {needed / runs:.3f}")


def _added(found: dict[str, Counter[tuple[float, ...]]]) -> Counter[tuple[float, ...]]:
    return sum(found.values(), Counter())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", default="plans/pets-vit.toml")
    parser.add_argument("--model", help="by default that of the plan, untrained")
    parser.add_argument("--folder", type=Path, help="of photographs; random images by default")
    parser.add_argument("--images", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    plan = read_plan_file(given.plan).panels[0].plan
    model = sightline.load(given.model) if given.model else sightline.load(plan.models[0], pretrained=False)
    images, recipes = load_images(model, given.folder, given.images), plan.expanded().recipes
    found = account(model, images, recipes)
    print(f"{'method':28} {'declared':>9} {'alone':>9} {'run':>9}    forward + backward run")
    for recipe, (declared, alone, run) in sorted(found.items(), key=lambda item: -_total(item[1][2])):
        numbers = f"{_total(declared):9.1f} {_total(alone):9.1f} {_total(run):9.1f}"
        print(f"{recipe:28} {numbers}    {run.forward:.1f} + {run.backward:.1f}")
    declared, alone, run = (sum((each[place] for each in found.values()), Passes()) for place in range(3))
    print(f"{'all':28} {_total(declared):9.1f} {_total(alone):9.1f} {_total(run):9.1f}")
    print(f"run by alone: {_total(run) / _total(alone):.3f}")
    if model.kind == "transformer":
        grid = model.grid_of(images)
        show_inputs(first_inputs(model, images, recipes), len(images) * (grid.prefix + grid.height * grid.width))


def _total(passes: Passes) -> float:
    return passes.forward + passes.backward


if __name__ == "__main__":
    main()
