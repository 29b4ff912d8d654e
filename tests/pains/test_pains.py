"""What users of other tools complain about, one test per complaint: none of it may happen here."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from PIL import Image
from tests import tiny
from tests.models.fingerprint import fingerprint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.extras import require
from sightline.models.vit.adapter import VisionTransformer


def timm_model(name: str, **options: Any) -> nn.Module:
    """A timm model of the right kind, small, with random weights."""
    torch.manual_seed(0)
    model: nn.Module = require("timm").create_model(name, num_classes=5, **options)
    return model.eval()


@pytest.mark.parametrize(("name", "options", "size", "grid"), [
    ("vit_tiny_patch16_224", {"depth": 2, "img_size": 64}, 64, (4, 4)),
    ("vit_tiny_patch16_224", {"depth": 2, "img_size": (32, 96)}, (32, 96), (2, 6)),
    ("deit_tiny_distilled_patch16_224", {"depth": 2, "img_size": 64}, 64, (4, 4)),
    ("vit_small_patch14_reg4_dinov2", {"depth": 2, "img_size": 56, "embed_dim": 48, "num_heads": 3}, 56, (4, 4)),
    ("swin_tiny_patch4_window7_224", {"embed_dim": 24, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 3, 6)}, 224, (7, 7)),
    ("swinv2_tiny_window8_256", {"embed_dim": 24, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 3, 6)}, 256, (8, 8)),
    ("vit_tiny_r_s16_p8_224", {"depth": 2}, 224, (7, 7)),
    ("resnet18", {}, 64, (2, 2)),
    ("convnext_atto", {}, 64, (2, 2)),
])  # fmt: skip
def test_reshape_nobody_writes_a_reshape_transform(name: str, options: Any, size: Any, grid: Any) -> None:
    height, width = (size, size) if isinstance(size, int) else size
    images = torch.randn(2, 3, height, width)
    attribution = sightline.explain(timm_model(name, **options), images, "grad_cam", target=1)
    assert attribution.map.shape == (2, *grid)
    assert attribution.pixels().shape == (2, height, width)


def test_which_layer_is_chosen_and_can_be_asked() -> None:
    vit = sightline.adapt(timm_model("vit_tiny_patch16_224", depth=2, img_size=64))
    resnet = sightline.adapt(timm_model("resnet18"))
    assert vit.layer() == "block.1.norm1"
    assert resnet.layer().startswith("layer4")


def test_cls_zero_gradient_the_default_layer_has_a_gradient_and_a_dead_one_is_named(tiny_vit, images) -> None:
    assert sightline.explain(tiny_vit, images, "grad_cam", target=1).map.abs().sum() > 0
    with pytest.raises(errors.SiteError, match="patches no longer feed the output there; leave out layer="):
        sightline.explain(tiny_vit, images, "grad_cam(layer='block.2.output')", target=1)


def test_fused_attention_is_seen_and_stays_fused(tiny_vit: nn.Module, images: Tensor) -> None:
    assert all(block.attn.fused_attn for block in tiny_vit.blocks)  # type: ignore[union-attr]
    before = fingerprint(tiny_vit)
    with sightline.adapt(tiny_vit).capture("block.*.probabilities") as seen:
        logits = tiny_vit(images)
    assert len(seen) == 3
    assert all(torch.allclose(p.sum(dim=-1), torch.ones(()).double()) for p in seen.values())
    assert fingerprint(tiny_vit) == before
    assert_close(logits, tiny_vit(images))


def test_attention_that_was_never_fused_is_seen_too(images: Tensor) -> None:
    model = tiny.vit().double()
    for block in model.blocks:  # type: ignore[union-attr]
        block.attn.fused_attn = False
    want = sightline.explain(tiny.vit().double(), images, "gae", target=1).values
    assert_close(sightline.explain(model, images, "gae", target=1).values, want)
    with sightline.adapt(model).capture("block.0.q", "block.0.v") as seen:
        model(images)
    assert seen["block.0.q"].shape == (2, 2, 17, 8)
    assert not any(block.attn.fused_attn for block in model.blocks)  # type: ignore[union-attr]


class Own(nn.Module):
    """A user's own module around a library's transformer: normalisation inside, a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = tiny.vit(num_classes=0)
        self.head = nn.Linear(16, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.backbone(pixels * 2 - 1))


