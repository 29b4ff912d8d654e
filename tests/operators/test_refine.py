"""MDA: the search, the laws it keeps, and the authors' numbers."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import tiny
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.api import as_method
from sightline.data.shapes import Shapes
from sightline.models.passes import counting
from sightline.operators.density import Refinement
from sightline.operators.refine import MetricDriven, by_segment, seed_scores, unstable_order
from sightline.perturb.curve import scored
from sightline.perturb.endpoints import find_endpoints
from sightline.perturb.search.magnitudes import convex_fit
from sightline.perturb.segments import Segments, grid_segments
from sightline.recipe import parse, text
from sightline.types import Logit, Passes, Probability

GOLDEN = Path(__file__).parents[1] / "golden"
QUICK = "steps=5, seed=ixg"
UNSTABLE = "the order was checked; the magnitudes depend on how numpy's unstable sort leaves equal pixels"


def details(attribution: sightline.Attribution) -> Refinement:
    assert isinstance(attribution.details, Refinement)
    return attribution.details


# ---- the authors' numbers --------------------------------------------------------------------------------------------


def sorts_as_the_authors_machine() -> bool:
    """Tell whether numpy's unstable sort leaves equal pixels as it did where the reference numbers were made."""
    numbers = np.load(GOLDEN / "random_vit_mda.npz")
    rank = np.argsort(numbers["order"])
    falling = torch.from_numpy(-rank[numbers["segments"].astype(int)]).double()[None]
    order = unstable_order(falling).numpy().astype("<i4")
    return hashlib.sha256(order.tobytes()).hexdigest().startswith("c22bc643576d4ffa")


def released(
    model: nn.Module, images: Tensor, target: int, seed_pixels: Tensor, labels: Any, cells: int, **options: Any
) -> Refinement:
    """Run the released form on given segments and a given seed."""
    adapter = sightline.adapt(model)
    segments = Segments(torch.from_numpy(labels.astype(np.int64)))
    seeds = seed_scores(seed_pixels, (cells, cells), [segments], magnitude=True)
    method = MetricDriven(preset="released", cells=cells, **options)
    with torch.no_grad():
        return details(method.refine(adapter, images, Logit(target), [segments], seeds))


def test_equals_the_authors_program_on_the_random_transformer() -> None:
    numbers = np.load(GOLDEN / "random_vit_mda.npz")
    model, *_ = tiny.reference_vit()
    images = torch.from_numpy(numbers["images"])
    target = int(model(images).argmax())
    seed = torch.from_numpy(numbers["seed_map"]).sum(dim=-1)[None]
    got = released(model, images, target, seed, numbers["segments"], 7)
    assert got.images[0].search.order == tuple(numbers["order"].tolist())
    assert got.images[0].search.inserted == len(numbers["insertion_order"])
    if not sorts_as_the_authors_machine():
        pytest.skip(UNSTABLE)
    for key, attribution in {
        "sharp_gamma0": got.with_density(0.0, "sharp"),
        "smooth_gamma0": got.with_density(0.0),
        "smooth_gamma05": got.with_density(0.5),
        "smooth_gamma1": got.with_density(1.0),
    }.items():
        difference = tiny.min_max(attribution.map[0]) - tiny.min_max(torch.from_numpy(numbers[key]))
        assert difference.abs().max() < 1e-5, key


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["grid", "slic"])
def test_equals_the_authors_program_on_a_photograph(kind: str, shared: Path, real_vit: nn.Module) -> None:
    numbers = np.load(shared / "golden" / "photo" / f"mda_{kind}_A.npz")
    images = torch.from_numpy(np.load(shared / "golden" / "photo" / "inputs_A.npz")["input"])
    seed = F.interpolate(torch.from_numpy(numbers["seed_map"])[None, None], size=(224, 224), mode="bilinear")[:, 0]
    got = released(real_vit, images, int(numbers["target"]), seed, numbers["segments"], 14, segments=kind)
    image = got.images[0]
    assert image.search.order == tuple(numbers["order"].tolist())
    assert image.search.inserted == len(numbers["ins_locked"])
    assert np.abs(image.seed.numpy() - numbers["seed_per_segment"]).max() < 1e-4
    assert np.abs(image.curves[0] - numbers["curve1_f64"]).max() < 1e-4
    if not sorts_as_the_authors_machine():
        pytest.skip(UNSTABLE)
    assert np.abs(image.curves[1] - numbers["curve2_f64"]).max() < 1e-4
    exact = by_segment(
        image.search, convex_fit(image.curves[1]), image.segments
    )  # the default's fit, the rest being equal
    default = replace(got, images=(replace(image, sparse=exact),))
    for gamma, key in ((0.0, "pixels_gamma0"), (0.5, "pixels_gamma05"), (1.0, "pixels_gamma1")):
        theirs = tiny.min_max(torch.from_numpy(numbers[key]))
        assert (tiny.min_max(got.with_density(gamma).map[0]) - theirs).abs().max() < 1e-4
        assert (tiny.min_max(default.with_density(gamma).map[0]) - theirs).abs().max() < 1e-3


