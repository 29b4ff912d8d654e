"""Finer-CAM: both packages, the target it stands for, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from tests.methods.peer_cam import as_the_peer_shows
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import FinerContrast, errors
from sightline.extras import repair_torchvision
from sightline.operators.finer_cam import nearest_classes


@pytest.fixture
def model(tiny_cnn: nn.Module) -> nn.Module:
    tiny_cnn.relu.inplace = False  # type: ignore[union-attr]  # the peers read the activation after it was overwritten
    return tiny_cnn


def test_the_mean_matches_torchcam(model: nn.Module, images: Tensor, parity) -> None:
    from torchcam.methods import FinerCAM, GradCAM

    with FinerCAM(model, "norm2", base_method=GradCAM, input_shape=(3, 32, 32)) as peer:
        (want,) = peer(class_idx=1, scores=model(images), normalized=False)
    got = sightline.explain(model, images, "finer_cam(grad_cam(layer='norm2'))", target=1).map
    assert_close(got.clamp(min=0), want.detach(), rtol=1e-9, atol=1e-12)
    parity("finer_cam", "torchcam FinerCAM", got.clamp(min=0), want, 1e-9)


def test_the_weighted_one_matches_grad_cam(model: nn.Module, images: Tensor, parity) -> None:
    repair_torchvision()
    from pytorch_grad_cam import FinerCAM

    with FinerCAM(model, [model.norm2]) as peer:
        want = torch.from_numpy(peer(images, target_idx=1))
    got = sightline.explain(model, images, "finer_cam(grad_cam(layer='norm2'), variant='weighted')", target=1)
    assert_close(as_the_peer_shows(got).float(), want.float(), atol=1e-5, rtol=0)
    parity("finer_cam", "grad-cam FinerCAM", as_the_peer_shows(got), want, 1e-5)


@pytest.mark.parametrize("recipe", ["grad_cam", "ixg", "ig(steps=3)", "occlusion(window=16, stride=16)"])
def test_is_the_method_on_its_target(recipe: str, model: nn.Module, images: Tensor) -> None:
    with torch.no_grad():
        others = nearest_classes(model(images), (1, 2), 2)
    want = sightline.explain(model, images, recipe, target=FinerContrast((1, 2), others, 0.3)).map
    got = sightline.explain(model, images, f"finer_cam({recipe}, references=2, gamma=0.3)", target=[1, 2])
    assert_close(got.map, want)


def test_the_words_name_the_classes_it_compares_with(model: nn.Module, images: Tensor) -> None:
    target = FinerContrast(1, ((2, 4), (0, 3)))
    labels = sightline.explain(model, images, "grad_cam", target=target).labels
    assert labels == ("class 1 rather than class 2, class 4", "class 1 rather than class 0, class 3")


def test_what_has_no_meaning_is_refused(model: nn.Module, images: Tensor) -> None:
    with pytest.raises(errors.RecipeError, match="references=0"):
        sightline.parse("finer_cam(grad_cam, references=0)")
    with pytest.raises(errors.TargetError, match="needs a target of one class"):
        sightline.explain(model, images, "finer_cam(grad_cam)", target=sightline.Contrast(0, 1))
    with pytest.raises(errors.TargetError, match="all of one length"):
        FinerContrast(0, ((1, 2), (3,)))
    with pytest.raises(errors.TargetError, match="needs two at least"):
        sightline.explain(lambda x: x.mean(dim=(2, 3))[:, :1], images, "finer_cam(feature_ablation)", target=0)
