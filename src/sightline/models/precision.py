"""Half precision lifted to float32, where a calculation would lose too much in it."""

from __future__ import annotations

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def full_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for a half-precision type, and any other type as it is."""
    return torch.float32 if dtype in HALF else dtype


def full_precision(values: Tensor) -> Tensor:
    """Return half-precision values in float32, and any others as they are."""
    return values.float() if values.dtype in HALF else values
