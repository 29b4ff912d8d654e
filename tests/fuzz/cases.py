"""How many cases are tried: two hundred, the same every time; among the slow tests ten thousand, new every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

MANY = pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])
CASES = pytest.mark.parametrize("cases", [200, MANY])


def try_all(cases: int, strategy: SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """Call `check` on so many cases."""

    def run(case: Any) -> None:
        check(case)

    settings(
        max_examples=cases,
        derandomize=cases < 1000,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )(given(strategy)(run))()
