"""Preparation: a mask sees what the image sees, whatever the preprocessing does."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sightline.api.prepare import prepare
from sightline.data.masks import fit_mask
from sightline.data.source import Sample
from sightline.errors import InputError
from sightline.extras import require
from sightline.models.inputs import adapt


def adapter(preprocess, size=None):
    return adapt(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), preprocess=preprocess,
                 input_size=size)  # fmt: skip


def sample(height, width, *, mask=True):
    evidence = np.zeros((height, width), dtype=np.int8)
    evidence[height // 4 : height // 2, width // 3 : width // 2] = 1
    evidence[:5] = -1
    grey = np.where(evidence == 1, 255, 0).astype(np.uint8)
    return Sample("a", Image.fromarray(grey).convert("RGB"), 0, evidence if mask else None)


def transforms(*steps):
    module = require("torchvision.transforms")
    half = (0.5, 0.5, 0.5)
    return module.Compose([*(getattr(module, name)(size) for name, size in steps), module.ToTensor(),
                           module.Normalize(half, half)])  # fmt: skip


def squeezed(picture):
    return torch.from_numpy(np.array(picture.resize((48, 32)), dtype=np.float32)).permute(2, 0, 1) / 127.5 - 1


def shifted(picture):
    """Cut out, twice as large: nothing whose sizes could be read off."""
    cut = picture.crop((20, 10, 60, 40)).resize((80, 60))
    return torch.from_numpy(np.array(cut, dtype=np.float32)).permute(2, 0, 1) / 127.5 - 1


def test_a_resize_and_a_crop_are_followed_as_the_masks_room_does():
    one = sample(100, 140)
    prepared, mask = prepare(adapter(transforms(("Resize", 64), ("CenterCrop", 56))), one)
    assert prepared.shape == (3, 56, 56)
    wanted = fit_mask(torch.from_numpy(one.mask), image_size=(100, 140), resize=64, crop=56)
    assert torch.equal(mask, wanted)


@pytest.mark.parametrize(
    "preprocess",
    [
        transforms(("Resize", 64), ("CenterCrop", 56)),
        transforms(("Resize", (48, 56))),
        transforms(("CenterCrop", (60, 90))),
        squeezed,
        shifted,
    ],
)
def test_the_evidence_stays_on_its_pixels(preprocess):
    prepared, mask = prepare(adapter(preprocess), sample(100, 140))
    assert mask.shape == prepared.shape[1:]
    bright = prepared[0] > 0  # the picture is white where the mask says evidence
    assert ((mask == 1) == bright).float().mean() > 0.985
    assert (mask == 1).sum() > 50


def test_what_lies_outside_the_picture_is_ignored():
    prepared, mask = prepare(adapter(transforms(("CenterCrop", (120, 120)))), sample(100, 140))
    assert prepared.shape == (3, 120, 120)
    assert (mask[:9] == -1).all()
    assert (mask[-9:] == -1).all()
    assert (mask[40:60] != -1).any()


def test_squashing_takes_the_models_size():
    prepared, mask = prepare(adapter(None, size=(20, 30)), sample(40, 60), "squash")
    assert prepared.shape == (3, 20, 30)
    assert torch.equal(mask, torch.from_numpy(sample(40, 60).mask)[1::2, 1::2])
    assert prepared.amin() == -1


def test_own_pixels_are_fed_as_they_are():
    pixels = torch.rand(3, 8, 8)
    one = Sample("a", Image.new("RGB", (8, 8)), 0, np.ones((8, 8), dtype=np.int8), pixels)
    prepared, mask = prepare(adapter(squeezed), one)
    assert torch.equal(prepared, (pixels - 0.5) / 0.5)
    assert mask.shape == (8, 8)


def test_without_a_mask_there_is_none():
    assert prepare(adapter(squeezed), sample(40, 60, mask=False))[1] is None


def test_a_model_that_does_not_say_is_told_what_to_do():
    with pytest.raises(InputError, match="write resize = 'squash' in the plan"):
        prepare(adapter(None), sample(40, 60))


def test_a_mask_that_cannot_follow_is_refused():
    def mirrored_twice(picture):
        values = torch.from_numpy(np.array(picture, dtype=np.float32)).permute(2, 0, 1) / 127.5 - 1
        return torch.cat([values, values.flip(-1)], dim=-1)

    with pytest.raises(InputError, match="a mask cannot follow it"):
        prepare(adapter(mirrored_twice), sample(40, 60))
