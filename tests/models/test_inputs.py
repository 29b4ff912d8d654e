"""Images that were not normalised are refused; every usual normalisation passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests import tiny
from tests.models import families_cnn
from tests.models.test_facts import mean_colour
from torch import Tensor

import sightline
from sightline import errors
from sightline.models import adapt
from sightline.models.facts import CLIP, IMAGENET
from sightline.models.inputs import LARGEST, SMALLEST, view_of

SENTENCE = (
    r"got float images with values from 0 to 255; {} needs normalised ones: call adapter\.normalise\(images / 255\), or"
)


def raw(count: int = 2) -> Tensor:
    """Random pixels of 0 to 255 with black and white among them."""
    pixels = torch.randint(0, 256, (count, 3, 32, 32), generator=torch.Generator().manual_seed(0)).float()
    pixels[:, :, 0, 0], pixels[:, :, 0, 1] = 0, 255
    return pixels


@pytest.mark.parametrize(("model", "name"), [
    (tiny.vit(), "VisionTransformer"), (families_cnn.torchvision_resnet().eval(), "ResNet"),
    (tiny.Cnn().eval(), "Cnn"), (mean_colour, "mean_colour"),
], ids=["timm", "torchvision", "own", "function"])  # fmt: skip
def test_floats_of_0_to_255_are_refused(model: Any, name: str) -> None:
    with pytest.raises(errors.InputError, match=SENTENCE.format(name)):
        sightline.explain(model, raw(), "rise(samples=2)", target=0)
    adapter = adapt(model)
    assert adapter.accept(adapter.normalise(raw() / 255)).shape == (2, 3, 32, 32)


def test_one_such_image_among_normalised_ones_is_refused() -> None:
    with pytest.raises(errors.InputError, match=SENTENCE.format("Cnn")):
        adapt(tiny.Cnn().eval()).accept(torch.cat([torch.randn(3, 3, 32, 32), raw(1)]))


def test_normalising_without_dividing_is_refused() -> None:
    adapter = adapt(tiny.Cnn().eval(), **IMAGENET)
    with pytest.raises(errors.InputError, match=r"got float images with values from -2\.118 to 1136; Cnn needs"):
        adapter.accept(adapter.normalise(raw()))


@pytest.mark.parametrize("normalisation", [
    IMAGENET, CLIP, {"mean": (0.5,) * 3, "std": (0.5,) * 3}, {"mean": (0.0,) * 3, "std": (1.0,) * 3},
], ids=["imagenet", "clip", "half", "none"])  # fmt: skip
@pytest.mark.parametrize("known", [True, False])
def test_every_usual_normalisation_passes_known_or_not(normalisation: Any, known: bool) -> None:
    images = adapt(mean_colour, **normalisation).normalise(raw() / 255)
    adapter = adapt(tiny.Cnn().eval(), **normalisation if known else {})
    assert torch.equal(adapter.accept(images), images)


@pytest.mark.parametrize("images", [
    torch.zeros(1, 3, 32, 32), torch.ones(1, 3, 32, 32), 4 * torch.randn(2, 3, 32, 32), raw() - 128,
    (raw() - raw().mean()) / raw().std(), 1e4 * torch.randn(1, 3, 32, 32),
], ids=["black", "white", "noise", "mean subtracted", "standardised", "large"])  # fmt: skip
def test_images_that_may_be_normalised_in_a_way_of_their_own_pass(images: Tensor) -> None:
    assert adapt(tiny.Cnn().eval()).accept(images).shape == images.shape


def test_a_model_that_takes_0_to_255_can_say_so() -> None:
    adapter = adapt(tiny.Cnn().eval(), mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))
    assert torch.equal(adapter.accept(raw()), raw())


def test_integers_are_answered_as_before() -> None:
    with pytest.raises(errors.InputError, match="got uint8 images; normalised floats are needed: divide by 255"):
        adapt(tiny.Cnn().eval()).accept(raw().byte())


class Resize:
    size = 40


class CenterCrop:
    size = (32, 32)


class Prepare:
    """A preprocessing that names its steps as torchvision's does."""

    transforms = (Resize(), CenterCrop())

    def __call__(self, image):
        width, height = image.size
        scale = 40 / min(width, height)
        small = image.resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC)
        left, upper = (small.width - 32) // 2, (small.height - 32) // 2
        small = small.crop((left, upper, left + 32, upper + 32))
        return torch.from_numpy(np.asarray(small, dtype=np.float32) / 255).permute(2, 0, 1) * 2 - 1


@pytest.fixture
def photograph():
    """Soft colours, different everywhere."""
    down, across = np.mgrid[0:600, 0:900] / 600
    return Image.fromarray((np.stack([down, across / 1.5, 1 - down], axis=-1) * 255).astype(np.uint8))


def test_the_picture_is_the_sharp_part_that_the_model_sees(photograph):
    model = adapt(lambda images: images, preprocess=Prepare())
    view = view_of(model, Prepare()(photograph), photograph)
    assert view.box == pytest.approx((210, 60, 690, 540))
    assert view.picture.size == (480, 480)
    assert np.abs(np.asarray(view.picture, float) - np.asarray(photograph.crop((210, 60, 690, 540)), float)).mean() < 1


def test_a_preprocessing_that_does_something_else_is_found_out(photograph):
    model = adapt(lambda images: images, preprocess=Prepare())
    prepared = Prepare()(photograph).flip(1)
    view = view_of(model, prepared, photograph)
    assert view.box is None
    assert view.picture.size == (SMALLEST, SMALLEST)
    assert np.asarray(view.picture, float)[0, 0, 2] < np.asarray(view.picture, float)[-1, 0, 2]


def test_a_preprocessing_without_names_shows_what_the_model_was_given(photograph):
    model = adapt(lambda images: images, preprocess=lambda image: Prepare()(image))
    assert view_of(model, Prepare()(photograph), photograph).box is None


def test_a_picture_is_neither_tiny_nor_huge():
    model = adapt(lambda images: images)
    assert view_of(model, torch.zeros(3, 9, 9), Image.new("RGB", (9, 9))).picture.size == (SMALLEST, SMALLEST)
    assert view_of(model, torch.zeros(3, 900, 300), Image.new("RGB", (9, 9))).picture.size == (
        round(LARGEST / 3),
        LARGEST,
    )
