"""The errors of a command that went on: said at once, kept for the record and the exit code."""

from __future__ import annotations

from sightline.cli import console
from sightline.errors import SightlineError

__all__ = ["ErrorLog"]


class ErrorLog(list[dict[str, str]]):
    """The errors of a command, as plain data."""

    def add(self, path: object, error: SightlineError, recipe: str = "") -> None:
        """Record that something failed, and say so in a sentence."""
        where = str(path)
        sentence = str(error) if where in str(error) else f"{where}: {error}"
        console.note(f"{recipe} on {sentence}" if recipe else sentence, "error")
        self.append({"path": where, "error": str(error)} | ({"recipe": recipe} if recipe else {}))
