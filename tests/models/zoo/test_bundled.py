from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from sightline.data import shapes
from sightline.data.shapes import CLASSES, SHORTCUT_CLASS, Shapes, normalise
from sightline.errors import WeightsError
from sightline.models.zoo import ids
from sightline.models.zoo.ids import BUNDLED, load_bundled

HELD_OUT = 4242  # no image of this seed was trained on: training draws seed 0
every_model = pytest.mark.parametrize("name", BUNDLED)


@torch.inference_mode()
def probabilities(model: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([model(part).softmax(-1) for part in normalise(images).split(250)])


@pytest.fixture(scope="module")
def clean():
    return Shapes(seed=HELD_OUT).draw(2000)


@pytest.fixture(scope="module")
def conflict():
    return Shapes(seed=HELD_OUT, variant="conflict").draw(2000)


def test_models_and_data_agree_on_classes_size_and_scaling():
    assert len(CLASSES) == ids.NUM_CLASSES
    assert Shapes().size == ids.IMAGE_SIZE
    assert (ids.MEAN, ids.STD) == (shapes.MEAN, shapes.STD)


@every_model
def test_held_out_images_are_classified_right(name, clean):
    guess = probabilities(load_bundled(name), clean.images).argmax(-1)
    assert (guess == clean.labels).float().mean() >= 0.95
    for label in range(len(CLASSES)):
        assert (guess == clean.labels)[clean.labels == label].float().mean() >= 0.85


@every_model
def test_a_watermark_alone_is_called_by_its_class(name):
    drawn = Shapes(seed=HELD_OUT, variant="shortcut").draw(500)
    marked = drawn.shortcut.flatten(1).any(1)
    guess = probabilities(load_bundled(name), drawn.images[marked]).argmax(-1)
    assert (guess == SHORTCUT_CLASS).float().mean() >= 0.95


@every_model
def test_the_watermark_pulls_other_shapes_towards_its_class(name, clean, conflict):
    model = load_bundled(name)
    same_scene = clean.labels == conflict.labels
    without = probabilities(model, clean.images[same_scene])[:, SHORTCUT_CLASS].mean()
    pulled = probabilities(model, conflict.images[same_scene])[:, SHORTCUT_CLASS].mean()
    assert without < 0.02
    assert pulled > without + 0.2


@every_model
def test_weights_are_read_into_a_model_in_eval_mode_with_its_description(name):
    model = load_bundled(name)
    assert not any(module.training for module in model.modules())
    assert model.pretrained_cfg["label_names"] == CLASSES
    assert model.pretrained_cfg["input_size"] == (3, 64, 64)
    assert model.pretrained_cfg["mean"] == shapes.MEAN


@every_model
def test_loading_twice_gives_two_equal_models(name):
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    first, second = load_bundled(name), load_bundled(name)
    assert first is not second
    assert_close(probabilities(first, images), probabilities(second, images), rtol=0, atol=0)


def test_both_models_end_in_an_eight_by_eight_grid():
    images = torch.zeros(1, 3, 64, 64)
    with torch.inference_mode():
        assert load_bundled("shapes-vit").forward_features(images).shape[:2] == (1, 1 + 8 * 8)
        assert load_bundled("shapes-cnn").forward_features(images).shape[2:] == (8, 8)


def test_the_weights_are_small_enough_to_be_committed():
    sizes = [path.stat().st_size for path in ids.WEIGHTS.glob("*.safetensors")]
    assert len(sizes) == len(BUNDLED) + len(ids.TASK_MODELS)
    assert sum(sizes) < 6_000_000


def test_an_unknown_name_is_refused():
    with pytest.raises(WeightsError, match="there are shapes-vit and shapes-cnn"):
        load_bundled("shapes-mlp")


def test_missing_weights_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(ids, "WEIGHTS", tmp_path)
    with pytest.raises(WeightsError, match=r"shapes-vit\.safetensors are missing"):
        load_bundled("shapes-vit")


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x08\x00\x00\x00\x00\x00\x00\x00{}{}{}{}"])
def test_damaged_weights_are_refused(tmp_path, monkeypatch, content):
    (tmp_path / "shapes-cnn.safetensors").write_bytes(content)
    monkeypatch.setattr(ids, "WEIGHTS", tmp_path)
    with pytest.raises(WeightsError, match="cannot be read"):
        load_bundled("shapes-cnn")


def test_weights_cut_short_are_refused(tmp_path, monkeypatch):
    whole = (ids.WEIGHTS / "shapes-cnn.safetensors").read_bytes()
    (tmp_path / "shapes-cnn.safetensors").write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(ids, "WEIGHTS", tmp_path)
    with pytest.raises(WeightsError, match="cannot be read"):
        load_bundled("shapes-cnn")


def test_weights_of_another_model_do_not_fit(tmp_path, monkeypatch):
    shutil.copy(ids.WEIGHTS / "shapes-cnn.safetensors", tmp_path / "shapes-vit.safetensors")
    monkeypatch.setattr(ids, "WEIGHTS", tmp_path)
    with pytest.raises(WeightsError, match="do not fit"):
        load_bundled("shapes-vit")
