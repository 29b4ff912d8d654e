"""Sensitivity, Lipschitz estimate, continuity, relative stability: Quantus on the same perturbations, closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.metrics import peer_quantus
from tests.metrics.peer_quantus import SIDE, plain, quantus
from torch import nn
from torch.testing import assert_close

from sightline import adapt, explain
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.metrics.robustness.local_lipschitz import shifted
from sightline.recipe import parse, parse_metric
from sightline.types import Logit

OPTIONS = "samples=4, radius=0.1"
PEERS = {
    "average_sensitivity": lambda **more: quantus.AvgSensitivity(nr_samples=4, **plain(**more)),
    "max_sensitivity": lambda **more: quantus.MaxSensitivity(nr_samples=4, **plain(**more)),
    "local_lipschitz": lambda **more: quantus.LocalLipschitzEstimate(nr_samples=4, **plain(**more)),
    "relative_input_stability": lambda **more: quantus.RelativeInputStability(nr_samples=4, **plain(**more)),
    "relative_output_stability": lambda **more: quantus.RelativeOutputStability(nr_samples=4, **plain(**more)),
}


def score(case, recipe):
    return judge(case, recipe)[recipe]


def explained_case(recipe="ixg"):
    """A case whose maps are the method's own; Quantus sees one channel of the three that are equal."""
    case = peer_quantus.case(method=parse(recipe))
    images = case.images.clamp(min=0.05)  # where image or map is zero the two put different small numbers
    maps = explain(case.model, images, recipe, target=case.target).pixels()
    return Case(case.model, images, case.target, maps, method=parse(recipe))


def grey(images):
    """Give the images the perturbation of their first channel in all three."""
    return [each[:, :1].expand(-1, 3, -1, -1) for each in images]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PEERS)
def test_it_is_that_of_quantus_on_the_same_perturbations(name, monkeypatch, parity):
    case = explained_case()
    normalise = ", normalise=False" if name == "local_lipschitz" else ""
    metric = parse_metric(f"{name}({OPTIONS}{normalise})")
    moved = grey(metric.perturbed(case.images))
    monkeypatch.setattr(type(metric), "perturbed", lambda self, images: moved)
    draws = iter([each[:, 0].flatten(1).numpy() for each in moved])

    def again(model, inputs, targets, **options):
        images = torch.from_numpy(inputs).reshape(-1, 1, SIDE, SIDE).expand(-1, 3, -1, -1)
        return explain(case.model, images, "ixg", target=case.target).pixels()[:, None].numpy()

    peer = PEERS[name](perturb_func=lambda arr, **options: next(draws))
    peer.explain_func, peer.explain_func_kwargs = again, {}
    given = peer_quantus.batch() | {"x_batch": case.images[:, :1].numpy(), "a_batch": case.maps[:, None].numpy()}
    if name == "relative_output_stability":  # the paper has logits there
        given["model"] = quantus.helpers.model.pytorch_model.PyTorchModel(
            peer_quantus.OneChannel().eval(), channel_first=True, softmax=False
        )
    want = torch.from_numpy(np.asarray(peer.evaluate_batch(**given))).double()
    got = score(case, f"{name}({OPTIONS}{normalise})")
    if name == "local_lipschitz":
        got = got * 3**0.5  # three equal channels move further than one
    if name == "relative_input_stability":
        got = got * 3**0.5
    assert_close(got, want, rtol=1e-4, atol=1e-6)
    parity(name, f"quantus {type(peer).__name__}", got, want, 1e-6)


@pytest.mark.parametrize("name", [*PEERS, "continuity"])
def test_what_does_not_change_is_stable(name, tiny_cnn, images):
    maps = explain(tiny_cnn, images, "centre", target=1).pixels()
    case = Case(adapt(tiny_cnn), images, Logit(1), maps, method=parse("centre"))
    assert_close(score(case, name), torch.zeros(2, dtype=torch.float64))


def test_they_share_the_maps_of_the_perturbed_images(tiny_cnn, images):
    maps = explain(tiny_cnn, images, "ixg", target=1).pixels()
    case = Case(adapt(tiny_cnn), images, Logit(1), maps, method=parse("ixg"))
    names = [f"{name}(samples=3)" for name in PEERS]
    apart = max(judge(Case(case.model, images, Logit(1), maps, method=case.method), n).passes.backward for n in names)
    assert judge(case, names).passes.backward == apart


