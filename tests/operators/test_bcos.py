"""B-cos networks: the package's own explanation, contributions that add up, and a model left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.extras import repair_torchvision


@pytest.fixture
def model() -> Any:
    repair_torchvision()
    from bcos.modules import BcosConv2d, BcosSequential, LogitLayer

    torch.manual_seed(2)
    layers = (
        BcosConv2d(6, 8, 3, stride=2, b=2), BcosConv2d(8, 10, 3, stride=2, b=2), BcosConv2d(10, 5, 1, b=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), LogitLayer(logit_bias=-1.5),
    )  # fmt: skip
    return BcosSequential(*layers).double().eval()


@pytest.fixture
def pixels() -> Tensor:
    return torch.rand(2, 3, 32, 32, dtype=torch.float64)


def test_matches_the_packages_own_explanation(model: Any, pixels: Tensor) -> None:
    got = sightline.explain(model, pixels, "bcos(ixg)", target=[1, 3]).map
    for row, target in enumerate((1, 3)):
        six = torch.cat([pixels, 1 - pixels], dim=1)[row : row + 1].requires_grad_()
        with torch.enable_grad(), model.explanation_mode():
            (gradient,) = torch.autograd.grad(model(six)[0, target], six)
        assert_close(got[row], (six * gradient).sum(dim=1)[0].detach())
    assert not torch.allclose(got, sightline.explain(model, pixels, "ixg", target=[1, 3]).map)


def test_contributions_add_up_to_the_logit_less_its_bias(model: Any, pixels: Tensor) -> None:
    got = sightline.explain(model, pixels, "bcos(ixg)", target=2).map.sum(dim=(1, 2))
    with torch.no_grad():
        logits = model(torch.cat([pixels, 1 - pixels], dim=1))
    assert_close(got, logits[:, 2] + 1.5)


def test_the_adapter_takes_three_channels_and_knows_the_output(model: Any, pixels: Tensor) -> None:
    adapter = sightline.adapt(model)
    with torch.no_grad():
        assert_close(adapter(pixels), model(torch.cat([pixels, 1 - pixels], dim=1)))
    assert (adapter.kind, adapter.output) == ("bcos", "sigmoid")
    assert sightline.explain(model, pixels, "occlusion(window=16, stride=16)", target=1).map.shape == (2, 32, 32)


def test_modules_get_their_own_mode_back(model: Any, pixels: Tensor) -> None:
    model[1].set_explanation_mode(True)
    sightline.explain(model, pixels, "bcos(ixg)", target=1)
    assert [module.is_in_explanation_mode for module in model[:3]] == [False, True, False]


def test_other_models_are_refused(tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(errors.UnsupportedModel, match="B-cos networks"):
        sightline.explain(tiny_cnn, images, "bcos(ixg)", target=1)
