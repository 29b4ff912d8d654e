"""explain and evaluate: what comes in, what goes out, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient, LayerGradientXActivation
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.methods.gradient.gradient import InputTimesGradient
from tests import tiny


def test_the_public_names_are_these() -> None:
    assert dir(sightline) == sorted(sightline.__all__)
    assert all(getattr(sightline, name) is not None for name in sightline.__all__)
    assert list(sightline.__all__) == sorted(sightline.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    assert sightline.explain is sightline.api.explain
    with pytest.raises(AttributeError, match="sightline has no explian"):
        _ = sightline.explian  # type: ignore[attr-defined]


def test_recipe_method_and_text_agree(tiny_vit: nn.Module, images: Tensor) -> None:
    by_text = sightline.explain(tiny_vit, images, "ixg", target=1)
    by_object = sightline.explain(tiny_vit, images, InputTimesGradient(), target=1)
    assert torch.equal(by_text.values, by_object.values)
    assert by_text.recipe == "ixg"
    assert sightline.parse(by_text.recipe) == InputTimesGradient()


def test_no_target_is_the_predicted_class(tiny_vit: nn.Module, images: Tensor) -> None:
    predicted = tiny_vit(images).argmax(dim=1)
    got = sightline.explain(tiny_vit, images, "ixg")
    assert_close(got.values, sightline.explain(tiny_vit, images, "ixg", target=predicted).values)
    assert got.passes.forward == 2 * len(images)  # finding the class costs one pass


@pytest.mark.parametrize("target", [
    torch.tensor([3, 1]), np.array([3, 1]), [3, 1], (3, 1), sightline.Logit((3, 1)),
    [sightline.Logit(3), sightline.Logit(1)], [lambda z: z[:, 3], lambda z: z[:, 1]],
])  # fmt: skip
def test_one_target_per_image_in_every_form(target: Any, tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, "ixg", target=target).values
    assert_close(got[:, 0], sightline.explain(tiny_vit, images[:1], "ixg", target=3).values[:, 0])
    assert_close(got[:, 1], sightline.explain(tiny_vit, images[1:], "ixg", target=1).values[:, 0])


@pytest.mark.parametrize(("target", "message"), [
    (5, "got class 5; VisionTransformer has classes 0 to 4"),
    (-1, "got class -1"),
    ([1, 7], "got class 7"),
    (torch.tensor([1, 2, 3]), "got 3 targets for 2 images; give one, or one per image"),
    (sightline.Logit((1, 2, 3)), "got 3 target classes for 2 images"),
    (sightline.Contrast(1, 9), "got class 9"),
    ("cat", "got the target 'cat', and VisionTransformer does not name its classes"),
    (True, "got True as a target"),
    (2.5, "got float as a target"),
    (sightline.TextSimilarity("a cat"), "has no text encoder"),
    (lambda z: z, r"the target function gave \(2, 5\)"),
])  # fmt: skip
def test_wrong_targets_are_answered_in_one_sentence(
    target: Any, message: str, tiny_vit: nn.Module, images: Tensor
) -> None:
    with pytest.raises(errors.TargetError, match=message):
        sightline.explain(tiny_vit, images, "ixg", target=target)


@pytest.mark.parametrize(("wrong", "message"), [
    (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), "got uint8 images; normalised floats are needed"),
    (torch.zeros(3, 32, 32), r"add a batch axis with images\[None\]"),
    (torch.zeros(2, 1, 32, 32), r"got images of shape \(2, 1, 32, 32\)"),
    (torch.zeros(0, 3, 32, 32), "got a batch of no images"),
    (torch.zeros(2, 3, 16, 16), "got images of 16×16 pixels; VisionTransformer needs 32×32"),
    (torch.full((2, 3, 32, 32), torch.nan), "hold NaN or infinite values"),
    (torch.full((2, 3, 32, 32), torch.inf), "hold NaN or infinite values"),
    ([], "got no images"),
    ([np.zeros((4, 4))], "got an array of float64 and shape"),
    (3, "got int as an image"),
])  # fmt: skip
def test_wrong_images_are_answered_in_one_sentence(wrong: Any, message: str, tiny_vit: nn.Module) -> None:
    adapter = sightline.adapt(tiny_vit, preprocess=lambda image: torch.zeros(3, 32, 32))
    with pytest.raises(errors.InputError, match=message):
        sightline.explain(adapter, wrong, "ixg", target=0)


def test_pictures_and_paths_go_through_the_models_own_preprocessing(tmp_path: Path) -> None:
    model = tiny.vit(img_size=224, patch_size=56)
    picture = Image.effect_noise((300, 250), 80).convert("RGB")
    picture.save(tmp_path / "noise.png")
    adapter = sightline.adapt(model)
    assert adapter.preprocess is not None
    want = sightline.explain(model, adapter.preprocess(picture)[None], "ixg", target=0).values
    for given in (picture, str(tmp_path / "noise.png"), tmp_path / "noise.png", [picture]):
        assert_close(sightline.explain(model, given, "ixg", target=0).values, want)


def test_a_picture_for_a_model_without_preprocessing_is_refused(tiny_cnn: nn.Module) -> None:
    with pytest.raises(errors.InputError, match="does not say how its images are prepared"):
        sightline.explain(tiny_cnn, Image.new("RGB", (8, 8)), "ixg", target=0)


def test_a_captum_object_is_a_method(tiny_cnn: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_cnn, images.requires_grad_(), InputXGradient(tiny_cnn), target=[1, 2])
    assert_close(got.map, sightline.explain(tiny_cnn, images, "ixg", target=[1, 2]).map)
    assert got.recipe == "InputXGradient"
    assert (got.passes.forward, got.passes.backward) == (2, 2)


def test_a_captum_layer_object_on_a_transformer_is_laid_on_the_grid(tiny_vit: nn.Module, images: Tensor) -> None:
    peer = LayerGradientXActivation(tiny_vit, tiny_vit.blocks[1])  # type: ignore[index,arg-type]
    got = sightline.explain(tiny_vit, images, peer, target=1)
    assert_close(got.map, sightline.explain(tiny_vit, images, "layers(ixg, first=2)", target=1).map)


def test_a_function_that_leaves_torch_is_explained_by_what_needs_no_gradient(images: Tensor) -> None:
    def brightness(batch: Tensor) -> Tensor:
        return torch.from_numpy(batch.detach().numpy().mean(axis=(2, 3)))

    assert sightline.explain(brightness, images, "sobel", target=0).values.shape == (1, 2, 32, 32)
    with pytest.raises(
        errors.UnsupportedModel, match=r"ixg needs gradients; brightness has none\. Methods that work: rise"
    ):
        sightline.explain(brightness, images, "ixg", target=0)


def test_a_function_that_autograd_can_follow_gets_gradient_methods(images: Tensor) -> None:
    """The input times gradient of a mean over pixels is each pixel's share of it."""

    def brightness(batch: Tensor) -> Tensor:
        return batch.mean(dim=(2, 3))

    attribution = sightline.explain(brightness, images, "ixg", target=0)
    assert_close(attribution.map, images[:, 0] / 32**2)
    assert_close(sightline.explain(brightness, images, "ig(steps=3)", target=0).map, attribution.map)


