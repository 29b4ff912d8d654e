"""Dense outputs: a `Region` in methods, metrics and ranking, in closed form and on models of the libraries."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sightline
from sightline import Region, adapt, errors
from sightline.extras import require
from sightline.models.targets import read_target, resolve_target

SIZE = 32
LABELS = ("background", "cat", "dog")


class PerPixel(nn.Module):
    """A linear segmentation: the logits of a pixel are a matrix times its colour."""

    def __init__(self, labels: int = 3, wrap: Callable[[Tensor], Any] = lambda x: x) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, labels, 1)
        self.wrap = wrap

    def forward(self, images: Tensor) -> Any:
        return self.wrap(self.head(images))


def linear(labels: int = 3, **facts: Any) -> sightline.Adapter:
    torch.manual_seed(0)
    return adapt(PerPixel(labels).double().eval(), output="dense", labels=LABELS[:labels], **facts)


def pixels(count: int = 2, size: int = SIZE) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def square() -> Tensor:
    mask = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    mask[4:12, 8:20] = True
    return mask


def test_the_gradient_of_a_linear_segmentation_is_its_weights_inside_the_region() -> None:
    model, images, mask = linear(), pixels().double(), square()
    weights = model.model.head.weight[2, :, 0, 0].detach()
    expected = torch.einsum("c,bchw->bhw", weights, images) * mask / mask.sum()
    for recipe in ("ixg", "ig(steps=3)"):
        found = sightline.explain(model, images, recipe, target=Region("dog", mask))
        assert torch.allclose(found.map, expected, atol=1e-12)
    assert found.labels == ("region of dog",) * 2


@pytest.mark.parametrize("score", ["logit", "probability", "log_probability"])
def test_integrated_gradients_is_complete_for_every_score_of_a_region(score: Any) -> None:
    model, images = linear(), pixels().double()
    target = resolve_target(Region(1, square(), score=score), model, images)
    found = sightline.explain(model, images, "ig(steps=64, rule='gauss_legendre')", target=target)
    difference = target(model.predict(images)) - target(model.predict(torch.zeros_like(images)))
    assert torch.allclose(found.map.sum(dim=(1, 2)), difference, atol=1e-6)


def test_by_default_the_region_is_where_the_model_predicts_the_label() -> None:
    model, images = linear(), pixels().double()
    target = resolve_target(Region("cat"), model, images)
    logits = model.model(images)
    region = logits.argmax(dim=1) == 1
    expected = torch.stack([each[1][where].mean() for each, where in zip(logits, region, strict=True)])
    assert torch.allclose(target(model(images)), expected)
    assert torch.allclose(target.take([1, 1, 0])(model(images[[1, 1, 0]])), expected[[1, 1, 0]])
    largest = resolve_target(None, model, images)
    sizes = torch.stack([(logits.argmax(dim=1) == label).flatten(1).sum(dim=1) for label in (1, 2)])
    assert [largest.take([row]).label[0] for row in range(2)] == (1 + sizes.argmax(dim=0)).tolist()


def test_insertion_follows_the_mean_probability_in_the_region() -> None:
    model, images, mask = linear(), pixels().double(), square()
    probability = model.model(images).softmax(dim=1)[:, 1][:, mask].mean(dim=1)
    found = sightline.explain(model, images, "ixg", target=Region(1, mask))
    scores = sightline.evaluate(model, images, found, ["insertion(step=100)", "deletion(step=100)"])
    curves = list(scores.curves.values())
    assert torch.allclose(curves[0][:, -1], probability)
    assert torch.allclose(curves[1][:, 0], probability)
    outside = torch.rand(2, SIZE, SIZE, dtype=torch.float64) * ~mask
    inside = outside + mask
    judged = [
        sightline.evaluate(model, images, each, "insertion(step=100)", target=found.target)
        for each in (inside, outside)
    ]
    assert (judged[0].curves["insertion(step=100)"][:, 1] - probability).abs().max() < 1e-9  # 96 pixels are the region
    assert (judged[1].curves["insertion(step=100)"][:, 1] - probability).abs().min() > 1e-3


@pytest.mark.parametrize("wrap", [
    lambda x: x, lambda x: {"aux": x[:, :2], "out": x}, lambda x: {"seg": x, "embedding": x.flatten(1)},
    lambda x: (x, "more"), lambda x: require("transformers.modeling_outputs").SemanticSegmenterOutput(logits=x),
])  # fmt: skip
def test_the_output_is_read_by_name_from_what_a_model_returns(wrap: Any) -> None:
    torch.manual_seed(0)
    network = PerPixel(3, wrap).eval()
    model = adapt(network, output="dense")
    assert torch.equal(model(pixels()), network.head(pixels()).flatten(1))
    assert model.output_shape == (3, SIZE, SIZE)


def test_a_single_label_has_a_sigmoid_and_a_mask_may_have_another_size() -> None:
    torch.manual_seed(0)
    model = adapt(nn.Sequential(nn.Conv2d(3, 1, 1), nn.AvgPool2d(4)).eval(), output="dense")
    images = pixels()
    target = resolve_target(Region(0, square(), score="probability"), model, images)
    shares = nn.functional.avg_pool2d(square()[None].float(), 4)[0]
    likely = model.model(images)[:, 0].sigmoid()
    assert torch.allclose(target(model(images)), (likely * shares).sum(dim=(1, 2)) / shares.sum())


def lraspp() -> nn.Module:
    build = require("torchvision.models.segmentation").lraspp_mobilenet_v3_large
    return build(weights=None, weights_backbone=None, num_classes=4)  # type: ignore[no-any-return]


def deeplab() -> nn.Module:
    build = require("torchvision.models.segmentation").deeplabv3_mobilenet_v3_large
    return build(weights=None, weights_backbone=None, num_classes=4)  # type: ignore[no-any-return]


def fcn() -> nn.Module:
    segmentation = require("torchvision.models.segmentation.fcn")
    resnet = require("torchvision.models").resnet18(weights=None)
    layers = require("torchvision.models._utils").IntermediateLayerGetter(resnet, {"layer4": "out"})
    return segmentation.FCN(layers, segmentation.FCNHead(512, 4))  # type: ignore[no-any-return]


def segformer() -> nn.Module:
    library = require("transformers")
    sizes: dict[str, Any] = {"depths": [1] * 4, "hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1, 1, 2, 2]}
    config = library.SegformerConfig(**sizes, decoder_hidden_size=16, num_labels=4)
    return library.SegformerForSemanticSegmentation(config)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("build", "layer"), [
    (lraspp, "backbone.16"), (deeplab, "backbone.16"), (fcn, "backbone.layer4.1"), (segformer, "segformer.stages.3")
])  # fmt: skip
def test_segmentation_models_of_the_libraries_are_explained_and_left_as_they_were(build: Any, layer: str) -> None:
    torch.manual_seed(0)
    network, images = build().eval(), pixels(2, 64)
    model = adapt(network)
    assert (model.output, model.cam_layer) == ("dense", layer)
    raw = network(images)
    before = (raw["out"] if isinstance(raw, dict) and "out" in raw else raw.logits).detach()
    target = resolve_target(Region(3, torch.ones(64, 64, dtype=torch.bool)), model, images)
    assert torch.allclose(target(model(images)), before[:, 3].mean(dim=(1, 2)), atol=1e-6)
    found = sightline.explain(model, images, ["grad_cam", "hires_cam", "ixg", "rise(samples=4)"], target=target)
    assert all(torch.isfinite(each.map).all() and each.map.shape[0] == 2 for each in found)
    raw = network(images)
    after = (raw["out"] if isinstance(raw, dict) and "out" in raw else raw.logits).detach()
    assert torch.equal(before, after)


def test_a_ranking_knows_the_region_and_the_attribution_remembers_it(tmp_path: Path) -> None:
    model, images = linear(), pixels(1).double()
    ranking = sightline.rank(model, images, ["ixg", "random"], target=Region("dog", square()))
    assert ranking.best == ["ixg"] or ranking.best == ("ixg",)
    found = sightline.explain(model, images, "ixg", target=Region("dog", square()))
    loaded = sightline.Attribution.load(found.save(tmp_path / "map.safetensors"))
    assert loaded.target == found.target
    assert loaded.labels == ("region of dog",)


@pytest.mark.parametrize(("target", "sentence"), [
    (Region(9), "got label 9 of a region; PerPixel has labels 0 to 2"),
    (Region("horse"), "PerPixel has no class called 'horse'"),
    (Region(1, torch.zeros(SIZE, SIZE, dtype=torch.bool)), "the mask of image 0 is empty"),
    (Region(1, torch.ones(SIZE, SIZE)), "give booleans, true inside the region"),
    (Region(1, torch.ones(3, SIZE, SIZE, dtype=torch.bool)), "got a Region of 3 images for 2"),
    (sightline.Logit(1), r"returns a class per pixel \(output .dense.\); give Region\(label, mask=None\)"),
])  # fmt: skip
def test_bad_targets_of_a_segmentation_are_refused_in_one_sentence(target: Any, sentence: str) -> None:
    with pytest.raises(errors.TargetError, match=sentence):
        sightline.explain(linear(), pixels().double(), "ixg", target=target)


def test_a_label_that_is_predicted_nowhere_is_said_to_be() -> None:
    model = linear()
    with torch.no_grad():
        model.model.head.bias.copy_(torch.tensor([100.0, 0.0, -100.0]))
    with pytest.raises(errors.TargetError, match="PerPixel predicts 'dog' nowhere in image 0, so the region is empty"):
        sightline.explain(model, pixels().double(), "ixg", target="dog")
    with pytest.raises(errors.TargetError, match="sees nothing but background"):
        sightline.explain(model, pixels().double(), "ixg")


def test_classes_cannot_compete_in_a_region_and_a_region_needs_a_segmentation() -> None:
    with pytest.raises(errors.SightlineError, match="Region"):
        sightline.explain(linear(), pixels().double(), "var(ixg)", target=Region(1, square()))
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 4)).eval()
    with pytest.raises(errors.TargetError, match="got Region as a target, and Sequential returns logits of classes"):
        sightline.explain(classifier, pixels(), "ixg", target=Region(1))
    with pytest.raises(errors.UnsupportedModel, match=r"say adapt\(model, output='dense'\)"):
        sightline.explain(PerPixel().eval(), pixels(), "ixg")


def test_the_command_line_names_regions() -> None:
    model = linear()
    assert read_target(model, "region:dog") == Region("dog")
    assert read_target(model, "region:2") == Region(2)
    assert read_target(model, "region:") == Region()
