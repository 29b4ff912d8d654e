"""Objects to choose from: the boxes and regions that the targets of the same index explain."""

import pytest
import torch

import sightline
from sightline.data.shapes import Shapes
from sightline.models.targets import resolve_target
from sightline.models.tasks.objects import found_objects
from sightline.targets.tasks import target_mask


@pytest.fixture(scope="module")
def images():
    return Shapes(seed=11).draw(2).images


@pytest.mark.parametrize("row", [0, 1])
def test_a_detection_is_the_box_of_its_rank(images, row):
    model = sightline.load("bundled/shapes-detector")
    image = model.normalise(images[row : row + 1])
    found = found_objects(model, model.predict(image))
    assert [each.index for each in found] == list(range(len(found)))
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    for each in found:
        box = resolve_target(sightline.Box(each.index), model, image)
        assert torch.tensor(box.corners()).clamp(0, 64) / 64 == pytest.approx(torch.tensor(each.box), abs=1e-5)
        assert model.label(box.label_of()) == each.label


def test_a_region_is_where_its_label_is_predicted_and_the_largest_comes_first(images):
    model = sightline.load("bundled/shapes-segmenter")
    image = model.normalise(images[:1])
    found = found_objects(model, model.predict(image))
    assert "background" not in [each.label for each in found]
    for each in found:
        mask = target_mask(resolve_target(sightline.Region(each.index), model, image), (64, 64))
        rows, columns = mask.nonzero(as_tuple=True)
        edges = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        assert [float(edge) / 64 for edge in edges] == pytest.approx(each.box, abs=1e-5)
        assert float(mask.float().mean()) == pytest.approx(each.score, abs=1e-6)
    assert resolve_target(None, model, image).label == found[0].index


def test_a_classifier_has_none(images):
    model = sightline.load("bundled/shapes-cnn")
    assert found_objects(model, model.predict(model.normalise(images[:1]))) == []
    assert target_mask(sightline.Logit(1), (4, 4)) is None
