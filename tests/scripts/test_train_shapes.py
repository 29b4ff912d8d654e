"""The training script is reproducible from its seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_shapes.py"


def train(model: str, out: Path, seed: int) -> dict[str, Tensor]:
    """Train for a few steps and return the weights; the file around them may list its facts in another order."""
    command = [
        sys.executable,
        SCRIPT,
        "--model",
        model,
        "--out",
        out,
        "--pool",
        "96",
        "--epochs",
        "1",
        "--seed",
        str(seed),
    ]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert run.returncode == 0, run.stderr
    assert "held-out clean accuracy" in run.stdout
    return load_file(out / f"shapes-{model}.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["vit", "cnn"])
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(model: str, tmp_path: Path) -> None:
    first, again, other = (train(model, tmp_path / name, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
