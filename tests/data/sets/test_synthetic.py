from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.data import miniature as mini

from sightline.data.dataset import open_dataset
from sightline.data.quads import CELLS
from sightline.data.shapes import Shapes
from sightline.errors import InputError

# ---- shapes ----------------------------------------------------------------------------------------------------


def test_shapes_are_those_of_the_drawing_code():
    found = open_dataset("shapes(count=3, seed=5, size=40, variant='shortcut')")
    assert found.ids == ("shape-000000", "shape-000001", "shape-000002")
    drawn = Shapes(seed=5, size=40, variant="shortcut").draw(3)
    for index, one in enumerate(found):
        assert one.label == drawn.labels[index]
        assert torch.equal(one.tensor, drawn.images[index])
        assert np.array_equal(one.mask, drawn.evidence[index].numpy())
        assert one.mask.dtype == np.int8
        assert np.array_equal(np.asarray(one.image), (one.tensor * 255).round().byte().permute(1, 2, 0).numpy())


def test_the_watermark_can_be_the_evidence():
    found = open_dataset("shapes(count=2, variant='conflict', evidence='shortcut')")
    drawn = Shapes(variant="conflict").draw(2)
    assert np.array_equal(found.read(found.ids[1]).mask, drawn.shortcut[1].numpy())


# ---- quads -----------------------------------------------------------------------------------------------------


def test_a_quad_gives_a_sample_for_each_cell(tmp_path):
    root = mini.labelled(tmp_path / "set", count=9)
    found = open_dataset(f"quads(of={str(root)!r}, side=32)")
    assert found.name == "quads of set"
    assert len(found) == 8
    assert found.ids[:4] == tuple(f"quad-0000-{cell.replace(' ', '-')}" for cell in CELLS)
    samples = [found.read(one) for one in found.ids[:4]]
    for cell, sample in enumerate(samples):
        assert torch.equal(sample.tensor, samples[0].tensor)
        assert sample.tensor.shape == (3, 32, 32)
        assert sample.mask.sum() == 16 * 16
        assert sample.mask[(cell // 2) * 16, (cell % 2) * 16] == 1
    assert sum(sample.mask for sample in samples).tolist() == np.ones((32, 32)).tolist()
    inner = open_dataset(root)
    _, names = found.entries[found.ids[0]].details
    assert [sample.label for sample in samples] == [inner.label(name) for name in names]


def test_no_picture_is_used_twice_and_distinct_classes_can_be_asked_for(tmp_path):
    root = mini.labelled(tmp_path / "set", count=12)
    found = open_dataset(f"quads(of={str(root)!r}, side=32)")
    used = [name for id in found.ids[::4] for name in found.entries[id].details[1]]
    assert len(set(used)) == len(used) == 12
    with pytest.raises(InputError, match="no picture"):  # there are three classes, and a quad needs four
        open_dataset(f"quads(of={str(root)!r}, side=32, distinct=True)")
    of_shapes = open_dataset("quads(of=shapes(count=40, size=32), side=64, distinct=True)")
    for start in range(0, len(of_shapes), 4):
        assert len({of_shapes.label(one) for one in of_shapes.ids[start : start + 4]}) == 4


def test_the_object_inside_the_cell_can_be_the_region(tmp_path):
    root = mini.labelled(tmp_path / "set", count=9)
    found = open_dataset({"name": "quads", "of": {"name": str(root), "masked": True}, "side": 48, "region": "object"})
    sample = found.read(found.ids[3])
    cells = [sample.mask[:24, :24], sample.mask[:24, 24:], sample.mask[24:, :24], sample.mask[24:, 24:]]
    assert all(not cell.any() for cell in cells[:3])
    assert set(np.unique(cells[3])) == {-1, 0, 1}
    unmasked = open_dataset(f"quads(of={str(root)!r}, side=48, region='object')")
    with pytest.raises(InputError, match="has no mask"):
        list(unmasked)


def test_quads_follow_the_choice_of_the_inner_set(tmp_path):
    root = mini.labelled(tmp_path / "set", count=9)  # probabilities 0.5 to 1.3
    found = open_dataset(f"quads(of=labelled(root={str(root)!r}, confidence=0.85), side=32)")
    assert len(found) == 4
    assert set(found.entries[found.ids[0]].details[1]) <= {"p4", "p5", "p6", "p7", "p8"}
    other = open_dataset(f"quads(of=labelled(root={str(root)!r}, limit=8), side=32)")
    assert other.digest() != found.digest()
    assert [name for name, _ in found.skipped] == ["p0", "p1", "p2", "p3"]


def test_pictures_without_a_class_stay_out_of_quads(tmp_path):
    for number in range(4):
        mini.picture(tmp_path / f"{number}.png", number)
    with pytest.raises(InputError, match="its class is not known"):
        open_dataset({"name": "quads", "of": str(tmp_path)})
