"""Vision-language models: what they are given, what they answer, and the language model's layers run on their own."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest
import torch
from tests.models.families_vlm import ANSWER, FAMILIES, QUESTION, picture
from tests.models.fingerprint import changes, fingerprint
from torch.testing import assert_close

import sightline
from sightline import Word
from sightline.errors import InputError, TargetError, UnsupportedModel
from sightline.models.inputs import as_batch
from sightline.models.vision_language.adapter import VisionLanguage

GRIDS = {
    "llava": (4, 4),
    "paligemma": (4, 4),
    "gemma3": (4, 4),
    "qwen": (4, 6),  # a picture of 48 by 32 pixels keeps its shape
    "idefics": (2, 2),
    "idefics_in_tiles": (4, 4),
    "smolvlm": (2, 2),
}
ROUNDED = {"idefics_in_tiles": 2e-2}  # its processor rounds the overview to whole grey values


@cache
def built(name: str) -> tuple[Any, Any]:
    return FAMILIES[name]()


def asked(name: str, answer: str | None = ANSWER, prompt: str = QUESTION) -> VisionLanguage:
    model, processor = built(name)
    adapter = sightline.adapt(model, processor=processor, prompt=prompt, answer=answer)
    assert isinstance(adapter, VisionLanguage)
    return adapter


def prepared(name: str, adapter: VisionLanguage) -> dict[str, Any]:
    """Return what the processor itself makes of the picture and the question."""
    _, processor = built(name)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # PaliGemma's own
        inputs = dict(processor(text=[adapter._written], images=[picture()], return_tensors="pt"))
    inputs.pop("labels", None)
    return inputs


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_model_on_what_its_processor_makes(name: str) -> None:
    adapter = asked(name, answer=None)
    images = as_batch(adapter, picture())
    grid = adapter.grid_of(images)
    assert (grid.height, grid.width) == GRIDS[name]
    with torch.no_grad():
        want = adapter.model(**prepared(name, adapter)).logits[:, -1]
        assert_close(adapter(images), want, atol=ROUNDED.get(name, 1e-5), rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_answer_is_the_likeliest_tokens_and_has_the_logits_it_was_generated_with(name: str) -> None:
    adapter = asked(name, answer=None)
    images = as_batch(adapter, picture())
    said = adapter.answering(picture(), longest=4)
    inputs = adapter._inputs(images)
    made = adapter.model.generate(
        **inputs, do_sample=False, max_new_tokens=4, output_logits=True, return_dict_in_generate=True
    )
    tokens = made.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    assert list(said.answer_tokens) == tokens[: len(said.answer_tokens)]
    with torch.no_grad():
        logits = said(images).unflatten(1, said.output_shape)[0]
    assert_close(logits, torch.cat(made.logits)[: len(logits)], atol=1e-4, rtol=0)
    assert adapter.answer_tokens == ()  # the adapter that was asked is another


@pytest.mark.parametrize("name", FAMILIES)
def test_start_run_and_finish_are_the_model(name: str) -> None:
    adapter = asked(name)
    image = as_batch(adapter, picture())
    images = torch.cat([image, image.flip(-1)])
    with torch.no_grad():
        tokens = adapter.start(images)
        assert tokens.shape[1] == adapter.grid_of(images).tokens
        want = adapter(images)
        assert_close(adapter.finish(adapter.run(tokens)), want, atol=1e-5, rtol=0)
        middle = adapter.run(tokens, 0, 2)
        assert_close(adapter.finish(adapter.run(middle, 2)), want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_captured_is_what_run_gives(name: str) -> None:
    adapter = asked(name)
    images = as_batch(adapter, picture())
    with torch.no_grad(), adapter.capture("block.1.input", "block.2.output") as seen:
        adapter(images)
    with torch.no_grad():
        tokens = adapter.start(images)
        assert_close(seen["block.1.input"], adapter.run(tokens, 0, 1), atol=1e-5, rtol=0)
        assert_close(seen["block.2.output"], adapter.run(tokens), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["llava", "paligemma", "qwen", "idefics_in_tiles"])
@pytest.mark.parametrize("rows", ["all", "each"])
def test_a_dropped_token_is_one_that_nobody_attends_to(name: str, rows: str) -> None:
    adapter = asked(name)
    image = as_batch(adapter, picture())
    images = torch.cat([image, image.flip(-1)])
    kept = torch.tensor([[3, 0, 6, 5], [3, 0, 6, 5] if rows == "all" else [1, 2, 7, 4]])
    prefix = adapter.grid_of(images).prefix
    hidden = torch.ones(2, adapter.grid_of(images).tokens, dtype=torch.bool)
    hidden[:, :prefix] = False
    for row, cells in enumerate(kept):
        hidden[row, prefix + cells] = False

    def hide(scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(hidden[:, None, None], -torch.inf)

    with torch.no_grad():
        tokens = adapter.start(images)
        with adapter.edit(dict.fromkeys(adapter.every("scores"), hide)):
            want = adapter.finish(adapter.run(tokens))
        left = torch.stack(
            [torch.cat([row[:prefix], row[prefix + cells]]) for row, cells in zip(tokens, kept, strict=True)]
        )
        got = adapter.finish(adapter.run(left, keep=kept[0] if rows == "all" else kept))
    assert_close(got, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["llava", "paligemma", "gemma3", "qwen", "idefics"])
def test_each_cell_of_the_grid_is_the_token_of_its_own_pixels(name: str) -> None:
    model, processor = FAMILIES[name]()
    for parameter, weight in model.model.named_parameters():
        if parameter.startswith("vis") and ("out_proj" in parameter or "attn.proj" in parameter):
            weight.data.zero_()  # without attention a token is made of its own pixels alone
    adapter = sightline.adapt(model, processor=processor, prompt=QUESTION)
    images = as_batch(adapter, picture())
    grid = adapter.grid_of(images)
    height, width = adapter.patch
    with torch.no_grad():
        clean = adapter.start(images)[:, grid.prefix :]
        for cell in range(grid.cells):
            row, column = divmod(cell, grid.width)
            changed = images.clone()
            changed[..., row * height : (row + 1) * height, column * width : (column + 1) * width] += 0.1
            difference = (adapter.start(changed)[:, grid.prefix :] - clean).abs().sum(dim=-1)[0]
            assert (difference > 1e-4).nonzero().flatten().tolist() == [cell]


def test_the_tokens_of_a_tile_lie_on_the_tile() -> None:
    adapter = asked("idefics_in_tiles")
    images = as_batch(adapter, picture())
    grid = adapter.grid_of(images)
    changed = images.clone()
    changed[..., :32, 32:] += 0.5  # the tile on the upper right
    with torch.no_grad():
        difference = grid.to_map((adapter.start(changed) - adapter.start(images)).abs().sum(dim=-1))[0]
    assert (difference[:2, 2:] > 1e-3).all()
    difference[:2, 2:] = 0
    assert_close(difference, torch.zeros(4, 4))


def test_a_picture_of_another_size_has_another_grid() -> None:
    adapter = asked("qwen")
    tall = as_batch(adapter, picture(width=32, height=56))
    assert tuple(tall.shape[-2:]) == (56, 32)
    assert (adapter.grid_of(tall).height, adapter.grid_of(tall).width) == (7, 4)
    with torch.no_grad():
        assert_close(adapter.finish(adapter.run(adapter.start(tall))), adapter(tall), atol=1e-5, rtol=0)
    with pytest.raises(InputError, match=r"the processor of .* makes them 32×32: give PIL images"):
        sightline.explain(adapter, torch.zeros(1, 3, 33, 33), "ixg")


def test_a_blank_picture_is_a_picture() -> None:
    adapter = asked("idefics_in_tiles")
    with torch.no_grad():
        assert torch.isfinite(adapter(torch.zeros(2, 3, 64, 64))).all()


@pytest.mark.filterwarnings("ignore:token_activation_map gave a constant map")  # of a model with random weights
@pytest.mark.parametrize("name", FAMILIES)
def test_the_model_is_left_as_it_was(name: str) -> None:
    adapter = asked(name)
    images = as_batch(adapter, picture())
    with torch.no_grad():
        logits = adapter(images)  # transformers installs hooks of its own when a model first runs
    before = fingerprint(adapter.model)
    noted = [getattr(module, "rope_deltas", None) for module in adapter.model.modules()]
    sightline.explain(adapter, images, ["libra(ixg)", "at_man", "token_activation_map", "gae"], target=Word("cup"))
    adapter.answering(picture(), longest=2)
    assert not changes(before, fingerprint(adapter.model))
    assert [getattr(module, "rope_deltas", None) for module in adapter.model.modules()] == noted
    with torch.no_grad():
        assert torch.equal(adapter(images), logits)


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_a_model_without_a_prompt_says_how_to_ask() -> None:
    model, _ = built("llava")
    with pytest.raises(UnsupportedModel, match="call adapt\\(model, processor=…, prompt=…\\)"):
        sightline.adapt(model)


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ("", "got an empty prompt"),
        ("<image> and <image> what", "has 2 places for a picture; one is needed: write <image> once"),
        ("what is <image>", "ends with the picture; write the question behind it"),
        ("<image> " + "cat " * 300, "tokens and .* reads 256; shorten the prompt"),
    ],
)
def test_a_bad_prompt_is_refused_in_one_sentence(prompt: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        sightline.explain(asked("llava", answer=None, prompt=prompt), picture(), "ixg")


def test_a_prompt_without_a_place_for_the_picture_is_refused_where_no_template_gives_one() -> None:
    model, processor = FAMILIES["llava"]()
    processor.chat_template = None
    with pytest.raises(InputError, match=r"has no place for the picture, .* write <image> where it belongs"):
        sightline.adapt(model, processor=processor, prompt=QUESTION)
    assert sightline.adapt(model, processor=processor, prompt="<image> what is it") is not None


def test_no_picture_and_several_pictures_are_refused() -> None:
    adapter = asked("llava", answer=None)
    with pytest.raises(InputError):
        sightline.explain(adapter, [], "ixg")
    with pytest.raises(InputError, match="got 2 images to answer about; give one"):
        adapter.answering([picture(), picture(seed=1)])


def test_words_that_are_not_there_are_refused() -> None:
    adapter = asked("llava")
    images = as_batch(adapter, picture())
    for target, sentence in (
        (Word("dog"), "the answer 'a red cup' has no word 'dog'"),
        (Word(3), "has words 0 to 2"),
        (Word(0, token="zebra"), "the tokenizer does not have the token 'zebra'"),
        (Word(0, token=10_000), "the model has tokens 0 to"),
        (sightline.Region("cup"), r"give Word\(number or text of a word\)"),
    ):
        with pytest.raises(TargetError, match=sentence):
            sightline.explain(adapter, images, "ixg", target=target)
    with pytest.raises(TargetError, match="the tokenizer does not have 'zebra'"):
        adapter.with_answer("a zebra")
    with pytest.raises(TargetError, match="has not answered yet; let it answer"):
        sightline.explain(asked("llava", answer=None), images, "ixg", target=Word("cup"))
