"""Hugging Face transformers, against their own eager attention; configurations are switched and switched back."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from PIL import Image
from tests.models.families_vit import EMBEDDING, ENCODER, TRANSFORMERS, Family, images, randomised
from tests.models.fingerprint import Boom, changes, exploding, fingerprint
from torch import Tensor, nn
from torch.testing import assert_close

from sightline.errors import InputError, TargetError
from sightline.extras import require
from sightline.models import adapt
from sightline.models.inputs import as_batch
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.wrapped import WrappedTransformer
from sightline.models.vit.zero_shot import zero_shot

VIT = TRANSFORMERS["transformers/vit"]
CLIP = TRANSFORMERS["transformers/clip"]


@pytest.fixture(params=TRANSFORMERS)
def family(request: pytest.FixtureRequest) -> Family:
    return TRANSFORMERS[request.param]


def eager(family: Family) -> Any:
    model: Any = family.build()
    model.set_attn_implementation("eager")
    return model


def own_attention(family: Family, pixels: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the model's output and the attention weights that its eager attention modules return beside theirs."""
    model, weights = eager(family), []
    with ExitStack() as stack:
        for block in known(model).blocks:
            handle = block.attention.register_forward_hook(lambda _module, _args, output: weights.append(output[1]))
            stack.callback(handle.remove)
        return family.output(model, pixels), weights


def known(model: Any, **facts: Any) -> VisionTransformer:
    adapter = adapt(model, **facts)
    assert isinstance(adapter, VisionTransformer)
    return adapter


# ---- attention -----------------------------------------------------------------------------------------------------


def test_probabilities_are_those_that_eager_attention_returns(family: Family) -> None:
    adapter, pixels = adapt(family.build()), images(family)
    with torch.no_grad():
        output, want = own_attention(family, pixels)
        with adapter.capture("block.*.probabilities") as seen:
            assert_close(adapter(pixels), output, rtol=1e-5, atol=1e-5)
    for got, expected in zip(seen.values(), want, strict=True):
        assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_probabilities_are_those_that_transformers_hands_out_on_request() -> None:
    adapter, pixels = adapt(VIT.build()), images(VIT)
    with torch.no_grad(), adapter.capture("block.*.probabilities") as seen:
        adapter(pixels)
    for got, expected in zip(seen.values(), eager(VIT)(pixels, output_attentions=True).attentions, strict=True):
        assert_close(got, expected.detach(), rtol=1e-5, atol=1e-6)


