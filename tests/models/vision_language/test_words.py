"""The target of vision-language models: a word, its tokens, its score; and every method on it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conformance.test_methods import FAST
from tests.models.families_vlm import picture
from tests.models.vision_language.test_adapter import asked
from torch.testing import assert_close

import sightline
from sightline import METHODS, Word
from sightline.errors import SightlineError, TargetError
from sightline.models.inputs import as_batch
from sightline.models.vision_language.prompt import split_words

CHEAPER = FAST | {"d_rise": "d_rise(samples=20)"}


class Pieces:
    """A tokenizer of pieces of words, joined without spaces."""

    texts = ("it", " is", " a", " tea", "cup", ".", "\n", "Blue")

    def decode(self, tokens: list[int]) -> str:
        return "".join(self.texts[token] for token in tokens)


def test_a_word_begins_where_white_space_does() -> None:
    words = split_words(range(8), Pieces())
    assert [word for word, _ in words] == ["it", "is", "a", "teacup.", "", "Blue"]
    assert words[3] == ("teacup.", (3, 4, 5))


def test_a_word_is_the_sum_of_the_log_probabilities_of_its_tokens() -> None:
    logits = torch.randn(2, 3 * 5, generator=torch.Generator().manual_seed(0))
    word = Word("teacup", places=(0, 2), tokens=(4, 1), vocabulary=5, text="teacup")
    dense = logits.unflatten(1, (3, 5)).log_softmax(dim=-1)
    want = dense[:, 0, 4] + dense[:, 2, 1]
    assert_close(word(logits), want)
    assert_close(replace(word, score="probability")(logits), want.exp())
    assert_close(replace(word, score="logit")(logits), logits[:, 4] + logits[:, 11])
    assert word.take([1, 1, 0]) is word
    with pytest.raises(TargetError, match="has not been looked for"):
        Word("teacup")(logits)


def test_words_are_found_by_number_by_text_and_all_together() -> None:
    adapter = asked("llava")
    images = as_batch(adapter, picture())
    each = [sightline.explain(adapter, images, "ixg", target=number) for number in range(3)]
    assert [attribution.labels for attribution in each] == [("a",), ("red",), ("cup",)]
    named = sightline.explain(adapter, images, "ixg", target="Cup")
    assert_close(named.values, each[2].values)
    whole = sightline.explain(adapter, images, "ixg")
    assert whole.labels == ("a red cup",)
    assert_close(whole.values, sum(attribution.values for attribution in each))  # input times gradient is linear


def test_a_given_token_is_explained_in_the_place_of_a_word() -> None:
    adapter = asked("llava")
    images = as_batch(adapter, picture())
    other = sightline.explain(adapter, images, "ixg", target=Word("cup", token="dog"))
    assert other.labels == ("dog",)
    said = sightline.explain(adapter.with_answer("a red dog"), images, "ixg", target=Word("dog"))
    assert_close(other.values, said.values)


def test_a_model_that_has_not_answered_is_explained_by_its_first_token() -> None:
    adapter = asked("llava", answer=None)
    images = torch.cat([as_batch(adapter, picture(seed=seed)) for seed in range(3)])
    got = sightline.explain(adapter, images, "ixg")
    with torch.no_grad():
        tokens = adapter(images).argmax(dim=-1).tolist()
    assert got.labels == tuple(adapter.written([token]) for token in tokens)
    alone = sightline.explain(adapter, images[2:], "ixg", target=Word(token=tokens[2]))
    assert_close(got.values[:, 2:], alone.values, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["llava", "qwen"])
@pytest.mark.parametrize("at", ["pixels", "tokens"])
def test_integrated_gradients_sum_to_the_change_of_the_log_probability(name: str, at: str) -> None:
    adapter = asked(name)
    images = as_batch(adapter, picture())
    got = sightline.explain(adapter, images, f"ig(steps=96, blank='black', at='{at}')", target=Word("cup"))
    assert got.target is not None
    with torch.no_grad():
        change = got.target(adapter(images)) - got.target(adapter(adapter.normalise(torch.zeros_like(images))))
    assert_close(got.map.sum(dim=(1, 2)), change, atol=2e-3, rtol=2e-3)


def test_insertion_and_deletion_follow_the_log_probability_of_the_answer() -> None:
    adapter = asked("llava")
    images = as_batch(adapter, picture())
    metrics = [f"{name}(step=256, score='log_probability')" for name in ("insertion", "deletion")]
    got = sightline.explain(adapter, images, "ixg")
    tokens = torch.tensor(adapter.answer_tokens)

    def log_probability(logits: torch.Tensor) -> torch.Tensor:
        return logits.log_softmax(dim=-1)[:, torch.arange(len(tokens)), tokens].sum(dim=1)

    scores = sightline.evaluate(adapter, images, got, metrics)
    want = sightline.evaluate(adapter, images, got, metrics, target=log_probability)
    for name in metrics:
        assert_close(scores[name], want[name])
        assert float(scores[name]) < 0


def test_maps_of_a_word_are_ranked() -> None:
    adapter = asked("llava")
    ranking = sightline.rank(adapter, picture(), ["ixg", "token_activation_map"], target=Word("cup"))
    assert {"ixg", "token_activation_map"} <= set(ranking.to_pandas()["recipe"])


def test_an_attribution_of_a_word_is_kept_in_a_file(tmp_path: Path) -> None:
    adapter = asked("llava")
    got = sightline.explain(adapter, picture(), "ixg", target=Word("cup"))
    kept = sightline.Attribution.load(got.save(tmp_path / "map.safetensors"))
    assert kept.target == got.target
    assert kept.labels == ("cup",)


# ---- every method ----------------------------------------------------------------------------------------------------


def explained(adapter: Any, images: torch.Tensor, recipe: str) -> sightline.Attribution:
    got = sightline.explain(adapter, images, recipe, target=Word("cup"))
    assert torch.isfinite(got.values).all()
    assert got.grid.image == tuple(images.shape[-2:])
    return got


@pytest.mark.filterwarnings("ignore::sightline.errors.SightlineWarning")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_or_refuses_with_a_way_out_that_works(method: str) -> None:
    adapter = asked("qwen")
    images = as_batch(adapter, picture())
    try:
        explained(adapter, images, CHEAPER.get(method, method))
    except SightlineError as error:
        sentence = str(error)
        others = [name for name in re.findall(r"\w+", sentence) if name in METHODS and name != method]
        assert others, sentence
        explained(adapter, images, CHEAPER.get(others[0], others[0]))


@pytest.mark.parametrize(
    "recipe",
    [
        "plus(ixg)",
        "plus(libra(ixg))",
        "libra(ixg(at='pixels'))",
        "at_man(variant='all')",
        "mda(seed=ixg, cells=2, steps=3)",
        "smooth(ixg, samples=2)",
    ],
)
@pytest.mark.parametrize("name", ["paligemma", "gemma3", "qwen", "idefics_in_tiles"])
def test_recipes_run_on_every_way_to_take_a_picture(recipe: str, name: str) -> None:
    adapter = asked(name)
    explained(adapter, as_batch(adapter, picture()), recipe)


def test_at_man_suppresses_the_attention_to_an_image_token() -> None:
    """The formula, written out for one image token with the causal mask left alone."""
    adapter = asked("llava")
    images = as_batch(adapter, picture())
    got = explained(adapter, images, "at_man(variant='all', kappa=None, factor=0.2)")
    word = got.target
    assert word is not None
    cell = 5
    column = adapter.grid_of(images).prefix + cell

    def suppress(scores: torch.Tensor) -> torch.Tensor:
        changed = scores.clone()
        for row in changed.flatten(0, 2):
            seen = row > -torch.inf
            row[seen] = row[seen] - row[seen].min()
            row[column] = row[column] * 0.2 if seen[column] else row[column]
        return changed

    with torch.no_grad():
        clean = word(adapter(images))
        with adapter.edit(dict.fromkeys(adapter.every("scores"), suppress)):
            suppressed = word(adapter(images))
    assert_close(got.map.flatten(1)[:, cell], clean - suppressed, atol=1e-5, rtol=1e-4)


def test_a_contrast_of_words_names_a_way_out() -> None:
    adapter = asked("llava")
    with pytest.raises(TargetError, match=r"explain Word\(word\) and Word\(word, token=…\)"):
        sightline.explain(adapter, picture(), "against(ixg, other=1)", target=Word("cup"))


def test_a_word_is_refused_by_a_classifier() -> None:
    with pytest.raises(TargetError, match="got Word as a target"):
        sightline.explain(lambda images: images.mean(dim=(2, 3)), torch.zeros(1, 3, 8, 8), "rise", target=Word("cup"))
