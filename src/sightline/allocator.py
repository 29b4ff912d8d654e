"""The C library's allocator: memory that a model pass frees is kept for the next instead of returned to the system.

What the system hands out anew takes long to fill. How much is kept is a setting of the whole process. So the processes
that are ours set it, the command line, the web page and the workers of a benchmark. In a process of yours nothing is
set: where a method runs, glibc is led to keep a little, as it does in any program that once freed a large tensor.
"""

from __future__ import annotations

import ctypes
from functools import cache

__all__ = ["keep_freed_memory", "keep_some_freed_memory"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # options of mallopt
LARGEST_BLOCK = 32 * 2**20  # bytes; glibc takes no more
KEPT = 512 * 2**20  # bytes that are kept at most at the end of the heap


def keep_freed_memory() -> bool:
    """Keep freed memory for the next pass, which saves its page faults; return whether the allocator can be told so.

    A pass of EfficientNet-Lite0 over 16 images takes about a third less processor time. Only glibc has the option.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST_BLOCK)) and bool(mallopt(TRIM_THRESHOLD, KEPT))


@cache
def keep_some_freed_memory() -> None:
    """Free one block of almost the largest size that glibc counts, never touched, once per process.

    Unless it was told otherwise, glibc keeps at the end of the heap twice the size of the largest block that was freed,
    here 62 MiB. Other allocators have rules of their own.
    """
    import numpy as np  # the command line imports this module before anything that takes long

    np.empty(LARGEST_BLOCK - 2**20, dtype=np.uint8)
