"""Keep freed memory in the process: what the system hands out anew takes long to fill.

glibc's malloc returns freed memory to the system where more than twice as much lies idle as the largest block that was
freed before, counting blocks of up to 32 MiB. A model of a few million weights frees less than that at a time and asks
for it again in the next layer: thousands of pages of a pass are made anew. Other allocators, and a GPU's, keep what is
freed by themselves.
"""

from __future__ import annotations

from functools import cache

import numpy as np

BLOCK = 31 * 2**20  # bytes; malloc counts no block above 32 MiB


@cache
def keep_freed_memory() -> None:
    """Let malloc keep up to 62 MiB, once per process: one block is asked for and freed, and never touched.

    Any program that frees a tensor of that size has the same. Where MALLOC_TRIM_THRESHOLD_ or a like variable of glibc
    is set, that stands.
    """
    np.empty(BLOCK, dtype=np.uint8)
