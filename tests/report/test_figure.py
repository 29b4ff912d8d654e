"""Pictures: the photograph stays readable, the map keeps its sign, a file is whole or absent."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from PIL import Image, ImageFont

from sightline.errors import InputError, OutputError, ShapeError
from sightline.report import layout
from sightline.report.figure import (
    DIVERGING,
    SEQUENTIAL,
    colour,
    css_gradient,
    heat,
    limit_of,
    overlay,
    palette_for,
    scaled,
)
from sightline.report.layout import Tile, panel, save_png


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
    fitted = layout.fit_text("var(skip_plus(libra(ixg), start=4), classes='top3')", font, 120)
    assert font.getlength(fitted) <= 120
    assert fitted.startswith("var(")
    assert fitted.endswith("3')")
    assert "…" in fitted
    assert layout.fit_text("caf\u00e9 \u2212 \u732b\n…", font, 500) == "cafe - ? …"


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


LUMINANCE = np.array([0.2126, 0.7152, 0.0722])


def lightness(table: np.ndarray) -> np.ndarray:
    """Return the relative luminance of each colour, from the definition of sRGB."""
    share = table / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return linear @ LUMINANCE


@pytest.mark.parametrize("palette", [DIVERGING, SEQUENTIAL], ids=lambda palette: palette.name)
def test_a_palette_is_a_read_only_table_of_256_colours(palette):
    assert palette.table.shape == (256, 3)
    assert palette.table.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        palette.table[0, 0] = 1


def test_the_sequential_palette_gets_lighter_at_every_step():
    steps = np.diff(lightness(SEQUENTIAL.table))
    assert (steps > -1e-3).all()
    assert lightness(SEQUENTIAL.table)[-1] - lightness(SEQUENTIAL.table)[0] > 0.8


def test_the_diverging_palette_gets_darker_to_both_sides_of_a_grey_middle():
    light = lightness(DIVERGING.table)
    assert (np.diff(light[1:129]) > -1e-3).all()
    assert (np.diff(light[128:]) < 1e-3).all()
    assert np.ptp(DIVERGING.neutral) <= 4


def test_anchor_colours_come_back_exactly():
    np.testing.assert_array_equal(SEQUENTIAL.table[0], [0x12, 0x09, 0x1F])
    np.testing.assert_array_equal(SEQUENTIAL.table[255], [0xFD, 0xFB, 0xDC])
    np.testing.assert_array_equal(DIVERGING.table[128], [0xEC, 0xEC, 0xEA])


def test_positive_is_red_and_negative_is_blue():
    minus, zero, plus = colour(np.array([-1.0, 0.0, 1.0]), DIVERGING, limit=1.0).astype(int)
    assert plus[0] > plus[2] + 80
    assert minus[2] > minus[0] + 80
    assert tuple(zero) == DIVERGING.neutral


def test_a_sign_is_seen_at_half_strength_too():
    minus, plus = colour(np.array([-0.5, 0.5]), DIVERGING, limit=1.0).astype(int)
    assert plus[0] > plus[2] + 40
    assert minus[2] > minus[0] + 40


@pytest.mark.parametrize("palette", [DIVERGING, SEQUENTIAL], ids=lambda palette: palette.name)
@pytest.mark.parametrize("value", [0.0, 3.0, -2.5, 1e300, 5e-324, np.nan])
def test_a_constant_map_is_neutral(palette, value):
    drawn = colour(np.full((5, 4), value), palette)
    assert drawn.shape == (5, 4, 3)
    np.testing.assert_array_equal(drawn, np.broadcast_to(palette.neutral, (5, 4, 3)))


def test_a_constant_map_with_rounding_noise_is_neutral():
    noisy = np.float32(0.1) + np.float32(1e-9) * np.arange(12, dtype=np.float32)
    assert limit_of(noisy) == 0.0


def test_the_limit_is_the_995th_per_mille_of_the_magnitudes():
    values = np.concatenate([np.linspace(-1, 1, 1000), [1e6]])
    assert limit_of(values) == pytest.approx(np.percentile(np.abs(values), 99.5))
    assert limit_of(values) < 1.0


def test_the_limit_is_the_largest_magnitude_where_nearly_all_is_zero():
    values = np.zeros(1000)
    values[7] = -4.0
    assert limit_of(values) == 4.0


def test_scaling_keeps_zero_and_the_sign():
    values = np.array([-2.0, -0.5, 0.0, 0.5, 1.0])
    np.testing.assert_allclose(scaled(values, limit=1.0), [-1.0, -0.5, 0.0, 0.5, 1.0])


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int32])
def test_scaling_never_alters_the_array_passed_in(kind):
    values = np.array([[-3, 0], [5, 1]], dtype=kind)
    before = values.copy()
    colour(values, DIVERGING)
    scaled(values)
    limit_of(values)
    np.testing.assert_array_equal(values, before)
    assert values.dtype == kind


def test_nan_is_neutral_and_infinity_is_the_full_colour():
    drawn = colour(np.array([np.nan, np.inf, -np.inf, 1.0, -1.0]), DIVERGING)
    assert tuple(drawn[0]) == DIVERGING.neutral
    np.testing.assert_array_equal(drawn[1], drawn[3])
    np.testing.assert_array_equal(drawn[2], drawn[4])


def test_an_empty_array_has_no_colours():
    assert colour(np.zeros((0, 3)), DIVERGING).shape == (0, 3, 3)


def test_maps_with_a_sign_get_the_diverging_palette_and_others_the_sequential_one():
    assert palette_for(np.array([1.0, -0.1])) is DIVERGING
    assert palette_for(np.array([1.0, 0.0, np.nan])) is SEQUENTIAL


def test_a_negative_value_on_the_sequential_palette_means_nothing():
    assert tuple(colour(np.array([-1.0]), SEQUENTIAL, limit=1.0)[0]) == SEQUENTIAL.neutral


def test_a_gradient_runs_from_the_first_colour_to_the_last():
    text = css_gradient(SEQUENTIAL, stops=3)
    assert text.startswith("linear-gradient(90deg, #12091f,")
    assert text.endswith("#fdfbdc)")
