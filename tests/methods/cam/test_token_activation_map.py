"""Token Activation Map against its formula, written out token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests import tiny
from tests.models.families_vlm import picture
from tests.models.vision_language.test_adapter import asked, prepared

import sightline
from sightline import Word
from sightline.errors import RecipeError, UnsupportedMethod, UnsupportedModel
from sightline.methods.cam.token_activation_map import rank_filtered
from sightline.models.inputs import as_batch


def windowed(values: np.ndarray) -> np.ndarray:
    """Filter a map cell by cell."""
    padded = np.pad(values, 1, mode="edge")
    filtered = np.zeros_like(values)
    for y in range(values.shape[0]):
        for x in range(values.shape[1]):
            cells = np.sort(padded[y : y + 3, x : x + 3].flatten())
            width = cells.std() / cells.mean() if cells.mean() > 0 else 0.0
            if width < 1e-3:
                filtered[y, x] = cells[4]
                continue
            weights = np.exp(-((np.arange(9) - 4) ** 2) / (2 * width**2))
            filtered[y, x] = (cells * weights).sum() / weights.sum()
    return filtered


@pytest.mark.parametrize("name", ["llava", "qwen"])
@pytest.mark.parametrize("word", ["red", "cup"])
def test_it_is_the_formula(name: str, word: str) -> None:
    adapter = asked(name)
    images = as_batch(adapter, picture())
    got = sightline.explain(adapter, images, "token_activation_map", target=Word(word))
    place = ["a", "red", "cup"].index(word)
    inputs = prepared(name, adapter)
    prompt = inputs["input_ids"][0].tolist()
    sequence = prompt + list(adapter.answer_tokens[:place])
    longer = {key: row for key, row in adapter._inputs(images).items() if key not in ("input_ids",)}
    full = {"input_ids": torch.tensor([prompt + list(adapter.answer_tokens[:-1])]), **longer}
    with torch.no_grad():
        hidden = adapter.model.model(**full, use_cache=False).last_hidden_state[0].double().numpy()
    head = adapter.model.lm_head.weight.detach().double().numpy()
    token = adapter.answer_tokens[place]
    image = [position for position, number in enumerate(sequence) if number == adapter.image_token]
    own = np.maximum(hidden[image] @ head[token], 0)
    weights, maps = [], []
    for position, number in enumerate(sequence):
        if number not in (token, adapter.image_token):
            weights.append(max(hidden[position] @ head[token], 0))
            maps.append(np.maximum(hidden[image] @ head[number], 0))
    interference = sum(w * each for w, each in zip(weights, maps, strict=True)) / sum(weights)
    scale = np.linalg.lstsq(interference[:, None], own, rcond=None)[0][0]
    want = windowed(np.maximum(own - scale * interference, 0).reshape(got.grid.height, got.grid.width))
    np.testing.assert_allclose(got.map[0].double().numpy(), want, atol=1e-5)
    assert want.max() > 0
    assert got.passes.forward == 1


def test_without_the_causal_term_it_is_the_logits_alone() -> None:
    adapter = asked("llava")
    images = as_batch(adapter, picture())
    got = sightline.explain(adapter, images, "token_activation_map(variant='activation', window=1)", target=Word("cup"))
    with torch.no_grad(), adapter.capture("norm") as seen:
        adapter(images)
    logits = adapter.model.lm_head(seen["norm"])[..., adapter.answer_tokens[2]].relu()
    torch.testing.assert_close(got.map, adapter.grid_of(images).to_map(logits).detach())


def test_a_constant_map_passes_the_filter() -> None:
    torch.testing.assert_close(rank_filtered(torch.full((3, 4), 2.0), 3), torch.full((3, 4), 2.0))
    torch.testing.assert_close(rank_filtered(torch.zeros(3, 4), 3), torch.zeros(3, 4))


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="needs a vision-language model"):
        sightline.explain(tiny.vit(), torch.zeros(1, 3, 32, 32), "token_activation_map")
    with pytest.raises(UnsupportedMethod, match=r"give Word\(…\), or use ixg"):
        sightline.explain(
            asked("llava"), picture(), "token_activation_map", target=lambda logits: logits.sum(dim=(1, 2))
        )
    with pytest.raises(RecipeError, match="window=2"):
        sightline.parse("token_activation_map(window=2)")
