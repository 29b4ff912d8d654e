"""Images, targets and methods in every form that `explain` and `evaluate` take."""

import gc
import pickle
import weakref

import numpy as np
import pytest
import torch
from captum.attr import IntegratedGradients
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sightline
from sightline.data.shapes import Shapes
from sightline.errors import InputError, RecipeError, TargetError


@pytest.fixture(scope="module")
def model():
    return sightline.load("bundled/shapes-cnn")


@pytest.fixture(scope="module")
def batch():
    return Shapes(seed=4).draw(5)


@pytest.fixture(scope="module")
def images(model, batch):
    return model.normalise(batch.images)


def pixels(batch):
    return (batch.images * 255).round().byte().permute(0, 2, 3, 1).numpy()


def test_a_list_of_methods_gives_a_list_and_shares_the_forward_that_finds_the_class(model, images):
    together = sightline.explain(model, images, ["ixg", "grad_cam", "random"])
    assert [each.recipe for each in together] == ["ixg", "grad_cam", "random"]
    apart = [sightline.explain(model, images, recipe) for recipe in ("ixg", "grad_cam", "random")]
    for one, other in zip(together, apart, strict=True):
        assert torch.equal(one.values, other.values)
    spent = sum(each.passes.forward for each in together)
    assert spent == sum(each.passes.forward for each in apart) - 2 * len(images)
    with pytest.raises(RecipeError, match="empty list of methods"):
        sightline.explain(model, images, [])


def test_arrays_of_pixels_are_prepared_and_arrays_of_floats_are_not(model, batch, images):
    prepared = sightline.explain(model, pixels(batch), "ixg", 0)
    pictures = sightline.explain(model, [Image.fromarray(each) for each in pixels(batch)], "ixg", 0)
    assert torch.equal(prepared.values, pictures.values)
    assert torch.allclose(
        sightline.explain(model, pixels(batch)[0], "ixg", 0).values, prepared.values[:, :1], atol=1e-6
    )
    assert torch.equal(sightline.explain(model, list(pixels(batch)), "ixg", 0).values, prepared.values)
    floats = sightline.explain(model, images.numpy(), "ixg", 0)
    assert torch.equal(floats.values, sightline.explain(model, images, "ixg", 0).values)


def test_an_array_of_another_kind_is_refused_in_a_sentence(model, batch):
    with pytest.raises(InputError, match=r"got an array of float64 and shape \(5, 64, 64, 3\); give uint8 pixels"):
        sightline.explain(model, pixels(batch) / 255.0, "ixg")
    with pytest.raises(InputError, match="got an array of int64"):
        sightline.explain(model, np.zeros((3, 64, 64), dtype=np.int64), "ixg")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_is_explained_batch_by_batch(model, batch, images, workers):
    loader = DataLoader(TensorDataset(images, batch.labels), batch_size=2, num_workers=workers)
    attribution = sightline.explain(model, loader, "ixg", target=batch.labels)
    whole = sightline.explain(model, images, "ixg", target=batch.labels)
    assert torch.allclose(attribution.values, whole.values, atol=1e-6)
    assert (attribution.labels, attribution.target) == (whole.labels, whole.target)
    assert attribution.passes == whole.passes


def test_a_generator_of_batches_with_a_progress_bar(model, images, capsys):
    attribution = sightline.explain(model, (part for part in images.split(2)), "random", target=1, progress=True)
    assert len(attribution) == 5
    assert capsys.readouterr().out == ""


def test_a_loader_that_gives_nothing_or_something_else_is_refused(model, images):
    with pytest.raises(InputError, match="without a single batch"):
        sightline.explain(model, iter(()), "ixg")
    with pytest.raises(InputError, match="batches that are dictionaries with pixel_values"):
        sightline.explain(model, iter([{"pixel_values": images}]), "ixg")
    with pytest.raises(TargetError, match="got 4 targets for 5 images or more"):
        sightline.explain(model, images.split(2).__iter__(), "ixg", target=[0, 1, 2, 3])


