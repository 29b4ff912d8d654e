"""Balanced gradients: the forward pass is untouched, each rule has its closed form, and the books balance."""

from __future__ import annotations

import pytest
import torch
from tests.models.families_vit import FAMILIES, images
from tests.models.fingerprint import fingerprint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline import Logit
from sightline.methods.gradient.full_grad import full_grad_terms
from sightline.models.backward import libra
from sightline.models.backward.libra import balanced

every_family = pytest.mark.parametrize("name", FAMILIES)
HEADS_NOT_HOMOGENEOUS = {"torchvision/representation"}  # a tanh in front of the classifier


def gradient(function: object, x: Tensor, preset: str = "libra") -> Tensor:
    x = x.detach().requires_grad_()
    with balanced(preset):  # type: ignore[arg-type]
        found: Tensor = torch.autograd.grad(function(x).sum(), x)[0]  # type: ignore[operator]
    return found


@pytest.fixture
def tokens() -> Tensor:
    return torch.randn(2, 5, 8, dtype=torch.float64)


@every_family
@pytest.mark.parametrize("preset", ["libra", "libra_unit", "attn_lrp", "ali_lrp"])
def test_the_forward_pass_is_the_same_bit_by_bit(name: str, preset: str) -> None:
    family = FAMILIES[name]
    model, x = family.build(), images(family)
    adapter = sightline.adapt(model)
    want, before = adapter(x).detach(), fingerprint(model)
    with balanced(preset):  # type: ignore[arg-type]
        got = adapter(x)
    assert torch.equal(got, want)
    assert got.requires_grad
    assert fingerprint(model) == before


@every_family
def test_inputs_and_biases_sum_to_the_logit_from_every_layer(name: str) -> None:
    family = FAMILIES[name]
    model, x = family.build(), images(family)
    adapter = sightline.adapt(model)
    assert isinstance(adapter, sightline.models.vit.adapter.VisionTransformer)
    with torch.no_grad(), balanced():
        account = full_grad_terms(adapter, x, [Logit(1)])[0]
    want = adapter(x).detach()[:, 1]
    plain = full_grad_terms(adapter, x, [Logit(1)])[0]
    assert not torch.allclose(plain.total, want.expand_as(plain.total), rtol=0.05, atol=0.05)
    if name not in HEADS_NOT_HOMOGENEOUS:
        assert_close(account.total, want.expand_as(account.total), rtol=1e-5, atol=1e-5)


def test_a_norms_denominator_is_a_constant_and_its_mean_is_not(tokens: Tensor) -> None:
    weight, bias = torch.randn(2, 8, dtype=torch.float64)
    got = gradient(lambda x: F.layer_norm(x, (8,), weight, bias, 1e-6)[..., 3], tokens)
    unit = torch.zeros(8, dtype=torch.float64)
    unit[3] = 1
    spread = (tokens.var(dim=-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
    assert_close(got, ((unit - 1 / 8) * weight[3]).expand_as(tokens) / spread)


@pytest.mark.parametrize("groups", [1, 4])
def test_group_norms_likewise(groups: int) -> None:
    x = torch.randn(2, 8, 3, 3, dtype=torch.float64)
    layer = nn.GroupNorm(groups, 8).double()
    nn.init.normal_(layer.weight)
    assert_close((gradient(layer, x) * x).sum(), (layer(x) - layer.bias[:, None, None]).sum())


@pytest.mark.parametrize("written_out", [False, True])
def test_root_mean_square_norms_too(written_out: bool, tokens: Tensor) -> None:
    def norm(x: Tensor) -> Tensor:
        if written_out:
            return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
        return F.rms_norm(x, (8,), eps=1e-6)

    length = (tokens.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
    assert_close(gradient(norm, tokens), (1 / length).expand_as(tokens))


@pytest.mark.parametrize(
    "activation",
    [
        nn.GELU(),
        nn.GELU(approximate="tanh"),
        nn.SiLU(),
        nn.SiLU(inplace=True),
        nn.Hardswish(),
        nn.Mish(),
        lambda u: u * torch.sigmoid(1.702 * u),
        lambda u: 0.5 * u * (1 + torch.tanh(0.8 * (u + 0.04 * u**3))),
    ],
    ids=["gelu", "gelu_tanh", "silu", "silu_inplace", "hardswish", "mish", "quick_gelu", "gelu_written_out"],
)
def test_gates_of_activations_are_constants(activation: object, tokens: Tensor) -> None:
    want = activation(tokens.clone())  # type: ignore[operator]
    assert_close(gradient(lambda u: activation(u.clone()), tokens) * tokens, want)  # type: ignore[operator]


def test_a_sigmoid_on_the_logits_keeps_its_gradient() -> None:
    logits = torch.randn(3, 5, dtype=torch.float64)
    p = logits.sigmoid()
    assert_close(gradient(torch.sigmoid, logits), p * (1 - p))


def test_attention_passes_gradients_through_the_values_alone(tokens: Tensor) -> None:
    q, k = torch.randn(2, 2, 1, 5, 8, dtype=torch.float64)
    fused = gradient(lambda x: F.scaled_dot_product_attention(q + x[:, None], k + x[:, None], x[:, None]), tokens)
    score = (q + tokens[:, None]) @ (k + tokens[:, None]).mT / 8**0.5
    want = (score.softmax(dim=-1).mT @ torch.ones(2, 1, 5, 8, dtype=torch.float64))[:, 0]
    assert_close(fused, want)


@pytest.mark.parametrize("scores", [1, 7 * 2 * 5, 2**20])
@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"attn_mask": True}, {"is_causal": True}], ids=str)
def test_the_values_gradient_is_the_probabilities_whatever_is_computed_at_once(
    scores: int, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libra, "SCORES", scores)
    q, k, v, weight = torch.randn(4, 1, 2, 5, 8, dtype=torch.float64)
    if options.get("attn_mask"):
        options = {"attn_mask": torch.randn(5, 5, dtype=torch.float64)}
    attend = F.scaled_dot_product_attention
    found = gradient(lambda x: attend(q + x, k - x, x, **options) * weight, v)  # type: ignore[arg-type]
    held = v.clone().requires_grad_()
    (want,) = torch.autograd.grad((attend(q + v, k - v, held, **options) * weight).sum(), held)  # type: ignore[arg-type]
    assert_close(found, want)


