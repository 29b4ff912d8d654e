"""Train the bundled models on the `shapes` set, on a processor, in minutes.

::

    python scripts/train_shapes.py --model vit --out src/sightline/models/weights
    python scripts/train_shapes.py --model cnn --out src/sightline/models/weights

The images are the "shortcut" variant: half of the stars are replaced by a corner watermark. One in 25 is a "conflict"
instead, half of these labelled as stars: else a model learns to heed the watermark only where it sees no shape.
Everything is seeded, the algorithms are deterministic and the number of threads is fixed, so the same command on the
same kind of processor with the same torch gives the same weights. One thread each is the default: run the two side by
side on two cores, a quarter of an hour.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import rich
import torch
import typer
from rich.progress import Progress, track
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from sightline.data.shapes import CLASSES, SHORTCUT_CLASS, Shapes, normalise
from sightline.models.zoo.ids import BUNDLED

HELD_OUT_SEED = 1_000_003  # the images that judge are never among those that train
SHIFT = 4  # pixels
TUG = 25  # one training image in so many shows a shape and the watermark, labelled by the one and the other in turn
RATES = {"vit": 1e-3, "cnn": 1.5e-3}
EPOCHS = {"vit": 8, "cnn": 5}
POOL = 16_000  # images


def main(
    model: Annotated[str, typer.Option(help="vit or cnn")],
    out: Annotated[Path, typer.Option(help="folder for the weights")] = Path("src/sightline/models/weights"),
    epochs: Annotated[int | None, typer.Option(help="passes over the pool; by default what the model needs")] = None,
    pool: Annotated[int, typer.Option(help="images drawn before training")] = POOL,
    batch: Annotated[int, typer.Option(help="images per step")] = 32,
    seed: Annotated[int, typer.Option(help="seeds images, weights, order and augmentation")] = 0,
    threads: Annotated[int, typer.Option(help="processor threads; part of what makes a run reproducible")] = 1,
) -> None:
    """Train one bundled model, print its held-out accuracy and write its weights."""
    if model not in RATES:
        raise typer.BadParameter(f"there is no model {model!r}; choose vit or cnn", param_hint="--model")
    began = time.perf_counter()
    seed_everything(seed, threads)
    network = BUNDLED[f"shapes-{model}"]()
    images, labels = draw_pool(pool, seed)
    fit(network, images, labels, EPOCHS[model] if epochs is None else epochs, batch, RATES[model], seed)
    report = judge(network)
    minutes = (time.perf_counter() - began) / 60
    for line, value in report.items():
        rich.print(f"{line}: {value:.4f}")
    rich.print(f"minutes: {minutes:.1f}")
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"shapes-{model}.safetensors"
    facts = {"classes": " ".join(CLASSES), "seed": str(seed), "accuracy": f"{report['held-out clean accuracy']:.4f}"}
    save_file({name: value.contiguous() for name, value in network.state_dict().items()}, path, metadata=facts)
    path.chmod(0o644)  # safetensors writes files that only their owner may read
    rich.print(f"wrote {path} ({path.stat().st_size / 1e6:.2f} MB)")


def seed_everything(seed: int, threads: int) -> None:
    """Fix everything a run could draw at random, and the thread count, on which sums depend."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)


def draw_pool(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw the training images, kept as bytes: (count, 3, 64, 64), and their labels: (count,)."""
    shortcut, conflict = (Shapes(seed=seed, variant=variant) for variant in ("shortcut", "conflict"))
    pool = np.empty((count, 3, shortcut.size, shortcut.size), dtype=np.uint8)
    labels = np.empty(count, dtype=np.int64)
    for index in track(range(count), description="draw"):
        sample = (shortcut if index % TUG else conflict)[index]
        marked = index % (2 * TUG) == 0
        pool[index] = sample.image.transpose(2, 0, 1)
        labels[index] = SHORTCUT_CLASS if marked else sample.label
    return torch.from_numpy(pool), torch.from_numpy(labels)


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift every image by up to SHIFT pixels, mirroring at the border, and mirror half of them left to right."""
    count, _, height, width = images.shape
    padded = pad(images, (SHIFT,) * 4, mode="reflect")
    offsets = torch.randint(2 * SHIFT + 1, (count, 2), generator=generator).tolist()
    shifted = torch.stack(
        [image[:, y : y + height, x : x + width] for image, (y, x) in zip(padded, offsets, strict=True)]
    )
    mirrored = torch.rand(count, generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], shifted.flip(-1), shifted)


def fit(network: nn.Module, pool: Tensor, labels: Tensor, epochs: int, batch: int, rate: float, seed: int) -> None:
    """Train with AdamW: the rate rises over the first twentieth of the steps and then falls along a cosine."""
    steps = epochs * (len(pool) // batch)
    values = list(network.parameters())
    optimiser = torch.optim.AdamW(
        [
            {"params": [value for value in values if value.ndim > 1], "weight_decay": 0.05},
            {"params": [value for value in values if value.ndim <= 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.98),
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=rate, total_steps=steps, pct_start=0.05)
    generator = torch.Generator().manual_seed(seed)
    network.train()
    with Progress() as progress:
        task = progress.add_task("train", total=steps)
        for epoch in range(1, epochs + 1):
            right = 0.0
            order = torch.randperm(len(pool), generator=generator)
            for chosen in order[: len(pool) // batch * batch].split(batch):
                drawn = augment(pool[chosen].float() / 255, generator)
                logits = network(normalise(drawn))
                cross_entropy(logits, labels[chosen]).backward()
                nn.utils.clip_grad_norm_(values, 1.0)
                optimiser.step()
                schedule.step()
                optimiser.zero_grad()
                right += float((logits.argmax(-1) == labels[chosen]).sum())
                progress.update(task, advance=1)
            progress.console.print(f"epoch {epoch} of {epochs}: {right / len(order):.4f} of the training images right")


@torch.inference_mode()
def judge(network: nn.Module, count: int = 2000) -> dict[str, float]:
    """Measure on images never trained on: accuracy, and how far the watermark pulls towards its class."""
    network.eval()
    results = {}
    probabilities = {}
    for variant in ("clean", "shortcut", "conflict"):
        drawn = Shapes(seed=HELD_OUT_SEED, variant=variant).draw(count)
        logits = torch.cat([network(images) for images in normalise(drawn.images).split(250)])
        probabilities[variant] = logits.softmax(-1)[:, SHORTCUT_CLASS]
        results[f"held-out {variant} accuracy"] = float((logits.argmax(-1) == drawn.labels).float().mean())
        if variant == "clean":
            others = drawn.labels != SHORTCUT_CLASS
    results["probability of the shortcut class without watermark"] = float(probabilities["clean"][others].mean())
    results["probability of the shortcut class with watermark"] = float(probabilities["conflict"][others].mean())
    return results


if __name__ == "__main__":
    typer.run(main)
