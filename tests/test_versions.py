"""Versions: of what took part, by name."""

import platform
import sys
from importlib.metadata import version

from sightline.versions import versions


def test_versions_are_those_of_the_libraries_that_are_loaded(monkeypatch):
    import torch

    found = versions()
    assert found["sightline"] == version("sightline")
    assert (found["python"], found["torch"]) == (platform.python_version(), torch.__version__)
    monkeypatch.delitem(sys.modules, "PIL", raising=False)
    assert "PIL" not in versions()
