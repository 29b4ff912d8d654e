"""What the numbers of a model are: told, read from its library's configuration, or read off its end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests import tiny
from tests.models import families_cnn, families_vit
from tests.models.fingerprint import fingerprint
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.extras import require
from sightline.models import adapt
from sightline.models.passes import counting
from sightline.models.randomise import copied
from sightline.models.vit.zero_shot import zero_shot
from sightline.models.zoo.libraries import torchvision_model

ONE_NUMBER = r"returns one number per image, whose softmax is always 1; say adapt\(model, output='value'\) or 'sigmoid'"


def timm_model(name: str, **options: Any) -> nn.Module:
    return require("timm").create_model(name, **options).eval()


def torchvision_resnet(fc: nn.Module) -> nn.Module:
    model = families_cnn.torchvision_resnet().eval()
    model.fc = fc
    return model


def transformers_vit(**options: Any) -> nn.Module:
    return families_vit._transformers("ViTConfig", "ViTForImageClassification", **options)


# ---- read from the library -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*families_vit.FAMILIES])
def test_every_transformer_says_whether_it_returns_classes_or_an_embedding(name: str) -> None:
    bare = name.startswith("open_clip") or name in (
        "transformers/clip", "transformers/clip_tower", "transformers/clip_backbone", "transformers/vit_backbone",
        "transformers/dinov2_backbone", "transformers/siglip", "transformers/siglip_tower",
        "transformers/siglip2", "transformers/siglip2_tower",
        "transformers/beit_backbone", "transformers/dinov3", "transformers/dinov3_gated",
    )  # fmt: skip
    adapter = adapt(families_vit.FAMILIES[name].build())
    assert adapter.output == ("embedding" if bare else "softmax")
    assert adapter.has_probabilities is not bare


@pytest.mark.parametrize("name", ["torchvision resnet", "torchvision vgg", "timm swin", "timm convnext"])
def test_classifiers_of_the_libraries_end_in_softmax_logits(name: str) -> None:
    adapter = adapt(families_cnn.FAMILIES[name].build())
    assert (adapter.output, adapter.link, adapter.output_size) == ("softmax", "softmax", families_cnn.CLASSES)


@pytest.mark.parametrize(("problem", "output"), [
    ("single_label_classification", "softmax"), ("multi_label_classification", "sigmoid"), ("regression", "value"),
])  # fmt: skip
def test_transformers_problem_type_is_read(problem: str, output: str) -> None:
    assert adapt(transformers_vit(problem_type=problem)).output == output
    resnet = families_cnn.huggingface_resnet()
    resnet.config.problem_type = problem
    assert adapt(resnet).output == output


@pytest.mark.parametrize(("name", "options"), [
    ("vit_tiny_patch16_224", {"depth": 1, "img_size": 32}), ("deit_tiny_distilled_patch16_224", {"depth": 1}),
    ("resnet18", {}), ("convnext_atto", {}), ("mobilenetv3_small_050", {}), ("mixer_s32_224", {}),
])  # fmt: skip
def test_timm_models_without_classes_return_an_embedding(name: str, options: Any) -> None:
    assert adapt(timm_model(name, num_classes=0, **options)).output == "embedding"
    assert adapt(timm_model(name, num_classes=3, **options)).output == "softmax"


def test_a_head_of_ones_own_on_a_headless_timm_model_is_a_head() -> None:
    model = tiny.vit(num_classes=0)
    model.head = nn.Linear(16, 4)
    assert adapt(model).output == "softmax"


@pytest.mark.parametrize(
    "cut", [lambda m: setattr(m, "fc", nn.Identity()), lambda m: setattr(m, "fc", nn.Sequential())]
)
def test_a_torchvision_model_whose_classifier_was_taken_out_returns_an_embedding(cut: Any) -> None:
    model = families_cnn.torchvision_resnet().eval()
    cut(model)
    assert adapt(model).output == "embedding"


def test_a_torchvision_classifier_cut_behind_its_last_layer_returns_an_embedding() -> None:
    model: Any = families_cnn.torchvision_vgg().eval()
    model.classifier[-1] = nn.Identity()
    assert adapt(model).output == "embedding"


def test_bare_backbones_of_transformers_return_an_embedding() -> None:
    library = require("transformers")
    config = library.SwinConfig(image_size=32, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4)
    assert adapt(library.SwinModel(config)).output == "embedding"
    assert adapt(library.SwinForImageClassification(config)).output == "softmax"
    config.num_labels = 0
    assert adapt(library.SwinForImageClassification(config)).output == "embedding"


def test_torchvision_weights_say_that_their_model_classifies() -> None:
    adapter = torchvision_model("mobilenet_v3_small", False, {})
    assert adapter.declared_output == "softmax"


def segmentation() -> nn.Module:
    return require("torchvision.models.segmentation").lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=3
    )


def transformers_segmentation() -> nn.Module:
    library = require("transformers")
    sizes = {"depths": [1] * 4, "hidden_sizes": [8] * 4, "num_attention_heads": [1] * 4, "decoder_hidden_size": 8}
    return library.SegformerForSemanticSegmentation(library.SegformerConfig(**sizes))


def detection() -> nn.Module:
    return require("torchvision.models.detection").ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=3
    )


def transformers_detection() -> nn.Module:
    library = require("transformers")
    config = library.YolosConfig(**families_vit.ENCODER | {"image_size": (64, 64)}, num_detection_tokens=3)
    return library.YolosForObjectDetection(config)


@pytest.mark.parametrize(("build", "output"), [
    (segmentation, "dense"), (transformers_segmentation, "dense"), (detection, "boxes"),
    (transformers_detection, "boxes"),
])  # fmt: skip
def test_segmentation_and_detection_are_known_and_have_no_class_probabilities(build: Any, output: str) -> None:
    adapter = adapt(build().eval())
    assert adapter.output == output
    assert not adapter.has_probabilities


def test_zero_shot_heads_are_classes_again() -> None:
    tower = families_vit.OPEN_CLIP["open_clip/clip"].build()
    embeddings = torch.randn(3, families_vit.EMBEDDING)
    adapter = zero_shot(tower, ["dog", "cat", "fish"], embeddings=embeddings)
    assert (adapter.output, adapter.link) == ("softmax", "softmax")
    tower.logit_bias = nn.Parameter(torch.tensor(-10.0))  # as sigmoid-trained models have
    assert zero_shot(tower, ["dog", "cat", "fish"], embeddings=embeddings).link == "sigmoid"


def test_a_zero_shot_adapter_prepares_images_as_its_tower_does() -> None:
    tower = adapt(families_vit.OPEN_CLIP["open_clip/clip"].build(), preprocess=lambda image: image)
    adapter = zero_shot(tower, ["dog", "cat"], embeddings=torch.randn(2, families_vit.EMBEDDING))
    assert adapter.preprocess is tower.preprocess
    assert adapter.mean == tower.mean


# ---- read off the end ------------------------------------------------------------------------------------------------


class End(nn.Module):
    """A small network with a function of one's own at its end."""

    def __init__(self, end: Any, numbers: int = 4) -> None:
        super().__init__()
        self.conv, self.fc, self.end = nn.Conv2d(3, 6, 3, 2), nn.Linear(6, numbers), end

    def forward(self, images: Tensor) -> Tensor:
        return self.end(self.fc(self.conv(images).relu().mean(dim=(2, 3))))


