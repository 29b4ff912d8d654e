from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from sightline.data.mask_transform import _measured, source_pixels, transform_mask
from sightline.data.masks import fit_mask
from sightline.errors import InputError
from sightline.extras import require

SIZES = [(30, 41), (333, 250), (64, 64), (90, 140)]


@pytest.fixture(scope="module")
def transforms():
    return require("torchvision.transforms")


def noise(size):
    return torch.randint(-1, 2, size, dtype=torch.int8)


def chain(transforms, resize, crop=None):
    steps = [transforms.Resize(resize)] + ([transforms.CenterCrop(crop)] if crop else [])
    return transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize([0.4] * 3, [0.2] * 3)])


def torchvision_nearest(transforms, mask, resize, crop):
    move, how = transforms.functional, transforms.InterpolationMode.NEAREST_EXACT
    sent = move.resize(mask[None], resize, interpolation=how)
    return (move.center_crop(sent, crop) if crop else sent)[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("resize", "crop"), [(64, 56), ((48, 48), None), (48, 48), ((40, 60), None), (32, 40)])
def test_a_mask_goes_the_way_of_torchvisions_nearest_neighbours(transforms, size, resize, crop):
    mask = noise(size)
    sent = transform_mask(mask, chain(transforms, resize, crop))
    inside = torchvision_nearest(transforms, torch.ones_like(mask), resize, crop).bool()
    want = torchvision_nearest(transforms, mask, resize, crop)
    assert torch.equal(sent, want.masked_fill(~inside, -1))
    assert sent.dtype == torch.int8


@pytest.mark.parametrize("size", SIZES)
def test_it_agrees_with_the_resize_and_crop_by_numbers(transforms, size):
    mask = noise(size)
    assert torch.equal(
        transform_mask(mask, chain(transforms, 64, 56)), fit_mask(mask, image_size=size, resize=64, crop=56)
    )


def test_the_presets_of_torchvision_and_timm_are_read(transforms):
    preset = require("torchvision.transforms._presets").ImageClassification(crop_size=56, resize_size=64)
    timm = require("timm.data").create_transform((3, 56, 56), crop_pct=56 / 64, is_training=False)
    mask = noise((90, 140))
    want = torchvision_nearest(transforms, mask, 64, 56)
    assert torch.equal(transform_mask(mask, preset), want)
    assert torch.equal(transform_mask(mask, timm), want)


@pytest.mark.parametrize("size", [(300, 401), (224, 224), (90, 140), (700, 500)])
@pytest.mark.parametrize(("resize", "crop"), [(256, 224), ((224, 224), None)])
def test_what_cannot_be_read_is_found_out_to_a_pixel(transforms, size, resize, crop):
    known = chain(transforms, resize, crop)
    found, want = _measured(lambda image: known(image), size), source_pixels(known, size)
    for one, other in zip(found, want, strict=True):
        assert len(one) == len(other)
        assert (one - other).abs().max() <= 1
        assert (one == other).double().mean() > 0.95


def test_padding_is_ignored(transforms):
    data = require("timm.data")
    border = data.create_transform((3, 56, 56), crop_pct=1.0, crop_mode="border", is_training=False)
    sent = transform_mask(torch.ones(40, 80, dtype=torch.int8), border)
    assert sent.shape == (56, 56)
    assert (sent[28] == 1).all()
    assert (sent[:10] == -1).all()
    assert 26 <= (sent == 1).sum(dim=0).max() <= 30


@pytest.mark.slow
def test_a_transformers_processor_is_followed():
    processor = require("transformers").ViTImageProcessor(size={"height": 48, "width": 48})
    mask = np.zeros((90, 140), dtype=np.int8)
    mask[:45] = 1
    sent = transform_mask(
        mask, lambda image: torch.as_tensor(processor(images=image, return_tensors="pt")["pixel_values"][0])
    )
    assert sent[:24].all()
    assert not sent[24:].any()


def test_a_preprocessing_that_does_more_than_resize_is_refused():
    def swirl(image: Image.Image) -> torch.Tensor:
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255
        return pixels[:, torch.arange(pixels.shape[1]) ** 2 % pixels.shape[1]]

    with pytest.raises(InputError, match="strays"):
        transform_mask(torch.ones(60, 60), swirl)
    with pytest.raises(InputError, match="gives no"):
        transform_mask(torch.ones(60, 60), lambda image: image)
    with pytest.raises(InputError, match="shows nothing"):
        transform_mask(torch.ones(60, 60), lambda image: torch.zeros(3, 8, 8))
    with pytest.raises(InputError, match=r"\(height, width\) is needed"):
        transform_mask(torch.ones(1, 60, 60), swirl)
