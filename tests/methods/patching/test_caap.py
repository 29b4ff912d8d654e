"""CAAP on transformers: the copies against the published algorithm, one patch at a time on whole sequences."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests import tiny
from tests.models import families_vit
from tests.models.families_vit import FAMILIES
from tests.models.fingerprint import fingerprint
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import Logit, Probability
from sightline.errors import RecipeError, SiteError, UnsupportedModel
from sightline.methods.blank import blank_image
from sightline.methods.multi_target import SupportsChosenTargets, multi_target
from sightline.methods.patching import prefix, record
from sightline.methods.patching import tokens as tokens_module
from sightline.methods.patching.caap import Caap, PatchingDetails
from sightline.methods.patching.e_caap import EfficientCaap
from sightline.methods.patching.neighbourhood import by_size, neighbourhoods, regions
from sightline.methods.patching.record import Patching
from sightline.models.passes import counting
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.zero_shot import zero_shot
from sightline.recipe import parse
from sightline.types import Contrast, Custom, LogProbability, PerImage


def same(got: Tensor, expected: Tensor) -> None:
    assert_close(got, expected, rtol=1e-9, atol=1e-11)


def layers_of(model: VisionTransformer, images: Tensor) -> list[Tensor]:
    """Return the tokens of every layer, h^0 to h^L."""
    tokens = [model.start(images)]
    for block in range(model.depth):
        tokens.append(model.step(tokens[-1], block, None))
    return tokens


def near(model: VisionTransformer, images: Tensor, cell: int, radius: int, shape: str = "box") -> list[int]:
    """Return where the neighbours of a cell stand in the sequence."""
    grid = model.grid_of(images)
    y, x = divmod(cell, grid.width)
    tokens = []
    for row in range(grid.height):
        for column in range(grid.width):
            apart = (abs(row - y), abs(column - x))
            if (max(apart) if shape == "box" else sum(apart)) <= radius:
                tokens.append(grid.prefix + row * grid.width + column)
    return tokens


def patch_by_patch(
    model: VisionTransformer, images: Tensor, blank: Tensor, start: int, last: int, radius: int, shape: str = "box"
) -> Tensor:
    """Algorithm 1 as it is printed: one whole sequence per patch. Returns the logits, (cell, class)."""
    source, empty = layers_of(model, images), layers_of(model, blank)
    prefix, logits = model.prefix, []
    for cell in range(model.grid_of(images).cells):
        patched = near(model, images, cell, radius, shape)
        free = empty[start][:, :prefix]
        moving = source[last][:, patched]
        for layer in range(start, model.depth):
            tokens = empty[layer].clone()
            tokens[:, :prefix] = free
            tokens[:, patched] = source[layer][:, patched] if layer <= last else moving
            after = model.step(tokens, layer, None)
            free = after[:, :prefix]
            if layer >= last:
                moving = after[:, patched]
        tokens = empty[model.depth].clone()
        tokens[:, :prefix] = free
        tokens[:, patched] = moving
        logits.append(model.finish(tokens))
    return torch.cat(logits)


def adapted(name: str) -> tuple[VisionTransformer, Tensor]:
    family = FAMILIES[name]
    single = name == "timm/rope_mixed"  # timm mixes its frequencies in float32 and fails in float64
    model = sightline.adapt(family.build() if single else family.build().double())
    assert isinstance(model, VisionTransformer)
    return model, families_vit.images(family, count=2).to(model.dtype)


@torch.no_grad()
def logits_of(model: VisionTransformer, images: Tensor, method: Caap) -> Tensor:
    """Return every logit of every cell, (batch, cell, class)."""
    classes = len(model(images[:1])[0])
    attributions = multi_target(method, model, images, [Logit(c) for c in range(classes)])
    return torch.stack([attribution.map.flatten(1) for attribution in attributions], dim=-1)


BIASED = [name for name in FAMILIES if "/beit" in name]  # attention adds a position bias of its own


@pytest.mark.parametrize("name", BIASED)
def test_attention_with_a_position_bias_is_refused(name: str) -> None:
    model, images = adapted(name)
    with pytest.raises(SiteError, match="a mask or position bias of its own, which a replacement would lose"):
        logits_of(model, images, Caap(last=1))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in BIASED])
def test_equals_algorithm_1_patch_by_patch_on_every_family(name: str) -> None:
    model, images = adapted(name)
    got = logits_of(model, images, Caap(last=1))
    with torch.no_grad():
        blank = model.normalise(torch.ones_like(images[:1]))
        expected = patch_by_patch(model, images[1:], blank, start=1, last=1, radius=1)
    if got.dtype == torch.float64:
        same(got[1], expected)
    assert_close(got[1], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("start", "last", "radius", "shape"),
    [(1, 3, 1, "box"), (0, 2, 1, "box"), (0, 0, 0, "box"), (2, 2, 2, "box"), (1, 1, 1, "manhattan"), (3, 3, 1, "box")],
)
@pytest.mark.parametrize("name", ["timm/vit", "timm/registers", "timm/classless", "transformers/dinov2", "timm/eva02"])
def test_layer_ranges_and_neighbourhoods(name: str, start: int, last: int, radius: int, shape: Any) -> None:
    model, images = adapted(name)
    got = logits_of(model, images[:1], Caap(start=start, last=last, radius=radius, shape=shape))
    with torch.no_grad():
        blank = model.normalise(torch.ones_like(images[:1]))
        expected = patch_by_patch(model, images[:1], blank, start, last, radius, shape)
    same(got[0], expected)


@pytest.mark.parametrize("name", ["timm/vit", "timm/gap", "timm/distilled", "transformers/registers", "timm/map"])
def test_frozen_is_the_last_layer_whatever_last_says(name: str) -> None:
    model, images = adapted(name)
    frozen = logits_of(model, images, Caap(frozen=True, last=1))
    assert torch.equal(frozen, logits_of(model, images, Caap(last=3)))
    assert not torch.allclose(frozen, logits_of(model, images, Caap(last=1)))


def test_the_default_last_layer_is_two_thirds_rounded_up() -> None:
    model = sightline.adapt(tiny.vit(depth=4).double())
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    assert isinstance(model, VisionTransformer)
    assert torch.equal(logits_of(model, images, Caap()), logits_of(model, images, Caap(last=3)))
    assert not torch.allclose(logits_of(model, images, Caap()), logits_of(model, images, Caap(last=2)))


@pytest.mark.parametrize("last", [0, 2, 3])
@pytest.mark.parametrize("name", ["timm/vit", "timm/registers", "timm/gap", "torchvision/vit", "open_clip/clip"])
def test_patching_everything_from_the_embedding_gives_the_image_itself(name: str, last: int) -> None:
    model, images = adapted(name)
    got = logits_of(model, images, Caap(start=0, last=last, radius=9))
    same(got, model(images).detach()[:, None].expand_as(got))


def test_without_a_class_token_patching_everything_gives_the_image_from_any_layer() -> None:
    model, images = adapted("timm/classless")
    got = logits_of(model, images, Caap(start=2, last=2, radius=9))
    same(got, model(images).detach()[:, None].expand_as(got))


@pytest.mark.parametrize("name", ["timm/vit", "timm/map", "timm/eva02_cls"])
def test_a_blank_image_among_blanks_says_nothing(name: str) -> None:
    model, images = adapted(name)
    blank = blank_image(model, images, "white")
    with torch.no_grad():
        attribution = Caap(last=1)(model, blank, Logit(2))
        expected = model(blank)[:, 2]
    assert isinstance(attribution.details, PatchingDetails)
    same(attribution.details.blank, expected)
    same(attribution.map, expected[:, None, None].expand_as(attribution.map))


def test_targets_share_one_run_and_the_score_follows_the_target(tiny_vit: nn.Module, images: Tensor) -> None:
    model = sightline.adapt(tiny_vit)
    targets = [Logit((1, 4)), Probability((1, 4)), LogProbability(2), Contrast(1, 3), Custom(lambda y: y.sum(1))]
    with torch.no_grad(), counting() as meter:
        attributions = Caap().multi_target(model, images, targets)
    assert meter.passes == Caap().multi_target_cost(model, len(targets)) * 2
    for target, shared in zip(targets, attributions, strict=True):
        alone = Caap()(model, images, target)
        assert torch.equal(alone.values, shared.values)
        assert torch.equal(alone.details.blank, shared.details.blank)
    probability = Caap(score="probability")
    assert torch.equal(probability(model, images, Logit((1, 4))).values, attributions[1].values)
    assert torch.equal(Caap(score="logit")(model, images, Probability((1, 4))).values, attributions[0].values)
    each = PerImage((Logit(1), LogProbability(4)))
    assert torch.equal(probability(model, images, each).values, attributions[1].values)
    assert torch.equal(probability(model, images, Contrast(1, 3)).values, attributions[3].values)


def test_small_batches_change_nothing(tiny_vit: nn.Module, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sightline.adapt(tiny_vit)
    whole = Caap(last=1)(model, images, Logit(1)).values
    for module in (prefix, tokens_module):
        monkeypatch.setattr(module, "TOKENS", 11)
    same(Caap(last=1)(model, images, Logit(1)).values, whole)


@pytest.mark.parametrize("name", ["white", "black", "mean", "noise", "blurred_noise"])
def test_every_blank(name: Any, images: Tensor) -> None:
    model = sightline.adapt(tiny.vit(depth=2).double())
    assert isinstance(model, VisionTransformer)
    blank = blank_image(model, images, name, seed=3)
    if name in ("white", "black"):
        assert_close(model.denormalise(blank), torch.full_like(blank, name == "white"))
    else:
        mean, deviation = float(blank.mean()), float(blank.std())
        assert abs(mean) < 0.05
        assert {"mean": deviation == 0, "noise": abs(deviation - 1) < 0.05}.get(name, 0 < deviation < 0.2)
    got = logits_of(model, images[:1], Caap(blank=name, seed=3, last=1))
    with torch.no_grad():
        same(got[0], patch_by_patch(model, images[:1], blank, 1, 1, 1))


def test_noise_follows_its_seed(tiny_vit: nn.Module, images: Tensor) -> None:
    model = sightline.adapt(tiny_vit)
    first, second = (Caap(blank="noise", seed=seed)(model, images, Logit(0)).values for seed in (0, 1))
    assert not torch.allclose(first, second)


def count_runs(model: nn.Module) -> list[int]:
    """Count the images that enter a model's patch embedding from now on, without a hook on it."""
    seen: list[int] = []
    embed: Any = model.patch_embed
    forward = embed.forward

    def counted(x: Tensor) -> Tensor:
        seen.append(len(x))
        return forward(x)  # type: ignore[no-any-return]

    embed.forward = counted
    return seen


