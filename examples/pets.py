"""Do the maps lie on the animal? Localisation on photographs with masks, as a table with standard errors.

    python examples/pets.py --folder ../shared/data/pets \
        --model file:../shared/weights/vit_tiny_patch16_224.safetensors@timm/vit_tiny_patch16_224

The folder holds images/, masks/ (255 animal, 128 border, 0 background) and labels.csv with the columns stem and
imagenet_label. The animals stand in the middle of these pictures, so every row also shows its margin over a map that
is merely centred.
"""

from __future__ import annotations

import argparse
import csv
import math
from pathlib import Path

import torch
from PIL import Image
from rich.progress import track
from torch import Tensor

import sightline
from sightline.data.masks import fit_mask, read_mask

METHODS = ["gae", "rollout", "raw_attention", "plus(ixg)", "grad_cam", "gradient", "smooth_grad", "ig"]
CONTROLS = ["centre", "sobel", "input_norm", "random"]
METRICS = ["average_precision", "pointing_game"]


def read(
    folder: Path, model: sightline.Adapter, limit: int, resize: int, crop: int
) -> tuple[Tensor, Tensor, list[int]]:
    """Return images, masks and labels of the photographs whose animal is in the frame."""
    images, masks, labels = [], [], []
    for row in list(csv.DictReader((folder / "labels.csv").open()))[:limit]:
        picture = Image.open(folder / "images" / f"{row['stem']}.jpg").convert("RGB")
        mask = read_mask(folder / "masks" / f"{row['stem']}.png")
        mask = fit_mask(mask, image_size=(picture.height, picture.width), resize=resize, crop=crop)
        if (mask == 1).any():
            images.append(model.preprocess(picture))  # type: ignore[misc]
            masks.append(mask)
            labels.append(int(row["imagenet_label"]))
    return torch.stack(images), torch.stack(masks), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("../shared/data/pets"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--method", action="append", help="a recipe; may be repeated")
    parser.add_argument("--limit", type=int, default=10**9)
    parser.add_argument("--resize", type=int, default=248, help="short side before the crop")
    parser.add_argument("--crop", type=int, default=224)
    options = parser.parse_args()
    model = sightline.load(options.model)
    images, masks, labels = read(options.folder, model, options.limit, options.resize, options.crop)
    scores = {}
    for recipe in track((options.method or METHODS) + CONTROLS, description=f"{len(images)} photographs"):
        attribution = sightline.explain(model, images, recipe, labels)
        passes = (attribution.passes.forward + attribution.passes.backward) / len(images)
        scores[recipe] = (sightline.evaluate(model, images, attribution, METRICS, masks=masks), passes)
    centre = scores["centre"][0]["average_precision"]
    print(f"| method | average precision | margin over centre | pointing | passes |\n{'| --- ' * 5}|")
    for recipe, (row, passes) in sorted(scores.items(), key=lambda item: -item[1][0]["average_precision"].mean()):
        ap, pointing = row["average_precision"], row["pointing_game"]
        margin = f"{shown(ap - centre, '+')}" if recipe != "centre" else "0"
        print(f"| {recipe} | {shown(ap)} | {margin} | {shown(pointing)} | {passes:.3g} |")


def shown(values: Tensor, sign: str = "") -> str:
    """Write mean and standard error."""
    return f"{values.mean():{sign}.3f} ± {values.std() / math.sqrt(len(values)):.3f}"


if __name__ == "__main__":
    main()
