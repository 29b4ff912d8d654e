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

CONTAINERS = ("state_dict", "model_state_dict", "model")  # what checkpoints call the weights among other things
PREFIXES = ("module.", "_orig_mod.", "model.")  # DataParallel, torch.compile, Lightning


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
    state = loaded
    for name in CONTAINERS:
        state = state[name] if isinstance(state, Mapping) and isinstance(state.get(name), Mapping) else state
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"{path} holds no plain weights; save the model's state_dict as safetensors")
    return dict(state)


def without_prefix(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Strip what a training loop put before every name, unless the model's own names begin with it."""
    names = dict(state)
    stripped = True
    while stripped:
        stripped = False
        for prefix in PREFIXES:
            ours = any(name.startswith(prefix) for name in model.state_dict())
            if not ours and names and all(name.startswith(prefix) for name in names):
                names = {name.removeprefix(prefix): tensor for name, tensor in names.items()}
                stripped = True
    return names


def head_size(model: nn.Module, state: Mapping[str, Tensor]) -> int | None:
    """Return how many classes the weights have, where that is all in which they differ from the model; else None."""
    needed = model.state_dict()
    other = [name for name in needed if name in state and state[name].shape != needed[name].shape]
    sizes = {(needed[name].shape[:1], state[name].shape[:1]) for name in other}
    same_rest = all(needed[name].shape[1:] == state[name].shape[1:] for name in other)
    return int(state[other[0]].shape[0]) if len(sizes) == 1 and same_rest else None


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
