"""Token decompositions of single blocks: the formulas written out with loops, then laws, then what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import tiny
from tests.models.families_vit import FAMILIES
from tests.models.families_vit import images as family_images
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline.errors import RecipeError
from sightline.extras import require
from sightline.methods.attention.token_matrices import rows_to_one
from sightline.methods.decomposition import norms as decomposition
from sightline.methods.decomposition.norms import Alti, AttentionTimesNorm, quadratic
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.parts import Parts, read_parts
from sightline.recipe import parse

MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": tiny.vit,
    "registers": lambda: tiny.vit(reg_tokens=2, init_values=0.5, qk_norm=True),
    "pooled": lambda: tiny.vit(global_pool="avg", class_token=False),
    "norm first": lambda: tiny.vit(pre_norm=True),
    "no biases": lambda: tiny.vit(qkv_bias=False, proj_bias=False),
}
RECIPES = [
    "att_in",
    "att_in(residual=True)",
    "att_in(variant='per_head')",
    "globenc",
    "globenc(identity=True)",
    "alti",
    "alti(variant='skipplus')",
]


# ---- the formulas, one pair of tokens after the other ----------------------------------------------------------------


def linearly(norm: Any, vector: Tensor, tokens_of: Tensor) -> Tensor:
    """A layer norm without its bias, with the deviation of other numbers."""
    return (vector - vector.mean()) / (tokens_of.var(unbiased=False) + norm.eps).sqrt() * norm.weight


def gain(layer: Any) -> Tensor | float:
    return getattr(layer, "gamma", 1.0)


def length(vector: Tensor) -> Tensor:
    return (vector * vector).sum() ** 0.5


def heads_of(block: Any, tokens: Tensor, *, biased: bool) -> list[tuple[Tensor, list[Tensor]]]:
    """Attention (to, from) of each head, with what it writes for each token, for one image's tokens."""
    size = block.attn.head_dim
    q, k, v = block.attn.qkv(block.norm1(tokens)).unflatten(-1, (3, -1, size)).unbind(dim=1)
    q, k = block.attn.q_norm(q), block.attn.k_norm(k)
    blocks = []
    for head in range(block.attn.num_heads):
        values = list(v[:, head])
        if not biased:
            weight = block.attn.qkv.weight.unflatten(0, (3, -1, size))[2, head]
            values = [weight @ linearly(block.norm1, token, token) for token in tokens]
        projection = block.attn.proj.weight[:, head * size : (head + 1) * size]
        attention = (q[:, head] @ k[:, head].T / size**0.5).softmax(dim=-1)
        blocks.append((attention, [gain(block.ls1) * (projection @ value) for value in values]))
    return blocks


def naive(recipe: str, block: Any, tokens: Tensor) -> Tensor:
    """The (to, from) matrix of one block for one image."""
    count = len(tokens)
    biased = not recipe.startswith("globenc") and "skipplus" not in recipe
    heads = heads_of(block, tokens, biased=biased)
    middle = tokens + gain(block.ls1) * block.attn(block.norm1(tokens)[None])[0]
    output = block(tokens[None])[0]
    matrix = torch.zeros(count, count, dtype=tokens.dtype)
    for i in range(count):
        for j in range(count):
            vectors = [attention[i, j] * written[j] for attention, written in heads]
            if "per_head" in recipe:
                matrix[i, j] = sum(length(vector) for vector in vectors)
                continue
            vector = torch.stack(vectors).sum(dim=0)
            if i == j and recipe not in ("att_in",):
                vector = vector + tokens[i]
            if not biased:
                vector = vector + gain(block.ls2) * linearly(block.norm2, vector, middle[i])
            if recipe.startswith("alti"):
                goal = output[i] if "skipplus" in recipe else middle[i]
                matrix[i, j] = max((goal.abs().sum() - (goal - vector).abs().sum()).item(), 0.0)
            else:
                matrix[i, j] = length(vector)
        if recipe.startswith("alti") or "identity" in recipe:
            matrix[i] = matrix[i] / matrix[i].sum() if matrix[i].sum() > 0 else 0 * matrix[i]
        if "identity" in recipe:
            matrix[i] = (matrix[i] + F.one_hot(torch.tensor(i), count)) / 2
    return matrix


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_matrices_are_the_formula_written_out(name: str, recipe: str, images: Tensor) -> None:
    model = MODELS[name]().double()
    parts = read_parts(sightline.adapt(model), images)[1]
    got = parse(recipe).matrix(parts)  # type: ignore[attr-defined]
    assert_close(got[1], naive(recipe, model.blocks[1], parts.tokens[1]), rtol=1e-9, atol=1e-11)  # type: ignore[index]


