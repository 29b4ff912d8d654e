"""A class-token model's last block runs for the prefix alone, unless somebody would miss the rest."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests import tiny
from tests.models.families_vit import FAMILIES, Family, images
from tests.models.fingerprint import changes, fingerprint
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import sightline
from sightline.models import adapt
from sightline.models.passes import undone_on_error
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.last_block import is_watched

WHOLE = {  # models that read the class token, and whose last block is run whole: what it has beside the plain parts
    "timm/qk_norm": "norms of queries and keys",
    "timm/eva02_cls": "rotary positions",
    "timm/rope_mixed": "rotary positions",
    "timm/beit_shared": "a bias for positions",
    "transformers/beit_shared": "a bias for positions",
    "transformers/dinov3": "rotary positions",
    "transformers/dinov3_gated": "rotary positions",
    "open_clip/qk_norm": "norms of queries and keys",
}
READS_PREFIX = [name for name, family in FAMILIES.items() if family.pool in ("cls", "cls+distilled")]


@pytest.fixture(autouse=True)
def _guarded() -> Iterator[None]:
    """Be where `explain` is when it calls a model."""
    with undone_on_error():
        yield


@pytest.fixture(autouse=True)
def _no_image_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.models.adapter.SMALL", 0)


def accepted(model: nn.Module, pixels: Tensor) -> VisionTransformer:
    """Adapt a model that has been given images, as `explain` does."""
    adapter = adapt(model)
    assert isinstance(adapter, VisionTransformer)
    adapter.accept(pixels)
    return adapter


def is_short(adapter: VisionTransformer) -> bool:
    return adapter._has_shorter_pass and not is_watched(adapter)


def work(adapter: VisionTransformer, pixels: Tensor) -> int:
    """Return the floating-point operations of a call."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        adapter(pixels)
    return counter.get_total_flops()


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def test_logits_and_gradients_are_those_of_the_whole_model(family: Family) -> None:
    model, pixels = family.build().double(), images(family).double()
    adapter = accepted(model, pixels)
    want, got = (each.clone().requires_grad_() for each in (pixels, pixels))
    whole, short = family.output(model, want), adapter(got)
    assert_close(short, whole, rtol=1e-9, atol=1e-9)
    gradients = (torch.autograd.grad(logits[:, 2].sum(), at)[0] for logits, at in ((short, got), (whole, want)))
    assert_close(*gradients, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", READS_PREFIX)
def test_which_models_run_it_for_the_prefix(name: str) -> None:
    family = FAMILIES[name]
    adapter = accepted(family.build(), images(family))
    assert is_short(adapter) == (name not in WHOLE)


@pytest.mark.parametrize("name", ["timm/gap", "transformers/dinov2", "timm/map"])
def test_a_model_that_reads_the_patches_runs_whole(name: str) -> None:
    family = FAMILIES[name]
    assert not is_short(accepted(family.build(), images(family)))


@pytest.fixture
def model() -> nn.Module:
    return FAMILIES["timm/vit"].build()


@pytest.fixture
def pixels() -> Tensor:
    return images(FAMILIES["timm/vit"])


def test_it_is_less_work(model: nn.Module, pixels: Tensor) -> None:
    whole, short = work(adapt(model), pixels), work(accepted(model, pixels), pixels)
    patches, channels, matrices = 16, 32, 10  # 2 of 12 make keys and values; the fused attention is not counted
    assert whole - short == 2 * len(pixels) * patches * matrices * channels**2


@pytest.mark.parametrize("name", ["blocks.2", "blocks.2.attn", "blocks.2.mlp.fc1", "norm", "head", "blocks", ""])
def test_whoever_watches_the_end_sees_all_tokens(model: nn.Module, pixels: Tensor, name: str) -> None:
    adapter, shapes = accepted(model, pixels), []
    hook = model.get_submodule(name).register_forward_hook(lambda *call: shapes.append(call[2].shape))
    with torch.no_grad():
        adapter(pixels)
    hook.remove()
    assert len(shapes) == 1
    assert name in ("head", "") or shapes[0][1] == 17
    assert is_short(adapter)


def test_a_module_with_a_forward_of_its_own_is_called(model: nn.Module, pixels: Tensor) -> None:
    adapter, block = accepted(model, pixels), model.get_submodule("blocks.2")
    block.forward = lambda tokens: 0 * tokens  # type: ignore[method-assign]
    with torch.no_grad():
        assert_close(adapter(pixels), model(pixels))


@pytest.mark.parametrize("site", ["block.0.input", "block.1.output", "block.2.input", "block.2.norm1"])
def test_captures_before_it_see_what_they_always_see(model: nn.Module, pixels: Tensor, site: str) -> None:
    adapter, plain = accepted(model, pixels), adapt(model)
    with torch.no_grad(), plain.capture(site) as want:
        plain(pixels)
    with torch.no_grad(), adapter.capture(site) as got:
        assert is_short(adapter)
        adapter(pixels)
    assert_close(got[site], want[site])


@pytest.mark.parametrize("site", ["block.1.probabilities", "block.2.output", "block.2.mlp", "block.2.v", "norm"])
def test_captures_of_the_end_see_all_tokens(model: nn.Module, pixels: Tensor, site: str) -> None:
    adapter = accepted(model, pixels)
    with torch.no_grad(), adapter.capture(site) as got:
        assert not is_short(adapter)
        adapter(pixels)
    assert got[site].shape[-2] == 17


def test_changed_weights_are_followed(model: nn.Module, pixels: Tensor) -> None:
    accepted(model, pixels)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
        assert_close(accepted(model, pixels)(pixels), model(pixels))


def test_an_exchanged_part_is_tried_again(model: nn.Module, pixels: Tensor) -> None:
    class Mixing(nn.Module):
        """An MLP that mixes tokens, so that it cannot be run for some of them."""

        def __init__(self, mlp: nn.Module) -> None:
            super().__init__()
            self.mlp = mlp

        def forward(self, tokens: Tensor) -> Tensor:
            return self.mlp(tokens) + tokens.mean(dim=1, keepdim=True)

    assert is_short(accepted(model, pixels))
    block = model.get_submodule("blocks.2")
    block.mlp = Mixing(block.mlp)
    adapter = accepted(model, pixels)
    assert not is_short(adapter)
    with torch.no_grad():
        assert_close(adapter(pixels), model(pixels))


def test_gradient_checkpointing_runs_the_model_itself(model: nn.Module, pixels: Tensor) -> None:
    model.set_grad_checkpointing(True)
    adapter = accepted(model, pixels)
    assert not is_short(adapter)


def test_dropped_tokens_run_it_too(model: nn.Module, pixels: Tensor) -> None:
    adapter, plain = accepted(model, pixels), adapt(model)
    with torch.no_grad():
        tokens = adapter.start(pixels)[:, :9]
        keep = torch.arange(8)
        want = plain.finish(plain.run(tokens, keep=keep))
        assert_close(adapter.logits_of(tokens, keep=keep), want)
        assert_close(adapter.logits_of(adapter.run(tokens, 0, 2), 2), want)
        assert_close(adapter.logits_of(adapter.run(tokens), 3), want)


def test_passes_count_as_before(model: nn.Module, pixels: Tensor) -> None:
    for recipe in ("gradient(at='pixels')", "ig(steps=3)", "rise(samples=8)", "ablation_cam"):
        built = sightline.parse(recipe)
        spent = sightline.explain(model, pixels, recipe, target=1).passes
        declared = built.cost(adapt(model)) * len(pixels)
        assert spent.forward == pytest.approx(declared.forward)


def explained(model: nn.Module, pixels: Tensor, recipe: str) -> tuple[Tensor, int]:
    """Return a method's values and its floating-point operations."""
    with FlopCounterMode(display=False) as counter:
        values = sightline.explain(model, pixels, recipe, target=2).values
    return values, counter.get_total_flops()


WATCHING = ("gae", "plus(gae)", "gae(start=2)", "grad_sam(rows='mean')", "bi_attn(steps=2)", "att_grad",
            "t_attr", "t_attr(variant='mda')", "partial_lrp(variant='gradient')")  # fmt: skip


@pytest.mark.parametrize("recipe", WATCHING)
@pytest.mark.parametrize("name", ["timm/registers", "timm/distilled", "torchvision/vit", "transformers/vit"])
def test_maps_of_attention_and_its_gradient_are_those_of_the_whole_block(
    name: str, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pixels = FAMILIES[name].build().double(), images(FAMILIES[name]).double()
    explained(model, pixels, recipe)  # the model is looked at once
    got, less = explained(model, pixels, recipe)
    monkeypatch.setattr(VisionTransformer, "unwatched_last_block", lambda _: None)
    want, more = explained(model, pixels, recipe)
    assert_close(got, want, rtol=1e-8, atol=1e-12)
    assert less < more


def test_a_direct_call_gives_what_the_model_gives(model: nn.Module, pixels: Tensor) -> None:
    adapter = accepted(model, pixels)
    with ThreadPoolExecutor() as other, torch.no_grad():  # where nothing is guarded
        assert torch.equal(other.submit(lambda: adapter.predict(pixels)).result(), model(pixels))


def test_small_images_run_whole(model: nn.Module, pixels: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.models.adapter.SMALL", 32 * 32)
    assert not is_short(accepted(model, pixels))


def test_the_model_is_left_as_it_was() -> None:
    model = tiny.vit()
    model.train()
    before = fingerprint(model)
    adapter = accepted(model, torch.randn(2, 3, 32, 32))
    with torch.no_grad():
        adapter(torch.randn(2, 3, 32, 32))
    assert not changes(before, fingerprint(model))
