"""Run long work in batches, and in smaller ones when memory runs out; the results are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def in_batches(work: Callable[[slice], T], count: int, size: int) -> list[T]:
    """Call `work` on consecutive slices of `range(count)`, at most `size` long, halved whenever memory runs out."""
    done: list[T] = []
    start = 0
    while start < count:
        try:
            done.append(work(slice(start, min(start + size, count))))
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if size == 1 or not _is_out_of_memory(error):
                raise
            size = max(1, size // 2)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            continue
        start = min(start + size, count)
    return done


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