@torch.no_grad()
def matrices(model: nn.Module, images: Tensor, recipe: str) -> list[Tensor]:
    method: Any = parse(recipe)
    return [method.matrix(parts) for parts in read_parts(sightline.adapt(model), images)]


@pytest.mark.parametrize("recipe", ["globenc", "alti", "alti(variant='skipplus')"])
def test_a_map_is_the_product_of_the_matrices(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    first, second, third = matrices(tiny_vit, images, recipe)
    row = (third @ second @ first)[:, 0]
    row = row / row.sum(dim=-1, keepdim=True) if recipe == "globenc" else row
    assert_close(sightline.explain(tiny_vit, images, recipe, target=0).map.flatten(1), row[:, 1:])


@pytest.mark.parametrize("recipe", ["globenc", "alti"])
def test_layer_l_is_the_method_started_at_l(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    every = sightline.explain(tiny_vit, images, recipe, target=1).values
    assert len(every) == 3
    for start in range(3):
        assert_close(every[start], sightline.explain(tiny_vit, images, f"{recipe}(start={start})", target=1).map)


@pytest.mark.parametrize("recipe", ["att_in", "globenc", "alti"])
def test_plus_adds_the_blocks_own_rows(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    rows = [matrix[:, 0, 1:] for matrix in matrices(tiny_vit, images, recipe)]
    assert_close(sightline.explain(tiny_vit, images, f"plus({recipe})", target=0).map.flatten(1), sum(rows))
    got = sightline.explain(tiny_vit, images, f"skip_plus({recipe}, start=1)", target=0).map.flatten(1)
    assert_close(got, rows[1] + rows[2])


def test_att_in_is_one_blocks_row(tiny_vit: nn.Module, images: Tensor) -> None:
    rows = [matrix[:, 0, 1:] for matrix in matrices(tiny_vit, images, "att_in")]
    assert_close(sightline.explain(tiny_vit, images, "att_in", target=0).map.flatten(1), rows[2])
    assert_close(sightline.explain(tiny_vit, images, "att_in(layer=0)", target=0).map.flatten(1), rows[0])


# ---- laws ------------------------------------------------------------------------------------------------------------


def test_one_head_and_no_projection_make_att_in_attention_times_length(images: Tensor) -> None:
    model: Any = tiny.vit(num_heads=1).double()
    with torch.no_grad():
        model.blocks[2].attn.proj.weight.copy_(torch.eye(16))
    with sightline.adapt(model).capture("block.2.probabilities", "block.2.v") as seen, torch.no_grad():
        model(images)
    lengths = seen["block.2.v"][:, 0].norm(dim=-1)
    want = seen["block.2.probabilities"][:, 0, 0] * lengths
    for variant in ("summed", "per_head"):
        got = sightline.explain(model, images, f"att_in(variant={variant!r})", target=0).map
        assert_close(got.flatten(1), want[:, 1:])


def test_heads_that_cancel_carry_nothing_together_and_something_each(images: Tensor) -> None:
    model: Any = tiny.vit().double()
    with torch.no_grad():
        for part in (model.blocks[2].attn.qkv.weight, model.blocks[2].attn.qkv.bias):
            part.unflatten(0, (3, 2, 8))[:, 1] = part.unflatten(0, (3, 2, 8))[:, 0]
        model.blocks[2].attn.proj.weight[:, 8:] = -model.blocks[2].attn.proj.weight[:, :8]
    with torch.no_grad():
        parts = read_parts(sightline.adapt(model), images)[2]
        together, each = (parse(f"att_in(variant={v!r})").matrix(parts) for v in ("summed", "per_head"))  # type: ignore[attr-defined]
    assert together.max() < 1e-6
    assert each.min() > 1e-4


@pytest.mark.parametrize("recipe", ["alti", "alti(variant='skipplus')"])
def test_rows_of_alti_sum_to_one_or_zero(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    for matrix in matrices(tiny_vit, images, recipe):
        sums = matrix.sum(dim=-1)
        assert (matrix >= 0).all()
        assert torch.all(((sums - 1).abs() < 1e-12) | (sums == 0))
    if recipe == "alti":
        assert_close(sums, torch.ones_like(sums))


def test_a_row_without_help_is_zero_not_nan() -> None:
    matrix = torch.tensor([[[0.0, 0.0], [1.0, 3.0]]])
    assert torch.equal(rows_to_one(matrix), torch.tensor([[[0.0, 0.0], [0.25, 0.75]]]))


@pytest.mark.parametrize("recipe", RECIPES)
def test_folding_the_layer_scale_into_the_projection_changes_nothing(recipe: str, images: Tensor) -> None:
    model: Any = tiny.vit(init_values=0.5).double()
    before = sightline.explain(model, images, recipe, target=0).values
    with torch.no_grad():
        for block in model.blocks:
            for layer, scale in ((block.attn.proj, block.ls1), (block.mlp.fc2, block.ls2)):
                if layer is block.mlp.fc2 and recipe.startswith(("globenc", "alti(")):
                    continue  # the second scale also scales the norm that stands for the MLP there
                layer.weight.mul_(scale.gamma[:, None])
                layer.bias.mul_(scale.gamma)
                scale.gamma.fill_(1.0)
    assert_close(sightline.explain(model, images, recipe, target=0).values, before)


def test_without_attention_globenc_sees_each_token_alone(images: Tensor) -> None:
    model: Any = tiny.vit().double()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.proj.weight.zero_()
    parts = read_parts(sightline.adapt(model), images)[0]
    matrix = matrices(model, images, "globenc")[0]
    block, token = model.blocks[0], parts.tokens[0, 3]
    alone = token + linearly(block.norm2, token, token + block.attn.proj.bias)
    assert_close(matrix[0, 3, 3], length(alone).detach())
    assert_close(matrix, torch.diag_embed(matrix.diagonal(dim1=1, dim2=2)))


def test_products_of_heads_are_products_of_vectors() -> None:
    weights, left, right = torch.rand(2, 3, 4, 4), torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    left_sum, right_sum = (torch.einsum("bhij,bhjd->bijd", weights, part) for part in (left, right))
    first, second = quadratic(weights, (left, right), (right, right))
    assert_close(first, (left_sum * right_sum).sum(dim=-1))
    assert_close(second, right_sum.square().sum(dim=-1))


@pytest.mark.parametrize("recipe", ["alti", "alti(variant='skipplus')"])
def test_rows_in_small_portions_are_the_same_rows(
    recipe: str, tiny_vit: nn.Module, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = sightline.explain(tiny_vit, images, recipe, target=0).values
    monkeypatch.setattr(decomposition, "_CHUNK", 3 * 17 * 16)
    assert_close(sightline.explain(tiny_vit, images, recipe, target=0).values, together, rtol=1e-12, atol=1e-15)


def test_deep_products_stay_finite(images: Tensor) -> None:
    model = tiny.vit(depth=40)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    assert (
        max(matrix.max() for matrix in matrices(model, images.float(), "globenc")) ** 40
        > torch.finfo(torch.float32).max
    )
    got = sightline.explain(model, images.float(), "globenc", target=0).values
    assert torch.isfinite(got).all()
    assert got[0].max() > 0


@pytest.mark.parametrize("recipe", RECIPES)
def test_half_precision_comes_near(recipe: str, images: Tensor) -> None:
    want = sightline.explain(tiny.vit().double(), images, recipe, target=0).map
    got = sightline.explain(tiny.vit().bfloat16(), images, recipe, target=0).map
    assert got.dtype == torch.float32
    assert torch.corrcoef(torch.stack([got.double().flatten(), want.flatten()]))[0, 1] > 0.97


# ---- where things are, in every family -------------------------------------------------------------------------------

GATED = {"timm/eva02", "timm/eva02_cls", "transformers/dinov2_swiglu", "transformers/dinov3_gated"}
SCALED = {
    "timm/deit3", "timm/dinov2", "timm/registers", "timm/layer_scale", "timm/rope_mixed", "timm/dinov3",
    "transformers/dinov2", "transformers/dinov2_swiglu", "transformers/registers",
    "transformers/dinov2_backbone", "open_clip/norm_last", "timm/dinov3_any_size", "timm/beit", "timm/beit_shared",
    "transformers/beit", "transformers/beit_shared", "transformers/beit_backbone", "transformers/dinov3",
    "transformers/dinov3_gated", "timm/naflex", "timm/naflex_map", "timm/naflex_rotary",
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_the_parts_of_every_family_are_found_and_add_up(name: str) -> None:
    family = FAMILIES[name]
    model = sightline.adapt(family.build())
    assert isinstance(model, VisionTransformer)
    for parts in read_parts(model, family_images(family)):
        parts.check_sum()
        assert ((parts.block.scale1 is not None), (parts.block.scale2 is not None)) == (name in SCALED,) * 2
        carried = torch.einsum("bhij,bhjd->bid", parts.probabilities, parts.written())
        assert_close(carried + parts.projection[1], parts.attended, rtol=1e-4, atol=1e-5)
        whole = parts.norm1.linear(parts.tokens) + parts.norm1.bias
        weight, bias = parts.value_map
        assert_close(
            F.linear(whole, weight, bias).unflatten(-1, (2, 16)).transpose(1, 2), parts.values, rtol=1e-4, atol=1e-5
        )
        assert parts.norm2.deviation.shape == (*parts.tokens.shape[:2], 1)
        if name in GATED:
            with pytest.raises(sightline.errors.UnsupportedModel, match="is no plain pre-norm block: its MLP"):
                _ = parts.mlp_layers
        else:
            assert isinstance(parts.mlp_layers[0], nn.Linear)


# ---- what is refused -------------------------------------------------------------------------------------------------


def block_of(kind: str) -> Any:
    return getattr(require("timm.models.vision_transformer"), kind)


def gated_attention() -> nn.Module:
    model: Any = tiny.vit()
    for block in model.blocks:
        block.attn.gate = nn.Linear(16, 16)
    return model.eval()  # type: ignore[no-any-return]


REFUSED = [
    ("att_in", lambda: tiny.vit(block_fn=block_of("ParallelScalingBlock")), "no linear output projection"),
    ("globenc", lambda: tiny.vit(block_fn=block_of("ResPostBlock")), "more than its input plus attention plus MLP"),
    ("alti", lambda: tiny.vit(block_fn=block_of("ResPostBlock")), "more than its input plus attention plus MLP"),
    ("att_in(residual=True)", lambda: tiny.vit(block_fn=block_of("ResPostBlock")), "more than its input plus"),
    ("att_in", gated_attention, "its attention does more than attend"),
    ("alti", gated_attention, "its attention does more than attend"),
    ("globenc", lambda: tiny.vit(norm_layer=require("timm.layers").RmsNorm), "its norm. is a RmsNorm"),
]


@pytest.mark.parametrize(("recipe", "build", "why"), REFUSED)
def test_other_blocks_are_refused_in_one_sentence(
    recipe: str, build: Callable[[], nn.Module], why: str, images: Tensor
) -> None:
    with pytest.raises(sightline.errors.UnsupportedModel, match=f"block . of .* is no plain pre-norm block: .*{why}"):
        sightline.explain(build().double(), images, recipe, target=0)


def test_heads_that_share_values_are_refused(tiny_vit: nn.Module, images: Tensor) -> None:
    with torch.no_grad():
        parts = read_parts(sightline.adapt(tiny_vit), images)[0]
    grouped = Parts(parts.block, parts.name, parts.origin, parts.tokens, {**parts.seen, "v": parts.values[:, :1]})
    with pytest.raises(sightline.errors.UnsupportedModel, match="its 2 heads share 1 sets of values"):
        grouped.written()


def test_post_norm_blocks_keep_att_in(images: Tensor) -> None:
    model = tiny.vit(block_fn=block_of("ResPostBlock")).double()
    assert sightline.explain(model, images, "att_in", target=0).map.max() > 0


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: AttentionTimesNorm(variant="none"), "att_in got variant='none'; choose from summed, per_head"),  # type: ignore[arg-type]
        (lambda: AttentionTimesNorm(residual=True, variant="per_head"), "the residual belongs to no head"),
        (lambda: Alti(variant="post_ln"), "alti got variant='post_ln'; choose from pre_ln, skipplus"),  # type: ignore[arg-type]
    ],
)
def test_options_that_make_no_sense_are_refused(build: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(sightline.errors.RecipeError, match=sentence):
        build()


@pytest.mark.parametrize("recipe", ["att_in(layer=3)", "globenc(start=3)", "alti(start=-1)"])
def test_blocks_that_are_not_there_are_refused(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(sightline.errors.RecipeError, match="has blocks 0 to 2"):
        sightline.explain(tiny_vit, images, recipe, target=0)


# ---- rolled out as attention is --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["raw_attention", "att_in", "globenc", "alti"])
@pytest.mark.parametrize("kind", ["plain", "pooled"])
def test_any_matrix_from_tokens_to_tokens_can_be_rolled_out(name: str, kind: str) -> None:
    """Half the identity and half the matrix with its rows divided by their sums, multiplied over the blocks."""
    model = sightline.adapt(MODELS[kind]().double().eval())
    assert isinstance(model, VisionTransformer)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        matrices = parse(name).token_matrices(model, images)  # type: ignore[attr-defined]
    for start in (0, 1):
        product = torch.eye(matrices[0].shape[-1], dtype=torch.float64)
        for matrix in matrices[start:]:
            rows = matrix / matrix.sum(dim=-1, keepdim=True)
            product = (0.5 * torch.eye(len(rows[0]), dtype=torch.float64) + 0.5 * rows) @ product
        want = torch.einsum("t,btf->bf", model.readout(product.shape[-1]).double(), product)[:, model.prefix :]
        got = sightline.explain(model, images, f"rollout(matrix={name}, start={start})", target=1)
        assert_close(got.map.flatten(1), want)
        assert got.layers == tuple(range(start, model.depth))
    assert got.recipe == f"rollout(start=1, matrix={name})"
    plain = sightline.explain(model, images, "rollout", target=1).map
    rolled = sightline.explain(model, images, f"rollout(matrix={name})", target=1).map
    assert torch.allclose(rolled, plain) == (name == "raw_attention")


@pytest.mark.parametrize(("recipe", "message"), [
    ("rollout(matrix=ixg)", "got matrix=ixg, which has no matrix from tokens to tokens"),
    ("rollout(matrix=gae)", "the same for every class"),
    ("rollout(matrix=att_in, variant='vit_explain')", "leave out one of them"),
])  # fmt: skip
def test_what_cannot_be_rolled_out_is_refused(recipe: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse(recipe)