# ---- what the search finds -------------------------------------------------------------------------------------------


class Additive(nn.Module):
    """Two classes; the logit of the first is a weighted sum of the cells' contrast."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        cells = F.adaptive_avg_pool2d(images.square().mean(dim=1), (self.weights.shape[0], self.weights.shape[1]))
        score = (cells * self.weights).sum(dim=(1, 2)) - 2
        return torch.stack([score, -score], dim=1)


WEIGHTS = torch.tensor([[0.3, 0.9, 0.1], [1.4, 0.5, 0.7], [0.2, 1.1, 0.6]], dtype=torch.float64)
CHEQUERED = (torch.arange(48)[:, None] + torch.arange(48)).remainder(2).mul(2.0).sub(1).double().expand(1, 3, 48, 48)


@pytest.mark.parametrize("options", [
    "", ", tau=0.0", ", tau=1.0", ", per_step=2", ", search='fast'", ", search='blocks'", ", search='joint'",
    ", preset='released', segments='grid'",
])  # fmt: skip
def test_finds_the_order_of_an_additive_model(options: str) -> None:
    attribution = sightline.explain(
        Additive(WEIGHTS), CHEQUERED, f"mda(seed=None, cells=3, steps=9{options})", target=0
    )
    assert details(attribution).images[0].search.order == tuple(WEIGHTS.flatten().argsort(descending=True).tolist())


@pytest.mark.parametrize("seed", ["None", "gradient(at='pixels')", "random"])
def test_the_map_falls_along_the_order_and_is_never_negative(seed: str) -> None:
    attribution = sightline.explain(
        Additive(WEIGHTS), CHEQUERED, f"mda(seed={seed}, cells=3, steps=9, output='sharp')", target=0
    )
    values = attribution.map.flatten()[list(details(attribution).images[0].search.order)]
    assert (values.diff() < 0).all()
    assert values.min() >= 0


def brute_force(model: Any, images: Tensor, recipe: str, target: int) -> tuple[list[int], int]:
    """The order by the book: one candidate, one forward, no batches."""
    adapter, method = sightline.adapt(model), parse(recipe)
    assert isinstance(method, MetricDriven)
    cells = method.cells_of(adapter, (32, 32))
    (segments,) = method.cut(adapter, images, cells)
    probability = scored(Logit(target), "probability", adapter)
    seed = seed_scores(sightline.explain(model, images, method.seed, target=target).pixels(), cells, [segments],
                       magnitude=False)[0] if method.seed else torch.zeros(segments.count)  # fmt: skip
    order = seed.argsort(descending=True, stable=True).tolist()
    window = min(2 * int(segments.count**0.5), 28) if method.seed else segments.count
    sides = details(sightline.explain(model, images, recipe, target=target)).images[0]
    blurred = sightline.perturb.fill.Blur(sides.blur // 2, sides.blur)(adapter, images)

    def score(canvas: Tensor) -> float:
        return float(probability(adapter(canvas)))

    def pasted(canvas: Tensor, segment: int) -> Tensor:
        return torch.where(segments.labels == segment, images, canvas)

    inserted: list[int] = []
    canvas, left = blurred, list(order)
    while left:
        best = max(left[:window], key=lambda s: score(pasted(canvas, s)))
        canvas = pasted(canvas, best)
        left.remove(best)
        inserted.append(best)
        if (score(canvas) - score(blurred)) / abs(score(images) - score(blurred)) >= method.tau:
            break
    deleted: list[int] = []
    canvas, left = torch.zeros_like(images), [s for s in reversed(order) if s not in inserted]
    while left:
        best = min(left[:window], key=lambda s: score(pasted(canvas, s)))
        canvas = pasted(canvas, best)
        left.remove(best)
        deleted.append(best)
    return inserted + deleted[::-1], len(inserted)


@pytest.mark.parametrize("recipe", ["mda(seed=ixg, steps=5, search='exact')", "mda(seed=None, cells=3, steps=5)"])
@pytest.mark.parametrize("target", [0, 3])
def test_equals_a_search_one_candidate_at_a_time(recipe: str, target: int, tiny_vit: nn.Module, images: Tensor) -> None:
    with torch.no_grad():
        order, inserted = brute_force(tiny_vit, images[:1], recipe, target)
    search = details(sightline.explain(tiny_vit, images[:1], recipe, target=target)).images[0].search
    assert list(search.order) == order
    assert search.inserted == inserted


def test_the_recorded_scores_are_the_models(tiny_vit: nn.Module, images: Tensor) -> None:
    for options in ("", ", per_step=3", ", search='fast'"):
        image = details(sightline.explain(tiny_vit, images[:1], f"mda({QUICK}{options})", target=1)).images[0]
        canvas = torch.zeros_like(images[0])
        for segment, recorded in zip(reversed(image.search.order), image.search.deletion, strict=True):
            image.segments.paste(canvas, images[0], segment)
            assert float(tiny_vit(canvas[None]).softmax(dim=-1)[0, 1].detach()) == pytest.approx(recorded, abs=1e-12)
        assert torch.equal(canvas, images[0])


def test_tau_runs_from_deletion_alone_to_insertion_alone(tiny_vit: nn.Module, images: Tensor) -> None:
    recipes = [f"mda({QUICK}, search='exact', tau={tau})" for tau in (0.0, 0.3, 0.9, 1.0)]
    inserted = [
        details(each).images[0].search.inserted for each in sightline.explain(tiny_vit, images[:1], recipes, target=1)
    ]
    assert inserted[0] == 0
    assert inserted[-1] == 16
    assert inserted == sorted(inserted)


def test_each_extreme_of_tau_wins_its_own_half() -> None:
    """Insertion alone has the higher insertion curve on the way, deletion alone the lower deletion curve."""
    torch.manual_seed(4)
    model, images = tiny.vit().double(), torch.randn(4, 3, 32, 32, dtype=torch.float64)
    target = tuple(model(images).argmax(dim=1).tolist())
    scores = {}
    for tau in (0.0, 1.0):
        attribution = sightline.explain(model, images, f"mda({QUICK}, tau={tau}, output='sharp')", target=target)
        pixels = attribution.pixels("nearest")
        scores[tau] = sightline.evaluate(model, images, pixels, ["insertion(step=64)", "deletion(step=64)"], target)
    insertion, deletion = "insertion(step=64)", "deletion(step=64)"
    assert float(scores[1.0][insertion].mean()) > float(scores[0.0][insertion].mean())
    assert float(scores[0.0][deletion].mean()) < float(scores[1.0][deletion].mean())


# ---- batches, passes, densities --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    "", ", search='fast'", ", search='blocks'", ", search='joint'", ", per_step=2", ", preset='released'",
    ", output='sharp'",
])  # fmt: skip
def test_a_batch_equals_its_images_one_by_one(options: str, tiny_vit: nn.Module) -> None:
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    recipe = f"mda({QUICK}{options})"
    rtol = 1e-9 if "released" not in options else 1e-4  # a solver that stops early magnifies rounding
    together = sightline.explain(tiny_vit, images, recipe, target=(1, 0, 3)).values
    for row, target in enumerate((1, 0, 3)):
        alone = sightline.explain(tiny_vit, images[row : row + 1], recipe, target=target).values
        assert_close(together[:, row], alone[:, 0], rtol=rtol, atol=1e-12)
    again = sightline.explain(tiny_vit, images, recipe, target=(1, 0, 3), batch_size=2).values
    assert_close(again, together, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("options", [
    "", ", search='fast'", ", per_step=2", ", per_step=3, search='fast'", ", tau=0.0, search='exact'", ", window=3",
    ", search='blocks'", ", per_step=3, search='blocks'", ", preset='released', segments='grid', search='blocks'",
    ", search='joint'", ", per_step=3, search='joint'", ", tau=0.0, search='joint'", ", tau=1.0, search='joint'",
    ", tau=1.0, search='exact'", ", tau=0.0", ", insertion='zero'", ", insertion='black', deletion='blur'",
])  # fmt: skip
@pytest.mark.parametrize("network", ["tiny_vit", "tiny_cnn"])
def test_costs_at_most_what_it_declares(
    options: str, network: str, images: Tensor, request: pytest.FixtureRequest
) -> None:
    adapter, method = sightline.adapt(request.getfixturevalue(network)), parse(f"mda({QUICK}, cells=4{options})")
    with torch.no_grad(), counting() as meter:
        attribution = method(adapter, images, Logit((1, 3)))
    declared = method.cost(adapter) * 2
    assert meter.passes.forward <= declared.forward
    assert meter.passes.backward <= declared.backward
    spared = sum(
        len(sightline.perturb.endpoints.BLURS) - (image.blur - 29) // 2 for image in details(attribution).images
    )
    if "tau" in options and "exact" in options:  # then nothing but the blur depends on the image
        assert meter.passes.forward == declared.forward - spared


def test_another_density_costs_nothing_and_equals_asking_for_it(tiny_vit: nn.Module, images: Tensor) -> None:
    first = sightline.explain(tiny_vit, images, f"mda({QUICK})", target=1)
    with counting() as meter:
        other = details(first).with_density(0.7)
    assert meter.passes == Passes()
    assert_close(other.values, sightline.explain(tiny_vit, images, f"mda({QUICK}, gamma=0.7)", target=1).values)
    lower = sightline.explain(tiny_vit, images, f"mda({QUICK}, gamma=0.7, kappa=0.5)", target=1)
    assert_close(details(first).with_density(0.7, kappa=0.5).values, lower.values)
    assert not torch.equal(lower.values, other.values)
    ends = [details(first).with_density(gamma, "sharp").map for gamma in (0.0, 1.0)]
    assert_close(details(first).with_density(0.25, "sharp").map, 0.75 * ends[0] + 0.25 * ends[1])
    with pytest.raises(errors.RecipeError, match="got gamma=2"):
        details(first).with_density(2)


def test_densities_share_one_search(tiny_vit: nn.Module, images: Tensor) -> None:
    recipes = [
        f"mda({QUICK}{options})" for options in ("", ", gamma=0.5", ", gamma=1.0, kappa=0.1", ", output='smooth'")
    ]
    with counting() as meter:
        together = sightline.explain(tiny_vit, images, recipes, target=1)
    for recipe, attribution in zip(recipes, together, strict=True):
        alone = sightline.explain(tiny_vit, images, recipe, target=1)
        assert_close(attribution.values, alone.values)
        assert (attribution.recipe, attribution.passes, attribution.enlarge) == (
            alone.recipe, alone.passes, alone.enlarge)  # fmt: skip
        assert attribution.passes.forward == meter.passes.forward  # the search counts with each, and was made once


# ---- a search below its seed, and baselines --------------------------------------------------------------------------


class Pair(nn.Module):
    """The first class needs two cells of three at once, so no single cell raises its score."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(1))
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        cells = F.adaptive_avg_pool2d(images.square().mean(dim=1), (4, 4)).flatten(1) * self.weights
        score = 12 * (cells[:, 5] * cells[:, 10]) + 0.6 * cells[:, :4].sum(dim=1) - 6
        return torch.stack([score, -score], dim=1)


