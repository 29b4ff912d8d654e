"""What a visitor asks: maps of a picture, every part of it from the server's own lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sightline.api.explain import as_method
from sightline.app.pictures import Picture
from sightline.targets.tasks import Box
from sightline.types import Method, TextSimilarity

__all__ = ["Contrast", "Question"]

Contrast = Literal["against", "var"]


@dataclass(frozen=True, slots=True)
class Question:
    """What a visitor asks: maps of a picture by these recipes.

    Attributes:
        target: the class, or the word of a vision-language model's answer; None for the predicted class, or the longest
            word.
        words: a text in place of a class, for a model that compares pictures with texts.
        box: a detection in place of a class, by rank, for a detector.
        fills: whether maps are judged under several fills, and not by the main ones alone.
        prompt: what a vision-language model is asked; empty for the question that it was loaded with.
        contrast: how the class is compared with `other`: `against` subtracts that class's map, `var` lets them compete.
    """

    model: str
    picture: Picture
    recipes: tuple[str, ...]
    target: int | None = None
    words: str = ""
    contrast: Contrast | None = None
    other: int | None = None
    box: int | None = None
    fills: bool = False
    prompt: str = ""

    @property
    def wanted(self) -> Any:
        """What is explained, as `sightline.explain` takes it."""
        if self.words:
            return TextSimilarity(self.words)
        return self.target if self.box is None else Box(self.box)

    def methods(self, target: int | None) -> list[Method]:
        """Build the methods; `target` is the class that the picture is explained for."""
        return [as_method(self._contrasted(recipe, target)) for recipe in self.recipes]

    def _contrasted(self, recipe: str, target: int | None) -> str:
        if self.contrast is None or self.other is None:
            return recipe
        if self.contrast == "against":
            return f"against({recipe}, other={self.other})"
        return f"var({recipe}, classes=({target}, {self.other}), distribution=True)"