def test_own_model_around_a_transformer_has_attention_and_tokens(images: Tensor) -> None:
    model = Own().eval().double()
    for recipe in ("gae", "rollout", "skip_plus(ixg)", "grad_cam", "ig(steps=2)"):
        assert torch.isfinite(sightline.explain(model, images, recipe, target=2).values).all()
    assert isinstance(sightline.adapt(model), VisionTransformer)
    attention = sightline.explain(model.backbone, images * 2 - 1, "rollout", target=0).map
    assert_close(sightline.explain(model, images, "rollout", target=2).map, attention)


def test_own_cnn_needs_no_rewriting(tiny_cnn: nn.Module, images: Tensor) -> None:
    for recipe in ("grad_cam", "ixg", "ig(steps=2)", "smooth_grad(samples=2)"):
        assert torch.isfinite(sightline.explain(tiny_cnn, images, recipe, target=2).values).all()


class Wrapped(nn.Module):
    """A network whose answer comes wrapped."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.inner, self.wrap = tiny.Cnn(), wrap

    def forward(self, images: Tensor) -> Any:
        return self.wrap(self.inner(images))


class Output(dict):  # type: ignore[type-arg]
    """As transformers' output objects: a dict with attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@pytest.mark.parametrize("wrap", [
    lambda z: Output(logits=z, hidden_states=None), lambda z: {"logits": z, "features": z.mean()}, lambda z: {"out": z},
    lambda z: (z, z.sum()), lambda z: [z],
], ids=["output", "dict", "only", "tuple", "list"])  # fmt: skip
def test_hugging_face_outputs_dicts_and_tuples_are_read(wrap: Any, images: Tensor, tiny_cnn: nn.Module) -> None:
    model = Wrapped(wrap).eval().double()
    for recipe in ("ixg", "grad_cam"):
        assert_close(
            sightline.explain(model, images, recipe, target=1).values,
            sightline.explain(tiny_cnn, images, recipe, target=1).values,
        )


@pytest.mark.parametrize("wrap", [lambda z: {"a": z, "b": z}, lambda z: "cat", lambda z: z.sum(), lambda z: (z[0],)])
def test_an_answer_without_logits_is_refused_in_one_sentence(wrap: Any, images: Tensor) -> None:
    with pytest.raises(errors.UnsupportedModel, match=r"logits of shape \(batch, class\) are needed: wrap the model"):
        sightline.explain(Wrapped(wrap).eval().double(), images, "ixg", target=1)


def test_real_hugging_face_models_work_as_they_come() -> None:
    transformers = require("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
        num_labels=5,
    )
    model = transformers.ViTForImageClassification(config).eval()
    for recipe in ("gae", "plus(ixg)", "grad_cam"):
        assert sightline.explain(model, torch.randn(2, 3, 32, 32), recipe, target=1).map.shape == (2, 4, 4)


def test_batch_semantics_no_image_is_left_blank_and_one_target_serves_all(tiny_vit, images) -> None:
    one = sightline.explain(tiny_vit, images, "gae", target=2).map
    assert one.flatten(1).abs().sum(dim=1).min() > 0
    assert_close(one, sightline.explain(tiny_vit, images, "gae", target=[2, 2]).map)
    with pytest.raises(errors.TargetError, match="got 3 targets for 2 images"):
        sightline.explain(tiny_vit, images, "gae", target=[2, 2, 2])


