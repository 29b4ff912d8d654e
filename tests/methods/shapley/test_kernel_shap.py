"""Kernel SHAP: exact Shapley values, shap and captum on the same coalitions, laws of the drawing."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods import reference_cnn
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import Logit
from sightline.data.shapes import Shapes
from sightline.errors import RecipeError
from sightline.methods.sampling.coalitions import coalition_scores, fill_images
from sightline.methods.shapley.kernel_shap import KernelShap, coalitions_of, draw_coalitions, fit_shapley, mean_gains
from sightline.perturb.superpixels import segments_of


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def all_coalitions(players: int) -> Tensor:
    return torch.tensor(list(itertools.product([False, True], repeat=players)))


def shapley(coalitions: Tensor, values: Tensor) -> Tensor:
    """Shapley values by their definition, from the values of all coalitions."""
    players = coalitions.shape[1]
    value = {tuple(z): float(v) for z, v in zip(coalitions.tolist(), values, strict=True)}
    shapley_values = torch.zeros(players, dtype=torch.float64)
    for z, before in ((z, v) for z, v in value.items() if not all(z)):
        weight = math.factorial(sum(z)) * math.factorial(players - sum(z) - 1) / math.factorial(players)
        for player in (i for i in range(players) if not z[i]):
            shapley_values[player] += weight * (value[(*z[:player], True, *z[player + 1 :])] - before)
    return shapley_values


def game(model: Any, image: Tensor, cut: Any, target: Any, blank: Any = "mean") -> tuple[Tensor, Tensor]:
    """Score all coalitions of the segments of one image."""
    pieces = segments_of(model, image, cut)
    coalitions = all_coalitions(pieces[0].count)
    fill = fill_images(model, image, blank, pieces)
    return coalitions, coalition_scores(model, image, fill, pieces, [coalitions], [target])[0][0]


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.double().flatten(), b.double().flatten()]))[0, 1])


def test_all_coalitions_give_exact_shapley_values() -> None:
    network, image = reference_cnn.network("tiny_cnn")
    numbers = reference_cnn.numbers("kernel_shap_tiny_cnn")
    model, exact = sightline.adapt(network), torch.from_numpy(numbers["exact"])
    got = KernelShap().on(model, image, [Logit(2)], torch.from_numpy(numbers["segments"]))[0]
    assert_close(got.map[0], torch.from_numpy(numbers["map"]), rtol=1e-9, atol=1e-12)
    assert_close(KernelShap(segments=("grid", 2, 4))(model, image, Logit(2)).map.flatten(), exact, rtol=1e-9, atol=0)
    assert_close(shapley(*game(model, image, ("grid", 2, 4), Logit(2))), exact, rtol=1e-9, atol=0)
    assert_close(torch.from_numpy(numbers["kernel_full"]), exact, rtol=1e-9, atol=0)


def fitted_as_recorded(numbers: Any) -> Tensor:
    values, sizes = torch.from_numpy(numbers["values"]), numbers["coalitions"].sum(axis=1)
    return fit_shapley(
        torch.from_numpy(numbers["kernel_60_masks"]).bool(),
        torch.from_numpy(numbers["kernel_60_weights"]),
        torch.from_numpy(numbers["kernel_60_values"])[None],
        values[sizes == 0],
        values[sizes == 8],
    )[0]


def test_the_fit_is_that_of_shap_on_sampled_coalitions() -> None:
    numbers = reference_cnn.numbers("kernel_shap_tiny_cnn")
    assert_close(fitted_as_recorded(numbers), torch.from_numpy(numbers["kernel_60"]), rtol=1e-7, atol=0)


@pytest.mark.shared
@pytest.mark.slow
def test_matches_shap_on_a_photograph(shared: Path) -> None:
    numbers = np.load(shared / "golden" / "cnn_photo" / "kernel_shap_lite0.npz")
    assert_close(fitted_as_recorded(numbers), torch.from_numpy(numbers["kernel_60"]), rtol=1e-5, atol=0)
    model, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    got = KernelShap(segments=("grid", 2, 4))(model, image, Logit(155)).map.flatten().double()
    reference_cnn.assert_same(got, torch.from_numpy(numbers["exact"]), 1e-5)


@pytest.mark.filterwarnings("ignore")
def test_equals_shap_and_captum_in_the_same_process(tiny_cnn: nn.Module, images: Tensor, parity) -> None:
    shap, captum = pytest.importorskip("shap"), pytest.importorskip("captum.attr")
    model, image = sightline.adapt(tiny_cnn), images[:1]
    got = KernelShap(segments=("grid", 2, 2))(model, image, Logit(1)).map.flatten()
    labels = segments_of(model, image, ("grid", 2, 2))[0].labels

    def play(z: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            logits: np.ndarray = tiny_cnn(image * torch.from_numpy(z)[:, labels][:, None]).numpy()[:, 1]
        return logits

    explainer = shap.KernelExplainer(play, np.zeros((1, 4)))
    wanted = explainer.shap_values(np.ones((1, 4)), nsamples=14, l1_reg=False, silent=True)[0]
    assert_close(got, torch.from_numpy(wanted), rtol=1e-9, atol=1e-12)
    exact = captum.ShapleyValues(tiny_cnn).attribute(image, target=1, feature_mask=labels[None, None])
    assert_close(got, exact[0, 0, ::16, ::16].flatten().double(), rtol=1e-5, atol=1e-6)  # in single precision

    class Given(captum.KernelShap):  # type: ignore[misc,name-defined]
        """The coalitions of four players as often as the kernel weighs them: one and three twice as much as two."""

        def kernel_shap_perturb_generator(self, original_inp: Any, **kwargs: Any) -> Any:
            size = all_coalitions(4).sum(dim=1)
            for row in [15, 0, *[i for i in range(1, 15) for _ in range(1 if size[i] == 2 else 2)]]:
                yield all_coalitions(4)[row : row + 1].long()

    given = Given(tiny_cnn)
    given.perturb_func = given.kernel_shap_perturb_generator
    fitted = given.attribute(image, target=1, feature_mask=labels[None, None], n_samples=24)
    assert_close(got, fitted[0, 0, ::16, ::16].flatten().double(), rtol=1e-5, atol=1e-6)
    parity("kernel_shap", "shap KernelExplainer", got, wanted, 1e-9)
    parity("kernel_shap", "captum ShapleyValues", got, exact[0, 0, ::16, ::16].flatten(), 1e-5)
    parity("kernel_shap", "captum KernelShap", got, fitted[0, 0, ::16, ::16].flatten(), 1e-5)


@pytest.mark.filterwarnings("ignore")
def test_orders_equal_captums_shapley_value_sampling(tiny_cnn: nn.Module, images: Tensor) -> None:
    captum = pytest.importorskip("captum.attr")
    model, image = sightline.adapt(tiny_cnn), images[:1]
    method = KernelShap(samples=40, segments=("grid", 3), variant="orders")
    got = sightline.explain(model, image, method, target=1)
    assert got.passes.forward == 2 + 5 * 8 == method.cost(model).forward
    ranks = method._draw(9, sightline.seeds.generators(0, image)[0])[1]
    labels = segments_of(model, image, ("grid", 3))[0].labels
    theirs = captum.ShapleyValueSampling(tiny_cnn)
    theirs.permutation_generator = lambda features, orders: iter(ranks.argsort(dim=1).tolist())
    wanted = theirs.attribute(image, target=1, feature_mask=labels[None, None], n_samples=5)[0, 0]
    for segment in range(9):
        assert_close(got.map.flatten()[segment], wanted[labels == segment][0].double(), rtol=1e-5, atol=1e-6)


def test_orders_come_near_the_exact_values_and_add_up() -> None:
    slope = torch.randn(7).double()

    def play(z: Tensor) -> Tensor:
        return torch.sigmoid(2 * z.double() @ slope)

    everyone = all_coalitions(7)
    exact, ends = shapley(everyone, play(everyone)), play(everyone[[0, -1]])
    errors = []
    for orders in (2, 2000):
        ranks = torch.rand(orders, 7, generator=generator()).argsort(dim=1)
        got = mean_gains(ranks, play(coalitions_of(ranks))[None], ends[:1], ends[1:])[0]
        assert_close(got.sum(), ends[1] - ends[0])
        errors.append(float((got - exact).norm()))
    assert errors[1] < 0.1 * errors[0]
    single = mean_gains(torch.zeros(3, 1).long(), torch.zeros(1, 0), ends[:1], ends[1:])
    assert_close(single[0], ends[1:] - ends[:1])
    assert coalitions_of(torch.tensor([[2, 0, 1]])).tolist() == [[False, True, False], [False, True, True]]


@pytest.mark.parametrize("name", ["bundled/shapes-cnn", "bundled/shapes-vit"])
def test_shapes_have_their_exact_shapley_values(name: str) -> None:
    model, batch = sightline.load(name), Shapes(seed=5).draw(2)
    model.batch = 64
    images = model.normalise(batch.images)
    targets = tuple(batch.labels.tolist())
    got = KernelShap(segments=("grid", 2, 4))(model, images, Logit(targets)).map.flatten(1)
    few = KernelShap(segments=("grid", 2, 4), samples=60)(model, images, Logit(targets)).map.flatten(1)
    for row, target in enumerate(targets):
        exact = shapley(*game(model, images[row : row + 1], ("grid", 2, 4), Logit(target)))
        assert float((got[row] - exact).abs().max() / exact.abs().max()) < 1e-6
        assert correlation(few[row], exact) > 0.95


@pytest.mark.parametrize("design", ["independent", "balanced"])
@pytest.mark.parametrize("variant", ["leverage", "kernel"])
@pytest.mark.parametrize(("players", "samples"), [(1, 10), (2, 10), (5, 4), (6, 62), (9, 100), (12, 3000), (40, 200)])
def test_coalitions_are_different_and_come_with_their_complements(
    players: int, samples: int, variant: Any, design: Any
) -> None:
    coalitions, weights = draw_coalitions(players, samples, variant, generator(), design)
    assert len(coalitions) == len(weights) == min(samples, 2**players - 2)
    rows = {tuple(row) for row in coalitions.tolist()}
    assert len(rows) == len(coalitions)
    assert rows == {tuple(not x for x in row) for row in rows}
    assert not {(True,) * players, (False,) * players} & rows
    if len(coalitions) == 2**players - 2:
        size = coalitions.sum(dim=1).tolist()
        kernel = [(players - 1) / (math.comb(players, k) * k * (players - k)) for k in size]
        assert_close(weights, torch.tensor(kernel, dtype=torch.float64).reshape(-1))


@pytest.mark.parametrize("design", ["independent", "balanced"])
@pytest.mark.parametrize("variant", ["leverage", "kernel"])
def test_few_coalitions_are_exact_where_effects_are_single_or_paired(variant: Any, design: Any) -> None:
    slope, pairs = torch.randn(20).double(), torch.randn(20, 20).double()
    coalitions, weights = draw_coalitions(20, 100, variant, generator(), design)

    def play(z: Tensor) -> Tensor:
        return z.double() @ slope + ((z.double() @ pairs) * z.double()).sum(dim=1)

    ends = play(torch.tensor([[False] * 20, [True] * 20]))
    got = fit_shapley(coalitions, weights, play(coalitions)[None], ends[:1], ends[1:])[0]
    both = pairs - pairs.diag().diag()
    assert_close(got, slope + pairs.diag() + (both + both.T).sum(dim=1) / 2)


def test_more_samples_come_nearer_and_the_sum_is_always_right() -> None:
    slope = torch.randn(13).double()

    def play(z: Tensor) -> Tensor:
        return torch.sigmoid(2 * z.double() @ slope)

    everyone = all_coalitions(13)
    exact, ends = shapley(everyone, play(everyone)), play(everyone[[0, -1]])
    errors = []
    for samples in (6, 60, 600):
        estimates = []
        for seed in range(5):
            coalitions, weights = draw_coalitions(13, samples, "leverage", generator(seed))
            estimates.append(fit_shapley(coalitions, weights, play(coalitions)[None], ends[:1], ends[1:])[0])
            assert_close(estimates[-1].sum(), ends[1] - ends[0])
        errors.append(float(torch.stack([(estimate - exact).norm() for estimate in estimates]).mean()))
    assert errors[0] > 1.5 * errors[1]
    assert errors[1] > 2 * errors[2]


@pytest.mark.parametrize("variant", ["leverage", "kernel"])
def test_balanced_coalitions_are_unbiased_and_half_of_them_have_less_variance(variant: Any) -> None:
    """Beside as many as the paper would draw: independent coalitions, the kernel their probability."""
    slope = torch.randn(9, generator=generator(1)).double()
    triples = torch.randn(9, 9, 9, generator=generator(2)).double() / 9

    def play(z: Tensor) -> Tensor:
        kept = z.double()
        return torch.sigmoid(kept @ slope) + torch.einsum("ni,nj,nk,ijk->n", kept, kept, kept, triples)

    everyone = all_coalitions(9)
    exact, ends = shapley(everyone, play(everyone)), play(everyone[[0, -1]])
    sizes = torch.arange(1, 9)

    def by_kernel(seed: int) -> tuple[Tensor, Tensor]:
        own = generator(seed)
        drawn = sizes[torch.multinomial(1 / (sizes * (9 - sizes)), 64, replacement=True, generator=own)]
        return torch.rand(64, 9, generator=own).argsort(dim=1).argsort(dim=1) < drawn[:, None], torch.ones(64)

    def estimates(draw: Any, seeds: int) -> Tensor:
        drawn = [draw(seed) for seed in range(seeds)]
        return torch.stack([fit_shapley(z, w, play(z)[None], ends[:1], ends[1:])[0] for z, w in drawn])

    balanced, paired = (
        estimates(lambda seed, design=design: draw_coalitions(9, 32, variant, generator(seed), design), 200)
        for design in ("balanced", "independent")
    )
    independent = estimates(by_kernel, 100)
    assert (balanced.mean(dim=0) - exact).abs().max() < 4 * (balanced.var(dim=0) / 200).sqrt().max()
    assert balanced.var(dim=0).mean() < 0.5 * independent.var(dim=0).mean()
    assert balanced.var(dim=0).mean() < 0.7 * paired.var(dim=0).mean()


def test_balanced_coalitions_of_an_image_are_those_of_any_batch(tiny_cnn: nn.Module, images: Tensor) -> None:
    model, method = sightline.adapt(tiny_cnn), KernelShap(samples=20, segments=("grid", 3, 4), design="balanced")
    whole = method(model, images, Logit(1)).map
    alone = torch.cat([method(model, image[None], Logit(1)).map for image in images])
    assert_close(whole, alone)
    assert_close(whole.flip(0), method(model, images.flip(0), Logit(1)).map)
    assert not torch.allclose(whole, KernelShap(samples=20, segments=("grid", 3, 4))(model, images, Logit(1)).map)
    every = KernelShap(segments=("grid", 2, 2), design="balanced")(model, images, Logit(1)).map
    assert_close(every, KernelShap(segments=("grid", 2, 2))(model, images, Logit(1)).map)
    assert sightline.explain(model, images[:1], method, target=1).passes.forward == method.cost(model).forward == 22


def test_segments_that_do_nothing_get_nothing_and_equal_ones_the_same() -> None:
    images = torch.ones(1, 3, 8, 8, dtype=torch.float64)
    model = sightline.adapt(lambda x: (x[:, 0, :4].sum(dim=(1, 2))[:, None] ** 2).expand(-1, 2))
    got = KernelShap(segments=("grid", 2))(model, images, Logit(0)).map[0]
    assert_close(got, torch.tensor([[512.0, 512.0], [0.0, 0.0]], dtype=torch.float64))
    whole = KernelShap(segments=("grid", 1))(model, images, Logit(0))
    assert_close(whole.map[0], torch.tensor([[1024.0]], dtype=torch.float64))
    assert KernelShap(segments=("grid", 1)).cost(model).forward == 2


def test_targets_share_the_passes(tiny_cnn: nn.Module, images: Tensor) -> None:
    model, method = sightline.adapt(tiny_cnn), KernelShap(samples=12)
    with sightline.models.passes.counting() as meter:
        attributions = method.multi_target(model, images, [Logit(0), Logit((1, 2))])
    assert meter.passes.forward == 2 * 14
    assert_close(attributions[1].values, method(model, images, Logit((1, 2))).values)
    assert not torch.allclose(attributions[0].values, KernelShap(samples=12, seed=1)(model, images, Logit(0)).values)


@pytest.mark.parametrize(
    "options",
    [
        "samples=0",
        "samples=7",
        "samples=1, variant='orders'",
        "segments='voronoi'",
        "variant='mine'",
        "design='mine'",
        "design='balanced', variant='orders'",
        "blank='grey'",
        "score='loss'",
    ],
)
def test_options_that_make_no_sense_are_refused(options: str) -> None:
    with pytest.raises(RecipeError, match="got "):
        sightline.recipe.parse(f"kernel_shap({options})")
