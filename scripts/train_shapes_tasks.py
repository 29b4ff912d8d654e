"""Train the heads of the bundled segmenter and detector on `shapes` scenes with several objects, in minutes.

::

    python scripts/train_shapes_tasks.py --model segmenter
    python scripts/train_shapes_tasks.py --model detector --epochs 15

The backbones are the bundled classifiers, frozen; their features are computed once. Everything is seeded, and one
thread is the default, so the same command on the same kind of processor with the same torch gives the same weights.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import rich
import torch
import typer
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data.shapes_scenes import Scene, SceneBatch, ShapesScenes
from sightline.models.tasks.shapes_heads import CELLS, LABELS
from sightline.models.zoo.ids import load_task_model
from sightline.targets.boxes import overlap

HELD_OUT_SEED = 1_000_003  # the scenes that judge are never among those that train
WEIGHTS = Path("src/sightline/models/zoo/weights")


def main(
    model: Annotated[str, typer.Option(help="segmenter or detector")],
    out: Annotated[Path, typer.Option(help="folder for the weights")] = WEIGHTS,
    scenes: Annotated[int, typer.Option(help="scenes drawn before training")] = 5000,
    epochs: Annotated[int, typer.Option(help="passes over the scenes")] = 10,
    batch: Annotated[int, typer.Option(help="scenes per step")] = 32,
    rate: Annotated[float, typer.Option(help="the largest learning rate")] = 2e-3,
    seed: Annotated[int, typer.Option(help="seeds scenes, weights and order")] = 0,
) -> None:
    """Train one head, print how good it is on held-out scenes and write its weights."""
    if model not in ("segmenter", "detector"):
        raise typer.BadParameter(f"there is no model {model!r}; choose segmenter or detector", param_hint="--model")
    began = time.perf_counter()
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    adapter = load_task_model(f"shapes-{model}", pretrained=False)
    network: Any = adapter.model
    drawn = ShapesScenes(seed=seed).draw(scenes)
    features = compute_features(adapter, drawn)
    fit(network, features, targets_of(model, drawn), epochs, batch, rate, seed)
    for line, value in judge(model, adapter).items():
        rich.print(f"{line}: {value:.4f}")
    path = out / f"shapes-{model}.safetensors"
    save_file({name: value.contiguous() for name, value in network.head.state_dict().items()}, path)
    path.chmod(0o644)  # safetensors writes files that only their owner may read
    minutes = (time.perf_counter() - began) / 60
    rich.print(f"wrote {path} ({path.stat().st_size / 1e6:.2f} MB) in {minutes:.1f} minutes")


@torch.no_grad()
def compute_features(adapter: Any, drawn: SceneBatch) -> Tensor:
    """Return the frozen backbone's features of every scene."""
    parts = adapter.normalise(drawn.images).split(250)
    return torch.cat([adapter.model.features(part) for part in parts])


def targets_of(model: str, drawn: SceneBatch) -> Tensor:
    """Return what the head should say: the label of each pixel at half the size, or of each cell with its box."""
    if model == "segmenter":
        return drawn.segmentation[:, 1::2, 1::2]
    return torch.stack([cells_of(scene) for scene in drawn.scenes])


def cells_of(scene: Scene) -> Tensor:
    """Return for each cell its label, -1 for none, and the box in shares of the image: (64, 5).

    A cell belongs to the object in the middle half of whose box its centre lies, to the nearest where there are two.
    """
    size = scene.image.shape[0]
    boxes = torch.tensor(scene.boxes).float() / size
    middle = (torch.arange(CELLS) + 0.5) / CELLS
    y, x = torch.meshgrid(middle, middle, indexing="ij")
    centre, side = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    away = (torch.stack([x, y], dim=-1).reshape(-1, 1, 2) - centre).abs() / side
    distance = away.amax(dim=-1)
    distance[away.amax(dim=-1) > 0.3] = torch.inf
    nearest = distance.min(dim=1)
    label = torch.tensor(scene.labels)[nearest.indices].where(nearest.values.isfinite(), -1)
    return torch.cat([label[:, None].float(), boxes[nearest.indices]], dim=1)


def fit(network: Any, features: Tensor, targets: Tensor, epochs: int, batch: int, rate: float, seed: int) -> None:
    """Train the head with AdamW, its rate rising and falling along one cycle."""
    steps = epochs * (len(features) // batch)
    optimiser = torch.optim.AdamW(network.head.parameters(), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=rate, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(1, epochs + 1):
        total = 0.0
        order = torch.randperm(len(features), generator=generator)
        for chosen in order[: len(features) // batch * batch].split(batch):
            loss = loss_of(network, network.head(features[chosen]), targets[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += float(loss.detach())
        rich.print(f"epoch {epoch} of {epochs}: loss {total * batch / len(features):.4f}")


def loss_of(network: nn.Module, raw: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of a segmentation, or that of a detector with the distance and overlap of boxes."""
    if targets.ndim == 3 and targets.shape[-1] != 5:
        return F.cross_entropy(raw, targets)
    labels, boxes = targets[..., 0].long(), targets[..., 1:]
    positive = labels >= 0
    wanted = F.one_hot(labels.clamp(min=0), LABELS).float() * positive[..., None]
    logits = raw[:, :LABELS].flatten(2).transpose(1, 2)
    found = network.boxes(raw)[positive]  # type: ignore[operator]
    count = positive.sum().clamp(min=1)
    classes = F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / count
    away = F.l1_loss(found, boxes[positive], reduction="sum") / count
    return classes + 2 * away + (1 - overlap(found, boxes[positive])).sum() / count


@torch.no_grad()
def judge(model: str, adapter: Any, count: int = 500) -> dict[str, float]:
    """Measure on scenes never trained on: mean overlap of labels, or how many objects are found and how surely."""
    drawn = ShapesScenes(seed=HELD_OUT_SEED).draw(count)
    adapter.model.eval()
    output = [adapter.model(part) for part in adapter.normalise(drawn.images).split(100)]
    if model == "segmenter":
        predicted = torch.cat(output).argmax(dim=1)
        both = [((predicted == label) & (drawn.segmentation == label)).sum() for label in range(1 + LABELS)]
        any_of = [((predicted == label) | (drawn.segmentation == label)).sum() for label in range(1 + LABELS)]
        shares = [float(a / b) for a, b in zip(both, any_of, strict=True)]
        accuracy = float((predicted == drawn.segmentation).float().mean())
        return {"held-out pixel accuracy": accuracy, "held-out mean IoU": sum(shares) / len(shares)}
    boxes = torch.cat([part["boxes"] for part in output])
    scores = torch.cat([part["logits"] for part in output]).sigmoid()
    found, shared, objects = 0, 0.0, 0
    for row, scene in enumerate(drawn.scenes):
        for label, corners in zip(scene.labels, scene.boxes, strict=True):
            best = int(scores[row, :, label].argmax())
            near = float(overlap(boxes[row, best], torch.tensor(corners).float()))
            found += near > 0.5 and float(scores[row, best, label]) > 0.3
            shared += near
            objects += 1
    return {"held-out objects found": found / objects, "held-out mean IoU": shared / objects}


if __name__ == "__main__":
    typer.run(main)
