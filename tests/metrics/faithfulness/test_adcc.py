"""Coherency and ADCC: grad-cam on the same maps and pictures, closed forms, and what they share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from sightline import adapt, explain
from sightline.extras import require
from sightline.metrics.case import Case
from sightline.metrics.faithfulness.adcc import harmonic_mean
from sightline.metrics.judge import judge
from sightline.metrics.scaling import min_max
from sightline.recipe import parse
from sightline.types import Logit

METHOD = "absolute(ixg)"


def case_of(model, images, recipe=METHOD):
    maps = min_max(explain(model, images, recipe, target=Logit((1, 3))).pixels())
    return Case(adapt(model), images, Logit((1, 3)), maps, method=parse(recipe))


@pytest.mark.filterwarnings("ignore")
def test_they_are_those_of_grad_cam(tiny_cnn, images, parity):
    arcc = require("pytorch_grad_cam.metrics.arcc")
    targets = [require("pytorch_grad_cam.utils.model_targets").ClassifierOutputSoftmaxTarget(each) for each in (1, 3)]
    case = case_of(tiny_cnn, images)

    def again(input_tensor, targets):
        found = explain(tiny_cnn, input_tensor.detach(), METHOD, target=Logit((1, 3)))
        return found.pixels().numpy() * 1e4  # it adds 1e-8 to what it divides by

    maps = case.maps.numpy()
    want = arcc.Coherency()(images, maps, targets, tiny_cnn, again)
    got = judge(case, "coherency(fill='zero')")["coherency(fill='zero')"]
    assert_close(got, torch.from_numpy(want), rtol=0, atol=1e-6)
    parity("coherency", "grad-cam Coherency", got, want, 1e-6)
    recipe = "adcc(variant='arcc', fill='zero')"
    single = tiny_cnn.float()
    whole = arcc.ARCC(again)(images.float(), maps.astype(np.float32), targets, single)
    got = judge(case_of(single, images.float()), recipe)[recipe]
    assert got.tolist() == pytest.approx(whole.tolist(), abs=5e-3)  # ROAD fills with noise


def test_the_parts_make_the_whole_and_share_their_passes(tiny_cnn, images):
    case = case_of(tiny_cnn, images)
    scores = judge(case, ["adcc", "coherency", "average_drop"])
    simple = 1 - case.maps.mean(dim=(1, 2))
    want = 3 / (1 / scores["coherency"] + 1 / simple + 1 / (1 - scores["average_drop"]))
    assert_close(scores["adcc"], want)
    assert scores.passes.forward == judge(case_of(tiny_cnn, images), "adcc").passes.forward


def test_a_method_that_ignores_the_image_is_coherent(tiny_cnn, images):
    case = case_of(tiny_cnn, images, "centre")
    assert_close(judge(case, "coherency")["coherency"], torch.ones(2, dtype=torch.float64))


def test_the_mean_is_harmonic_not_geometric():
    parts = [torch.tensor([0.5], dtype=torch.float64), torch.tensor([0.25], dtype=torch.float64), torch.ones(1)]
    assert harmonic_mean(*parts).item() == pytest.approx(3 / 7)
    assert harmonic_mean(*parts).item() != pytest.approx((0.5 * 0.25) ** (1 / 3))
    assert harmonic_mean(torch.zeros(1), torch.ones(1)).item() == 0
