"""Trace a command through the package: how many files it passes, and how often it steps from one to another.

``python scripts/trace_walk.py`` explains one drawn image with one method, as ``sightline explain`` does, and prints the
files in the order they were first entered. A reader who wants to follow a command has to open that many files; the
steps are the distinct pairs of a calling and a called file.

    python scripts/trace_walk.py --model bundled/shapes-vit --method ixg
    python scripts/trace_walk.py --steps        # every step as well
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import sightline

PACKAGE = Path(sightline.__file__).parent


@dataclass
class Walk:
    """The files of the package that a call passes, in the order they are first entered, and the steps between them."""

    files: dict[str, None] = field(default_factory=dict)
    steps: dict[tuple[str, str], int] = field(default_factory=dict)

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a call, as a function for `sys.setprofile`."""
        if event != "call" or frame.f_code.co_name == "<module>" or not (name := _name(frame)):
            return
        self.files.setdefault(name)
        caller = frame.f_back
        while caller is not None and not _name(caller):
            caller = caller.f_back
        if caller is not None and (before := _name(caller)) != name:
            self.steps[before, name] = self.steps.get((before, name), 0) + 1


def _name(frame: FrameType) -> str:
    """Return the path of a frame's file inside the package, empty for any other file."""
    path = frame.f_code.co_filename
    return path[len(str(PACKAGE)) + 1 :] if path.startswith(str(PACKAGE)) else ""


def trace(model: str, method: str) -> Walk:
    """Explain one drawn image on the command line and trace it."""
    from PIL import Image

    from sightline.cli.main import app
    from sightline.data.shapes import Shapes

    walk = Walk()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shape.png"
        Image.fromarray(Shapes(seed=1)[0].image).save(path)
        words = [
            "explain",
            str(path),
            "--model",
            model,
            "--method",
            method,
            "--out",
            str(Path(folder) / "out"),
            "--json",
        ]
        app(words, standalone_mode=False)  # once before, so that importing is not part of the walk
        sys.setprofile(walk.profile)
        try:
            app(words, standalone_mode=False)
        finally:
            sys.setprofile(None)
    return walk


def main() -> None:
    """Print the files, the number of steps between them and, if asked, each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled/shapes-vit")
    parser.add_argument("--method", default="ixg")
    parser.add_argument("--steps", action="store_true", help="print every step from file to file")
    given = parser.parse_args()
    walk = trace(given.model, given.method)
    print("\n".join(walk.files), file=sys.stderr)
    if given.steps:
        print("\n".join(f"{a} -> {b} ({count})" for (a, b), count in walk.steps.items()), file=sys.stderr)
    print(f"{len(walk.files)} files, {len(walk.steps)} steps between files", file=sys.stderr)


if __name__ == "__main__":
    main()
