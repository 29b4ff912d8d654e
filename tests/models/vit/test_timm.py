"""timm's vision transformers, against timm's own unfused attention, and users' modules around them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from tests.models.families_vit import CLASSES, TIMM, TINY, Family, images, randomised
from tests.models.fingerprint import Boom, changes, exploding, fingerprint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline.errors import InputError, UnsupportedModel
from sightline.extras import require
from sightline.models import adapt
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.wrapped import WrappedTransformer

ROTARY = ("timm/eva02_cls", "timm/rope_mixed", "timm/dinov3")


@pytest.fixture(params=TIMM)
def family(request: pytest.FixtureRequest) -> Family:
    return TIMM[request.param]


def unfused(model: Any, *, blocks: range = range(3)) -> Any:
    """Build timm's attention the way TIMM_FUSED_ATTN=0 does: the softmax written out, a module behind it."""
    for index in blocks:
        model.blocks[index].attn.fused_attn = False
    return model


@contextmanager
def eager(model: Any) -> Any:
    """Read the probabilities where timm itself shows them: at the dropout behind the softmax."""
    seen: list[Tensor] = []
    with ExitStack() as stack:
        for block in unfused(model).blocks:
            handle = block.attn.attn_drop.register_forward_hook(lambda _module, _args, output: seen.append(output))
            stack.callback(handle.remove)
        yield seen


# ---- attention -----------------------------------------------------------------------------------------------------


