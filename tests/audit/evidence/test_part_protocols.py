"""FunnyBirds' protocols on shapes: parts that are really left out, a model whose evidence is known, and real ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import sightline
from sightline.audit.evidence.part_protocols import _important, part_sums, score_on_parts
from sightline.data.shapes import CLASSES, SHORTCUT_CLASS, Shapes
from sightline.errors import InputError


@pytest.mark.parametrize("variant", ["clean", "shortcut", "conflict"])
def test_a_scene_without_nothing_is_the_scene(variant):
    shapes = Shapes(seed=3, variant=variant)
    for index in range(8):
        assert np.array_equal(shapes.without(index).image, shapes[index].image)


def test_a_part_that_is_left_out_changes_its_own_pixels_alone():
    shapes = Shapes(seed=4)
    for index in range(8):
        whole = shapes[index]
        masks = [whole.evidence, *whole.distractors]
        figures = np.logical_or.reduce(masks)  # the edge of what lies above shows a little of what lies below
        for part, mask in enumerate(masks):
            left = shapes.without(index, evidence=part == 0, distractors=[part - 1] if part else [])
            changed = (left.image != whole.image).any(axis=2)
            assert changed[mask].mean() > 0.8
            assert not (changed & ~figures).any()
            assert (changed & ~mask).sum() < 0.5 * mask.sum()


def test_the_watermark_can_be_left_out():
    shapes, clean = Shapes(seed=5, variant="conflict"), Shapes(seed=5)
    for index in range(6):
        if shapes[index].label == clean[index].label:
            assert np.array_equal(shapes.without(index, shortcut=True).image, clean[index].image)


def test_sums_are_those_over_the_masks_shape_first():
    sample = Shapes(seed=1)[0]
    masks = (sample.evidence, *sample.distractors)
    maps = torch.from_numpy(sample.evidence).double()[None]
    mean = maps.mean().item()
    (sums,) = part_sums(maps + 7, [sample])
    assert sums.tolist() == pytest.approx([((mask & sample.evidence).sum() - mean * mask.sum()) for mask in masks])


def test_important_are_the_parts_near_the_largest():
    assert _important(torch.tensor([4.0, 1.0, 2.0]), 0.5) == {0, 2}
    assert _important(torch.tensor([-1.0, -2.0]), 0.1) == frozenset()


class Templates(nn.Module):
    """Knows every picture of a set by the pixels of its shape: whatever else changes, the shape decides."""

    def __init__(self, count, seed):
        super().__init__()
        shapes = Shapes(seed=seed)
        self.samples = [shapes[index] for index in range(count)]
        self.free = next(index for index in range(len(CLASSES)) if index not in {s.label for s in self.samples})

    def forward(self, images):
        logits = torch.zeros(len(images), len(CLASSES))
        logits[:, self.free] = 0.1  # where no shape is found
        for row, image in enumerate(images):
            pixels = ((image.permute(1, 2, 0) * 0.5 + 0.5) * 255).round()
            for sample in self.samples:
                here = torch.from_numpy(sample.evidence)
                same = (pixels[here] == torch.from_numpy(sample.image)[here]).float().mean()
                if same > 0.5:
                    logits[row, sample.label] = 10 * same
        return logits


class FromMasks:
    """A method that knows where the shape is, or where it is not."""

    def __init__(self, count, seed, sign=1.0):
        shapes = [Shapes(seed=seed), Shapes(seed=seed, variant="conflict")]
        self.samples, self.sign = [each[index] for each in shapes for index in range(count)], sign

    def __call__(self, model, images, target):
        from sightline.types import Attribution, pixel_grid

        maps = []
        for row, image in enumerate(images):
            pixels = ((image.permute(1, 2, 0) * 0.5 + 0.5) * 255).round().byte().numpy()
            sample = next(each for each in self.samples if np.array_equal(each.image, pixels))
            asked = target.take([row]).index[0]
            mask = sample.shortcut if asked == SHORTCUT_CLASS and sample.shortcut.any() else sample.evidence
            maps.append(torch.from_numpy(mask).float() * self.sign)
        return Attribution(torch.stack(maps)[None], pixel_grid(images))

    def cost(self, model):
        from sightline.types import Passes

        return Passes()


def test_a_map_of_the_shape_on_a_model_of_the_shape_gets_everything_right():
    model = sightline.adapt(Templates(6, seed=11).eval(), mean=(0.5,) * 3, std=(0.5,) * 3)
    found = score_on_parts(model, FromMasks(6, seed=11), count=6, seed=11).as_dict()
    ones = {name: found[name] for name in found if name != "single_deletion"}
    assert ones == dict.fromkeys(ones, 1.0)
    assert found["single_deletion"] > 0.7  # the distractors tie in effect, and not in size


def test_a_map_of_everything_but_the_shape_gets_nothing_right():
    model = sightline.adapt(Templates(6, seed=11).eval(), mean=(0.5,) * 3, std=(0.5,) * 3)
    found = score_on_parts(model, FromMasks(6, seed=11, sign=-1.0), count=6, seed=11).as_dict()
    assert (found["csdc"], found["deletion"], found["target_sensitivity"]) == (0.0, 0.0, 0.0)
    assert found["single_deletion"] < -0.7
    assert found["accuracy"] == found["background_independence"] == 1.0


@pytest.mark.parametrize(
    ("name", "recipe"), [("bundled/shapes-vit", "plus(libra(ixg))"), ("bundled/shapes-cnn", "grad_cam")]
)
def test_on_the_bundled_models_a_method_beats_chance(name, recipe):
    model = sightline.load(name)
    best, chance = (score_on_parts(model, each, count=12, seed=2) for each in (recipe, "random"))
    assert best.accuracy > 0.9
    assert best.accuracy == chance.accuracy
    assert best.single_deletion > chance.single_deletion + 0.1
    assert best.target_sensitivity > 0.7
    assert all(0 <= value <= 1 for key, value in best.as_dict().items() if key != "single_deletion")


def test_no_pictures_are_refused():
    with pytest.raises(InputError, match="got count=0"):
        score_on_parts(sightline.load("bundled/shapes-cnn"), "ixg", count=0)
