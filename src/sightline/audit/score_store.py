"""Scores of recipes on single images, computed once and kept in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from sightline import api
from sightline.audit.examples import Example
from sightline.errors import InputError, OutputError
from sightline.models.adapter import Adapter
from sightline.types import Enlarge

__all__ = ["ImageScorer", "ScoreStore"]

DIGITS = 3  # of the logits that tell one model from another


class ScoreStore:
    """Scores by key, kept in a file of one JSON object per line, or in memory alone; a half-written line is skipped."""

    def __init__(self, path: str | PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._scores: dict[str, float] = {}
        if self.path is not None and self.path.exists():
            self._read(self.path)

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read as a file of scores ({error}); name another store") from None
        for line in lines:
            try:
                entry = json.loads(line)
                self._scores[entry["key"]] = float(entry["value"])
            except (ValueError, KeyError, TypeError):  # the end of an interrupted run
                continue

    def get(self, key: str) -> float | None:
        """Return the score of this key, None where it is not known yet."""
        return self._scores.get(key)

    def add(self, key: str, value: float, **facts: Any) -> None:
        """Keep a score; `facts` are for whoever reads the file."""
        self._scores[key] = value
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                # a line of its own, also after one that an interrupted run left half written
                file.write("\n" + json.dumps({"key": key, "value": value, **facts}))
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {error.strerror}; name another store") from None


class ImageScorer:
    """Explains and scores one image with one recipe, unless the store knows the score.

    A score is known by the image, its mask, the model's answer to it, the recipe, the metric, the target and how maps
    are enlarged, so a store can be shared by several searches and is never wrong for another model.
    """

    def __init__(
        self,
        model: Adapter,
        examples: Sequence[Example],
        metric: str,
        store: ScoreStore,
        enlarge: Enlarge | None = None,
    ) -> None:
        self.model, self.examples, self.metric, self.store, self.enlarge = model, examples, metric, store, enlarge
        self._heads: dict[int, str] = {}

    def __call__(self, recipe: str, row: int) -> float:
        example = self.examples[row]
        enlarged = () if self.enlarge is None else (self.enlarge,)
        key = f"{self._head(row)}-{_digest(recipe, self.metric, repr(example.target), *enlarged)}"
        known = self.store.get(key)
        if known is not None:
            return known
        attribution = api.explain(self.model, example.batch, recipe, example.target, enlarge=self.enlarge)
        masks = None if example.mask is None else example.mask[None]
        scores = api.evaluate(self.model, example.batch, attribution, self.metric, masks=masks)
        value = float(scores[self.metric][0])
        self.store.add(key, value, recipe=recipe, metric=self.metric, image=row)
        return value

    def _head(self, row: int) -> str:
        if row not in self._heads:
            batch, mask = self.examples[row].batch, self.examples[row].mask
            answer = self.model.predict(batch).double().round(decimals=DIGITS).tolist()
            evidence = [] if mask is None else [_content(mask)]
            self._heads[row] = _digest(_content(batch.float()), repr(answer), *evidence)
        return self._heads[row]


def _content(values: Tensor) -> str:
    return hashlib.blake2b(values.cpu().numpy().tobytes()).hexdigest()


def _digest(*words: str) -> str:
    return hashlib.blake2b("\0".join(words).encode(), digest_size=12).hexdigest()
