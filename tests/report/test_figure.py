"""Pictures: the photograph stays readable, the map keeps its sign, a file is whole or absent."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from PIL import Image, ImageFont

from sightline.errors import InputError, OutputError, ShapeError
from sightline.report import figure
from sightline.report.figure import Tile, heat, overlay, panel, save_png
from sightline.report.palette import DIVERGING, SEQUENTIAL


@pytest.fixture
def photograph() -> Image.Image:
    pixels = np.random.default_rng(3).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def signed() -> np.ndarray:
    """A map at image size: against on the left, nothing in the middle, for on the right."""
    values = np.zeros((24, 32))
    values[:, :8] = -2.0
    values[:, 24:] = 2.0
    return values


def test_an_overlay_covers_nothing_where_the_map_is_zero(photograph, signed):
    drawn = np.asarray(overlay(photograph, signed, fade=0.0))
    np.testing.assert_array_equal(drawn[:, 8:24], np.asarray(photograph)[:, 8:24])
    assert (drawn[:, :8] != np.asarray(photograph)[:, :8]).any()


def test_an_overlay_of_no_opacity_is_the_photograph(photograph, signed):
    np.testing.assert_array_equal(np.asarray(overlay(photograph, signed, opacity=0, fade=0)), np.asarray(photograph))


def test_an_overlay_fades_the_colours_of_the_photograph_and_keeps_its_lightness(photograph, signed):
    drawn = overlay(photograph, signed, opacity=0, fade=1)
    np.testing.assert_array_equal(np.asarray(drawn.convert("L")), np.asarray(photograph.convert("L")))
    assert np.ptp(np.asarray(drawn).astype(int), axis=2).max() == 0


def test_an_overlay_is_red_for_the_target_and_blue_against_it(signed):
    drawn = np.asarray(overlay(Image.new("RGB", (32, 24), "#808080"), signed)).astype(int)
    assert (drawn[:, 24:, 0] > drawn[:, 24:, 2] + 50).all()
    assert (drawn[:, :8, 2] > drawn[:, :8, 0] + 50).all()


def test_opacity_grows_with_the_magnitude():
    black = Image.new("RGB", (5, 1))
    drawn = np.asarray(overlay(black, np.array([[0.0, 0.25, 0.5, 0.75, 1.0]]), opacity=1.0))
    assert (np.diff(drawn[0, :, 0].astype(int))[:3] > 0).all()
    np.testing.assert_array_equal(drawn[0, 0], [0, 0, 0])


@pytest.mark.parametrize("value", [0.0, 7.0, np.nan])
def test_an_overlay_of_a_constant_map_is_the_photograph(photograph, value):
    drawn = overlay(photograph, np.full((3, 4), value), fade=0.0)
    np.testing.assert_array_equal(np.asarray(drawn), np.asarray(photograph))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1", "LA"])
def test_every_mode_of_photograph_is_drawn_on(photograph, signed, mode):
    drawn = overlay(photograph.convert(mode), signed)
    assert (drawn.mode, drawn.size) == ("RGB", photograph.size)


def test_drawing_never_alters_the_map_or_the_photograph(photograph, signed):
    before, pixels = signed.copy(), np.asarray(photograph).copy()
    overlay(photograph, signed)
    heat(signed, (64, 48))
    panel(photograph, [Tile("a", signed)])
    np.testing.assert_array_equal(signed, before)
    np.testing.assert_array_equal(np.asarray(photograph), pixels)


@pytest.mark.parametrize("options", [{"opacity": 1.5}, {"opacity": -0.1}, {"fade": 2}, {"opacity": float("nan")}])
def test_a_share_outside_0_to_1_is_refused(photograph, signed, options):
    with pytest.raises(InputError, match="outside 0 to 1"):
        overlay(photograph, signed, **options)


@pytest.mark.parametrize("shape", [(3,), (1, 4, 4), (0, 4)])
def test_a_map_that_is_not_one_picture_is_refused(photograph, shape):
    with pytest.raises(ShapeError, match="one map at a time"):
        overlay(photograph, np.zeros(shape))


def test_heat_has_the_size_asked_for_and_the_palette_the_map_needs():
    assert heat(np.eye(7), (224, 112)).size == (224, 112)
    assert heat(np.zeros((2, 2)), (2, 2)).getpixel((0, 0)) == SEQUENTIAL.neutral
    middle = heat(np.array([[-1.0, 0.0, 1.0]]), (3, 1))
    assert middle.getpixel((1, 0)) == DIVERGING.neutral


def test_a_small_map_is_stretched_smoothly_and_keeps_its_corner():
    drawn = np.asarray(heat(np.array([[1.0, 0.0], [0.0, 0.0]]), (64, 64))).astype(int).sum(axis=2)
    assert drawn[0, 0] == drawn.max()
    assert drawn[63, 63] == drawn.min()
    assert len(np.unique(drawn[0])) > 10


def test_a_panel_shows_the_photograph_and_each_map_twice_as_large(photograph):
    tiles = [Tile("gae", np.eye(4), "0.5"), Tile("ixg", -np.eye(4), "0.4")]
    wide = panel(photograph, tiles, title="cat", width=100)
    assert wide.width == 2 * (2 * 20 + 3 * 100 + 2 * 14)
    assert panel(photograph, tiles, title="cat", width=100, columns=2).width < wide.width
    assert panel(photograph, tiles, title="cat", width=100, scale=1).width * 2 == wide.width


def test_a_panel_without_maps_is_the_photograph_on_paper(photograph):
    sheet = panel(photograph, [], width=64)
    assert sheet.getpixel((0, 0)) == (255, 255, 255)
    assert len(sheet.getcolors(10**6)) > 2


def test_a_long_recipe_is_shortened_in_its_middle_and_foreign_letters_are_replaced():
    font = ImageFont.load_default(size=14)
    fitted = figure._fit("var(skip_plus(libra(ixg), start=4), classes='top3')", font, 120)
    assert font.getlength(fitted) <= 120
    assert fitted.startswith("var(")
    assert fitted.endswith("3')")
    assert "…" in fitted
    assert figure._fit("caf\u00e9 \u2212 \u732b\n…", font, 500) == "cafe - ? …"


def test_a_saved_picture_is_read_back_unchanged_and_folders_are_made(tmp_path, photograph):
    path = save_png(photograph, tmp_path / "new" / "folder" / "a.png")
    np.testing.assert_array_equal(np.asarray(Image.open(path)), np.asarray(photograph))
    assert [found.name for found in path.parent.iterdir()] == ["a.png"]


def test_a_path_below_a_file_is_an_output_error(tmp_path, photograph):
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path / "file" / "a.png", tmp_path / "file" / "deeper" / "a.png"):
        with pytest.raises(OutputError, match=r"^cannot write .*: its folder is a file; choose a folder"):
            save_png(photograph, path)
    assert (tmp_path / "file").read_text() == "kept"


def test_a_folder_in_place_of_the_file_is_an_output_error_and_leaves_nothing(tmp_path, photograph):
    (tmp_path / "a.png").mkdir()
    with pytest.raises(OutputError, match="directory"):
        save_png(photograph, tmp_path / "a.png")
    assert [found.name for found in tmp_path.iterdir()] == ["a.png"]


def test_a_full_disk_keeps_the_old_file_and_leaves_no_part(tmp_path, photograph, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="no space left on device"):
        save_png(photograph, tmp_path / "a.png")
    assert [found.name for found in tmp_path.iterdir()] == ["a.png"]
    assert (tmp_path / "a.png").read_bytes() == b"old"


def test_an_interrupted_write_leaves_no_part(tmp_path, photograph, monkeypatch):
    def interrupted(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_png(photograph, tmp_path / "a.png")
    assert [found.name for found in tmp_path.iterdir()] == []