def test_the_blank_run_is_kept_until_the_weights_change(tiny_vit: Any, images: Tensor) -> None:
    seen = count_runs(tiny_vit)
    first = sightline.explain(tiny_vit, images, "caap", target=0)
    assert sorted(seen) == [1, 2]
    again = sightline.explain(tiny_vit, images, "caap", target=0)
    assert sorted(seen) == [1, 2, 2]
    assert first.passes == again.passes
    assert torch.equal(first.values, again.values)
    for change in (
        lambda: tiny_vit.blocks[0].mlp.fc1.weight.detach().mul_(1.5),
        lambda: tiny_vit.blocks[1].norm1.bias.data.add_(0.3),
    ):
        seen.clear()
        with torch.no_grad():
            change()
        got = sightline.explain(tiny_vit, images, "caap", target=0).values
        assert sorted(seen) == [1, 2]
        fresh = tiny.vit().double()
        fresh.load_state_dict(tiny_vit.state_dict())
        assert torch.equal(got, sightline.explain(fresh, images, "caap", target=0).values)


def test_a_hooked_model_is_asked_every_time(tiny_vit: Any, images: Tensor) -> None:
    plain = sightline.explain(tiny_vit, images, "caap", target=0).values
    handle = tiny_vit.blocks[0].register_forward_hook(lambda _m, _a, out: out * 1.5)
    hooked = sightline.explain(tiny_vit, images, "caap", target=0)
    handle.remove()
    with torch.no_grad():
        white = sightline.adapt(tiny_vit).normalise(torch.ones_like(images[:1]))
        tokens = tiny_vit.norm_pre(tiny_vit._pos_embed(tiny_vit.patch_embed(white)))
        tokens = tiny_vit.blocks[2](tiny_vit.blocks[1](tiny_vit.blocks[0](tokens) * 1.5))
        expected = tiny_vit.forward_head(tiny_vit.norm(tokens))[:, 0]
    same(hooked.details.blank[:1], expected)
    assert torch.equal(sightline.explain(tiny_vit, images, "caap", target=0).values, plain)


