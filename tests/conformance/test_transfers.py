"""No method waits for the device, or sends it something, once per step, sample, patch or channel.

There is no GPU here: a mode counts the calls that would make one wait (a number read by Python, a choice by a mask,
a copy to the processor) or be sent something (a tensor made of Python numbers, an index that is a list). Every recipe
runs short and long; the long run may not have more of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests import tiny
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import sightline
from sightline.registry import METHODS

READ = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__array__", "numpy", "cpu"}
CHOSEN = {"nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "equal", "allclose", "is_nonzero"}
MADE = {"tensor", "as_tensor", "from_numpy", "asarray"}
EMPTY = {"arange", "linspace", "zeros", "ones", "empty", "full", "eye", "rand", "randn", "randint", "randperm"}


class Transfers(TorchFunctionMode):
    """Count the calls that make a device wait or send it something, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        name = getattr(func, "__name__", "")
        if _transfers(name, args, options):
            self.counts[name] += 1
        return func(*args, **options)


def _transfers(name: str, args: Sequence[Any], options: dict[str, Any]) -> bool:
    if name in READ | CHOSEN:
        return True
    if name in MADE:
        return not any(isinstance(arg, Tensor) for arg in args[:1])
    if name in EMPTY:
        return options.get("device") is None
    if name == "to":
        return "cpu" in args
    if name in ("__getitem__", "__setitem__"):
        return _copies_an_index(args[1])
    return False


def _copies_an_index(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(
        isinstance(part, list | tuple | range | np.ndarray) or (isinstance(part, Tensor) and part.dtype == torch.bool)
        for part in parts
    )