class Known:
    """A seed that knows the two cells."""

    def attribute(self, inputs: Tensor, target: Any) -> Tensor:
        values = torch.linspace(0.5, 0.0, 16, dtype=inputs.dtype)
        values[5], values[10] = 2.0, 1.5
        return F.interpolate(values.view(1, 1, 4, 4), size=(48, 48), mode="nearest").expand(len(inputs), 3, 48, 48)


def test_a_seed_that_the_search_ends_below_keeps_its_order() -> None:
    model = sightline.adapt(Pair())
    seed = as_method(Known())
    method = MetricDriven(seed=seed, cells=4, steps=16, tie="index", window=16)
    with torch.no_grad(), pytest.warns(errors.SightlineWarning, match="search ended below its own seed for 1 of 1"):
        kept = details(method(model, CHEQUERED, Logit(0))).images[0]
    assert kept.kept_seed
    assert kept.search.order[:2] == (5, 10)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = details(replace(method, search="exact")(model, CHEQUERED, Logit(0))).images[0]
    assert not exact.kept_seed
    assert exact.search.order != kept.search.order

    def quality(image: Any) -> float:
        pixels = image.segments.paint(torch.from_numpy(image.sparse))[None]
        scores = sightline.evaluate(model, CHEQUERED, pixels, ["insertion_mda(step=144)", "deletion_mda(step=144)"], 0)
        return float(scores["insertion_mda(step=144)"] - scores["deletion_mda(step=144)"])

    assert quality(kept) > quality(exact)


