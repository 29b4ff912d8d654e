"""Slurm: the array script of a plan, each of whose tasks does a share of the units with ``sightline bench work``.

The tasks need no connection to each other: they share the store alone, so it has to lie where all nodes reach it. A
task that is stopped or requeued goes on where it was, and the whole script may be submitted again.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from sightline.bench.plan import Plan
from sightline.errors import InputError

__all__ = ["slurm_script"]

TIME = re.compile(r"\d+|\d+:\d+(:\d+)?|\d+-\d+(:\d+){0,2}")  # minutes, hours:minutes…, days-hours…
MEMORY = re.compile(r"\d+[KMGT]?")
WORD = re.compile(r"[A-Za-z0-9_.,:/@+=-]+")


def slurm_script(
    plan: Plan,
    path: str | Path,
    store: str,
    *,
    tasks: int = 8,
    processors: int = 4,
    memory: str = "16G",
    time: str = "24:00:00",
    partition: str | None = None,
    command: str = "sightline",
) -> str:
    """Return the script that ``sbatch`` takes.

    Args:
        plan: that was read from `path`; a plan for cuda asks for one GPU per task.
        path: of the plan's file, as the nodes see it.
        store: a folder or an fsspec url that all nodes reach.
        tasks: of the array; each does one share.
        processors: of a task; one worker for as many of them as the plan has threads, or one worker on a GPU.
        memory: of a task, such as 16G.
        time: limit of a task, such as 24:00:00.
        partition: to submit to; the cluster's default by default.
        command: that starts sightline on a node.

    Raises:
        InputError: an option is not one that sbatch understands.
    """
    for name, number in (("tasks", tasks), ("processors", processors)):
        if number < 1:
            raise InputError(f"got {name} = {number}; give 1 or more")
    for name, given, pattern in (("time", time, TIME), ("memory", memory, MEMORY), ("partition", partition, WORD)):
        if given is not None and not pattern.fullmatch(given):
            raise InputError(f"got {name} = {given!r}, which sbatch does not understand; see `man sbatch`")
    on_gpu = plan.device == "cuda"
    options = (
        {
            "job-name": re.sub(r"[^A-Za-z0-9_.-]+", "-", plan.name).strip("-") or "sightline",
            "array": f"0-{tasks - 1}",
            "ntasks": "1",
            "cpus-per-task": str(processors),
            "mem": memory,
            "time": time,
            "output": "slurm-%A_%a.out",
            "requeue": None,
        }
        | ({"gpus-per-task": "1"} if on_gpu else {})
        | ({"partition": partition} if partition else {})
    )
    workers = 1 if on_gpu else max(1, processors // plan.threads)
    words = [*shlex.split(command), "bench", "work", store, "--plan", str(path), "--workers", str(workers)]
    lines = [f"#SBATCH --{name}" + ("" if value is None else f"={value}") for name, value in options.items()]
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            "",
            "set -euo pipefail",
            f"export OMP_NUM_THREADS={plan.threads}",
            f'exec {shlex.join(words)} --shard "$SLURM_ARRAY_TASK_ID/{tasks}"',
            "",
        ]
    )
