"""A unit of an inner layer as a target: captum's neuron attributions, closed forms, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from tests.models.fingerprint import fingerprint
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import Neuron, errors
from sightline.methods.gradient.deep_lift_shap import DeepLiftShap
from sightline.methods.path.gradient_shap import GradientShap, stratified
from sightline.methods.sampling.occlusion import FeatureAblation


def network() -> nn.Sequential:
    """A CNN whose ReLUs are modules of their own, as captum needs them."""
    torch.manual_seed(2)
    layers = (nn.Conv2d(3, 6, 5, 2), nn.ReLU(), nn.Conv2d(6, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    return nn.Sequential(*layers).double().eval()


LAYER, UNIT = "2", (3, 2, 4)


@pytest.mark.filterwarnings("ignore")  # captum says what it hooks
@pytest.mark.parametrize(
    ("recipe", "peer", "options"),
    [
        ("gradient", "NeuronGradient", {}),
        ("ig(steps=7)", "NeuronIntegratedGradients", {"n_steps": 7}),
        ("deep_lift", "NeuronDeepLift", {}),
        ("guided_backprop", "NeuronGuidedBackprop", {}),
        ("deconvnet", "NeuronDeconvolution", {}),
    ],
)
def test_is_captums_neuron_attribution(recipe: str, peer: str, options: Any, images: Tensor, parity) -> None:
    model = network()
    got = sightline.explain(model, images, recipe, target=Neuron(LAYER, UNIT)).map
    theirs = getattr(attr, peer)(model, model[2])
    want = theirs.attribute(images.clone().requires_grad_(), UNIT, **options).sum(dim=1).detach()
    bound = 1e-5 if peer == "NeuronIntegratedGradients" else 1e-9  # captum's nodes are in single precision
    parity("Neuron", f"captum {peer}", got, want, bound)


@pytest.mark.filterwarnings("ignore")
def test_is_captums_on_the_same_baselines_and_superpixels(images: Tensor, monkeypatch, parity) -> None:
    model, pool = network(), torch.randn(3, 3, 32, 32, dtype=torch.float64)
    target, lift = Neuron(LAYER, UNIT), attr.NeuronDeepLiftShap(model, model[2])
    got = sightline.explain(model, images, DeepLiftShap(samples=3, pool=pool), target=target).map
    parity("Neuron", "captum NeuronDeepLiftShap", got, lift.attribute(images, UNIT, pool).sum(dim=1), 1e-9)
    labels = (torch.rand(32, 32) * 6).long()
    got = sightline.explain(model, images, FeatureAblation(segments=labels), target=target).map
    theirs = attr.NeuronFeatureAblation(model, model[2]).attribute(images, UNIT, feature_mask=labels[None, None])
    parity("Neuron", "captum NeuronFeatureAblation", got, theirs[:, 0], 1e-5)  # captum computes in float32
    got = sightline.explain(model, images, GradientShap(samples=6, pool=pool), target=target).map
    points = stratified(images, 6, 0).flatten().numpy()
    monkeypatch.setattr(np.random, "choice", lambda size, count: torch.arange(3).repeat(4)[:count].numpy())
    monkeypatch.setattr(np.random, "uniform", lambda low, high, count: points)
    theirs = attr.NeuronGradientShap(model, model[2]).attribute(images, UNIT, pool, n_samples=6)
    parity("Neuron", "captum NeuronGradientShap", got, theirs.sum(dim=1), 1e-9)


def test_the_unit_of_a_linear_layer_has_its_weight_as_gradient() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 7), nn.ReLU(), nn.Linear(7, 3)).double().eval()
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    got = sightline.explain(model, images, "gradient", target=Neuron("1", (4,))).map
    want = model[1].weight[4].detach().view(3, 8, 8).sum(dim=0).expand(2, 8, 8)
    assert_close(got, want)
    assert_close(sightline.explain(model, images, "gradient", target=Neuron("1", 4)).map, want)


@pytest.mark.parametrize(("network", "layer", "place"), [
    ("tiny_cnn", "conv2", (slice(None), 3)), ("tiny_vit", "block.1.norm1", (slice(None), slice(1, None), 3)),
])  # fmt: skip
def test_a_number_is_a_channel_and_its_score_the_mean_over_cells(network, layer, place, images, request) -> None:
    model = request.getfixturevalue(network)
    before = fingerprint(model)
    got = sightline.explain(model, images, "ixg(at='pixels')", target=Neuron(layer, 3))
    pixels = images.clone().requires_grad_()
    with sightline.adapt(model).capture(layer, gradient=True) as seen:
        model(pixels)
    (gradient,) = torch.autograd.grad(seen[layer][place].flatten(1).mean(dim=1).sum(), pixels)
    assert_close(got.map, (gradient * images).sum(dim=1))
    assert got.labels == (f"channel 3 at {layer}",) * 2
    assert fingerprint(model) == before


def test_metrics_follow_the_unit_and_a_file_keeps_it(images: Tensor, tmp_path) -> None:
    model, target = network(), Neuron("0", 3)
    found = sightline.explain(model, images, "ixg", target=target)
    metric = "single_deletion(fill='zero', score='logit')"
    ones = torch.ones(2, dtype=torch.float64)
    assert_close(sightline.evaluate(model, images, found, metric)[metric], ones)  # the layer is linear
    assert (sightline.evaluate(model, images, found, metric, target=1)[metric] < 0.9).all()
    found.save(tmp_path / "map.safetensors")
    assert sightline.Attribution.load(tmp_path / "map.safetensors").target == target


def test_the_model_runs_no_further_than_the_layer(images: Tensor) -> None:
    model = network()
    model[5] = nn.Linear(1, 1).eval()  # which would raise
    assert sightline.explain(model, images, "gradient", target=Neuron(LAYER, UNIT)).map.abs().sum() > 0


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (Neuron("nowhere", 0), "'nowhere'"),
        (Neuron(LAYER, (1, 2)), r"whose output has the shape \(4, 6, 6\)"),
        (Neuron(LAYER, (4, 0, 0)), r"whose output has the shape \(4, 6, 6\)"),
        (Neuron(LAYER, 9), r"whose output has the shape \(4,\)"),
        ([Neuron(LAYER, 0), 1], "give one Neuron for all images"),
    ],
)
def test_what_is_not_there_is_refused(target: Any, sentence: str, images: Tensor) -> None:
    with pytest.raises(errors.SightlineError, match=sentence):
        sightline.explain(network(), images, "gradient", target=target)


def test_what_needs_layers_or_a_module_is_refused(images: Tensor) -> None:
    for recipe in ("grad_cam", "guided_grad_cam"):
        with pytest.raises(errors.UnsupportedModel, match=f"{recipe} needs"):
            sightline.explain(network(), images, recipe, target=Neuron(LAYER, UNIT))
    with pytest.raises(errors.UnsupportedModel, match="is a function"):
        sightline.explain(lambda x: x.mean(dim=(2, 3)), images, "occlusion", target=Neuron(LAYER, UNIT))