def test_the_gradient_of_a_linear_model_is_constant_and_its_product_with_the_image_moves_as_the_image_does():
    model = adapt(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)).double().eval())
    images = torch.rand(1, 3, 4, 4, dtype=torch.float64)
    found = {}
    for recipe in ("gradient", "ixg"):
        maps = explain(model, images, recipe, target=0).pixels()
        case = Case(model, images, Logit(0), maps, method=parse(recipe))
        found[recipe] = score(case, "local_lipschitz(normalise=False)").item()
    weights = model.model[1].weight[0].reshape(3, 16)
    assert found["gradient"] == pytest.approx(0, abs=1e-9)
    assert 0 < found["ixg"] <= weights.norm(dim=0).max().item()


def test_continuity_by_hand():
    """A map that is the image itself changes by the L1 norm of what changes the image."""
    images = torch.rand(1, 1, 3, 6, dtype=torch.float64).expand(-1, 3, -1, -1).contiguous()
    model = adapt(lambda batch: batch.mean(dim=1).flatten(1))
    case = Case(model, images, Logit(0), images.mean(dim=1), method=parse("input_norm"))
    copies = [shifted(images, by) for by in range(3)]
    maps = [images.mean(dim=1)] + [explain(model, each, "input_norm", target=0).pixels() for each in copies[1:]]
    want = max(
        ((maps[i] - maps[j]).abs().sum() / (copies[i] - copies[j]).norm()).item() for i in range(3) for j in range(i)
    )
    assert score(case, "continuity(shifts=2, normalise=False)").item() == pytest.approx(want)


def test_a_shift_moves_the_image_and_repeats_its_border():
    image = torch.arange(4.0).reshape(1, 1, 1, 4)
    assert shifted(image, 2).flatten().tolist() == [0, 0, 0, 1]


def test_an_even_image_does_not_change_by_shifts(tiny_cnn):
    images = torch.ones(1, 3, 32, 32, dtype=torch.float64)
    case = Case(adapt(tiny_cnn), images, Logit(1), torch.rand(1, 32, 32), method=parse("ixg"))
    scores = judge(case, "continuity(shifts=2)")
    assert scores["continuity(shifts=2)"].isnan().all()
    assert scores.flags["continuity(shifts=2)"] == ("the image does not change",)


def test_images_whose_class_changes_are_left_out(tiny_cnn, images):
    maps = explain(tiny_cnn, images, "ixg", target=1).pixels()
    case = Case(adapt(tiny_cnn), images, Logit(1), maps, method=parse("ixg"))
    key = "relative_input_stability(samples=2, radius=1000000.0)"
    scores = judge(case, key)
    lost = scores[key].isnan()
    flagged = torch.tensor(["no perturbation keeps the prediction" in flag for flag in scores.flags[key]])
    assert torch.equal(lost, flagged)


@pytest.mark.parametrize("recipe", ["continuity(shifts=0)", "local_lipschitz(samples=0)"])
def test_wrong_options_are_refused(recipe):
    with pytest.raises(RecipeError, match="got "):
        parse_metric(recipe)


def test_relative_representation_stability_by_hand(tiny_cnn, images):
    """On the tiny network the representation is what the head is given: its pooled features."""
    maps = explain(tiny_cnn, images, "ixg", target=1).pixels()
    case = Case(adapt(tiny_cnn), images, Logit(1), maps, method=parse("ixg"))
    recipe = "relative_representation_stability(samples=1)"
    (moved,) = parse_metric(recipe).perturbed(images)

    def features(batch):
        with torch.no_grad():
            x = tiny_cnn.relu(tiny_cnn.norm1(tiny_cnn.conv1(batch)))
            x = tiny_cnn.relu(tiny_cnn.norm2(tiny_cnn.conv2(x)))
            return tiny_cnn.pool(tiny_cnn.relu(tiny_cnn.conv3(x))).flatten(1)

    first, second = features(images), features(moved)
    change = ((first - second) / torch.where(first == 0, 1e-6, first)).norm(dim=1)
    other = explain(tiny_cnn, moved, "ixg", target=1).pixels()
    want = ((maps - other) / maps).flatten(1).norm(dim=1) / change
    assert_close(score(case, recipe), want, rtol=1e-6, atol=1e-9)
