"""The score option reads probabilities as the model's output defines them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.errors import TargetError
from sightline.methods.scored import scored
from sightline.types import Contrast, Logit, LogProbability, PerImage, Probability, Value

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("output", "want"), [("softmax", LOGITS.softmax(dim=-1)[:, 1]), ("sigmoid", LOGITS.sigmoid()[:, 1])]
)
@pytest.mark.parametrize("target", [Logit(1), LogProbability(1)])
def test_a_probability_is_that_of_the_models_output(
    output: str, want: Tensor, target: Logit, tiny_cnn: nn.Module
) -> None:
    model = sightline.adapt(tiny_cnn, output=output)
    assert_close(scored(target, "probability", model)(LOGITS), want)
    assert_close(scored(target, "log_probability", model)(LOGITS), want.log())
    assert_close(scored(target, "logit", model)(LOGITS), LOGITS[:, 1])
    assert_close(scored(PerImage((target, Logit(0))), "probability", model)(LOGITS)[0], want[0])


def test_a_link_that_the_target_brings_is_kept(tiny_cnn: nn.Module) -> None:
    model = sightline.adapt(tiny_cnn, output="sigmoid")
    assert scored(Probability(1, "softmax"), "log_probability", model) == LogProbability(1, "softmax")


@pytest.mark.parametrize("target", [Contrast(0, 1), Value(2)])
def test_a_target_that_is_no_class_is_left_alone(target: Value, tiny_cnn: nn.Module) -> None:
    assert scored(target, "probability", sightline.adapt(tiny_cnn, output="value")) is target


def test_no_score_leaves_the_target_alone(tiny_cnn: nn.Module) -> None:
    model = sightline.adapt(tiny_cnn, output="value")
    assert scored(Logit(1), None, model) == Logit(1)
    assert scored(Logit(1), "logit", model) == Logit(1)


def test_a_model_without_probabilities_refuses_them(tiny_cnn: nn.Module) -> None:
    with pytest.raises(TargetError, match="probabilit"):
        scored(Logit(1), "probability", sightline.adapt(tiny_cnn, output="value"))


def test_score_cam_of_the_authors_weighs_by_the_probabilities_of_the_output(
    tiny_cnn: nn.Module, images: Tensor
) -> None:
    maps = {}
    for output in ("softmax", "sigmoid"):
        model = sightline.adapt(tiny_cnn, output=output)
        maps[output] = sightline.explain(model, images, "score_cam(variant='authors')", target=1).map
        given = sightline.explain(model, images, "score_cam(variant='authors')", target=Probability(1, output)).map
        assert_close(given, maps[output])
    assert not torch.allclose(maps["softmax"], maps["sigmoid"])
