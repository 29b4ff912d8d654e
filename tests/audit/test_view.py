"""What a model sees of a photograph: the sharp part of it, and never more."""

import numpy as np
import pytest
import torch
from PIL import Image

from sightline.audit.view import LARGEST, SMALLEST, view_of
from sightline.models import adapt


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
