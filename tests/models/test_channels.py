"""Images of 1, 4 and 13 channels: every method on models built for them, files of bands, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests import tiny
from tests.conformance.test_methods import FAST
from torch import Tensor, nn

import sightline
from sightline import adapt, errors
from sightline.data.bands import read_bands
from sightline.extras import require
from sightline.models.facts import Grey
from sightline.models.inputs import as_batch, open_picture, seen_pixels, view_of
from sightline.models.signature import input_channels
from sightline.registry import METHODS


def cnn(channels: int) -> nn.Module:
    network = tiny.Cnn()
    network.conv1 = nn.Conv2d(channels, 8, 3, stride=2, padding=1)
    return network.eval()


def vit(channels: int) -> nn.Module:
    return tiny.vit(in_chans=channels)


def pixels(channels: int, count: int = 1) -> Tensor:
    return torch.randn(count, channels, 32, 32, generator=torch.Generator().manual_seed(channels))


@pytest.mark.parametrize("channels", [1, 4, 13])
@pytest.mark.parametrize("build", [cnn, vit])
def test_every_method_runs_on_every_number_of_channels_or_refuses_for_another_reason(build: Any, channels: int) -> None:
    model, colours = adapt(build(channels)), adapt(build(3))
    refused = []
    for name in METHODS:
        if not METHODS[name].needs <= model.offers:
            refused.append(name)
            continue
        found = sightline.explain(model, pixels(channels), FAST.get(name, name), target=1)
        assert found.pixels().shape == (1, 32, 32)
        assert torch.isfinite(found.values).all()
    assert refused == [name for name in METHODS if not METHODS[name].needs <= colours.offers]


@pytest.mark.parametrize("segments", ["slic", "felzenszwalb"])
def test_superpixels_are_cut_from_any_number_of_bands(segments: str) -> None:
    for channels in (1, 4):
        found = sightline.explain(
            cnn(channels), pixels(channels), f"lime(samples=8, segments=({segments!r}, 6))", target=1
        )
        assert torch.isfinite(found.map).all()


def test_superpixels_that_are_made_from_colours_alone_refuse_other_bands() -> None:
    with pytest.raises(
        errors.InputError, match="quickshift cuts colour images, and these have 4 channels; choose 'slic'"
    ):
        sightline.explain(cnn(4), pixels(4), "lime(samples=8, segments='quickshift')", target=1)


def test_the_number_of_channels_is_read_off_the_model() -> None:
    assert [input_channels(build(count)) for build in (cnn, vit) for count in (1, 4, 13)] == [1, 4, 13] * 2
    assert input_channels(lambda images: images) == 3
    decoder_first = nn.ModuleDict({"decoder": nn.Conv2d(64, 2, 1), "encoder": nn.Conv2d(3, 64, 3)})
    assert input_channels(decoder_first) == 3


def test_maps_are_laid_over_the_first_three_bands_or_grey() -> None:
    grey = adapt(cnn(1), mean=(0.25,), std=(0.5,))
    seen = seen_pixels(grey, torch.full((1, 1, 32, 32), 0.5))
    assert seen.shape == (1, 3, 32, 32)
    assert seen.unique().tolist() == [128]  # 0.25 + 0.5 · 0.5, of 255
    bands = pixels(13)
    found = sightline.explain(cnn(13), bands, "ixg", target=0)
    low, high = bands[:, :3].min(), bands[:, :3].max()
    assert torch.equal(found.seen, ((bands[:, :3] - low) / (high - low) * 255).round().to(torch.uint8))
    assert found.overlay().size[0] >= 32


def test_grey_pictures_go_through_the_preprocessing_of_the_library_for_one_channel(tmp_path: Path) -> None:
    network = require("timm").create_model("resnet10t", in_chans=1, num_classes=3).eval()
    model = adapt(network)
    assert isinstance(model.preprocess, Grey)
    assert model.mean == pytest.approx((sum((0.485, 0.456, 0.406)) / 3,))
    shade = np.tile(np.arange(64, dtype=np.uint8) * 4, (64, 1))
    Image.fromarray(shade).save(tmp_path / "xray.png")
    batch = as_batch(model, tmp_path / "xray.png")
    assert batch.shape[1] == 1
    colours = adapt(require("timm").create_model("resnet10t", num_classes=3).eval())
    expected = colours.denormalise(as_batch(colours, tmp_path / "xray.png")).mean(dim=1, keepdim=True)
    assert torch.allclose(model.denormalise(batch), expected, atol=1e-6)
    view = view_of(model, batch[0], open_picture(model, tmp_path / "xray.png"))
    assert view.box is not None
    assert np.ptp(np.asarray(view.picture).astype(int), axis=-1).max() == 0


@pytest.mark.parametrize("axis", [0, -1])
def test_bands_are_read_from_a_tiff_and_normalised_as_told(tmp_path: Path, axis: int) -> None:
    stored = np.random.default_rng(0).integers(0, 65535, (13, 40, 36), dtype=np.uint16)
    layout = {"photometric": "minisblack", **({"planarconfig": "contig"} if axis else {})}
    require("tifffile").imwrite(tmp_path / "tile.tif", np.moveaxis(stored, 0, axis), **layout)
    assert np.allclose(read_bands(tmp_path / "tile.tif"), stored / 65535, atol=1e-6)
    mean, std = tuple(np.linspace(0.1, 0.6, 13)), (0.2,) * 13
    model = adapt(cnn(13), mean=mean, std=std)
    expected = (torch.from_numpy(stored / 65535).float() - torch.tensor(mean)[:, None, None]) / 0.2
    assert torch.allclose(as_batch(model, tmp_path / "tile.tif")[0], expected.float(), atol=1e-5)
    assert torch.allclose(as_batch(model, np.moveaxis(stored, 0, -1))[0], expected.float(), atol=1e-5)
    assert as_batch(adapt(vit(13), mean=mean, std=std), tmp_path / "tile.tif").shape == (1, 13, 32, 32)
    assert sightline.rank(model, [tmp_path / "tile.tif"], ["ixg", "random"], target=0)[0].maps


def test_four_channels_of_a_picture_are_taken_as_they_are_stored(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(0, 255, (32, 32, 4), dtype=np.uint8)
    Image.fromarray(stored, mode="RGBA").save(tmp_path / "four.png")
    model = adapt(cnn(4), mean=(0.0,) * 4, std=(1.0,) * 4)
    expected = torch.from_numpy(stored).permute(2, 0, 1)[None] / 255
    assert torch.allclose(as_batch(model, tmp_path / "four.png"), expected)
    assert torch.allclose(as_batch(model, Image.open(tmp_path / "four.png")), expected)


def test_a_function_of_one_channel_is_explained() -> None:
    def brightness(images: Tensor) -> Tensor:
        return images.mean(dim=1)[:, ::16, ::16].flatten(1)

    found = sightline.explain(adapt(brightness, mean=(0.5,), std=(0.5,)), pixels(1), "occlusion(window=8)", target=0)
    assert found.pixels().shape == (1, 32, 32)


@pytest.mark.parametrize(("images", "facts", "sentence"), [
    (pixels(3), {}, r"got images of shape \(1, 3, 32, 32\); Cnn takes 4 channels"),
    (pixels(4), {"mean": (0.5,) * 3, "std": (0.5,) * 3}, r"got images of shape \(1, 4, 32, 32\); Cnn takes 3 channels"),
    (torch.zeros(4, 32, 32), {}, r"got images of shape \(4, 32, 32\); \(batch, 4, height, width\) is needed; add"),
    ([Image.new("RGB", (32, 32))], {"mean": (0.5,) * 4, "std": (0.5,) * 4}, "the image has 3 bands; Cnn takes 4"),
    ([Image.new("RGBA", (32, 32))], {}, "Cnn does not say how its 4 bands are normalised; say adapt"),
    ([Image.new("P", (32, 32))], {}, "stored with a palette"),
    (np.zeros((32, 32, 3)), {}, r"got an array of float64 and shape \(32, 32, 3\)"),
])  # fmt: skip
def test_images_of_other_channels_are_refused_in_one_sentence(
    images: Any, facts: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(errors.SightlineError, match=sentence):
        sightline.explain(adapt(cnn(4), **facts), images, "ixg", target=0)


def test_a_library_that_checks_channels_itself_is_asked() -> None:
    library = require("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = library.ViTConfig(**sizes, image_size=32, patch_size=16, num_channels=1)
    model = adapt(library.ViTForImageClassification(config).eval())
    assert sightline.explain(model, pixels(1), "ixg", target=0).map.shape == (1, 2, 2)
    with pytest.raises(errors.InputError, match="takes 1 channels"):
        sightline.explain(model, pixels(3), "ixg", target=0)


def test_means_of_another_length_and_files_that_hold_no_bands_are_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match="got a mean of 2 numbers and a std of 3"):
        adapt(cnn(3), mean=(0.5, 0.5), std=(0.5, 0.5, 0.5))
    with pytest.raises(errors.InputError, match="numbers above 0 are needed"):
        adapt(cnn(1), mean=(0.5,), std=(0.0,))
    (tmp_path / "broken.tif").write_bytes(b"II*\0 not a tiff")
    with pytest.raises(errors.ImageError, match="is damaged or no TIFF"):
        read_bands(tmp_path / "broken.tif")
    require("tifffile").imwrite(tmp_path / "signed.tif", np.zeros((4, 8, 8), dtype=np.int32), photometric="minisblack")
    with pytest.raises(errors.ImageError, match="holds numbers of type int32"):
        read_bands(tmp_path / "signed.tif")