class Dead(nn.Module):
    """A network that ignores its input: no map can say anything."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :4] * 0 + 1


def test_blank_maps_are_zeros_with_a_warning_never_nan(images: Tensor) -> None:
    with pytest.warns(errors.SightlineWarning, match="gave a constant map for 2 of 2 images"):
        attribution = sightline.explain(Dead().eval(), images, "ixg", target=0)
    assert torch.equal(attribution.values, torch.zeros_like(attribution.values))
    assert attribution.flags == ("constant map", "constant map")


def test_negative_maps_stay_negative_and_unscaled(tiny_cnn: nn.Module, images: Tensor) -> None:
    values = sightline.explain(tiny_cnn, images, "grad_cam", target=1).values
    opposite = sightline.explain(tiny_cnn, images, "grad_cam", target=lambda z: -3 * z[:, 1]).values
    assert_close(opposite, -3 * values)


def test_nan_weights_are_reported_not_painted(tiny_vit: nn.Module, images: Tensor) -> None:
    with torch.no_grad():
        tiny_vit.blocks[1].mlp.fc1.weight[0, 0] = torch.nan  # type: ignore[index,union-attr]
    with pytest.raises(errors.NumericalError, match="returned NaN or infinite logits"):
        sightline.explain(tiny_vit, images, "ixg")
    with pytest.raises(errors.NumericalError, match="ixg gave NaN or infinite values"):
        sightline.explain(tiny_vit, images, "ixg", target=1)


class Functional(nn.Module):
    """The same network as `tiny.Cnn` with functional, out-of-place activations."""

    def __init__(self, cnn: nn.Module) -> None:
        super().__init__()
        self.cnn = cnn

    def forward(self, images: Tensor) -> Tensor:
        cnn: Any = self.cnn
        x = F.relu(cnn.norm1(cnn.conv1(images)))
        x = F.relu(cnn.norm2(cnn.conv2(x)))
        return cnn.head(F.relu(cnn.conv3(x)).mean(dim=(2, 3)))  # type: ignore[no-any-return]


def test_in_place_and_reused_activations_change_nothing(tiny_cnn: nn.Module, images: Tensor) -> None:
    functional = Functional(tiny_cnn).eval()
    for recipe in ("ixg", "ig(steps=3)", "grad_cam(layer='{}norm1')", "grad_cam(layer='{}conv3')"):
        got = sightline.explain(tiny_cnn, images, recipe.format(""), target=1).values
        assert_close(got, sightline.explain(functional, images, recipe.format("cnn."), target=1).values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("recipe", ["gae", "plus(ixg)", "grad_cam", "ig(steps=2)", "rollout"])
def test_half_precision_gives_float32_maps_close_to_the_full_ones(dtype: torch.dtype, recipe: str) -> None:
    images = torch.randn(1, 3, 32, 32)
    full = sightline.explain(tiny.vit(), images, recipe, target=1).map
    half = sightline.explain(tiny.vit().to(dtype), images, recipe, target=1).map
    assert half.dtype == torch.float32
    assert torch.corrcoef(torch.stack([full.flatten(), half.flatten()]))[0, 1] > 0.9


def test_non_determinism_a_model_with_dropout_in_train_mode_is_explained_in_eval_mode(images: Tensor) -> None:
    model = tiny.vit(attn_drop_rate=0.5, proj_drop_rate=0.5).double().train()
    with pytest.warns(errors.SightlineWarning, match="is in train mode; it is explained in eval mode"):
        first = sightline.explain(model, images, "gae", target=1).values
    assert all(module.training for module in model.modules())
    with warnings.catch_warnings(action="ignore"):
        second = sightline.explain(model, images, "gae", target=1).values
    assert torch.equal(first, second)


def test_non_determinism_the_global_generator_is_neither_used_nor_moved(tiny_vit: nn.Module, images: Tensor) -> None:
    torch.manual_seed(1)
    first = sightline.explain(tiny_vit, images, "smooth_grad(samples=2)", target=1).values
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = sightline.explain(tiny_vit, images, "smooth_grad(samples=2)", target=1).values
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def live_tensors() -> int:
    gc.collect()
    return sum(1 for thing in gc.get_objects() if type(thing) is Tensor)


def test_leaks_in_a_loop_no_tensor_and_no_hook_stays(tiny_vit: nn.Module, images: Tensor) -> None:
    recipes = ["gae", "smooth(ixg, samples=2)", "grad_cam", "ig(steps=2)", "rollout"]
    for recipe in recipes:
        sightline.explain(tiny_vit, images, recipe, target=1)
    before = live_tensors()
    for _ in range(5):
        for recipe in recipes:
            sightline.explain(tiny_vit, images, recipe, target=1)
    assert live_tensors() <= before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in tiny_vit.modules())


def test_a_model_that_nobody_holds_is_freed(images: Tensor) -> None:
    model = tiny.vit().double()
    gone = weakref.ref(model)
    sightline.explain(model, images, "gae", target=1)
    del model
    gc.collect()
    assert gone() is None


def test_a_compiled_model_is_unwrapped_with_a_warning(tiny_vit: nn.Module, images: Tensor) -> None:
    compiled = torch.compile(tiny_vit, backend="eager")
    with pytest.warns(errors.SightlineWarning, match="the model is compiled; sightline explains the original"):
        got = sightline.explain(compiled, images, "gae", target=1).values
    assert_close(got, sightline.explain(tiny_vit, images, "gae", target=1).values)


def test_the_users_gradients_and_flags_are_not_touched(tiny_vit: nn.Module, images: Tensor) -> None:
    tiny_vit(images).sum().backward()
    tiny_vit.head.weight.requires_grad_(False)  # type: ignore[union-attr]
    before = fingerprint(tiny_vit)
    sightline.explain(tiny_vit, images, "gae", target=1)
    sightline.explain(tiny_vit, images, "ixg(at='pixels')", target=1)
    assert fingerprint(tiny_vit) == before
    assert not images.requires_grad


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_caller_without_gradients_still_gets_them(context: Any, tiny_vit: nn.Module, images: Tensor) -> None:
    want = sightline.explain(tiny_vit, images, "gae", target=1).values
    with context():
        assert_close(sightline.explain(tiny_vit, images.clone(), "gae", target=1).values, want)
        assert sightline.explain(tiny_vit, images.clone(), "ig(steps=2)", target=1).values.abs().sum() > 0


def test_frozen_parameters_do_not_matter(tiny_vit: nn.Module, images: Tensor) -> None:
    want = sightline.explain(tiny_vit, images, "gae", target=1).values
    assert_close(sightline.explain(tiny_vit.requires_grad_(False), images, "gae", target=1).values, want)


def test_attention_on_a_cnn_names_the_methods_that_work(tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(
        errors.UnsupportedModel, match=r"rollout needs attention maps; Cnn has none\. Methods that work: .*grad_cam"
    ):
        sightline.explain(tiny_cnn, images, "rollout", target=0)


def test_gradient_checkpointing_does_not_hide_the_blocks(tiny_vit: nn.Module, images: Tensor) -> None:
    want = sightline.explain(tiny_vit, images, "gae", target=1).values
    tiny_vit.set_grad_checkpointing(True)  # type: ignore[operator]
    assert_close(sightline.explain(tiny_vit, images, "gae", target=1).values, want)
    assert tiny_vit.grad_checkpointing is True


def test_a_head_of_ones_own_tells_the_number_of_classes(tiny_vit: nn.Module, images: Tensor) -> None:
    tiny_vit.head = nn.Linear(16, 9).double().eval()
    assert sightline.adapt(tiny_vit).num_classes == 9
    assert sightline.explain(tiny_vit, images, "ixg", target=8).map.shape == (2, 4, 4)


def test_a_model_built_for_another_size_prepares_its_pictures_for_it() -> None:
    model = timm_model("vit_tiny_patch16_224", depth=1, img_size=64)
    assert sightline.explain(model, Image.new("RGB", (90, 70), "red"), "rollout", target=1).map.shape == (1, 4, 4)