def test_baselines_are_those_that_are_named(tiny_vit: nn.Module, images: Tensor) -> None:
    adapter = sightline.adapt(tiny_vit)
    target = scored(Logit(1), "probability", adapter)
    with torch.no_grad():
        black, zero = adapter.normalise(torch.zeros_like(images)), torch.zeros_like(images)
        for start, end, first, last in (("black", "zero", black, zero), ("zero", "black", zero, black)):
            for row, found in enumerate(find_endpoints(adapter, images, target, start, end)):
                assert_close(found.blurred, first[row])
                assert_close(found.blank, last[row])
                assert found.blur == pytest.approx(float(target(adapter(first))[row]))
                assert found.side == 0
        both = find_endpoints(adapter, images, target, "blur", "blur")[0]
        assert_close(both.blurred, both.blank)
    orders = {
        details(each).images[0].search.order
        for each in sightline.explain(
            tiny_vit,
            images[:1],
            [
                f"mda(seed=None, steps=5, insertion='{i}', deletion='{d}')"
                for i in ("blur", "zero")
                for d in ("blur", "zero")
            ],
            target=1,
        )
    }
    assert len(orders) > 1


def test_sharp_maps_lie_on_the_patches_and_smooth_ones_on_the_pixels(tiny_vit: nn.Module, images: Tensor) -> None:
    sharp = sightline.explain(tiny_vit, images, f"mda({QUICK})", target=1)
    smooth = sightline.explain(tiny_vit, images, f"mda({QUICK}, output='smooth')", target=1)
    assert sharp.map.shape == (2, 4, 4)
    assert smooth.map.shape == (2, 32, 32)
    assert smooth.map.amin() >= sharp.map.amin()
    assert smooth.map.amax() <= sharp.map.amax()
    assert torch.corrcoef(torch.stack([smooth.map[0].flatten(), sharp.pixels()[0].flatten()]))[0, 1] > 0.8
    pieces = sightline.explain(tiny_vit, images, f"mda({QUICK}, segments='slic')", target=1)
    assert pieces.map.shape == (2, 32, 32)