def test_a_model_that_needs_more_than_images_is_called_by_a_function(images: Tensor) -> None:
    class Aged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cnn = tiny.Cnn()

        def forward(self, pixels: Tensor, age: float) -> Tensor:
            return self.cnn(pixels) * age

    model = Aged().double().eval()
    adapter = sightline.adapt(model, forward=lambda model, pixels: model(pixels, 3.0))
    for method in ("ixg(at='pixels')", "grad_cam", "rise(samples=8, score='logit')"):
        got = sightline.explain(adapter, images, method, target=1).map
        assert_close(got, 3 * sightline.explain(model.cnn, images, method, target=1).map)
    with pytest.raises(errors.UnsupportedModel, match=r"a function \(model, images\) -> logits are needed"):
        sightline.adapt(model, forward=3.0)


def test_a_model_that_cannot_be_read_yet_names_three_methods_that_work_and_how_to_add_a_family() -> None:
    class Mystery(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3 * 32 * 32, 5)

        def forward(self, pixels: Tensor) -> Tensor:
            return self.linear(pixels.flatten(1))

    model, pixels = Mystery().eval(), torch.randn(1, 3, 32, 32)
    sentence = (
        "grad_cam needs layers with a grid to look into, and sightline cannot read Mystery that far yet; "
        "ixg, rise and occlusion work now, and sightline.register_family adds a family"
    )
    with pytest.raises(errors.UnsupportedModel) as raised:
        sightline.explain(model, pixels, "grad_cam")
    assert str(raised.value) == sentence
    for method in ("ixg", "rise(samples=8)", "occlusion(window=16, stride=16)"):
        assert torch.isfinite(sightline.explain(model, pixels, method).map).all()


def test_a_model_made_in_inference_mode_is_told_from_one_without_gradients(images: Tensor) -> None:
    with torch.inference_mode():
        model = tiny.vit().double()
    assert sightline.explain(model, images, "rollout", target=0).map.shape == (2, 4, 4)
    with pytest.raises(errors.UnsupportedModel, match=r"made in torch\.inference_mode.*outside it"):
        sightline.explain(model, images, "smooth(ixg)", target=0)


def test_something_that_is_no_method_or_model_is_refused(tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(errors.RecipeError, match="got int as a method"):
        sightline.explain(tiny_vit, images, 3, target=0)
    with pytest.raises(errors.UnsupportedModel, match="got str as a model"):
        sightline.explain("resnet50", images, "ixg", target=0)


def test_evaluate_gives_one_number_per_image(tiny_vit: nn.Module, images: Tensor) -> None:
    attribution = sightline.explain(tiny_vit, images, "ixg", target=1)
    scores = sightline.evaluate(tiny_vit, images, attribution, ["insertion(step=128)", "deletion(step=128)"], target=1)
    assert scores["insertion(step=128)"].shape == (2,)
    plain = sightline.evaluate(tiny_vit, images, attribution.pixels(), "deletion(step=128)", target=1)
    assert_close(scores["deletion(step=128)"], plain["deletion(step=128)"])


def test_evaluate_refuses_a_map_of_another_size(tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(errors.InputError, match=r"got maps of shape \(2, 4, 4\)"):
        sightline.evaluate(tiny_vit, images, torch.zeros(2, 4, 4), ["insertion"], target=0)


def test_results_do_not_depend_on_the_batch_size(tiny_vit: nn.Module) -> None:
    images = torch.randn(7, 3, 32, 32, dtype=torch.float64)
    whole = sightline.explain(tiny_vit, images, "smooth(gae, samples=3)", target=[*list(range(5)), 0, 1]).values
    parts = sightline.explain(
        tiny_vit, images, "smooth(gae, samples=3)", target=[*list(range(5)), 0, 1], batch_size=2
    ).values
    assert_close(whole, parts, rtol=1e-9, atol=1e-12)


def test_every_error_of_ours_is_a_sightline_error() -> None:
    ours = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert all(issubclass(error, errors.SightlineError | errors.SightlineWarning) for error in ours)
    assert all(error.__name__ in (errors.__doc__ or "") for error in ours if error is not errors.SightlineWarning)
