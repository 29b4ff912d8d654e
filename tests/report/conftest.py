"""A browser for the tests that look at pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def lacking(what: str) -> None:
    """Skip, but not in CI, which has a browser."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and CI has it")
    pytest.skip(f"needs {what}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        lacking("playwright")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        lacking("chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield started
        started.close()
