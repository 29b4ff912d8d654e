"""open_clip's towers against nn.MultiheadAttention, and CLIP models of every library with classes in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image
from tests.models.families_vit import EMBEDDING, FAMILIES, OPEN_CLIP, VISION, WORDS, images, randomised
from tests.models.fingerprint import Boom, changes, exploding, fingerprint
from tests.models.vit.test_transformers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from sightline.errors import ShapeError, TargetError, UnsupportedModel
from sightline.extras import require
from sightline.models import adapt
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.zero_shot import ZeroShot, zero_shot
from sightline.types import TextSimilarity

TEXTS = ("dog", "tabby cat", "fire engine")
PIXELS = images(OPEN_CLIP["open_clip/clip"])


def with_words(kind: str = "CLIP", **options: Any) -> Any:
    """Build a CLIP that knows every word of open_clip's own vocabulary."""
    torch.manual_seed(0)
    words = {name: value for name, value in WORDS.items() if name != "vocab_size"}
    model = getattr(require("open_clip"), kind)(EMBEDDING, VISION, words, **options)
    return randomised(model)


def tokenize(texts: Any) -> Tensor:
    return require("open_clip").tokenize(list(texts), context_length=16)


# ---- open_clip -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_probabilities_are_those_that_multihead_attention_returns_on_request(mode: Any) -> None:
    model: Any = OPEN_CLIP["open_clip/clip"].build()
    adapter = adapt(model)
    with mode():
        with adapter.capture("block.*.norm1", "block.*.probabilities") as seen:
            adapter(PIXELS)
        for index, block in enumerate(model.visual.transformer.resblocks):
            tokens = seen[f"block.{index}.norm1"]
            weights = block.attn(tokens, tokens, tokens, average_attn_weights=False)[1]
            assert_close(seen[f"block.{index}.probabilities"], weights, rtol=1e-5, atol=1e-6)


def test_a_tower_that_also_returns_its_tokens_gives_the_same_embedding() -> None:
    model: Any = OPEN_CLIP["open_clip/clip"].build()
    with torch.no_grad():
        want = model.encode_image(PIXELS)
        model.visual.output_tokens = True
        assert isinstance(model.visual(PIXELS), tuple)
        assert torch.equal(adapt(model)(PIXELS), want)


def test_a_captioning_model_is_explained_through_its_attention_pool() -> None:
    torch.manual_seed(0)
    coca = require("open_clip").CoCa
    vision = VISION | {
        "attentional_pool": True,
        "attn_pooler_queries": 4,
        "attn_pooler_heads": 2,
        "output_tokens": True,
    }
    text = WORDS | {"embed_cls": True, "output_tokens": True}
    model = randomised(coca(EMBEDDING, text | {"mlp_ratio": 2}, text, vision))
    adapter = adapt(model)
    assert isinstance(adapter, VisionTransformer)
    with torch.no_grad():
        want = model.encode_image(PIXELS, normalize=False)
        assert_close(adapter.finish(adapter.run(adapter.start(PIXELS))), want)
    assert adapter.pool == "map"


def test_preprocessing_is_what_open_clips_factory_left_on_the_tower() -> None:
    model: Any = OPEN_CLIP["open_clip/clip"].build()
    assert adapt(model).preprocess is None
    assert adapt(model).mean == (0.48145466, 0.4578275, 0.40821073)
    settings = {"size": 32, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25), "interpolation": "bicubic"}
    require("open_clip.model").set_model_preprocess_cfg(model, settings)
    adapter = adapt(model)
    assert (adapter.mean, adapter.std) == ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    assert adapter.preprocess is not None
    assert_close(adapter.preprocess(Image.new("RGB", (50, 70), (255, 255, 255))), torch.full((3, 32, 32), 2.0))


@pytest.mark.parametrize("kind", ["CLIP", "CustomTextCLIP"])
def test_texts_are_encoded_by_the_models_own_tower_and_tokenizer(kind: str) -> None:
    model = with_words(kind).train()
    adapter, before = adapt(model), fingerprint(model)
    got = adapter.encode_text(TEXTS)
    assert not changes(before, fingerprint(model))
    with torch.no_grad():
        assert_close(got, model.eval().encode_text(tokenize(TEXTS)))
    assert got.shape == (3, EMBEDDING)
    assert not got.requires_grad


