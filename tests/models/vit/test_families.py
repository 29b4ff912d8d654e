"""The laws that every vision transformer obeys, whichever library made it."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
import torch
from tests.models.families_vit import FAMILIES, Family, images
from tests.models.fingerprint import Boom, changes, exploding, fingerprint
from torch import Tensor
from torch.testing import assert_close

from sightline.errors import InputError, SiteError
from sightline.models import adapt
from sightline.models.capture import ATTENTION_PLACES
from sightline.models.vit.adapter import VisionTransformer

INSIDE = ("norm1", *ATTENTION_PLACES, "attention", "norm2", "mlp", "output")
READOUT = {  # prefix weights, then what the patches share
    "cls": ((1.0,), 0.0),
    "mean": ((), 1.0),
    "map": ((), 1.0),
    "cls+mean": ((0.5,), 0.5),
    "cls+distilled": ((0.5, 0.5), 0.0),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def known(model: Any) -> VisionTransformer:
    adapter = adapt(model)
    assert isinstance(adapter, VisionTransformer)
    return adapter


def close(got: Tensor, want: Tensor, tolerance: float = 1e-5) -> None:
    """Compare to a relative tolerance, relative to the whole tensor's size."""
    assert got.shape == want.shape
    difference = ((got - want).norm() / want.norm()).item()
    assert difference <= tolerance, f"relative difference {difference:.2e}"


# ---- start, run, finish ----------------------------------------------------------------------------------------------


def test_start_run_finish_equal_the_librarys_own_output(family: Family) -> None:
    model, pixels = family.build(), images(family)
    adapter = known(model)
    with torch.no_grad():
        want = family.output(model, pixels)
        tokens = adapter.start(pixels)
        close(adapter.finish(adapter.run(tokens)), want)
        close(adapter(pixels), want)
    assert tokens.shape[:2] == (2, adapter.grid_of(pixels).tokens)
    assert adapter.num_classes == want.shape[1]
    assert want.std() > 0.1, "a model whose outputs are all alike proves nothing"


def test_two_halves_equal_one_run(family: Family) -> None:
    adapter, pixels = known(family.build()), images(family)
    with torch.no_grad():
        tokens = adapter.start(pixels)
        whole, half = adapter.run(tokens), adapter.run(tokens, 0, 2)
        close(adapter.run(half, 2), whole)
        with adapter.capture("block.2.input", "block.1.output") as seen:
            adapter(pixels)
    close(seen["block.2.input"], half)
    close(seen["block.1.output"], half)


def test_the_first_site_is_what_start_returns(family: Family) -> None:
    adapter, pixels = known(family.build()), images(family)
    with torch.no_grad(), adapter.capture("block.0.input") as whole:
        adapter(pixels)
    with torch.no_grad():
        start = adapter.start(pixels)
        with adapter.capture("block.0.input") as parts:
            adapter.run(start)
    assert torch.equal(whole["block.0.input"], start)
    assert torch.equal(parts["block.0.input"], start)


