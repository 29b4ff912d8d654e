"""Everything of a model that explaining it must leave as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """Return what must not change: parameters, buffers, gradients, modes, hooks, attention flags, attributes.

    Two fingerprints of an untouched model are equal; compare them with ``==``, before and after.
    """
    found: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        found[f"parameter {name}"] = (*_tensor(parameter), parameter.requires_grad, _gradient(parameter))
    for name, buffer in model.named_buffers():
        found[f"buffer {name}"] = _tensor(buffer)
    for name, module in model.named_modules():
        found[f"module {name}"] = _module(module)
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return only what differs, for a readable failure."""
    names = {**before, **after}
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def _tensor(tensor: Tensor) -> tuple[Any, ...]:
    values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return tensor.data_ptr(), tensor._version, str(tensor.dtype), tuple(tensor.shape), crc32(values)


def _gradient(parameter: Tensor) -> tuple[Any, ...] | None:
    return None if parameter.grad is None else _tensor(parameter.grad)


def _module(module: nn.Module) -> dict[str, Any]:
    config = getattr(module, "config", None)
    return {
        "type": type(module).__name__,
        "training": module.training,
        "hooks": {name: len(getattr(module, name)) for name in HOOKS},
        "fused_attn": getattr(module, "fused_attn", None),
        "attn_implementation": _implementations(config),
        "attributes": sorted(vars(module)),
    }


def _implementations(config: Any) -> dict[str, Any]:
    """Read a transformers configuration's attention implementation, and those of the configurations inside it."""
    if not hasattr(config, "_attn_implementation"):
        return {}
    inside = {name: getattr(config, name, None) for name in getattr(config, "sub_configs", {})}
    return {"": config._attn_implementation} | {
        name: sub._attn_implementation for name, sub in inside.items() if sub is not None
    }


class Boom(Exception):
    """Raised by a model made to fail."""


@contextmanager
def exploding(module: nn.Module) -> Iterator[None]:
    """Make a module raise `Boom` when it has run."""

    def explode(*_: Any) -> None:
        raise Boom

    handle = module.register_forward_hook(explode)
    try:
        yield
    finally:
        handle.remove()
