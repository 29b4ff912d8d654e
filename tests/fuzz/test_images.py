"""Any bytes are an image, a mask or nothing that can be read, and then one sentence says so."""

from __future__ import annotations

import io
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image
from tests.fuzz.cases import CASES, try_all

from sightline.data.images import FORMATS, decode_image, peek_image, read_image, read_indices
from sightline.data.masks import read_mask
from sightline.errors import SightlineError

MODES = ("1", "L", "P", "RGB", "RGBA", "CMYK", "I;16", "LA", "F")
HUGE = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1)


@cache
def encoded(kind: str, mode: str, frames: int, seed: int) -> bytes:
    """Return the bytes of a small image, of an animation where the format knows them; none where it lacks the mode."""
    pixels = np.random.default_rng(seed).integers(0, 256, (5 + seed, 7, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257) if mode == "I;16" else image.convert(mode)
    buffer = io.BytesIO()
    several = {"save_all": True, "append_images": [image.copy()] * frames} if kind in ("GIF", "TIFF", "WEBP") else {}
    try:
        image.save(buffer, kind, **several)
    except (OSError, ValueError, KeyError):
        return b""
    return buffer.getvalue()


WHOLE = st.builds(encoded, st.sampled_from(FORMATS), st.sampled_from(MODES), st.integers(0, 2), st.integers(0, 2))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Flip bits, cut, repeat, and write numbers of any size over what may be a width, a height or a length."""
    data = bytearray(draw(WHOLE))
    for _ in range(draw(st.integers(1, 5))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(["flip", "cut", "repeat", "number", "bytes"])):
            case "flip" if data:
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[place : place + draw(st.integers(1, 400))]
            case "repeat":
                data[place:place] = data[place : place + draw(st.integers(1, 40))]
            case "number":
                order, size = draw(st.sampled_from(["big", "little"])), draw(st.sampled_from([2, 4]))
                number = draw(st.sampled_from(HUGE)) % 256**size
                place = draw(st.integers(0, 40))
                data[place : place + size] = number.to_bytes(size, order)  # type: ignore[arg-type]
            case _:
                data[place : place + draw(st.integers(0, 4))] = draw(st.binary(max_size=6))
    return bytes(data)


def check(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    for read in (read_image, read_indices, read_mask, peek_image):
        with suppress(SightlineError):
            read(path)
    with suppress(SightlineError):
        image = decode_image(data, "bytes")
        assert image.mode == "RGB"


@CASES
def test_any_bytes_are_an_image_or_are_refused(cases: int, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Pillow's words about a damaged file are ours to say
        try_all(
            cases,
            st.one_of(damaged(), WHOLE, st.binary(max_size=200)),
            lambda data: check(tmp_path / "file.jpg", data),
        )


@pytest.mark.parametrize("kind", FORMATS)
def test_an_image_cut_short_anywhere_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    data = encoded(kind, "RGB", 0, 0)
    for length in range(len(data)):
        check(tmp_path / "file.png", data[:length])
