"""FullGrad+ and Libra: biases once, and what each equals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.errors import RecipeError, UnsupportedMethod
from sightline.methods.gradient.full_grad import full_grad_terms


def explained(model: nn.Module, images: Tensor, recipe: str) -> Tensor:
    return sightline.explain(model, images, recipe, target=1).values


@pytest.mark.parametrize("rules", ["{}", "libra({})"])
def test_it_is_the_sum_of_the_inputs_and_the_biases_once(rules: str, tiny_vit: nn.Module, images: Tensor) -> None:
    full = explained(tiny_vit, images, rules.format("full_grad"))
    ixg = explained(tiny_vit, images, rules.format("ixg"))
    biases = full - ixg
    assert_close(explained(tiny_vit, images, rules.format("full_grad_plus"))[0], ixg.sum(dim=0) + biases[0])
    late = explained(tiny_vit, images, rules.format("full_grad_plus(start=1)"))[0]
    assert_close(late, ixg[1:].sum(dim=0) + biases[1])
    assert_close(explained(tiny_vit, images, rules.format("full_grad_plus(start='half')"))[0], ixg[2] + biases[2])
    assert not torch.allclose(explained(tiny_vit, images, rules.format("plus(full_grad)"))[0], ixg.sum(0) + biases[0])


def test_libra_inside_is_libra_outside(tiny_vit: nn.Module, images: Tensor) -> None:
    want = explained(tiny_vit, images, "libra(full_grad_plus)")
    assert_close(explained(tiny_vit, images, "full_grad_plus(libra(ixg))"), want)
    assert_close(explained(tiny_vit, images, "full_grad_plus(libra(full_grad))"), want)


def test_over_another_method_it_adds_the_same_biases(tiny_vit: nn.Module, images: Tensor) -> None:
    biases = explained(tiny_vit, images, "full_grad_plus") - explained(tiny_vit, images, "plus(ixg)")
    want = explained(tiny_vit, images, "plus(gae)") + biases
    assert_close(explained(tiny_vit, images, "full_grad_plus(gae)"), want)


def test_the_account_closes_under_libra_only(tiny_vit: nn.Module, images: Tensor) -> None:
    logit = tiny_vit(images)[:, 1]
    balanced = sightline.explain(tiny_vit, images, "libra(full_grad)", target=1)
    assert_close(balanced.details.total, logit.expand(3, -1).detach(), rtol=0, atol=1e-12)
    on_patches = balanced.values.flatten(2).sum(dim=-1)
    assert not torch.allclose(on_patches, logit)  # the class token has its share
    plain = sightline.explain(tiny_vit, images, "full_grad", target=1)
    assert (plain.details.total - logit).abs().max() > 0.01


def test_one_backward_pass_for_everything(tiny_vit: nn.Module, images: Tensor) -> None:
    for recipe in ("full_grad_plus", "libra(full_grad_plus)", "plus(libra(ixg))", "skip_plus(libra(full_grad))"):
        passes = sightline.explain(tiny_vit, images, recipe, target=1).passes
        assert (passes.forward, passes.backward) == (2, 2), recipe


def test_biases_are_counted_where_they_act(tiny_vit: nn.Module, images: Tensor) -> None:
    """A model without biases has none to show."""
    with torch.no_grad():
        for name, parameter in tiny_vit.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    adapter = sightline.adapt(tiny_vit)
    assert isinstance(adapter, sightline.models.vit.adapter.VisionTransformer)
    account = full_grad_terms(adapter, images, [sightline.Logit(1)])[0]
    assert account.biases.abs().max() == 0
    assert account.rest.abs().max() == 0


def test_what_it_refuses(tiny_vit: nn.Module, tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(RecipeError, match="blocks 0 to 2"):
        explained(tiny_vit, images, "full_grad_plus(start=3)")
    with pytest.raises(UnsupportedMethod, match="transformers only"):
        explained(tiny_cnn, images, "full_grad_plus")
