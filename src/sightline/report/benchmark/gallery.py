"""The gallery: images with the maps of all methods side by side, small enough to be carried inside the page.

A photograph is embedded once. Each map is a transparent veil over it: the house palette, the stronger the value the
more it covers, exactly as `overlay` draws it.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, features

from sightline.report.figure import heat
from sightline.report.numbers import figure
from sightline.report.palette import DIVERGING, Numbers, colour, scaled

__all__ = ["BUDGET", "Exhibit", "hang", "spread"]

PHOTO, VEIL, ALONE = 256, 128, 112  # pixels of the longer side: the photograph, a map over it, a map without one
OPACITY = 0.78  # as in `overlay`
BUDGET = 9_000_000  # bytes of pictures in a page: with all tables it stays below 15 MB


@dataclass(frozen=True, eq=False)
class Exhibit:
    """One image and the maps of one model.

    Attributes:
        model: the model that was explained.
        image: the image's id.
        maps: recipe -> map, (height, width), signed and unscaled.
        picture: the part of the image that the model saw; None where it is not at hand, then maps are shown alone.
        caption: what it shows and what was explained, in a few words.
        scores: recipe -> value of the metric that orders the gallery.
        order: recipes in the order of the tiles; those of `maps` where it is empty.
    """

    model: str
    image: str
    maps: Mapping[str, Numbers]
    picture: Image.Image | None = None
    caption: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    order: Sequence[str] = ()


def spread(scores: Mapping[str, float], count: int) -> list[str]:
    """Choose images evenly from the one where methods do best to the one where they do worst.

    `scores` says how well the methods do on each image, higher being better.

    >>> spread({"a": 0.1, "b": 0.9, "c": 0.5, "d": 0.7}, 2)
    ['b', 'a']
    """
    ranked = sorted(scores, key=lambda name: (-scores[name] if scores[name] == scores[name] else np.inf, name))
    if count >= len(ranked):
        return ranked
    places = np.linspace(0, len(ranked) - 1, count).round().astype(int) if count > 1 else [0] * count
    return [ranked[place] for place in places]


def hang(exhibits: Iterable[Exhibit], budget: int = BUDGET) -> list[dict[str, Any]]:
    """Turn exhibits into pictures for the page, as many as the budget of bytes allows, at least one."""
    shown: list[dict[str, Any]] = []
    spent = 0
    for exhibit in exhibits:
        one = _frame(exhibit)
        spent += len(one["photo"]) + sum(len(tile["src"]) for tile in one["tiles"])
        if shown and spent > budget:
            break
        shown.append(one)
    return shown


def _frame(exhibit: Exhibit) -> dict[str, Any]:
    names = [name for name in (exhibit.order or exhibit.maps) if name in exhibit.maps]
    width, height = exhibit.picture.size if exhibit.picture else (1, 1)
    return {
        "model": exhibit.model,
        "image": exhibit.image,
        "caption": exhibit.caption,
        "photo": _photo(exhibit.picture) if exhibit.picture else "",
        "ratio": f"{width / height:.4f}",
        "tiles": [
            {
                "recipe": name,
                "src": _tile(exhibit.maps[name], exhibit.picture),
                "score": figure(exhibit.scores.get(name)) if exhibit.scores else "",
            }
            for name in names
        ],
    }


def _photo(picture: Image.Image) -> str:
    small = picture.convert("RGB")
    small.thumbnail((PHOTO, PHOTO), Image.Resampling.LANCZOS)
    return _uri(small, quality=80)


def _tile(map: Numbers, picture: Image.Image | None) -> str:
    if picture is None:
        return _uri(heat(map, _fitted(np.asarray(map).shape[::-1], ALONE), palette=DIVERGING), quality=78)
    return _uri(veil(map, _fitted(picture.size, VEIL)), quality=68)


def veil(map: Numbers, size: tuple[int, int]) -> Image.Image:
    """Draw a map as colours that cover what lies below by the strength of the map."""
    shares = Image.fromarray(scaled(np.asarray(map, dtype=np.float64)).astype(np.float32))
    values = np.asarray(shares.resize(size, Image.Resampling.BILINEAR), dtype=np.float64)
    cover = np.rint(255 * OPACITY * np.abs(values)).astype(np.uint8)
    return Image.fromarray(np.dstack([colour(values, DIVERGING, limit=1.0), cover]))


def _fitted(size: tuple[int, ...], longest: int) -> tuple[int, int]:
    scale = longest / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _uri(picture: Image.Image, *, quality: int) -> str:
    """Return a picture as a data URI: WebP, or PNG and JPEG where Pillow was built without it."""
    buffer = io.BytesIO()
    if features.check("webp"):
        kind = "webp"
        picture.save(buffer, format="WEBP", quality=quality, alpha_quality=85, method=4)
    else:
        kind = "png" if picture.mode == "RGBA" else "jpeg"
        picture.save(buffer, format=kind.upper(), quality=quality, optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