def test_a_model_with_another_vocabulary_asks_for_its_tokenizer() -> None:
    model = OPEN_CLIP["open_clip/clip"].build()
    with pytest.raises(TargetError, match=r"a vocabulary of 100 words.*tokenizer="):
        adapt(model).encode_text(TEXTS)
    adapter = adapt(model, tokenizer=lambda texts: torch.tensor([[len(text), *[9] * 15] for text in texts]))
    assert adapter.encode_text(TEXTS).shape == (3, EMBEDDING)


def test_a_tower_alone_has_no_text_encoder() -> None:
    with pytest.raises(TargetError, match="has no text encoder"):
        adapt(OPEN_CLIP["open_clip/tower"].build()).encode_text(TEXTS)


def test_text_similarity_is_the_cosine_between_image_and_text() -> None:
    model = with_words()
    adapter = adapt(model)
    target = TextSimilarity(embedding=tuple(adapter.encode_text(["a photo of a dog."])[0].tolist()))
    with adapter.capture("block.1.probabilities", gradient=True) as seen:
        score = target(adapter(PIXELS))
    with torch.no_grad():
        text = model.encode_text(tokenize(["a photo of a dog."]), normalize=True)
        assert_close(score.detach(), (model.encode_image(PIXELS, normalize=True) @ text.T)[:, 0])
    assert adapter.gradients(score, seen)["block.1.probabilities"].abs().sum() > 0


# ---- zero shot -------------------------------------------------------------------------------------------------------


def by_hand(images: Tensor, texts: Tensor, scale: float) -> Tensor:
    """Return scale × cosine, one image and one text at a time."""
    cosines = [[image @ text / (image.norm() * text.norm()) for text in texts] for image in images]
    return scale * torch.tensor(cosines)


def test_zero_shot_logits_are_the_scaled_cosines() -> None:
    model = with_words()
    adapter = zero_shot(model, TEXTS)
    with torch.no_grad():
        sentences = model.encode_text(tokenize(f"a photo of a {text}." for text in TEXTS))
        want = by_hand(model.encode_image(PIXELS), sentences, model.logit_scale.exp().item())
        assert_close(adapter(PIXELS), want, rtol=1e-5, atol=1e-5)
    assert (adapter.labels, adapter.num_classes, adapter.label(1)) == (TEXTS, 3, "tabby cat")
    assert adapter.model is model


def test_zero_shot_on_bare_words_equals_open_clips_own_logits_bias_included() -> None:
    model = with_words(init_logit_scale=2.0, init_logit_bias=-10.0)
    adapter = zero_shot(model, TEXTS, templates=("{}",))
    with torch.no_grad():
        assert_close(adapter(PIXELS), model.get_logits(PIXELS, tokenize(TEXTS))[0], rtol=1e-5, atol=1e-5)


def test_a_class_is_the_mean_of_its_unit_embeddings_over_the_templates() -> None:
    model, templates = with_words(), ("a photo of a {}.", "a drawing of the {}", "{}")
    adapter = zero_shot(model, TEXTS, templates)
    with torch.no_grad():
        each = [model.encode_text(tokenize(t.replace("{}", text) for text in TEXTS), normalize=True) for t in templates]
        texts = torch.stack(each).mean(dim=0)
        want = by_hand(model.encode_image(PIXELS), texts, model.logit_scale.exp().item())
        assert_close(adapter(PIXELS), want, rtol=1e-5, atol=1e-5)
    assert_close(adapter.embeddings.norm(dim=-1), torch.ones(3))


def test_zero_shot_equals_transformers_own_logits() -> None:
    model: Any = FAMILIES["transformers/clip"].build()
    tokens = Tokenizer()(list(TEXTS), padding=True, return_tensors="pt")
    for given in (model, adapt(model)):
        adapter = zero_shot(given, TEXTS, templates=("{}",), tokenizer=Tokenizer())
        with torch.no_grad():
            assert_close(adapter(PIXELS), model(pixel_values=PIXELS, **tokens).logits_per_image, rtol=1e-5, atol=1e-5)
    assert getattr(given, "tokenizer", None) is None, "the caller's adapter is not changed"