def test_tensors_of_different_sizes_are_refused_in_a_sentence(model):
    with pytest.raises(InputError, match=r"different sizes, \(3, 64, 64\) and \(3, 32, 32\)"):
        sightline.explain(model, [torch.zeros(3, 64, 64), torch.zeros(3, 32, 32)], "ixg")


def test_classes_by_name(model, images):
    assert sightline.explain(model, images[:1], "ixg", "star").target == sightline.Logit(4)
    with pytest.raises(TargetError, match="did you mean 'heart'"):
        sightline.explain(model, images[:1], "ixg", "hart")


def test_evaluate_scores_the_target_that_was_explained(model, images):
    logits = model.predict(images[:1])
    other = int(logits[0].argsort(descending=True)[-1])
    attribution = sightline.explain(model, images[:1], "ixg", target=other)
    told = sightline.evaluate(model, images[:1], attribution, "deletion", target=other)["deletion"]
    assert torch.equal(sightline.evaluate(model, images[:1], attribution, "deletion")["deletion"], told)
    predicted = sightline.evaluate(model, images[:1], attribution.pixels(), "deletion")["deletion"]
    assert not torch.equal(predicted, told)  # a plain map names no target: the predicted class


def test_a_captum_object_is_asked_again_by_a_metric(model, images):
    captum = IntegratedGradients(model.model)
    attribution = sightline.explain(model, images[:2], captum, target=0)
    sensitivity = sightline.evaluate(model, images[:2], attribution, "max_sensitivity(samples=2)")
    assert sensitivity["max_sensitivity(samples=2)"].isfinite().all()


def test_a_captum_object_lives_as_long_as_its_attributions_and_not_in_them(model, images):
    attribution = sightline.explain(
        model, images[:2], IntegratedGradients(model.model), target=0
    )  # nobody else holds it
    alive = weakref.ref(attribution.source)
    first = attribution[0]
    assert sightline.evaluate(model, images[:1], first, "max_sensitivity(samples=2)")
    assert pickle.loads(pickle.dumps(attribution)).source is None
    del attribution, first
    gc.collect()
    assert alive() is None


# ---- outputs that are no softmax -----------------------------------------------------------------------------------


def own(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 8, stride=8), nn.ReLU(), nn.Flatten(), nn.Linear(256, outputs)).eval()


def test_a_regression_of_one_output_is_refused_where_a_probability_is_meant(images):
    network = own(1)
    attribution = sightline.explain(network, images[:1], "ixg", target=0)
    for metric in ("insertion", "deletion", "road"):
        with pytest.raises(sightline.errors.SightlineError, match="output="):
            sightline.evaluate(network, images[:1], attribution, metric)
    model = sightline.adapt(network, output="value")
    attribution = sightline.explain(model, images[:1], "ixg")
    assert attribution.labels == ("value 0",)
    curve = sightline.evaluate(model, images[:1], attribution, "deletion(score='logit')").curves[
        "deletion(score='logit')"
    ]
    assert curve[0, 0] == pytest.approx(network(images[:1]).item(), abs=1e-5)


def test_several_labels_are_judged_by_a_sigmoid(images):
    network = own(4)
    model = sightline.adapt(network, output="sigmoid")
    attribution = sightline.explain(model, images[:1], "ixg", target=3)
    curve = sightline.evaluate(model, images[:1], attribution, "deletion").curves["deletion"]
    assert curve[0, 0] == pytest.approx(network(images[:1])[0, 3].sigmoid().item(), abs=1e-5)


def test_a_headless_model_without_a_target_is_refused(images):
    model = sightline.adapt(own(16), output="embedding")
    with pytest.raises(TargetError, match="embedding"):
        sightline.explain(model, images[:1], "ixg")
    assert sightline.explain(model, images[:1], "ixg", sightline.Value(3)).labels == ("value 3",)


def test_pixels_from_0_to_255_are_no_normalised_images(model, batch):
    with pytest.raises(InputError, match="normalise"):
        sightline.explain(model, batch.images * 255, "ixg")
