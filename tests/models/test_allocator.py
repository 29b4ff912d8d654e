"""Freed memory stays in the process: the second round of the same tensors asks the system for no fresh page."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

ROUNDS = """
import resource, torch, sightline

def fill():
    return [torch.ones(2**20) for _ in range(12)]  # 4 MiB each

def fresh_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        fill()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
sightline.explain(model.eval(), torch.rand(1, 3, 8, 8), "gradient", target=0)
fill()
fill()
print(fresh_pages())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep what is freed")
def test_freed_memory_is_used_again() -> None:
    known = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    run = [sys.executable, "-c", ROUNDS]
    pages = int(subprocess.run(run, check=True, capture_output=True, text=True, env=known).stdout)
    assert pages < 512  # of the 49152 that the rounds fill; without sightline it is 1024 to 13000