def test_patches_that_were_searched_are_what_metrics_see(tiny_vit: nn.Module, images: Tensor) -> None:
    """A sharp map is enlarged as the patches it was searched on; a smooth one has nothing to enlarge."""
    sharp = sightline.explain(tiny_vit, images, f"mda({QUICK})", target=1)
    painted = torch.stack([image.segments.paint(torch.from_numpy(image.sparse)) for image in details(sharp).images])
    assert sharp.enlarge == "nearest"
    assert_close(sharp.pixels(), painted)
    scores = [sightline.evaluate(tiny_vit, images, maps, "deletion(step=64)", target=1) for maps in (sharp, painted)]
    assert_close(scores[0]["deletion(step=64)"], scores[1]["deletion(step=64)"])
    assert not torch.equal(sharp.pixels("bilinear"), painted)


def test_patches_that_leave_a_rest_are_painted(tiny_vit: nn.Module, images: Tensor) -> None:
    """Where the last patches are larger, enlarging the grid would move every edge; the map lies on the pixels then."""
    refined = details(sightline.explain(tiny_vit, images[:1], f"mda({QUICK})", target=1))
    wider = grid_segments((32, 32), (4, 4), (7, 7))
    uneven = replace(refined, images=(replace(refined.images[0], segments=wider),)).with_density(0.0)
    assert uneven.map.shape == (1, 32, 32)
    assert_close(uneven.map[0], wider.paint(torch.from_numpy(refined.images[0].sparse)))


def test_a_lazy_search_takes_a_quarter_of_the_passes() -> None:
    weights = torch.rand(14, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) / 20
    model = sightline.adapt(Additive(weights))
    spent = {}
    for search in ("", ", search='blocks'", ", search='joint'"):
        with torch.no_grad(), counting() as meter:
            parse(f"mda(seed=random, cells=14, tau=0.3{search})")(model, CHEQUERED[..., :28, :28], Logit(0))
        spent[search] = meter.passes.forward + meter.passes.backward
    assert spent[", search='blocks'"] <= spent[""] / 4
    assert spent[", search='joint'"] <= spent[""] / 4