@pytest.mark.parametrize(("end", "output", "link"), [
    (nn.Identity(), "softmax", "softmax"),
    (nn.Sigmoid(), "sigmoid", "identity"),
    (torch.sigmoid, "sigmoid", "identity"),
    (torch.Tensor.sigmoid_, "sigmoid", "identity"),
    (nn.Softmax(dim=1), "softmax", "identity"),
    (lambda z: z.log_softmax(dim=1).exp(), "softmax", "identity"),
    (lambda z: z.unsqueeze(-1).softmax(dim=1).squeeze(-1)[:, :3].double(), "softmax", "identity"),
    (nn.LogSoftmax(dim=1), "softmax", "softmax"),  # a softmax of it is the softmax of the logits
    (lambda z: 10 * torch.sigmoid(z), "softmax", "softmax"),  # no probability: it is the network's own scale
], ids=["none", "module", "function", "in place", "softmax", "exp", "views", "log", "scaled"])  # fmt: skip
def test_a_last_sigmoid_or_softmax_is_read_off_the_graph(end: Any, output: str, link: str) -> None:
    adapter = adapt(End(end).eval())
    assert (adapter.output, adapter.link) == (output, link)


@pytest.mark.parametrize("build", [
    lambda head: torchvision_resnet(nn.Sequential(nn.Linear(512, 3), head)),
    lambda head: nn.Sequential(tiny.vit(), head), lambda head: nn.Sequential(nn.Flatten(), nn.Linear(3072, 3), head),
], ids=["family", "wrapped transformer", "opaque"])  # fmt: skip
def test_the_end_is_read_whatever_the_network(build: Any) -> None:
    assert adapt(build(nn.Sigmoid()).eval()).link == "identity"
    assert adapt(build(nn.Identity()).eval()).link == "softmax"


