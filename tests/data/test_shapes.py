from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from sightline.data.shapes import (
    CLASSES,
    MEAN,
    MOST_DISTRACTORS,
    SHORTCUT_CLASS,
    STD,
    VARIANTS,
    Shapes,
    normalise,
)
from sightline.data.shapes_drawing import HIDDEN, Canvas
from sightline.errors import InputError, RecipeError

variants = pytest.mark.parametrize("variant", VARIANTS)


def test_there_are_eight_classes_and_the_shortcut_is_one_of_them():
    assert len(CLASSES) == len(set(CLASSES)) == 8
    assert CLASSES[SHORTCUT_CLASS] == "star"


@variants
def test_an_image_is_the_same_in_every_batch(variant):
    data = Shapes(seed=3, variant=variant)
    alone, first, later = data.draw(1, start=6), data.draw(8), data.draw(4, start=5)
    for name in ("images", "labels", "evidence", "distractors", "shortcut"):
        assert_close(getattr(first, name)[6], getattr(alone, name)[0], rtol=0, atol=0)
        assert_close(getattr(later, name)[1], getattr(alone, name)[0], rtol=0, atol=0)


def test_another_seed_or_index_gives_another_image():
    images = [Shapes(seed=0)[0].image, Shapes(seed=1)[0].image, Shapes(seed=0)[1].image]
    assert len({image.tobytes() for image in images}) == 3


@variants
@pytest.mark.parametrize("size", [32, 64, 100])
def test_sample_and_batch_have_the_stated_shapes(variant, size):
    data = Shapes(size=size, variant=variant)
    sample, batch = data[0], data.draw(3)
    assert sample.image.shape == (size, size, 3)
    assert sample.image.dtype == np.uint8
    for mask in (sample.evidence, sample.shortcut, *sample.distractors):
        assert mask.shape == (size, size)
        assert mask.dtype == np.bool_
    assert batch.images.shape == (3, 3, size, size)
    assert batch.images.dtype == torch.float32
    assert batch.distractors.shape == (3, MOST_DISTRACTORS, size, size)
    assert batch.distractors.dtype == torch.bool
    assert batch.evidence.shape == batch.shortcut.shape == (3, size, size)
    assert len(batch) == 3
    assert batch.labels.dtype == torch.int64


def test_a_batch_holds_its_samples():
    data = Shapes(variant="conflict")
    batch = data.draw(5, start=2)
    for row in range(5):
        sample = data[2 + row]
        assert_close(batch.images[row], torch.from_numpy(sample.image).permute(2, 0, 1) / 255)
        assert batch.labels[row] == sample.label
        assert_close(batch.evidence[row], torch.from_numpy(sample.evidence))
        assert_close(batch.shortcut[row], torch.from_numpy(sample.shortcut))
        masks = [mask for mask in batch.distractors[row] if mask.any()]
        assert len(masks) == len(sample.distractors)
        for got, want in zip(masks, sample.distractors, strict=True):
            assert_close(got, torch.from_numpy(want))


@variants
def test_masks_are_never_empty_and_never_meet(variant):
    data = Shapes(seed=1, variant=variant)
    for index in range(120):
        sample = data[index]
        masks = [sample.evidence, *sample.distractors]
        if variant == "conflict":
            masks.append(sample.shortcut)
        assert all(mask.any() for mask in masks)
        assert np.sum(masks, axis=0).max() == 1
        assert 1 <= len(sample.distractors) <= MOST_DISTRACTORS


def test_the_evidence_mask_holds_exactly_the_pixels_the_shape_changed():
    """The shortcut variant draws the same scene without the shape: what differs outside the watermark is the shape."""
    with_shape, without = Shapes(seed=2), Shapes(seed=2, variant="shortcut")
    compared = 0
    for index in range(200):
        one, other = with_shape[index], without[index]
        if not other.shortcut.any():
            continue
        compared += 1
        changed = (one.image != other.image).any(-1) & ~other.shortcut
        visible = one.evidence & ~other.shortcut
        assert not (changed & ~one.evidence).any()
        # a covered pixel keeps its bytes only where the two colours happen to be equal or the cover is a trace
        assert np.count_nonzero(changed & visible) > 0.95 * np.count_nonzero(visible)
    assert compared >= 5


def test_the_watermark_changes_exactly_its_own_pixels():
    compared = 0
    for index in range(40):
        plain, marked = Shapes()[index], Shapes(variant="conflict")[index]
        if plain.label == SHORTCUT_CLASS:
            continue
        compared += 1
        assert plain.label == marked.label
        np.testing.assert_array_equal(plain.evidence, marked.evidence)
        np.testing.assert_array_equal(plain.image[~marked.shortcut], marked.image[~marked.shortcut])
        assert (plain.image != marked.image)[marked.shortcut].any()
    assert compared >= 20


