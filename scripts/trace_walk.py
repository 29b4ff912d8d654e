"""Trace a command through the package: how many files it passes, and how often it steps from one to another.

``python scripts/trace_walk.py`` explains one drawn image with one method, as ``sightline explain`` does, and prints the
files in the order they were first entered. A reader who wants to follow a command has to open that many files. Going
from file to file is counted in two ways: steps are the distinct pairs of a calling and a called file; switches are the
functions whose first call comes from another file.

    python scripts/trace_walk.py --model bundled/shapes-vit --method ixg
    python scripts/trace_walk.py --steps        # every step and every switch as well
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import sightline

PACKAGE = Path(sightline.__file__).parent


@dataclass
class Walk:
    """The files of the package that a call passes, in the order they are first entered, and the ways between them.

    Attributes:
        files: by path inside the package.
        steps: how often a function of one file called a function of another.
        switches: of each function that is first called from another file, that file.
    """

    files: dict[str, None] = field(default_factory=dict)
    steps: dict[tuple[str, str], int] = field(default_factory=dict)
    switches: dict[str, str] = field(default_factory=dict)
    _called: set[CodeType] = field(default_factory=set)

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a call, as a function for `sys.setprofile`."""
        if event != "call" or frame.f_code.co_name == "<module>" or not (name := _name(frame)):
            return
        self.files.setdefault(name)
        caller = frame.f_back
        while caller is not None and not _name(caller):
            caller = caller.f_back
        before = name if caller is None else _name(caller)
        if before != name:
            self.steps[before, name] = self.steps.get((before, name), 0) + 1
            if frame.f_code not in self._called:
                self.switches[f"{name}:{frame.f_code.co_firstlineno} {frame.f_code.co_qualname}"] = before
        self._called.add(frame.f_code)


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
            "--no-resume",  # the second run has to do the work too
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
        print("\n".join(f"{function} from {before}" for function, before in walk.switches.items()), file=sys.stderr)
    counts = f"{len(walk.files)} files, {len(walk.steps)} steps between files, {len(walk.switches)} switches of file"
    print(counts, file=sys.stderr)


if __name__ == "__main__":
    main()