def test_a_lazy_search_ends_no_lower_than_its_seed() -> None:
    found = sightline.explain(
        Additive(WEIGHTS), CHEQUERED, ["mda(seed=random, cells=3, steps=9, search='blocks')", "random"]
    )
    step = "ins_del(step=256, fill=('zero', 'zero'))"
    lazy, seed = (
        float(sightline.evaluate(Additive(WEIGHTS), CHEQUERED, each.pixels("nearest"), step, 0)[step]) for each in found
    )
    assert lazy > seed


@pytest.mark.filterwarnings("ignore:MDA's search ended below its own seed")
def test_on_shapes_a_joint_search_is_no_worse_than_blocks_and_finds_the_same_twice() -> None:
    model = sightline.load("bundled/shapes-vit")
    images = model.normalise(Shapes(seed=4).draw(2).images)
    target = tuple(model.predict(images).argmax(dim=1).tolist())
    recipe = "mda(seed=plus(libra(ixg)), insertion='zero', steps=32, search='{}')"
    metric = "ins_del_mda(step=64, fill=('zero', 'zero'))"
    found = [sightline.explain(model, images, recipe.format(each), target=target) for each in ("blocks", "joint")]
    blocks, joint = (sightline.evaluate(model, images, each, metric, target)[metric] for each in found)
    assert (joint >= blocks - 1e-6).all()
    assert joint.mean() > blocks.mean() + 0.02
    again = sightline.explain(model, images, recipe.format("joint"), target=target)
    assert torch.equal(again.map, found[1].map)


def test_fast_takes_at_most_half_the_passes() -> None:
    weights = torch.rand(14, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) / 20
    model = sightline.adapt(Additive(weights))
    spent, orders = {}, {}
    for search, options in (("exact", ""), ("fast", "search='fast', ")):
        with torch.no_grad(), counting() as meter:
            method = parse(f"mda(seed=random, {options}cells=14)")
            orders[search] = details(method(model, CHEQUERED[..., :28, :28], Logit(0))).images[0].search.order
        spent[search] = meter.passes.forward + meter.passes.backward
    assert spent["fast"] <= spent["exact"] / 2
    assert orders["fast"] == orders["exact"]  # gains that never change are never stale


# ---- any model, any target, any seed ---------------------------------------------------------------------------------


def test_works_on_any_model_and_target(tiny_cnn: nn.Module, images: Tensor) -> None:
    def function(batch: Tensor) -> Tensor:
        return batch.mean(dim=-1)[:, :, ::8].flatten(1).double()

    for model in (tiny_cnn, function):
        for search in ("exact", "fast", "blocks", "joint"):
            for target in (1, sightline.Contrast(0, 2), lambda logits: logits[:, 0] * logits[:, 1]):
                attribution = sightline.explain(
                    model, images, f"mda(seed=None, cells=3, steps=4, search='{search}')", target
                )
                assert torch.isfinite(attribution.values).all()
    assert sightline.explain(tiny_cnn, images, "mda(seed=grad_cam, cells=5, steps=4)").map.shape == (2, 5, 5)


def test_the_class_decides_and_logit_and_probability_agree(tiny_vit: nn.Module, images: Tensor) -> None:
    first, last = (sightline.explain(tiny_vit, images, "mda(seed=None, cells=3, steps=4)", c).map for c in (0, 4))
    assert not torch.allclose(first, last)
    same = sightline.explain(tiny_vit, images, "mda(seed=None, cells=3, steps=4)", Probability(0)).map
    assert torch.equal(first, same)


def test_recipes() -> None:
    assert text(parse("mda")) == "mda"
    assert text(parse("mda(seed=bi_attn)")) == "mda"
    assert text(parse("mda(gae)")) == "mda(seed=gae)"
    assert text(parse("mda(seed=None, gamma=0.5)")) == "mda(seed=None, gamma=0.5)"
    assert parse("mda(ixg)") == parse("mda(seed=ixg)")


@pytest.mark.parametrize(("recipe", "message"), [
    ("mda(gamma=1.5)", "got gamma=1.5; gamma is between 0 and 1"),
    ("mda(tau=-0.1)", "got tau=-0.1; tau is between 0 and 1"),
    ("mda(per_step=0)", "got per_step=0; per_step is between 1 and 10000"),
    ("mda(cells=0)", "got cells=0"),
    ("mda(seed=None, window=4)", "got window=4 without a seed"),
    ("mda(search='lazy')", "got search='lazy'"),
])  # fmt: skip
def test_mistakes_are_answered_in_one_sentence(recipe: str, message: str) -> None:
    with pytest.raises(errors.RecipeError) as caught:
        parse(recipe)
    assert message in str(caught.value)
