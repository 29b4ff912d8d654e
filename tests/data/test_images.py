from __future__ import annotations

import os
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from sightline.data import images
from sightline.data.images import find_images, read_image
from sightline.data.masks import fit_mask, read_mask
from sightline.errors import ImageError, InputError

RED = (255, 0, 0)


def saved(folder: Path, name: str, image: Image.Image, **options: object) -> Path:
    path = folder / name
    image.save(path, **options)
    return path


def pixel(path: Path, x: int = 0, y: int = 0) -> tuple[int, ...]:
    image = read_image(path)
    assert image.mode == "RGB"
    return image.getpixel((x, y))


def png_header(path: Path, width: int, height: int) -> Path:
    """Write a PNG that claims a size and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])  # eight bits, grey
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    )
    return path


def test_a_plain_photograph_comes_back_unchanged(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    path = saved(tmp_path, "noise.png", Image.fromarray(noise))
    np.testing.assert_array_equal(np.asarray(read_image(path)), noise)
    np.testing.assert_array_equal(np.asarray(read_image(str(path))), noise)


def test_exif_orientation_is_applied(tmp_path):
    image = Image.new("RGB", (4, 2), "blue")
    image.putpixel((0, 0), RED)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side: turn clockwise to show
    upright = read_image(saved(tmp_path, "turned.png", image, exif=exif))
    assert upright.size == (2, 4)
    assert upright.getpixel((1, 0)) == RED


def test_cmyk_becomes_rgb(tmp_path):
    path = saved(tmp_path, "cmyk.tif", Image.new("CMYK", (3, 3), (0, 255, 255, 0)))
    assert pixel(path) == RED


def test_sixteen_bit_grey_is_scaled_and_not_clipped(tmp_path):
    grey = Image.fromarray(np.array([[0, 257, 32768, 65535]], dtype=np.uint16))
    path = saved(tmp_path, "deep.png", grey)
    assert [pixel(path, x) for x in range(4)] == [(value,) * 3 for value in (0, 1, 128, 255)]


def test_float_grey_is_scaled_from_unit_range(tmp_path):
    path = saved(tmp_path, "float.tif", Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32)))
    assert [pixel(path, x)[0] for x in range(3)] == [0, 128, 255]


@pytest.mark.parametrize("values", [[-1.0, 0.5], [0.0, 1e6], [np.nan, 0.5]])
def test_float_grey_out_of_range_is_refused(tmp_path, values):
    path = saved(tmp_path, "strange.tif", Image.fromarray(np.array([values], dtype=np.float32)))
    with pytest.raises(ImageError, match="save it with 8 or 16 bits"):
        read_image(path)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_laid_on_white(tmp_path, mode):
    path = saved(tmp_path, "clear.png", Image.new("RGBA", (2, 2), (0, 0, 0, 0)).convert(mode))
    assert pixel(path) == (255, 255, 255)


def test_half_transparent_black_on_white_is_grey(tmp_path):
    path = saved(tmp_path, "half.png", Image.new("LA", (2, 2), (0, 128)))
    assert pixel(path) == (127, 127, 127)


def test_a_palette_keeps_its_colours(tmp_path):
    path = saved(tmp_path, "palette.png", Image.new("RGB", (2, 2), RED).convert("P", palette=Image.Palette.ADAPTIVE))
    with Image.open(path) as stored:
        assert stored.mode == "P"
    assert pixel(path) == RED


def test_a_transparent_palette_entry_is_laid_on_white(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    path = saved(tmp_path, "entry.png", image, transparency=b"\xff\x00")
    assert pixel(path, 0) == RED
    assert pixel(path, 1) == (255, 255, 255)


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    path = saved(tmp_path, "moving.gif", frames[0], save_all=True, append_images=frames[1:])
    assert pixel(path) == RED


def test_one_pixel_is_an_image(tmp_path):
    path = saved(tmp_path, "one.png", Image.new("L", (1, 1), 7))
    assert read_image(path).size == (1, 1)
    assert pixel(path) == (7, 7, 7)


def test_an_enormous_image_is_refused_before_decoding(tmp_path):
    path = png_header(tmp_path / "enormous.png", 20_000, 20_000)
    with pytest.raises(ImageError, match="100 million pixels"):
        read_image(path)


def test_an_image_between_the_two_limits_of_pillow_is_refused_by_ours(tmp_path):
    path = png_header(tmp_path / "large.png", 11_000, 10_000)
    with pytest.raises(ImageError, match=r"11000×10000, more than the 100 million"):
        read_image(path)


def test_pillow_says_nothing_about_an_image_under_our_limit(tmp_path):
    path = png_header(tmp_path / "big.png", 9_500, 10_000)  # pillow warns from 89 million pixels on
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImageError, match="damaged or cut short"):
            read_image(path)


def test_the_limit_of_pillow_is_left_alone(tmp_path):
    before = Image.MAX_IMAGE_PIXELS
    with pytest.raises(ImageError):
        read_image(png_header(tmp_path / "enormous.png", 20_000, 20_000))
    read_image(saved(tmp_path, "small.png", Image.new("RGB", (2, 2))))
    assert before == Image.MAX_IMAGE_PIXELS


def test_a_truncated_file_is_refused(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for name in ("whole.jpg", "whole.png"):
        path = saved(tmp_path, name, Image.fromarray(noise))
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(ImageError, match="damaged or cut short"):
            read_image(path)


def test_damaged_bytes_give_an_image_or_our_error(tmp_path):
    random = np.random.default_rng(0)
    whole = saved(tmp_path, "whole.png", Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8)))
    data = np.frombuffer(whole.read_bytes(), dtype=np.uint8)
    path = tmp_path / "damaged.png"
    complaints = []
    for _ in range(100):
        hurt = data.copy()
        hurt[random.integers(0, len(hurt), 3)] = random.integers(0, 256, 3)
        path.write_bytes(hurt.tobytes())
        try:
            read_image(path)
        except ImageError as error:
            complaints.append(str(error))
    assert len(complaints) > 50
    assert all(complaint.startswith(str(path)) for complaint in complaints)


@pytest.mark.parametrize(("content", "said"), [(b"", "empty"), (b"these are words", "is not an image")])
def test_what_is_no_image_is_refused_with_its_name(tmp_path, content, said):
    path = tmp_path / "words.jpg"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=said) as caught:
        read_image(path)
    assert str(path) in str(caught.value)


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 4 4
%%EndComments
1 0 0 setrgbcolor 0 0 4 4 rectfill showpage
%%EOF
"""