def test_probabilities_are_those_of_timms_unfused_attention(family: Family) -> None:
    pixels, reference, adapter = images(family), family.build(), adapt(family.build())
    with torch.no_grad(), eager(reference) as want:
        logits = family.output(reference, pixels)
    with torch.no_grad(), adapter.capture("block.*.probabilities") as seen:
        assert_close(adapter(pixels), logits, rtol=1e-5, atol=1e-5)
    for got, expected in zip(seen.values(), want, strict=True):
        assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_gradients_at_probabilities_are_those_of_timms_unfused_attention(family: Family) -> None:
    pixels, reference = images(family), family.build()
    with eager(reference) as attention:
        score = family.output(reference, pixels)[:, 2].sum()
    want = torch.autograd.grad(score, attention)
    adapter = adapt(family.build())
    with adapter.capture("block.*.probabilities", gradient=True) as seen:
        got = adapter.gradients(adapter(pixels)[:, 2], seen)
    for index, expected in enumerate(want):
        assert_close(got[f"block.{index}.probabilities"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("blocks", [range(3), range(1, 2)], ids=["all blocks", "one block"])
@pytest.mark.parametrize("name", ["timm/vit", "timm/eva02_cls"])
def test_a_model_built_without_fused_attention_shows_its_heads_and_keeps_its_flags(name: str, blocks: range) -> None:
    fused, pixels = adapt(TIMM[name].build()), images(TIMM[name])
    model = unfused(TIMM[name].build(), blocks=blocks)
    adapter, before = adapt(model), fingerprint(model)
    for place in ("q", "k", "v", "scores", "probabilities", "context"):
        with torch.no_grad(), fused.capture(f"block.*.{place}") as want:
            fused(pixels)
        with torch.no_grad(), adapter.capture(f"block.*.{place}") as got:
            adapter(pixels)
        assert {site: tensor.shape for site, tensor in got.items()} == {s: t.shape for s, t in want.items()}
        for site, tensor in got.items():
            assert torch.equal(tensor, want[site])
        assert not changes(before, fingerprint(model))
    with exploding(model.blocks[1].mlp), pytest.raises(Boom), adapter.capture("block.*.q"):
        adapter(pixels)
    assert not changes(before, fingerprint(model))


# ---- rotary positions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROTARY)
@pytest.mark.parametrize("each", [False, True], ids=["the same patches", "other patches per image"])
def test_rotary_positions_follow_the_patches_that_are_kept(name: str, each: bool) -> None:
    model: Any = TIMM[name].build()
    adapter, pixels = adapt(model), images(TIMM[name], 3)
    assert isinstance(adapter, VisionTransformer)
    keep = torch.tensor([[0, 3, 5, 14], [1, 2, 9, 10], [4, 7, 8, 15]]) if each else torch.tensor([0, 3, 5, 14])
    rows = keep if each else keep.expand(3, -1)
    with torch.no_grad():
        start = adapter.start(pixels)
        kept = torch.stack(
            [torch.cat([x[: adapter.prefix], x[adapter.prefix + row]]) for x, row in zip(start, rows, strict=True)]
        )
        got = adapter.run(kept, keep=keep)
        # by hand, one image at a time: each block with the rows of the table that belong to its patches
        for image, row in enumerate(rows):
            tokens = model.norm_pre(kept[image : image + 1])
            table = model.rope.get_embed()
            for index, block in enumerate(model.blocks):
                tokens = block(tokens, rope=table[index][:, row] if table.ndim == 4 else table[row])
            assert_close(got[image : image + 1], tokens, rtol=1e-5, atol=1e-5)
        wrong = adapter.run(kept, keep=torch.arange(4))
    assert (wrong - got).norm() > 1e-3 * got.norm(), "positions that make no difference prove nothing"


@pytest.mark.parametrize("name", ["eva02_tiny_patch14_224", "vit_small_patch16_dinov3"])
def test_a_rotary_model_for_any_size_is_run_in_parts_with_the_positions_of_the_image(name: str) -> None:
    model = randomised(require("timm").create_model(name, **TINY | {"dynamic_img_size": True}))
    adapter = adapt(model)
    assert isinstance(adapter, VisionTransformer)
    for size in ((32, 48), (48, 32), (40, 40)):  # the first two have as many patches
        pixels = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            assert_close(adapter.finish(adapter.run(adapter.start(pixels))), model(pixels))
        caap = sightline.explain(adapter, pixels, "caap")
        assert caap.map.shape == (1, size[0] // 8, size[1] // 8)
        assert caap.map.std() > 1e-4


# ---- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(32, 48), (16, 16), (64, 40)])
def test_a_model_for_any_size_takes_every_multiple_of_its_patch(size: tuple[int, int]) -> None:
    model = randomised(require("timm").create_model("vit_base_patch16_224", **TINY, dynamic_img_size=True))
    adapter, pixels = adapt(model), torch.randn(2, 3, *size)
    assert isinstance(adapter, VisionTransformer)
    grid = adapter.grid_of(adapter.accept(pixels))
    assert (grid.height, grid.width, grid.prefix, grid.image) == (size[0] // 8, size[1] // 8, 1, size)
    with torch.no_grad():
        assert torch.equal(adapter.finish(adapter.run(adapter.start(pixels))), model(pixels))
    with pytest.raises(InputError, match="multiples of its patch, 8×8"):
        adapter.accept(torch.zeros(1, 3, size[0] + 4, size[1]))
    with pytest.raises(InputError, match="any size"):
        adapter.grid  # noqa: B018


# ---- facts -----------------------------------------------------------------------------------------------------------


def test_names_and_normalisation_come_from_timm() -> None:
    model = require("timm").create_model("deit3_small_patch16_224", **TINY | {"num_classes": 1000})
    adapter = adapt(model)
    assert (adapter.name, adapter.num_classes, len(adapter.labels)) == ("deit3_small_patch16_224", 1000, 1000)
    assert adapter.label(0).startswith("tench")
    raw = torch.rand(1, 3, 4, 4)
    want = (raw - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[
        :, None, None
    ]
    assert_close(adapter.normalise(raw), want)
    assert_close(adapter.denormalise(adapter.normalise(raw)), raw)


def test_facts_that_are_given_win() -> None:
    adapter = adapt(TIMM["timm/vit"].build(), name="mine", labels=("a", "b"), mean=(0, 0, 0), std=(1, 1, 1))
    assert (adapter.name, adapter.labels, adapter.mean, adapter.std) == ("mine", ("a", "b"), (0, 0, 0), (1, 1, 1))


def test_images_made_in_inference_mode_can_be_explained() -> None:
    family = TIMM["timm/vit"]
    adapter = adapt(family.build())
    with torch.inference_mode():
        pixels = adapter.accept(images(family))
        with adapter.capture("block.1.probabilities", gradient=True) as seen:
            score = adapter(pixels)[:, 0]
        assert adapter.gradients(score, seen)["block.1.probabilities"].norm() > 0


# ---- users' own modules --------------------------------------------------------------------------------------------


class Wrapper(nn.Module):
    """What users write: normalisation inside, a timm backbone, a head of their own."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 5))

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.backbone((pixels - 0.5) / 0.25))}


def wrapped(name: str = "vit_base_patch16_224") -> Wrapper:
    torch.manual_seed(0)
    backbone = require("timm").create_model(name, **TINY | {"num_classes": 0})
    model = randomised(Wrapper(backbone))
    assert isinstance(model, Wrapper)
    return model


@pytest.mark.parametrize("name", ["vit_base_patch16_224", "eva02_tiny_patch14_224"])
def test_a_module_of_ones_own_around_a_timm_transformer_shows_its_tokens_and_attention(name: str) -> None:
    model, pixels = wrapped(name), torch.rand(2, 3, 32, 32)
    adapter, before = adapt(model), fingerprint(model)
    assert isinstance(adapter, WrappedTransformer)
    assert adapter.model is model
    with adapter.capture("block.*.probabilities", "block.0.input", gradient=True) as seen:
        logits = adapter(pixels)
    gradients = adapter.gradients(logits[:, 3], seen)
    assert_close(logits, model(pixels)["logits"], rtol=1e-5, atol=1e-5)
    assert {*seen} == {*adapter.every("probabilities"), "block.0.input"}
    assert all(gradient.abs().sum() > 0 for gradient in gradients.values())
    assert adapter.grid_of(pixels).tokens == seen["block.0.input"].shape[1]
    assert not changes(before, fingerprint(model))


def test_a_wrapped_transformer_starts_at_its_own_normalised_pixels_and_refuses_to_finish() -> None:
    model, pixels = wrapped(), torch.rand(2, 3, 32, 32)
    adapter, inner = adapt(model), adapt(model.backbone)
    assert isinstance(adapter, VisionTransformer)
    assert isinstance(inner, VisionTransformer)
    with torch.no_grad():
        assert torch.equal(adapter.run(adapter.start(pixels)), inner.run(inner.start((pixels - 0.5) / 0.25)))
        with pytest.raises(UnsupportedModel, match="what it does after the blocks cannot be run alone"):
            adapter.finish(adapter.start(pixels))
    assert "tokens" not in adapter.offers


def test_a_wrapped_transformer_without_fused_attention_shows_its_heads_too() -> None:
    model, pixels = wrapped(), torch.rand(2, 3, 32, 32)
    unfused(model.backbone)
    before = fingerprint(model)
    adapter = adapt(model)
    with torch.no_grad(), adapter.capture("block.*.q") as seen:
        adapter(pixels)
    assert seen["block.2.q"].shape == (2, 2, 17, 16)
    assert not changes(before, fingerprint(model))


class HandWritten(nn.Module):
    """A transformer that no library made: nothing says where its blocks are."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 32, 8, 8)
        self.qkv = nn.Linear(32, 96)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = self.embed(pixels).flatten(2).mT
        q, k, v = self.qkv(tokens)[:, None].chunk(3, dim=-1)
        return self.head((tokens + F.scaled_dot_product_attention(q, k, v)[:, 0]).mean(dim=1))


def test_a_transformer_written_by_hand_offers_no_attention_but_gradients_at_its_modules() -> None:
    """Its attention call could be intercepted, but nothing says which tokens are patches and where they lie."""
    model, pixels = HandWritten().eval(), torch.randn(2, 3, 32, 32)
    adapter = adapt(model)
    assert not isinstance(adapter, VisionTransformer)
    assert not {"attention", "tokens"} & adapter.offers
    with adapter.capture("embed", gradient=True) as seen:
        score = adapter(pixels)[:, 0]
    assert adapter.gradients(score, seen)["embed"].shape == (2, 32, 4, 4)