def test_the_adapter_says_what_the_table_says(family: Family) -> None:
    adapter, pixels = known(family.build()), images(family)
    grid = adapter.grid_of(pixels)
    assert (adapter.pool, adapter.prefix, adapter.depth) == (family.pool, family.prefix, 3)
    assert (grid.height, grid.width, grid.image) == (*family.grid, family.size)
    assert adapter.patch == tuple(side // cells for side, cells in zip(family.size, family.grid, strict=True))
    assert {"gradient", "attention", "tokens"} <= adapter.offers


def test_the_readout_is_the_row_that_the_classifier_reads(family: Family) -> None:
    adapter = known(family.build())
    tokens = adapter.grid_for(family.size).tokens
    heads, patches = READOUT[family.pool]
    want = torch.zeros(tokens)
    want[: len(heads)] = torch.tensor(heads)
    want[family.prefix :] = patches / (tokens - family.prefix)
    assert_close(adapter.readout(tokens), want)
    assert_close(adapter.readout(tokens).sum(), torch.tensor(1.0))


def test_an_image_of_the_wrong_size_is_refused_in_words(family: Family) -> None:
    adapter = known(family.build())
    for height, width in ((32, 33), (40, 30), (7, 7)):
        with pytest.raises(InputError, match=rf"got images of {height}×{width} pixels"):
            adapter.accept(torch.zeros(1, 3, height, width))


# ---- capture -------------------------------------------------------------------------------------------------------


def test_captured_probabilities_leave_the_logits_alone_and_their_rows_sum_to_one(family: Family) -> None:
    adapter, pixels = known(family.build()), images(family)
    tokens = adapter.grid_of(pixels).tokens
    with torch.no_grad():
        before = adapter(pixels)
        with adapter.capture("block.*.probabilities") as seen:
            watched = adapter(pixels)
        assert torch.equal(adapter(pixels), before)
    close(watched, before)
    assert list(seen) == adapter.every("probabilities")
    for probabilities in seen.values():
        assert probabilities.shape == (2, 2, tokens, tokens)  # (batch, head, query, key)
        assert_close(probabilities.sum(dim=-1), torch.ones(2, 2, tokens))
        assert probabilities.std() > 0.002, "attention that is everywhere even proves nothing"


def test_the_steps_of_attention_fit_together(family: Family) -> None:
    adapter, pixels = known(family.build()), images(family)
    with torch.no_grad(), adapter.capture(*(f"block.1.{place}" for place in ATTENTION_PLACES)) as seen:
        adapter(pixels)
    q, k, v, scores, probabilities, context = (seen[f"block.1.{place}"] for place in ATTENTION_PLACES)
    if family.bias:
        added = scores - q @ k.mT * q.shape[-1] ** -0.5
        close(added[0], added[1])  # it depends on positions alone
        assert added.std() > 0.1
    else:
        close(scores, q @ k.mT * q.shape[-1] ** -0.5)
    close(probabilities, scores.softmax(dim=-1))
    close(context, probabilities @ v)


def test_gradients_at_every_kind_of_site_match_finite_differences(family: Family) -> None:
    adapter, pixels = known(cast(family.build(), torch.float64)), images(family, 1).double()
    names = ["block.0.input", *(f"block.1.{place}" for place in INSIDE), *(["norm"] if "norm" in adapter.sites else [])]
    with adapter.capture(*names, gradient=True) as seen:
        score = adapter(pixels)[:, 1]
    gradients = adapter.gradients(score, seen)
    for name in names:
        assert gradients[name].abs().max() > 1e-6, f"no gradient at {name}"
        want = slope(adapter, pixels, name, gradients[name].abs().argmax())
        assert_close(gradients[name].flatten()[gradients[name].abs().argmax()], want, rtol=1e-5, atol=1e-9, msg=name)


def cast(model: Any, dtype: torch.dtype) -> Any:
    model = model.to(dtype)
    if getattr(model, "rope_mixed", False):  # timm multiplies this grid with a table that is always in single precision
        model.rope.float()
    return model


def slope(adapter: VisionTransformer, pixels: Tensor, name: str, index: Tensor, step: float = 1e-5) -> Tensor:
    """Nudge one number of a site up and down, and see what the score does."""

    def nudged(by: float) -> Tensor:
        def nudge(value: Tensor) -> Tensor:
            value = value.clone(memory_format=torch.contiguous_format)
            value.view(-1)[index] += by
            return value

        with torch.no_grad(), adapter.edit({name: nudge}):
            return adapter(pixels)[0, 1]

    return (nudged(step) - nudged(-step)) / (2 * step)


def test_gradients_need_neither_trainable_parameters_nor_a_callers_gradient_mode(family: Family) -> None:
    model, pixels = family.build(), images(family)
    names = ("block.0.input", "block.1.probabilities", "block.1.v", "block.2.norm1")

    def gradients() -> dict[str, Tensor]:
        adapter = known(model)
        with adapter.capture(*names, gradient=True) as seen:
            score = adapter(pixels)[:, 0]
        return adapter.gradients(score, seen)

    want = gradients()
    for frozen, mode in product((False, True), (nullcontext, torch.no_grad, torch.inference_mode)):
        for parameter in model.parameters():
            parameter.requires_grad_(not frozen)
        with mode():
            got = gradients()
        for name in names:
            close(got[name], want[name])
    assert all(parameter.grad is None for parameter in model.parameters())


# ---- edit ------------------------------------------------------------------------------------------------------------


def test_patching_a_clean_block_into_a_blank_image_restores_the_clean_logits_exactly(family: Family) -> None:
    adapter, pixels = known(family.build()), images(family)
    blank = torch.zeros_like(pixels)
    with torch.no_grad():
        with adapter.capture("block.1.output") as seen:
            clean = adapter(pixels)
        with adapter.edit({"block.1.output": seen["block.1.output"]}):
            patched = adapter(blank)
        assert torch.equal(patched, clean)
        assert not torch.equal(adapter(blank), clean)


def test_probabilities_put_back_change_nothing_and_halved_change_the_logits(family: Family) -> None:
    adapter, pixels = known(family.build()), images(family)
    with torch.no_grad():
        with adapter.capture("block.1.probabilities") as seen:
            clean = adapter(pixels)
        with adapter.edit({"block.1.probabilities": seen["block.1.probabilities"]}):
            assert torch.equal(adapter(pixels), clean)
        with adapter.edit({"block.1.probabilities": lambda probabilities: probabilities / 2}):
            halved = adapter(pixels)
    assert (halved - clean).norm() > 1e-3 * clean.norm()


UNBIASED = {name: family for name, family in FAMILIES.items() if not family.bias}  # others have a bias per key


@pytest.mark.parametrize("family", UNBIASED.values(), ids=UNBIASED)
def test_every_key_and_value_twice_is_the_same_attention_and_an_extra_one_is_not(family: Family) -> None:
    adapter, pixels = known(family.build()), images(family)

    def twice(heads: Tensor) -> Tensor:
        return torch.cat([heads, heads], dim=-2)

    def one_more(heads: Tensor) -> Tensor:
        return torch.cat([heads, 2 * heads[..., -1:, :]], dim=-2)

    with torch.no_grad():
        clean = adapter(pixels)
        with adapter.edit({"block.1.k": twice, "block.1.v": twice}):
            close(adapter(pixels), clean)
        with adapter.edit({"block.1.k": one_more, "block.1.v": one_more}):
            assert (adapter(pixels) - clean).norm() > 1e-4 * clean.norm()


# ---- nothing left ----------------------------------------------------------------------------------------------------


def everything(adapter: VisionTransformer, pixels: Tensor) -> None:
    """Read every site, take gradients, edit, run in parts."""
    with adapter.capture("*", gradient=True) as seen:
        score = adapter(pixels)[:, 0]
    used = {name: tensor for name, tensor in seen.items() if name in ("block.0.input", "block.1.probabilities")}
    adapter.gradients(score, used)
    with torch.no_grad(), adapter.edit({"block.1.v": lambda v: v * 2, "block.0.output": lambda x: x + 1}):
        adapter.finish(adapter.run(adapter.start(pixels)))


def test_nothing_is_left_behind(family: Family) -> None:
    model, pixels = family.build(), images(family)
    adapter, before, logits = known(model), fingerprint(model), family.output(model, pixels)
    everything(adapter, pixels)
    assert not changes(before, fingerprint(model))
    assert torch.equal(family.output(model, pixels), logits)


def test_nothing_is_left_behind_when_a_block_raises(family: Family) -> None:
    model, pixels = family.build(), images(family)
    adapter, before, logits = known(model), fingerprint(model), family.output(model, pixels)
    parts = lambda adapter, pixels: adapter.run(adapter.start(pixels))  # noqa: E731
    for work, place in product((everything, parts), ("module", "attention", "mlp")):
        with exploding(getattr(adapter.blocks[1], place)), pytest.raises(Boom):
            work(adapter, pixels)
    assert not changes(before, fingerprint(model))
    assert torch.equal(family.output(model, pixels), logits)
    everything(adapter, pixels)  # and capture itself still works


def test_a_training_model_is_explained_in_eval_mode_and_goes_on_training(family: Family) -> None:
    model, pixels = family.build(), images(family)
    want = family.output(model, pixels)
    model.train()
    next(iter(model.children())).eval()  # a mixed state, as in fine-tuning, comes back as it was
    adapter, before = known(model), fingerprint(model)
    with torch.no_grad(), adapter.evaluating():
        got = adapter(pixels)
    close(got, want)
    assert not changes(before, fingerprint(model))


def test_a_half_precision_model_is_run_in_parts_like_the_whole(family: Family) -> None:
    model = cast(family.build(), torch.bfloat16)
    adapter = known(model)
    pixels = adapter.accept(images(family))
    assert pixels.dtype == torch.bfloat16
    with adapter.capture("block.1.probabilities", gradient=True) as seen:
        score = adapter(pixels)[:, 0]
    assert torch.isfinite(adapter.gradients(score, seen)["block.1.probabilities"]).all()
    with torch.no_grad():
        assert torch.equal(adapter.finish(adapter.run(adapter.start(pixels))), family.output(model, pixels))


# ---- fewer tokens ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [False, True], ids=["the same patches", "other patches per image"])
def test_dropping_tokens_equals_never_looking_at_them(family: Family, each: bool) -> None:
    """Attention that gives some keys no weight leaves the other tokens as if those keys were not there."""
    adapter, pixels = known(family.build()), images(family)
    grid = adapter.grid_of(pixels)
    generator = torch.Generator().manual_seed(1)
    keep = torch.stack([torch.randperm(grid.cells, generator=generator)[:5].sort().values for _ in range(2)])
    keep = keep if each else keep[:1].expand(2, -1)
    left = torch.cat([torch.arange(grid.prefix).expand(2, -1), grid.prefix + keep], dim=1)
    seen = torch.zeros(2, grid.tokens, dtype=torch.bool).scatter_(1, left, True)

    def unseen(scores: Tensor) -> Tensor:
        return scores.masked_fill(~seen[:, None, None], -torch.inf)

    def pick(tokens: Tensor) -> Tensor:
        return tokens.gather(1, left[..., None].expand(-1, -1, tokens.shape[-1]))

    with torch.no_grad():
        start = adapter.start(pixels)
        with adapter.edit(dict.fromkeys(adapter.every("scores"), unseen)):
            want = pick(adapter.run(start))
        got = adapter.run(pick(start), keep=keep if each else keep[0])
        close(got, want)
        assert adapter.finish(got).shape == adapter(pixels).shape
        assert (pick(adapter.run(start)) - want).norm() > 1e-3 * want.norm()


def test_a_site_that_is_not_there_is_refused_with_the_nearest_name(family: Family) -> None:
    with pytest.raises(SiteError, match=r"block\.1\.probabilities"):
        known(family.build()).find("block.1.probability")