def test_an_attention_stand_in_is_undone_on_every_path(tiny_vit: nn.Module, images: Tensor) -> None:
    model, before = sightline.adapt(tiny_vit), fingerprint(tiny_vit)
    assert isinstance(model, VisionTransformer)
    logits = tiny_vit(images)

    def written_out(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return (q @ k.mT * scale).softmax(-1) @ v

    def explode(*_: Any) -> Tensor:
        raise ZeroDivisionError

    with model.attend(dict.fromkeys(range(3), written_out)):
        assert_close(tiny_vit(images), logits)
    with pytest.raises(ZeroDivisionError), model.attend({1: explode}):
        tiny_vit(images)
    assert fingerprint(tiny_vit) == before
    assert torch.equal(tiny_vit(images), logits)


@pytest.mark.parametrize("name", ["timm/vit", "torchvision/vit", "transformers/vit", "open_clip/clip", "timm/eva02"])
def test_keys_and_values_are_those_the_block_makes(name: str) -> None:
    model, images = adapted(name)
    with torch.no_grad(), model.capture("block.1.input", "block.1.k", "block.1.v") as seen:
        model(images)
    with torch.no_grad():
        keys, values = model.keys_and_values(seen["block.1.input"], 1)
    same(keys, seen["block.1.k"])
    same(values, seen["block.1.v"])


def test_the_kept_blank_run_knows_nothing_of_the_classes() -> None:
    """Two sets of texts on one CLIP model share its blank tokens, and each has its own logits."""
    inner, images = adapted("open_clip/clip")
    for seed in (0, 1):
        texts = torch.randn(3, families_vit.EMBEDDING, generator=torch.Generator().manual_seed(seed)).double()
        model = zero_shot(inner, ["a", "b", "c"], embeddings=texts)
        got = logits_of(model, images[:1], Caap(last=1))
        with torch.no_grad():
            blank = model.normalise(torch.ones_like(images[:1]))
            same(got[0], patch_by_patch(model, images[:1], blank, 1, 1, 1))


def test_half_precision_and_inference_mode(tiny_vit: nn.Module, images: Tensor) -> None:
    exact = sightline.explain(tiny_vit, images, "caap(last=1)", target=1).values
    with torch.inference_mode():
        assert_close(sightline.explain(tiny_vit, images, "caap(last=1)", target=1).values, exact)
    half = sightline.explain(tiny_vit.to(torch.bfloat16), images, "caap(last=1)", target=1).values
    assert half.dtype == torch.float32
    assert_close(half, exact.float(), rtol=0.1, atol=0.1)


def test_neighbourhoods_by_hand() -> None:
    assert neighbourhoods(3, 3, 1, "manhattan")[4].int().tolist() == [0, 1, 0, 1, 1, 1, 0, 1, 0]
    assert neighbourhoods(3, 4, 1, "box")[0].nonzero()[:, 0].tolist() == [0, 1, 4, 5]
    assert [members.shape for _, members in by_size(14, 14, 1, "box")] == [(4, 4), (48, 6), (144, 9)]
    assert torch.equal(neighbourhoods(4, 4, 0, "box"), torch.eye(16, dtype=torch.bool))
    assert regions((2, 2), (3, 3), 0, "box")[0].int().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert torch.equal(regions((4, 4), (4, 4), 1, "manhattan").flatten(1), neighbourhoods(4, 4, 1, "manhattan"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"blank": "grey"}, "blank='grey'"),
        ({"radius": -1}, "radius=-1"),
        ({"shape": "disc"}, "shape='disc'"),
        ({"score": "odds"}, "score='odds'"),
        ({"start": 3, "last": 2}, "start=3 and last=2"),
    ],
)
def test_wrong_options_are_refused(options: Any, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        Caap(**options)


def test_layers_that_are_not_there_are_refused(tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(RecipeError, match="layers 0 to 3"):
        sightline.explain(tiny_vit, images, "caap(last=4)", target=0)


def test_a_black_box_is_refused(images: Tensor) -> None:
    with pytest.raises(UnsupportedModel, match="simple_insertion"):
        sightline.explain(lambda x: x.mean((2, 3)), images, "caap", target=0)


def test_cost_grows_with_tokens_and_blocks() -> None:
    model = sightline.adapt(tiny.vit(img_size=56, patch_size=4, depth=12))
    cells, tokens = 196, 197 * 12
    pairs = (3 * 14 - 2) ** 2
    frozen = (11 + 0.25) / 12 + cells * 11 / tokens  # of the image's own last block nothing but keys and values
    assert math.isclose(Caap(frozen=True).cost(model).forward, frozen)
    together = 4 * (cells + pairs) - 0.75 * pairs
    assert math.isclose(Caap().cost(model).forward, 8 / 12 + (7 * cells + together) / tokens)


@pytest.mark.parametrize("recipe", ["caap", "caap(frozen=True)", "e_caap"])
def test_classes_chosen_by_the_logits_cost_the_rest_of_the_image_s_run(
    recipe: str, tiny_vit: nn.Module, images: Tensor
) -> None:
    model, method = sightline.adapt(tiny_vit), parse(recipe)
    assert isinstance(method, SupportsChosenTargets)
    seen: list[Tensor] = []
    with torch.no_grad(), counting() as meter:
        (chosen,) = method.multi_target_chosen(model, images, lambda logits: seen.append(logits) or [Logit(1)])  # type: ignore[func-returns-value]
        same(seen[0], tiny_vit(images))
    declared = (method.cost(model) + method.choosing_cost(model)) * len(images)
    assert math.isclose(meter.passes.forward, declared.forward)
    assert torch.equal(chosen.values, method(model, images, Logit(1)).values)


PLAIN = ["timm/vit", "timm/registers", "timm/gap", "torchvision/vit", "transformers/vit", "open_clip/clip"]


def found(name: str) -> set[int]:
    """Return which blocks of a family are taken apart."""
    model, images = adapted(name)
    with torch.no_grad():
        return set(Patching("white", 0, 1, "box", 1, 1).blank_run(model, images)[1].plain)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("last", [1, 2, 3])
def test_taking_plain_blocks_apart_changes_nothing(name: str, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = adapted(name)
    assert {1, 2} <= found(name)
    apart = logits_of(model, images, Caap(last=last))
    efficient = EfficientCaap()(model, images, Logit(1)).values
    monkeypatch.setattr(record, "plain_block", lambda *_: None)
    model, images = adapted(name)  # another model has no blank run yet
    assert not found(name)
    same(apart, logits_of(model, images, Caap(last=last)))
    same(efficient, EfficientCaap()(model, images, Logit(1)).values)


@pytest.mark.parametrize("name", ["timm/eva02", "timm/qk_norm", "transformers/dinov3"])
def test_a_block_that_does_more_is_not_taken_apart(name: str) -> None:
    assert not found(name)


def test_a_hook_inside_a_block_keeps_it_whole(tiny_vit: Any, images: Tensor) -> None:
    handle = tiny_vit.blocks[1].register_forward_hook(lambda _m, _a, out: out * 1.01)
    model = sightline.adapt(tiny_vit)
    assert isinstance(model, VisionTransformer)
    with torch.no_grad():
        plain = Patching("white", 0, 1, "box", 1, 1).blank_run(model, images)[1].plain
        got = logits_of(model, images[:1], Caap(last=2))
        expected = patch_by_patch(model, images[:1], model.normalise(torch.ones_like(images[:1])), 1, 2, 1)
    handle.remove()
    assert set(plain) == {0, 2}
    same(got[0], expected)


def test_few_queries_at_a_time_change_nothing(tiny_vit: nn.Module, images: Tensor, monkeypatch: Any) -> None:
    model = sightline.adapt(tiny_vit)
    methods = (Caap(last=1), Caap(last=2, radius=2), Caap(frozen=True, shape="manhattan"), EfficientCaap())
    whole = [method(model, images, Logit(1)).values for method in methods]
    for module in (prefix, tokens_module):
        monkeypatch.setattr(module, "QUERIES", 5)
    for method, values in zip(methods, whole, strict=True):
        same(method(model, images, Logit(1)).values, values)
