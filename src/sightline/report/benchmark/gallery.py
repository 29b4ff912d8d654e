"""The gallery: images with the maps of all methods side by side, as pictures small enough to be embedded in the page.

A photograph is embedded once. Each map is a transparent overlay on it, with the colours and opacity of
:func:`sightline.report.figure.overlay`.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, features

from sightline.formatting import format_score
from sightline.report.figure import DIVERGING, Numbers, colour, heat, scaled, shown_map, smoothing_note

__all__ = ["BUDGET", "GalleryImage", "choose_images", "render_gallery", "transparent_overlay"]

PHOTO, OVERLAY, HEAT = 256, 128, 112  # pixels of the longer side: the photograph, a map over it, a map without one
OPACITY = 0.78  # as in `overlay`
BUDGET = 9_000_000  # bytes of pictures in a page: with all tables it stays below 15 MB


@dataclass(frozen=True, eq=False)
class GalleryImage:
    """One image of the gallery with the maps of one model.

    Attributes:
        model: the model that was explained.
        image: the image's id.
        maps: recipe -> map, (height, width), signed and unscaled.
        picture: the part of the image that the model saw; None where it cannot be read, then maps are shown alone.
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


def choose_images(scores: Mapping[str, float], count: int) -> list[str]:
    """Choose images at even steps from the one with the best scores to the one with the worst.

    `scores` is the mean score of the methods on each image, higher being better.

    >>> choose_images({"a": 0.1, "b": 0.9, "c": 0.5, "d": 0.7}, 2)
    ['b', 'a']
    """
    ranked = sorted(scores, key=lambda name: (-scores[name] if scores[name] == scores[name] else np.inf, name))
    if count >= len(ranked):
        return ranked
    positions = np.linspace(0, len(ranked) - 1, count).round().astype(int) if count > 1 else [0] * count
    return [ranked[position] for position in positions]


def render_gallery(images: Iterable[GalleryImage], budget: int = BUDGET) -> list[dict[str, Any]]:
    """Return the images as embedded pictures, as many as the budget of bytes allows, at least one."""
    rendered: list[dict[str, Any]] = []
    spent = 0
    for image in images:
        pictures = _render(image)
        spent += len(pictures["photo"]) + sum(len(tile["src"]) for tile in pictures["tiles"])
        if rendered and spent > budget:
            break
        rendered.append(pictures)
    return rendered


def _render(image: GalleryImage) -> dict[str, Any]:
    recipes = [recipe for recipe in (image.order or image.maps) if recipe in image.maps]
    width, height = image.picture.size if image.picture else (1, 1)
    return {
        "model": image.model,
        "image": image.image,
        "caption": image.caption,
        "photo": _photo(image.picture) if image.picture else "",
        "ratio": f"{width / height:.4f}",
        "tiles": [
            {
                "recipe": recipe,
                "src": _tile(image.maps[recipe], image.picture),
                "score": format_score(image.scores.get(recipe)) if image.scores else "",
                "note": smoothing_note(np.asarray(image.maps[recipe])),
            }
            for recipe in recipes
        ],
    }


def _photo(picture: Image.Image) -> str:
    small = picture.convert("RGB")
    small.thumbnail((PHOTO, PHOTO), Image.Resampling.LANCZOS)
    return _data_uri(small, quality=80)


def _tile(map: Numbers, picture: Image.Image | None) -> str:
    map = shown_map(np.asarray(map))
    if picture is None:
        return _data_uri(heat(map, _fit(np.asarray(map).shape[::-1], HEAT), palette=DIVERGING), quality=78)
    return _data_uri(transparent_overlay(map, _fit(picture.size, OVERLAY)), quality=68)


def transparent_overlay(map: Numbers, size: tuple[int, int]) -> Image.Image:
    """Draw a map as an RGBA picture: the stronger the value, the more opaque."""
    small = Image.fromarray(scaled(np.asarray(map, dtype=np.float64)).astype(np.float32))
    values = np.asarray(small.resize(size, Image.Resampling.BILINEAR), dtype=np.float64)
    alpha = np.rint(255 * OPACITY * np.abs(values)).astype(np.uint8)
    return Image.fromarray(np.dstack([colour(values, DIVERGING, limit=1.0), alpha]))


def _fit(size: tuple[int, ...], longest: int) -> tuple[int, int]:
    scale = longest / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _data_uri(picture: Image.Image, *, quality: int) -> str:
    """Return a picture as a data URI: WebP, or PNG and JPEG where Pillow was built without it."""
    buffer = io.BytesIO()
    if features.check("webp"):
        kind = "webp"
        picture.save(buffer, format="WEBP", quality=quality, alpha_quality=85, method=4)
    else:
        kind = "png" if picture.mode == "RGBA" else "jpeg"
        picture.save(buffer, format=kind.upper(), quality=quality, optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
