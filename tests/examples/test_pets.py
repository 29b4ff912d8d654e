"""The script on localisation prints its table, here on drawn shapes in the layout it reads."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sightline.data.shapes import Shapes

SCRIPT = Path(__file__).parents[2] / "examples" / "pets.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write six shapes with their masks as if they were pets."""
    batch = Shapes(seed=1).draw(6)
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    pixels = (batch.images * 255).round().byte().permute(0, 2, 3, 1).numpy()
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["stem", "imagenet_label"])
        table.writeheader()
        for index, (image, mask, label) in enumerate(
            zip(pixels, batch.evidence.numpy(), batch.labels.tolist(), strict=True)
        ):
            Image.fromarray(image).save(tmp_path / "images" / f"{index}.jpg", quality=95)
            Image.fromarray(np.where(mask == 1, 255, 0).astype(np.uint8)).save(tmp_path / "masks" / f"{index}.png")
            table.writerow({"stem": index, "imagenet_label": label})
    return tmp_path


def test_methods_and_controls_are_ranked_by_average_precision(folder):
    options = ["--model", "bundled/shapes-vit", "--method", "plus(libra(ixg))", "--resize", "64", "--crop", "64"]
    program = [sys.executable, str(SCRIPT), "--folder", str(folder), *options]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line.strip("|").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ") and "±" in line]
    precision = {row[0].strip(): float(re.match(r"[\d.]+", row[1])[0]) for row in rows}
    assert set(precision) == {"plus(libra(ixg))", "centre", "sobel", "input_norm", "random"}
    assert list(precision.values()) == sorted(precision.values(), reverse=True)
    assert precision["plus(libra(ixg))"] > precision["random"]
