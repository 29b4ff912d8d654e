"""Fixtures: tiny networks, images and targets, in float64 and seeded; nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests import parity as parity_table
from tests import tiny

ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes the table of comparisons with other packages."""
    parser.addoption(
        "--parity", metavar="FILE", help="run the tests that compare with other packages alone, and write a table"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Gather comparisons with other packages."""
    config.pluginmanager.register(parity_table.Collector(config), "parity-collector")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Keep helpers from being collected as doctests: some of them register methods when they are imported."""
    helper = collection_path.suffix == ".py" and not collection_path.name.startswith(("test_", "conftest"))
    return True if helper and Path(__file__).parent in collection_path.parents else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail in CI when a test was skipped for want of a package: `make setup` installs them all."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    if os.environ.get("CI") and any("could not import" in str(report.longrepr) for report in skipped):
        reporter.write_line("failed: a test was skipped for want of a package, which CI must have (see SKIPPED below)")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def parity(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Compare with another package: `parity(name, peer, got, want, bound)`, a row of docs/measured/parity.csv."""
    return parity_table.fixture(record_property)


@pytest.fixture
def tiny_vit() -> nn.Module:
    """A timm ViT of three blocks on 32×32 images, 4×4 patches, five classes, float64."""
    return tiny.vit().double()


@pytest.fixture
def tiny_cnn() -> nn.Module:
    """A small convolutional network with batch norm, in-place and reused ReLUs, five classes, float64."""
    return tiny.Cnn().eval().double()


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, dtype=torch.float64)


@pytest.fixture
def shared() -> Path:
    """The folder with real weights, photographs and reference numbers; present in CI, maybe absent elsewhere."""
    folder = Path(os.environ.get("SIGHTLINE_SHARED", ROOT.parent / "shared"))
    if not (folder / "weights").is_dir():
        if os.environ.get("CI"):
            pytest.fail("the shared folder is missing, and CI has it: set SIGHTLINE_SHARED")
        pytest.skip("needs the shared folder with real weights and photographs; set SIGHTLINE_SHARED")
    return folder


@pytest.fixture
def real_vit(shared: Path) -> nn.Module:
    """The real ImageNet ViT-Tiny/16."""
    return tiny.real_vit(shared)


@pytest.fixture
def pair() -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Scale two maps to [0, 1], as the reference numbers are compared."""
    return lambda a, b: (tiny.min_max(a), tiny.min_max(b))