@pytest.mark.parametrize("name", ["drawing.eps", "drawing.jpg"])
def test_an_eps_file_is_refused_whatever_its_suffix_and_starts_no_program(tmp_path, name, monkeypatch):
    path = tmp_path / name
    path.write_bytes(EPS)
    with Image.open(path) as image:
        assert image.format == "EPS"  # what Pillow would read, if it were let
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a program was started"))
    for read in (read_image, images.peek_image, lambda path: images.decode_image(path.read_bytes(), path.name)):
        with pytest.raises(ImageError, match=rf"{name} is not an image that can be read; give a JPEG, PNG, .* or GIF$"):
            read(path)


@pytest.mark.parametrize("format", images.FORMATS)
def test_each_of_the_formats_is_read_by_its_content(tmp_path, format):
    path = saved(tmp_path, "picture.jpg", Image.new("RGB", (4, 4), RED), format=format)
    assert max(abs(np.subtract(pixel(path), RED))) <= 2


def test_any_other_format_is_refused(tmp_path):
    for format in ("PPM", "TGA", "ICO", "PCX"):
        with pytest.raises(ImageError, match="is not an image that can be read"):
            read_image(saved(tmp_path, f"{format}.png", Image.new("RGB", (16, 16), RED), format=format))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ImageError, match=r"nowhere\.jpg does not exist"):
        read_image(tmp_path / "nowhere.jpg")


def test_a_folder_is_no_image(tmp_path):
    with pytest.raises(ImageError, match="is a folder"):
        read_image(tmp_path)


def test_a_pipe_is_no_image(tmp_path):
    path = tmp_path / "pipe.png"
    os.mkfifo(path)
    with pytest.raises(ImageError, match="no regular file"):
        read_image(path)


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    path = saved(tmp_path, "locked.png", Image.new("RGB", (2, 2)))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("denied")

    monkeypatch.setattr(images.Image, "open", refuse)
    with pytest.raises(ImageError, match=r"locked\.png may not be read"):
        read_image(path)


@pytest.fixture
def album(tmp_path):
    (tmp_path / "inner").mkdir()
    for name in ("b.jpg", "a.PNG", "inner/c.webp", "notes.txt", ".hidden.jpg"):
        (tmp_path / name).write_bytes(b"x")
    return tmp_path


def names(files: list[Path], folder: Path) -> list[str]:
    return [str(file.relative_to(folder)) for file in files]


def test_a_folder_is_searched_in_depth_in_alphabetical_order(album):
    assert names(find_images([album]), album) == ["a.PNG", "b.jpg", "inner/c.webp"]
    assert find_images(str(album)) == find_images([album])