@pytest.mark.parametrize(
    "name",
    [
        "timm/clip",
        "transformers/clip_tower",
        "transformers/clip",
        "open_clip/tower",
        "open_clip/clip",
        "open_clip/timm",
    ],
)
def test_towers_with_given_text_embeddings_obey_the_laws_of_a_vision_transformer(name: str) -> None:
    family, texts = FAMILIES[name], torch.randn(3, EMBEDDING)
    model: Any = family.build()
    adapter, before = zero_shot(model, TEXTS, embeddings=texts), fingerprint(model)
    scale = model.logit_scale.exp().item() if hasattr(model, "logit_scale") else 100.0
    assert isinstance(adapter, VisionTransformer)
    with torch.no_grad():
        want = by_hand(family.output(model, PIXELS), texts, scale)
        assert_close(adapter(PIXELS), want, rtol=1e-4, atol=1e-4)
        half = adapter.run(adapter.start(PIXELS), 0, 2)
        assert_close(adapter.finish(adapter.run(half, 2)), want, rtol=1e-4, atol=1e-4)
    names = ("block.0.input", "block.1.q", "block.1.probabilities", "block.2.norm1")
    with adapter.capture(*names, gradient=True) as seen:
        logits = adapter(PIXELS)
    assert all(gradient.abs().sum() > 0 for gradient in adapter.gradients(logits[:, 1], seen).values())
    with exploding(adapter.blocks[1].module), pytest.raises(Boom), adapter.capture("block.*.q"):
        adapter(PIXELS)
    assert not changes(before, fingerprint(model))
    assert adapter.offers == adapt(model).offers


def test_zero_shot_shares_what_the_tower_knows() -> None:
    model: Any = FAMILIES["transformers/clip"].build()
    inner = adapt(model, name="my clip", mean=(0.1, 0.2, 0.3), batch=3)
    adapter = zero_shot(inner, TEXTS, embeddings=torch.randn(3, EMBEDDING))
    assert (adapter.name, adapter.mean, adapter.batch, adapter.input_size) == ("my clip", (0.1, 0.2, 0.3), 3, (32, 32))
    assert adapter.grid == inner.grid  # type: ignore[attr-defined]
    assert adapter.pool == inner.pool  # type: ignore[attr-defined]
    assert isinstance(adapter, ZeroShot)


def test_zero_shot_takes_the_largest_cosine_for_the_prediction() -> None:
    model = with_words()
    with torch.no_grad():
        embeddings = model.encode_image(PIXELS)
    adapter = zero_shot(model, ["first image", "second image"], embeddings=embeddings)
    assert adapter.predict(PIXELS).argmax(dim=-1).tolist() == [0, 1]
    assert_close(adapter.predict(PIXELS).diagonal(), torch.full((2,), adapter.scale), rtol=1e-5, atol=1e-5)
    assert_close(F.normalize(embeddings, dim=-1), adapter.embeddings)


def test_what_zero_shot_cannot_use_is_refused_in_words() -> None:
    tower = OPEN_CLIP["open_clip/tower"].build()
    with pytest.raises(TargetError, match="has no text encoder"):
        zero_shot(tower, TEXTS)
    with pytest.raises(TargetError, match=r"got 'dog' as the classes"):
        zero_shot(tower, "dog")
    with pytest.raises(TargetError, match=r"got \[\] as the classes"):
        zero_shot(tower, [])
    with pytest.raises(TargetError, match=r"'a photo' has no place for the class; write \{\}"):
        zero_shot(with_words(), TEXTS, templates=("a photo",))
    with pytest.raises(ShapeError, match=r"shape \(2, 12\) for 3 classes"):
        zero_shot(tower, TEXTS, embeddings=torch.randn(2, EMBEDDING))
    with pytest.raises(ShapeError, match="have 5 numbers and the image embeddings of VisionTransformer 12"):
        zero_shot(tower, TEXTS, embeddings=torch.randn(3, 5))(PIXELS)
    with pytest.raises(UnsupportedModel, match="zero_shot needs a CLIP"):
        zero_shot(torch.nn.Conv2d(3, 3, 3), TEXTS)
