"""Read a weights file without running any code in it, and load it into a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sightline.errors import WeightsError


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, or of a torch file that holds tensors and nothing else."""
    if not path.is_file():
        raise WeightsError(f"there is no file {path}; check the path in file:PATH@timm/NAME")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path} is no complete safetensors file; download or save it again") from error
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a dozen different things on a damaged or unsafe file
        raise WeightsError(f"{path} cannot be read as plain weights; save them as safetensors") from error
    state = loaded.get("state_dict", loaded) if isinstance(loaded, Mapping) else loaded
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"{path} holds no plain weights; save the model's state_dict as safetensors")
    return dict(state)


def fit(model: nn.Module, state: Mapping[str, Tensor], path: str | Path, architecture: str) -> None:
    """Load weights into a model, all of them, or say which do not fit."""
    needed = model.state_dict()
    problems = [
        _count("missing", [name for name in needed if name not in state]),
        _count("unknown", [name for name in state if name not in needed]),
        _count("of another shape", [
            f"{name} {_shape(state[name])} instead of {_shape(needed[name])}"
            for name in needed if name in state and state[name].shape != needed[name].shape
        ]),
    ]  # fmt: skip
    if any(problems):
        raise WeightsError(f"{path} does not fit {architecture}: {'; '.join(filter(None, problems))}")
    model.load_state_dict(state, strict=True)


def _count(what: str, names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what} {', '.join(names[:3])}{more}" if names else ""


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"