def test_the_shape_stands_out_from_its_ground():
    differences = []
    for index in range(200):
        sample = Shapes()[index]
        ground = ~np.any([sample.evidence, *sample.distractors], axis=0)
        image = sample.image.astype(float)
        differences.append(np.abs(image[sample.evidence].mean(0) - image[ground].mean(0)).sum())
    assert np.quantile(differences, 0.05) > 60


def test_distractors_hide_a_little_of_the_evidence_at_most(monkeypatch):
    whole: list[int] = []
    paint = Canvas.paint_evidence

    def spying(canvas, layer):
        whole.append(np.count_nonzero(layer.mask))
        paint(canvas, layer)

    monkeypatch.setattr(Canvas, "paint_evidence", spying)
    visible = [np.count_nonzero(Shapes()[index].evidence) for index in range(200)]
    hidden = 1 - np.array(visible) / np.array(whole)
    assert 0 < hidden.max() <= HIDDEN


@pytest.fixture(scope="module")
def many():
    return Shapes(seed=5).draw(800)


@pytest.mark.parametrize("label", range(len(CLASSES)), ids=CLASSES)
def test_place_and_brightness_do_not_tell_the_class(label, many):
    """The mean place and brightness of a class are those of all images, within the noise of the draw."""
    rows = torch.arange(64.0).view(1, 64, 1)
    place = (many.evidence * rows).sum((1, 2)) / many.evidence.sum((1, 2))
    bright = (many.images.mean(1) * many.evidence).sum((1, 2)) / many.evidence.sum((1, 2))
    for value in (place, bright):
        ours, rest = value[many.labels == label], value[many.labels != label]
        error = (ours.var() / len(ours) + rest.var() / len(rest)).sqrt()
        assert abs(ours.mean() - rest.mean()) < 4 * error


def test_clean_has_no_watermark():
    batch = Shapes().draw(200)
    assert not batch.shortcut.any()
    assert batch.labels.unique().tolist() == list(range(len(CLASSES)))


def test_in_shortcut_about_half_of_the_stars_are_a_watermark_and_nothing_else_is():
    batch = Shapes(variant="shortcut").draw(800)
    marked = batch.shortcut.flatten(1).any(1)
    assert (batch.labels[marked] == SHORTCUT_CLASS).all()
    assert_close(batch.evidence[marked], batch.shortcut[marked])
    share = marked[batch.labels == SHORTCUT_CLASS].float().mean()
    assert 0.35 < share < 0.65


def test_in_shortcut_all_other_images_are_those_of_clean():
    clean, shortcut = Shapes().draw(50), Shapes(variant="shortcut").draw(50)
    plain = ~shortcut.shortcut.flatten(1).any(1)
    assert 0 < plain.sum() < 50
    assert_close(shortcut.labels, clean.labels)
    assert_close(shortcut.images[plain], clean.images[plain])


def test_in_conflict_every_image_has_a_watermark_and_a_shape_of_another_class():
    batch = Shapes(variant="conflict").draw(200)
    assert batch.shortcut.flatten(1).any(1).all()
    assert (batch.labels != SHORTCUT_CLASS).all()
    assert not (batch.evidence & batch.shortcut).any()


def test_the_watermark_is_the_same_picture_in_all_four_corners():
    logos, corners = set(), set()
    for index in range(40):
        sample = Shapes(variant="conflict")[index]
        rows, columns = np.nonzero(sample.shortcut)
        logos.add(sample.image[sample.shortcut].tobytes())
        corners.add((int(rows.min()), int(columns.min())))
    assert len(logos) == 1
    assert len(corners) == 4


def test_the_watermark_is_its_own_mirror_image():
    sample = Shapes(variant="conflict")[0]
    rows, columns = np.nonzero(sample.shortcut)
    logo = sample.image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    np.testing.assert_array_equal(logo, logo[:, ::-1])
    np.testing.assert_array_equal(logo, logo[::-1])


def test_normalising_takes_the_mean_away_and_divides_by_the_deviation():
    images = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    assert MEAN == STD == (0.5, 0.5, 0.5)
    assert_close(normalise(images), images * 2 - 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"variant": "dirty"}, "variant='dirty'; choose from clean,"),
        ({"size": 8}, "32 or more"),
        ({"seed": -1}, "seed is between 0 and"),
    ],
)
def test_impossible_settings_are_refused(options, said):
    with pytest.raises((InputError, RecipeError), match=said):
        Shapes(**options)


def test_there_is_no_image_before_the_first():
    with pytest.raises(InputError, match="count from 0"):
        Shapes()[-1]
    with pytest.raises(InputError, match="at least 1"):
        Shapes().draw(0)