def test_gradients_at_probabilities_are_those_of_eager_attention(family: Family) -> None:
    pixels, adapter = images(family), adapt(family.build())
    output, weights = own_attention(family, pixels)
    want = torch.autograd.grad(output[:, 2].sum(), weights)
    with adapter.capture("block.*.probabilities", gradient=True) as seen:
        got = adapter.gradients(adapter(pixels)[:, 2], seen)
    for index, expected in enumerate(want):
        assert_close(got[f"block.{index}.probabilities"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("implementation", ["eager", "flex_attention"])
def test_another_attention_is_switched_inside_the_with_and_back_on_every_path(
    family: Family, implementation: str
) -> None:
    model: Any = family.build()
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = implementation
    adapter, pixels, before = adapt(model), images(family), fingerprint(model)
    with torch.no_grad(), adapter.capture("block.*.q", "block.*.probabilities") as seen:
        assert model.config._attn_implementation == "sdpa"
        adapter(pixels)
    assert seen["block.2.probabilities"].shape[1] == seen["block.2.q"].shape[1] == 2
    assert not changes(before, fingerprint(model))
    with exploding(adapter.blocks[1].mlp), pytest.raises(Boom), adapter.capture("block.*.q"):  # type: ignore[attr-defined]
        adapter(pixels)
    assert not changes(before, fingerprint(model))


def test_configurations_inside_one_another_each_get_their_own_attention_back() -> None:
    model: Any = CLIP.build()
    model.config.vision_config._attn_implementation = "eager"
    model.config.text_config._attn_implementation = "flex_attention"
    adapter, before = adapt(model), fingerprint(model)
    assert model.config._attn_implementation == "sdpa"
    with adapter.interceptable():
        assert model.config.vision_config._attn_implementation == "sdpa"
    assert model.config.vision_config._attn_implementation == "eager"
    assert model.config.text_config._attn_implementation == "flex_attention"
    assert model.config._attn_implementation == "sdpa"
    assert not changes(before, fingerprint(model))


def test_an_eager_models_logits_are_bit_identical_after_being_watched() -> None:
    model, pixels = eager(VIT), images(VIT)
    adapter = adapt(model)
    with torch.no_grad():
        before = model(pixels).logits
        with adapter.capture("block.*.probabilities"):
            adapter(pixels)
        assert torch.equal(model(pixels).logits, before)


def test_a_model_configured_to_hand_out_its_attentions_is_watched_all_the_same() -> None:
    model, pixels = eager(VIT), images(VIT)
    model.config.output_attentions = True
    adapter = adapt(model)
    with torch.no_grad():
        outputs = model(pixels)
        with adapter.capture("block.*.probabilities", "block.*.q") as seen:
            assert_close(adapter(pixels), outputs.logits, rtol=1e-5, atol=1e-5)
        assert_close(seen["block.1.probabilities"], outputs.attentions[1], rtol=1e-5, atol=1e-6)
        assert torch.equal(model(pixels).attentions[1], outputs.attentions[1])


# ---- layers, sizes, facts -------------------------------------------------------------------------------------------


class Older(nn.Module):
    """A layer as other versions of transformers have it: it insists on its masks and returns a tuple."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(
        self, hidden_states: Tensor, attention_mask: Any, causal_attention_mask: Any, output_attentions: bool = False
    ) -> tuple[Tensor]:
        assert attention_mask is causal_attention_mask is None
        assert not output_attentions
        return (self.layer(hidden_states, attention_mask),)


@pytest.mark.parametrize("name", ["transformers/vit", "transformers/clip"])
def test_layers_of_other_versions_are_run_like_those_of_this_one(name: str) -> None:
    family = TRANSFORMERS[name]
    model: Any = family.build()
    adapter, pixels = known(model), images(family)
    with torch.no_grad():
        start = adapter.start(pixels)
        want = adapter.run(start)
        layers = model.vision_model.encoder.layers if family is CLIP else model.vit.layers
        for index, layer in enumerate(list(layers)):
            layers[index] = Older(layer)
        assert torch.equal(adapter.run(start), want)


@pytest.mark.parametrize("name", ["transformers/dinov2", "transformers/registers"])
def test_dinov2_takes_oblong_images(name: str) -> None:
    model: Any = TRANSFORMERS[name].build()
    adapter, pixels = adapt(model), torch.randn(2, 3, 24, 40)
    assert isinstance(adapter, VisionTransformer)
    grid = adapter.grid_of(adapter.accept(pixels))
    assert (grid.height, grid.width, grid.image) == (3, 5, (24, 40))
    with torch.no_grad():
        assert torch.equal(adapter.finish(adapter.run(adapter.start(pixels))), model(pixels).logits)
    with pytest.raises(InputError, match="multiples of its patch, 8×8"):
        adapter.accept(torch.zeros(1, 3, 24, 41))


def test_an_image_size_that_leaves_a_rest_beside_the_patches_is_the_models_own_affair() -> None:
    library = require("transformers")
    config = library.ViTConfig(**ENCODER | {"image_size": 30, "intermediate_size": 64, "num_labels": 7})
    model = randomised(library.ViTForImageClassification(config))
    adapter, pixels = known(model), torch.randn(1, 3, 30, 30)
    assert (adapter.grid.height, adapter.grid.width, adapter.grid.image) == (3, 3, (30, 30))
    with torch.no_grad():
        tokens = adapter.start(adapter.accept(pixels))
        assert torch.equal(adapter.finish(adapter.run(tokens)), model(pixels).logits)


def test_class_names_come_from_the_configuration_unless_they_are_placeholders() -> None:
    model: Any = VIT.build()
    assert (adapt(model).labels, adapt(model).num_classes) == ((), 7)
    model.config.id2label = {index: f"animal {index}" for index in range(7)}
    assert adapt(model).labels == tuple(f"animal {index}" for index in range(7))
    model.config.name_or_path = "somebody/vit-animals"
    assert adapt(model).name == "somebody/vit-animals"


def test_a_model_without_a_classifier_has_its_features_for_classes_and_no_names() -> None:
    for name, count in (("clip", EMBEDDING), ("clip_tower", EMBEDDING), ("clip_backbone", 32), ("vit_backbone", 32)):
        adapter = adapt(TRANSFORMERS[f"transformers/{name}"].build())
        assert (adapter.num_classes, adapter.labels) == (count, ())


def test_preprocessing_comes_from_an_image_processor_when_one_is_given() -> None:
    processor = require("transformers").ViTImageProcessor(
        size={"height": 32, "width": 32}, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6]
    )
    adapter = adapt(VIT.build(), processor=processor)
    assert (adapter.mean, adapter.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert adapter.preprocess is not None
    prepared = adapter.preprocess(Image.new("RGB", (50, 70), (255, 0, 0)))
    want = adapter.normalise(torch.tensor([1.0, 0.0, 0.0])[:, None, None].expand(3, 32, 32))
    assert_close(prepared, want, rtol=1e-4, atol=1e-4)
    assert adapt(VIT.build()).preprocess is None


# ---- users' own modules ----------------------------------------------------------------------------------------------


class OwnHead(nn.Module):
    """A bare backbone under a head of one's own, as most fine-tuning code has it."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(32, 5)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.backbone(pixels).last_hidden_state[:, 0])


@pytest.mark.parametrize("name", ["transformers/vit_backbone", "transformers/dinov2_backbone"])
def test_a_bare_backbone_under_a_head_of_ones_own_shows_its_attention(name: str) -> None:
    torch.manual_seed(0)
    backbone: Any = TRANSFORMERS[name].build()
    backbone.set_attn_implementation("eager")
    model, pixels = OwnHead(backbone).eval(), images(TRANSFORMERS[name])
    adapter, before = adapt(model), fingerprint(model)
    assert isinstance(adapter, WrappedTransformer)
    with adapter.capture("block.*.probabilities", "block.*.q", gradient=True) as seen:
        gradients = adapter.gradients(adapter(pixels)[:, 0], seen)
    assert gradients["block.1.probabilities"].abs().sum() > 0
    assert not changes(before, fingerprint(model))


# ---- text ------------------------------------------------------------------------------------------------------------


class Tokenizer:
    """Called as transformers' tokenizers are; a word is its length."""

    def __call__(
        self, texts: list[str], *, padding: bool | str = False, max_length: int = 0, return_tensors: str = ""
    ) -> Any:
        rows = [[98, *(len(word) for word in text.split()), 99] for text in texts]
        if not return_tensors:
            return {"input_ids": rows}
        assert padding
        longest = max_length if padding == "max_length" else max(map(len, rows))
        return {
            "input_ids": torch.tensor([row + [0] * (longest - len(row)) for row in rows]),
            "attention_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows]),
        }


def test_a_clip_model_reads_texts_with_its_tokenizer_and_is_left_as_it_was() -> None:
    model: Any = CLIP.build()
    model.train()
    adapter, before = adapt(model, tokenizer=Tokenizer()), fingerprint(model)
    texts = ["a photo of a dog", "cat"]
    got = adapter.encode_text(texts)
    assert not got.requires_grad
    assert not changes(before, fingerprint(model))
    tokens = Tokenizer()(texts, padding=True, return_tensors="pt")
    assert_close(got, model.eval().get_text_features(**tokens).pooler_output.detach())
    with pytest.raises(TargetError, match=r"has 22 tokens and .* reads 16; give a shorter text"):
        adapter.encode_text(["a " * 20])


def test_a_siglip_model_reads_texts_padded_to_the_full_length() -> None:
    model: Any = TRANSFORMERS["transformers/siglip"].build()
    adapter, texts = adapt(model, tokenizer=Tokenizer()), ["a photo of a dog", "cat"]
    tokens = Tokenizer()(texts, padding="max_length", max_length=16, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert_close(adapter.encode_text(texts), model.get_text_features(tokens).pooler_output)
        assert_close(adapter.encode_text(texts[1:]), adapter.encode_text(texts)[1:])


def test_a_siglip_zero_shot_classifier_has_the_logits_of_the_model_and_a_sigmoid_per_text() -> None:
    model: Any = TRANSFORMERS["transformers/siglip"].build()
    pixels = images(TRANSFORMERS["transformers/siglip"])
    adapter = zero_shot(model, ["dog", "cat"], templates=["a {}"], tokenizer=Tokenizer())
    tokens = Tokenizer()(["a dog", "a cat"], padding="max_length", max_length=16, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        want = model(input_ids=tokens, pixel_values=pixels).logits_per_image
        assert_close(adapter(pixels), want)
        assert_close(adapter.probabilities(adapter(pixels)), want.sigmoid())
    assert adapter.output == "sigmoid"


def test_a_clip_model_without_its_tokenizer_says_how_to_give_one() -> None:
    with pytest.raises(TargetError, match="tokenizer=…"):
        adapt(CLIP.build()).encode_text(["dog"])


def test_a_tower_without_a_text_encoder_says_so() -> None:
    with pytest.raises(TargetError, match="has no text encoder"):
        adapt(TRANSFORMERS["transformers/clip_tower"].build()).encode_text(["dog"])


def test_the_pictures_of_siglip2_are_put_together_from_the_patches_its_processor_cuts() -> None:
    library = require("transformers")
    processor = library.Siglip2ImageProcessor(patch_size=8, max_num_patches=30)
    model = adapt(TRANSFORMERS["transformers/siglip2_tower"].build(), processor=processor)
    picture = Image.effect_noise((96, 64), 80).convert("RGB")
    batch = as_batch(model, picture)
    made = processor(images=picture, return_tensors="pt")
    with torch.no_grad():
        want = model.model(**made).pooler_output
        assert torch.allclose(model(batch), want, atol=1e-5)  # padded and masked there, neither here
    rows, columns = made["spatial_shapes"][0].tolist()
    assert tuple(batch.shape) == (1, 3, 8 * rows, 8 * columns)
