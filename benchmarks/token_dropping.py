"""What does a mask cost `mutex` and `tis`, which drop the patches outside it, against a forward pass of all patches?

Everything runs in one process, in turn and repeated; what counts is the ratio of the medians, by the clock and by the
processor's time, which other programs disturb less. The forward pass is taken at the batch size at which an image costs
least. The claim: a mask costs at most 0.6 of it, whole calls included: clean pass, statistics or k-means, all masks.
Masks are counted once each where they occur several times. Run with ``python benchmarks/token_dropping.py [MODEL]
[--repeats 5] [--masks 256]``; MODEL is a model id, by default timm's vit_tiny_patch16_224 with random weights.

With ``--filled`` it measures instead how much faster `rise`, `lime`, `kernel_shap`, `hsic` and `score_cam` are with
``blank='dropped'`` than with a fill, whole calls by the processor's time; claimed: 1.8 times. ``--only`` names some.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import sightline
from sightline.methods.kept_tokens import score_masks
from sightline.models.vit.adapter import VisionTransformer

Task = tuple[Callable[[], object], float]  # what to run, and how many images or masks that is
CLAIM = 0.6
FASTER = 1.8
BATCHES = (1, 4, 8, 16, 32)
CLOCKS: dict[str, Callable[[], float]] = {"clock": time.perf_counter, "processor": time.process_time}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="timm/vit_tiny_patch16_224")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--masks", type=int, default=256)
    parser.add_argument("--filled", action="store_true", help="compare dropping with filling")
    parser.add_argument("--only", nargs="*", default=[], help="names of methods, with --filled")
    asked = parser.parse_args()
    model = sightline.load(asked.model, pretrained=asked.model.startswith("file:"))
    assert isinstance(model, VisionTransformer)
    height, width = model.input_size or (224, 224)
    images = torch.randn(max(BATCHES), 3, height, width, generator=torch.Generator().manual_seed(0))
    if asked.filled:
        return compare_with_fills(model, images[:1], asked.masks, asked.repeats, asked.only)
    with torch.no_grad(), model.evaluating():
        tasks: dict[str, Task] = {f"forward, batch of {n}": (lambda n=n: model(images[:n]), float(n)) for n in BATCHES}  # type: ignore[misc]
        tasks |= {recipe: whole(model, images[:1], recipe) for recipe in ("mutex", f"tis(samples={asked.masks})")}
        tasks["half of the patches, scored"] = halves(model, images[:1], asked.masks)
        taken = in_turn(tasks, asked.repeats)
    report(model, taken, {name: count for name, (_, count) in tasks.items()})


def compare_with_fills(model: VisionTransformer, image: Tensor, masks: int, repeats: int, only: Sequence[str]) -> None:
    """Print how much longer each sampling method takes with a fill than with dropped tokens."""
    recipes = (
        f"rise(samples={masks}, blank={{}})",
        f"lime(samples={masks}, segments=('grid', 7), blank={{}})",
        f"kernel_shap(samples={masks}, segments=('grid', 7), blank={{}})",
        f"hsic(samples={masks}, blank={{}})",
        "score_cam(blank={})",
    )
    for recipe in recipes:
        if only and recipe.partition("(")[0] not in only:
            continue
        methods = [sightline.parse(recipe.format(blank)) for blank in ("'mean'", "'dropped'")]
        with torch.no_grad(), model.evaluating():
            tasks: dict[str, Task] = {
                str(index): (lambda method=method: method(model, image, sightline.Logit(0)), 1.0)  # type: ignore[misc]
                for index, method in enumerate(methods)
            }
            filled, dropped = (statistics.median(each) for each in in_turn(tasks, repeats)["processor"].values())
        holds = "holds" if filled >= FASTER * dropped else "FAILS"
        print(f"{recipe.format('...')}: {filled / dropped:.2f} times faster, claimed {FASTER:g}: {holds}", flush=True)


def whole(model: VisionTransformer, image: Tensor, recipe: str) -> Task:
    """A call of a method, and how many different masks it scores."""
    method = sightline.parse(recipe)
    seen: list[int] = []

    def count(tokens: Tensor) -> Tensor:
        seen.append(len(tokens))
        return tokens

    with model.edit({f"block.{model.depth - 1}.output": count}):
        method(model, image, sightline.Logit(0))
    return lambda: method(model, image, sightline.Logit(0)), float(sum(seen) - len(image))  # less the clean pass


def halves(model: VisionTransformer, image: Tensor, masks: int) -> Task:
    """Scoring alone, of random halves."""
    cells = model.grid_of(image).cells
    order = torch.rand(masks, cells, generator=torch.Generator().manual_seed(1)).argsort(dim=1)
    kept, tokens = order < cells // 2, model.start(image)
    return lambda: score_masks(model, tokens, [kept], [sightline.Probability(0)]), float(masks)


def in_turn(tasks: dict[str, Task], repeats: int) -> dict[str, dict[str, list[float]]]:
    """Run everything in turn; the first round warms up."""
    taken: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in tasks} for clock in CLOCKS}
    for round_ in range(repeats + 1):
        for name, (work, count) in tasks.items():
            begun = {clock: now() for clock, now in CLOCKS.items()}
            work()
            for clock, now in CLOCKS.items():
                if round_:
                    taken[clock][name].append((now() - begun[clock]) / count)
    return taken


def report(model: VisionTransformer, taken: dict[str, dict[str, list[float]]], counts: dict[str, float]) -> None:
    median = {clock: {name: statistics.median(times) for name, times in by.items()} for clock, by in taken.items()}
    best = {clock: min(by[f"forward, batch of {n}"] for n in BATCHES) for clock, by in median.items()}
    print(f"{model.name}, {torch.get_num_threads()} threads; an image costs {best['clock'] * 1e3:.1f} ms at its best")
    print(f"{'':32} {'count':>6}" + "".join(f" {clock:>10}" for clock in CLOCKS))
    for name, count in counts.items():
        ratios = [median[clock][name] / best[clock] for clock in CLOCKS]
        verdict = "" if name.startswith("forward") else f"   {'holds' if max(ratios) <= CLAIM else 'FAILS'}"
        print(f"{name:32} {count:6.0f}" + "".join(f" {ratio:10.2f}" for ratio in ratios) + verdict)
    print(f"ratios per image or mask to the best forward; claimed at most {CLAIM}")


if __name__ == "__main__":
    main()
