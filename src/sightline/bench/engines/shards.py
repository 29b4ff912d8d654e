"""Shards: which share of a run a process does, as its command line or its scheduler says."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from sightline.errors import InputError

__all__ = ["shard_of"]


def shard_of(text: str | None = None, environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return which share, counted from 0, and of how many.

    Args:
        text: such as "0/8", the first of eight.
        environment: read where there is no text, by default that of the process: first ``SLURM_ARRAY_TASK_ID``,
            ``…_MIN``, ``…_STEP`` and ``…_COUNT`` of a Slurm array job, then ``RANK`` and ``WORLD_SIZE``, as torchrun
            sets them. Without any of them the share is the whole.

    >>> shard_of("2/8")
    (2, 8)
    >>> shard_of(environment={"RANK": "1", "WORLD_SIZE": "4"})
    (1, 4)
    """
    if text is not None:
        return _checked(*_parse(text), f"--shard {text}")
    variables = os.environ if environment is None else environment
    if "SLURM_ARRAY_TASK_ID" in variables and "SLURM_ARRAY_TASK_COUNT" in variables:
        first, step = (
            _number(variables, f"SLURM_ARRAY_TASK_{name}", default) for name, default in (("MIN", 0), ("STEP", 1))
        )
        index = (_number(variables, "SLURM_ARRAY_TASK_ID") - first) // max(step, 1)
        return _checked(index, _number(variables, "SLURM_ARRAY_TASK_COUNT"), "the Slurm array")
    if "RANK" in variables and "WORLD_SIZE" in variables:
        return _checked(_number(variables, "RANK"), _number(variables, "WORLD_SIZE"), "RANK and WORLD_SIZE")
    return 0, 1


def _parse(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", text)
    if found is None:
        raise InputError(f"got --shard {text}; write I/N, such as 0/8 for the first of eight shares")
    return int(found[1]), int(found[2])


def _number(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    given = variables.get(name, "" if default is None else str(default))
    if not re.fullmatch(r"\d{1,9}", given):
        raise InputError(f"the variable {name} is {given!r}, no number; give --shard I/N")
    return int(given)


def _checked(index: int, count: int, where: str) -> tuple[int, int]:
    if not 0 <= index < count:
        raise InputError(f"{where} asks for share {index} of {count}; shares are counted from 0, up to {count - 1}")
    return index, count