def test_patterns_and_files_keep_the_order_given_without_duplicates(album):
    found = find_images([album / "inner" / "c.webp", str(album / "*"), album / "inner" / ".." / "b.jpg"])
    assert names(found, album) == ["inner/c.webp", "a.PNG", "b.jpg"]


def test_a_pattern_may_search_in_depth(album):
    assert names(find_images([str(album / "**" / "*.webp")]), album) == ["inner/c.webp"]


def test_a_file_given_by_name_needs_no_known_suffix(album):
    assert names(find_images([album / "notes.txt"]), album) == ["notes.txt"]


def test_a_name_with_brackets_is_a_file_first(album):
    (album / "photo[1].jpg").write_bytes(b"x")
    assert names(find_images([album / "photo[1].jpg"]), album) == ["photo[1].jpg"]


@pytest.mark.parametrize(
    ("given", "said"),
    [("empty", "folder .* holds no image"), ("*.bmp", "pattern .* holds no image"), ("no", "not exist")],
)
def test_nothing_found_is_an_error(album, given, said):
    (album / "empty").mkdir()
    with pytest.raises(InputError, match=said):
        find_images([album / given])


def test_no_path_at_all_is_an_error():
    with pytest.raises(InputError, match="no path was given"):
        find_images([])


def test_a_trimap_is_read_as_evidence_ignore_and_background(tmp_path):
    path = saved(tmp_path, "mask.png", Image.fromarray(np.array([[255, 128, 0]], dtype=np.uint8)))
    mask = read_mask(path)
    assert mask.dtype == torch.int8
    assert mask.tolist() == [[1, -1, 0]]


@pytest.mark.parametrize("mode", ["1", "L", "RGB", "P"])
def test_a_two_valued_mask_is_read_in_every_mode(tmp_path, mode):
    path = saved(tmp_path, "mask.png", Image.fromarray(np.array([[255, 0]], dtype=np.uint8)).convert(mode))
    assert read_mask(path).tolist() == [[1, 0]]


def test_a_mask_of_zeros_and_ones_is_read(tmp_path):
    path = saved(tmp_path, "mask.png", Image.fromarray(np.array([[1, 0]], dtype=np.uint8)))
    assert read_mask(path).tolist() == [[1, 0]]


def test_a_mask_with_another_value_is_refused(tmp_path):
    path = saved(tmp_path, "mask.png", Image.fromarray(np.array([[255, 37]], dtype=np.uint8)))
    with pytest.raises(InputError, match="holds the value 37"):
        read_mask(path)


@pytest.mark.parametrize("size", [(40, 60), (61, 37), (50, 50), (11, 13)])
def test_a_mask_goes_through_the_same_resize_and_crop_as_its_image(size):
    values = np.random.default_rng(0).integers(-1, 2, size).astype(np.int8)
    scale = 32 / min(size)
    resized = Image.fromarray((values + 1).astype(np.uint8)).resize(
        (int(scale * size[1] + 1e-9), int(scale * size[0] + 1e-9)), Image.Resampling.NEAREST
    )
    left, top = round((resized.width - 28) / 2), round((resized.height - 28) / 2)
    want = torch.from_numpy(np.asarray(resized.crop((left, top, left + 28, top + 28))).astype(np.int8) - 1)
    assert_close(fit_mask(torch.from_numpy(values), image_size=size, resize=32, crop=28), want)


def test_a_mask_at_the_size_of_the_crop_is_only_cropped():
    mask = torch.arange(36).view(6, 6)
    assert_close(fit_mask(mask, image_size=(6, 6), resize=6, crop=4), mask[1:5, 1:5])


def test_a_mask_of_another_size_than_its_image_is_refused():
    with pytest.raises(InputError, match="mask is 4×6 and its image 6×4"):
        fit_mask(torch.zeros(4, 6), image_size=(6, 4), resize=4, crop=4)


def test_a_crop_larger_than_the_image_is_refused():
    with pytest.raises(InputError, match="crop of 9"):
        fit_mask(torch.zeros(4, 4), image_size=(4, 4), resize=8, crop=9)


def test_a_damaged_exif_block_does_not_hide_the_picture(tmp_path):
    path = saved(tmp_path, "exif.jpg", Image.new("RGB", (8, 4), RED), exif=b"Exif\x00\x00" + bytes(range(64)))
    assert read_image(path).size == (8, 4)


def test_the_known_suffixes_are_lower_case():
    assert all(suffix == suffix.lower() and suffix.startswith(".") for suffix in images.SUFFIXES)


@pytest.mark.parametrize("name", ["a" * 300, "a" * 300 + "/b.png", "nul\0byte.png"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    for read in (read_image, find_images):
        with pytest.raises(InputError):
            read(name)