@pytest.mark.parametrize("activation", [F.gelu, F.silu, F.hardswish, F.mish])
def test_the_gate_at_zero_is_the_activations_slope_there(activation: object) -> None:
    zeros = torch.zeros(1, 2, 3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(activation(zeros).sum(), zeros)  # type: ignore[operator]
    assert_close(gradient(activation, zeros), slope)


def test_what_an_activation_returns_may_be_written_in_place(tokens: Tensor) -> None:
    assert_close(gradient(lambda u: F.gelu(u).mul_(3), tokens), 3 * gradient(F.gelu, tokens))


def test_multi_head_attention_as_torch_computes_it(tokens: Tensor) -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True).double()
    want = layer(tokens, tokens, tokens, need_weights=False)[0]
    with balanced():
        got = layer(tokens.requires_grad_(), tokens, tokens, need_weights=False)[0]
    assert torch.equal(got, want)
    free = layer.in_proj_bias[16:] @ layer.out_proj.weight.T + layer.out_proj.bias  # what the values' biases add
    found = torch.autograd.grad(got.sum(), tokens)[0]
    assert_close((found * tokens).sum(), (want - free).sum())


def test_a_gated_mlp_gives_each_factor_half(tokens: Tensor) -> None:
    a, b = (nn.Linear(8, 6, bias=False).double() for _ in range(2))

    def gated(x: Tensor) -> Tensor:
        return F.silu(a(x)) * b(x)

    assert_close((gradient(gated, tokens) * tokens).sum(), gated(tokens).sum())
    doubled = gradient(gated, tokens, "ali_lrp") * tokens
    assert not torch.allclose(doubled.sum(), gated(tokens).sum())


def test_layer_scales_and_tables_are_no_second_stream(tokens: Tensor) -> None:
    scale = nn.Parameter(torch.randn(8, dtype=torch.float64))
    table = torch.randn(2, 5, 8, dtype=torch.float64)
    assert_close(gradient(lambda x: x * scale, tokens), scale.expand_as(tokens).detach())
    assert_close(gradient(lambda x: x * table, tokens), table)


def test_attn_lrp_keeps_the_softmax(tokens: Tensor) -> None:
    def attend(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])

    plain = tokens.detach().requires_grad_()
    want = torch.autograd.grad(attend(plain).sum(), plain)[0]
    values = gradient(attend, tokens)
    assert_close(gradient(attend, tokens, "attn_lrp"), values / 2 + (want - values) / 4)


def test_a_unit_vectors_length_is_a_constant_only_on_request() -> None:
    x = torch.randn(3, 6, dtype=torch.float64)
    free = gradient(lambda v: F.normalize(v, dim=-1)[:, 0], x)
    fixed = gradient(lambda v: F.normalize(v, dim=-1)[:, 0], x, "libra_unit")
    assert_close((fixed * x).sum(dim=-1), F.normalize(x, dim=-1)[:, 0])
    assert not torch.allclose((free * x).sum(dim=-1), F.normalize(x, dim=-1)[:, 0])


def test_nothing_lasts_beyond_the_context(tokens: Tensor) -> None:
    with pytest.raises(ZeroDivisionError), balanced():
        raise ZeroDivisionError
    plain = tokens.detach().requires_grad_()
    got = torch.autograd.grad(F.gelu(plain).sum(), plain)[0]
    assert not torch.allclose(got * tokens, F.gelu(tokens))
