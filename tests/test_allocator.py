"""The allocator is told what to keep in the processes that are ours, and led to keep a little in others."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from sightline.allocator import KEPT, LARGEST_BLOCK, keep_freed_memory
from sightline.bench.engines import process, ray
from sightline.bench.unit import RunConfig
from sightline.cli import main


def test_freed_memory_is_kept_up_to_a_bound(monkeypatch):
    told = {}
    library = SimpleNamespace(mallopt=lambda option, value: told.update({option: value}) or 1)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert keep_freed_memory()
    assert told == {-1: KEPT, -3: LARGEST_BLOCK}


@pytest.mark.parametrize("library", [SimpleNamespace(), SimpleNamespace(mallopt=lambda option, value: 0)])
def test_another_c_library_is_left_as_it_is(monkeypatch, library):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert not keep_freed_memory()


FAULTS = """
import resource, numpy
from sightline.allocator import keep_freed_memory, keep_some_freed_memory
{told}
def work():
    layers = [numpy.zeros(5 << 20, dtype=numpy.uint8) for _ in range(6)]
    for layer in layers:
        layer += 1
    return layers
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(told: str) -> int:
    """Return how often a fresh process asks the system for memory that it had before."""
    script = [sys.executable, "-c", FAULTS.format(told=told)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    return int(subprocess.run(script, capture_output=True, text=True, check=True, env=plain).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="glibc alone has the option")
@pytest.mark.parametrize("told", ["keep_freed_memory()", "keep_some_freed_memory()"])
def test_memory_that_is_kept_is_not_asked_for_again(told):
    assert faults(told) < faults("") / 10


EXPLAIN = """
import torch, sightline
from sightline import allocator
assert not allocator.keep_some_freed_memory.cache_info().currsize
allocator.ctypes = None  # what would set an option
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
sightline.explain(model.eval(), torch.rand(1, 3, 8, 8), "gradient", target=0)
assert allocator.keep_some_freed_memory.cache_info().currsize
"""


def test_importing_the_package_leaves_the_allocator_of_the_process_alone():
    script = "import sys, sightline; sightline.explain; sys.exit('sightline.allocator' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_explaining_sets_no_option_of_the_process():
    subprocess.run([sys.executable, "-c", EXPLAIN], check=True)


@pytest.mark.parametrize("of", ["command line", "local worker", "ray worker"])
def test_processes_that_are_ours_keep_freed_memory(monkeypatch, of):
    class Told(BaseException):
        pass

    def tell():
        raise Told

    module = {"command line": main, "local worker": process, "ray worker": ray}[of]
    monkeypatch.setattr(module, "keep_freed_memory", tell)
    monkeypatch.setattr(process.threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(process, "Connection", lambda descriptor: None)
    config = RunConfig("shapes")
    begin = {
        "command line": main.main,
        "local worker": lambda: process.main(0, config),
        "ray worker": lambda: ray.RayWorker(config.to_json()).start(),
    }
    with pytest.raises(Told):
        begin[of]()