def test_values_between_0_and_1_are_not_taken_for_probabilities() -> None:
    assert adapt(End(lambda z: z.abs() / z.abs().sum(dim=1, keepdim=True)).eval()).link == "softmax"


def test_reading_the_end_counts_no_pass_and_leaves_the_model_alone() -> None:
    model = End(lambda z: (z + torch.rand(1).item()).sigmoid()).train()
    before, state = fingerprint(model), torch.get_rng_state()
    with counting() as meter:
        assert adapt(model).output == "sigmoid"
    assert meter.passes.forward == 0
    assert fingerprint(model) == before
    assert torch.equal(torch.get_rng_state(), state)


class ByValue(End):
    """Asks for a value while it runs, which only tensors with contents have."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images if images.sum().item() >= 0 else -images)


def test_a_model_that_cannot_run_without_contents_is_read_by_one_pass() -> None:
    with counting() as meter:
        adapter = adapt(ByValue(nn.Sigmoid()).eval())
        assert [adapter.link, adapter.output, adapter.link] == ["identity", "sigmoid", "identity"]
    assert meter.passes.forward == 1


def test_the_end_is_read_without_gradients_too() -> None:
    with torch.inference_mode():
        assert adapt(End(nn.Sigmoid()).eval()).link == "identity"


# ---- told ------------------------------------------------------------------------------------------------------------


def mean_colour(images: Tensor) -> Tensor:
    return images.mean(dim=(2, 3))


@pytest.mark.parametrize(
    "model", [mean_colour, tiny.Cnn().eval(), tiny.vit(), families_cnn.torchvision_resnet().eval()]
)
@pytest.mark.parametrize("output", ["softmax", "sigmoid", "value", "embedding", "dense", "boxes"])
def test_what_is_told_counts(model: Any, output: str) -> None:
    assert adapt(model, output=output).output == output


def test_what_is_told_goes_before_the_configuration_and_the_end() -> None:
    assert adapt(transformers_vit(problem_type="regression"), output="sigmoid").link == "sigmoid"
    assert adapt(End(nn.Sigmoid()).eval(), output="value").output == "value"


def test_an_adapter_can_be_told_more() -> None:
    known = sightline.load("bundled/shapes-cnn")
    told = adapt(known, output="sigmoid")
    assert (known.output, told.output, told.link) == ("softmax", "sigmoid", "sigmoid")
    assert (told.labels, told.preprocess, told.name) == (known.labels, known.preprocess, known.name)
    assert sightline.explain(told, torch.randn(1, 3, 64, 64), "grad_cam", target=1).map.shape == (1, 8, 8)


def test_a_function_returns_logits_unless_it_is_told_to_return_probabilities() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5]])
    assert_close(adapt(mean_colour).probabilities(logits), logits.softmax(dim=-1))
    assert_close(adapt(mean_colour, output="sigmoid").probabilities(logits), logits.sigmoid())
    assert adapt(mean_colour, link="sigmoid").output == "sigmoid"
    for output in ("softmax", "sigmoid"):
        assert_close(adapt(mean_colour, output=output, link="identity").probabilities(logits), logits)


@pytest.mark.parametrize(("facts", "message"), [
    ({"output": "sigmod"}, "there is no output called 'sigmod'; did you mean 'sigmoid'?"),
    ({"output": "words"}, "there are softmax, sigmoid, value, embedding, dense, boxes"),
    ({"link": "logit"}, "there is no link called 'logit'"),
    ({"output": "value", "link": "softmax"}, "got output='value' with link='softmax'"),
    ({"output": "softmax", "link": "sigmoid"}, "got output='softmax' with link='sigmoid'"),
])  # fmt: skip
def test_words_that_mean_nothing_are_refused_in_one_sentence(facts: Any, message: str) -> None:
    with pytest.raises(errors.InputError, match=message):
        adapt(tiny.Cnn().eval(), **facts)


def test_a_randomised_copy_keeps_what_was_told() -> None:
    assert copied(adapt(tiny.vit(), output="sigmoid")).output == "sigmoid"
    assert copied(adapt(nn.Flatten(), link="identity")).link == "identity"


# ---- probabilities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["value", "embedding", "dense", "boxes"])
def test_outputs_without_probabilities_refuse_to_give_any(output: str) -> None:
    adapter = adapt(tiny.Cnn().eval(), output=output)
    assert not adapter.has_probabilities
    for ask in (lambda: adapter.link, lambda: adapter.probabilities(torch.randn(2, 5))):
        with pytest.raises(errors.TargetError, match=rf"\(output '{output}'\), which has no probabilities"):
            ask()


@pytest.mark.parametrize("model", [End(nn.Identity(), 1).eval(), tiny.vit(num_classes=1), End(nn.Sigmoid(), 1).eval()])
def test_a_softmax_over_one_number_is_refused(model: nn.Module) -> None:
    assert not adapt(model).has_probabilities
    with pytest.raises(errors.TargetError, match=ONE_NUMBER):
        _ = adapt(model).link
    assert adapt(model, output="sigmoid").has_probabilities
    assert adapt(model, output="value").output == "value"


def test_a_function_of_one_number_is_refused_once_that_is_known() -> None:
    adapter = adapt(lambda images: images.mean(dim=(1, 2, 3))[:, None])
    with pytest.raises(errors.TargetError, match=ONE_NUMBER):
        adapter.probabilities(torch.randn(2, 1))
    adapter.predict(torch.randn(2, 3, 8, 8))
    assert not adapter.has_probabilities


def test_probabilities_are_those_of_the_output() -> None:
    network = End(nn.Identity()).eval()
    logits = network(torch.randn(2, 3, 16, 16))
    assert_close(adapt(network).probabilities(logits), logits.softmax(dim=-1))
    assert_close(adapt(network, output="sigmoid").probabilities(logits), logits.sigmoid())
    assert_close(adapt(End(nn.Softmax(dim=1)).eval()).probabilities(logits), logits)


def test_an_ending_that_could_not_be_read_is_read_again_at_the_size_of_the_images() -> None:
    class OneSize(nn.Module):
        """A network for images of 20×20 pixels, a size that nobody tries."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3 * 20 * 20, 4)

        def forward(self, images: Tensor) -> Tensor:
            return self.layer(images.flatten(1)).sigmoid()

    model = adapt(OneSize().eval())
    assert model.output == "softmax"  # nothing could be read, and nothing else says what it is
    model(model.accept(torch.zeros(1, 3, 20, 20)))
    assert (model.output, model.link) == ("sigmoid", "identity")
