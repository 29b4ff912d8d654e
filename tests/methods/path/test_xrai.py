"""XRAI: which regions come first, what they add up to, and the authors' program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saliency.core as pair
import torch
from saliency.core import xrai as released
from tests.methods import reference_cnn
from tests.methods.path.test_guided_ig import gradient_of
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.methods.path.xrai import Xrai, region_means, region_means_fast
from sightline.perturb.regions import dilated, regions_of

TARGET = sightline.Logit(2)


def peer(image: Tensor, ask: Any = None, variant: str = "full", smallest: int = 50, **options: Any) -> Tensor:
    """Return what PAIR's package says of one image, (1, 3, height, width)."""
    settings = released.XRAIParameters(options.pop("steps", 100), options.pop("area", 1.0), algorithm=variant)
    settings.experimental_params["min_pixel_diff"] = smallest
    pixels = image[0].permute(1, 2, 0).double().numpy()
    return torch.from_numpy(pair.XRAI().GetMask(pixels, ask, extra_parameters=settings, **options))


def random_masks(count: int, size: int, seed: int = 0) -> Tensor:
    """Return overlapping rectangles, some of them twice and one empty."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.zeros(count, size, size, dtype=torch.bool)
    for mask in masks[1:]:
        top, left, height, width = torch.randint(0, size // 2, (4,), generator=generator).tolist()
        mask[top : top + height + 2, left : left + width + 2] = True
    masks[-1] = masks[1]
    return masks


def test_matches_its_authors_numbers() -> None:
    model, image = reference_cnn.network("tiny_cnn")
    numbers = reference_cnn.numbers("xrai_tiny_cnn")
    base = torch.from_numpy(numbers["base_attribution"]).permute(2, 0, 1)[None].double()
    segments = torch.from_numpy(numbers["segments"])
    (got,) = Xrai().on(sightline.adapt(model), image, [TARGET], segments, [base])
    reference_cnn.assert_same(got.map[0], torch.from_numpy(numbers["pixels"]), 1e-12)


@pytest.mark.parametrize("variant", ["full", "fast"])
@pytest.mark.parametrize(("smallest", "area"), [(1, 1.0), (50, 1.0), (20, 0.3), (1, 0.0)])
def test_matches_its_authors_program_on_given_regions(variant: str, smallest: int, area: float, parity) -> None:
    for seed in range(4):
        base = torch.randn(1, 3, 40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        masks = random_masks(30, 40, seed)
        want = peer(
            torch.zeros_like(base), None, variant, smallest, area=area, segments=list(masks.numpy()),
            base_attribution=base[0].permute(1, 2, 0).numpy(),
        )  # fmt: skip
        method = Xrai(smallest=smallest, area=area, variant=variant)  # type: ignore[arg-type]
        (got,) = method.on(sightline.adapt(nn.Flatten()), base, [TARGET], masks, [base])
        assert_close(got.map[0], want, atol=1e-12, rtol=0)
        parity("xrai", "PAIR XRAI", got.map[0], want, 1e-9)


def test_cuts_as_its_authors_do() -> None:
    model, image = reference_cnn.network("tiny_cnn")
    adapter = sightline.adapt(model)
    smooth = torch.nn.functional.avg_pool2d(image, 9, 1, 4)[:, :, :, :48]
    want = released._get_segments_felzenszwalb(adapter.denormalise(smooth)[0].permute(1, 2, 0).numpy())
    (got,) = regions_of(adapter, smooth, (), 5)
    assert got.shape == (len(want), 64, 48)
    assert np.array_equal(got.numpy(), np.stack(want))


def test_matches_its_authors_program_from_image_to_map() -> None:
    """On a linear network every rule integrates exactly, so that the references and the regions are what is compared.

    PAIR adds up gradients in float32.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(900, 5)).double().eval()
    image = torch.rand(1, 3, 32, 32, dtype=torch.float64)
    for variant in ("full", "fast"):
        want = peer(image, gradient_of(model, 2, torch.float64), variant, steps=4)
        recipe = f"xrai(steps=4, blank='extremes', {variant=})"
        reference_cnn.assert_same(sightline.explain(model, image, recipe, target=2).map[0], want, 1e-6)


@pytest.mark.shared
@pytest.mark.slow
def test_matches_its_authors_program_on_a_photograph(shared: Path) -> None:
    adapter, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    (base,) = Xrai(steps=4, blank="extremes").base(adapter, image, [sightline.Logit(155)])
    want = peer(image, base_attribution=base[0].permute(1, 2, 0).double().numpy())
    got = sightline.explain(adapter, image, "xrai(steps=4, blank='extremes')", target=155).map[0]
    reference_cnn.assert_same(got, want, 1e-5)


def test_gathers_the_mean_of_integrated_gradients_from_black_and_from_white(tiny_cnn: nn.Module) -> None:
    image = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    (base,) = Xrai(steps=6).base(sightline.adapt(tiny_cnn), image, [TARGET])
    ends = [
        sightline.explain(tiny_cnn, image, f"ig(steps=6, rule='trapezoid', {blank=})", target=2).map
        for blank in ("black", "white")
    ]
    assert_close(base.sum(dim=1), (ends[0] + ends[1]) / 2)
    (got,) = Xrai(steps=6).on(sightline.adapt(tiny_cnn), image, [TARGET], torch.arange(256).view(16, 16))
    assert_close(
        Xrai(steps=6, smallest=1).on(sightline.adapt(tiny_cnn), image, [TARGET], torch.arange(256).view(16, 16))[0].map,
        base.amax(dim=1),
    )
    assert_close(got.map, base.amax(dim=1).mean().expand(1, 16, 16))  # no pixel by itself is large enough


def test_the_densest_region_comes_first_and_counts_only_what_it_adds() -> None:
    values = torch.tensor([[4.0, 4.0, 1.0, 0.0, -1.0, -3.0]])
    masks = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0]]).bool()[:, None]
    # {0, 1} at 4; then {2, 3} at .5, of which the first region is made; {4} at -1; nobody has the last
    assert region_means(values, masks).tolist() == [[4.0, 4.0, 0.5, 0.5, -1.0, -3.0]]
    # what overlaps is not seen when regions are ranked once: 4, 2.25, -.5
    assert region_means_fast(values, masks).tolist() == [[4.0, 4.0, 0.5, 0.5, -1.0, -3.0]]
    other = torch.tensor([[1, 1, 1, 1, 1, 0], [0, 0, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]]).bool()[:, None]
    assert region_means(values, other).tolist() == [[4.0, 4.0, 1.0, -0.5, -0.5, -3.0]]
    assert region_means_fast(values, other).tolist() == [[4.0, 4.0, -0.0, -0.0, -0.0, -3.0]]


@pytest.mark.parametrize("gather", [region_means, region_means_fast])
@pytest.mark.parametrize("smallest", [1, 60])
def test_nothing_is_lost_or_added(gather: Any, smallest: int) -> None:
    values = torch.randn(40, 40, dtype=torch.float64)
    masks = random_masks(25, 40)
    assert_close(gather(values, masks, smallest).sum(), values.sum())
    assert_close(gather(values, masks[:0], smallest), values.mean().expand(40, 40))


def test_what_is_found_first_is_no_less_than_what_is_found_next() -> None:
    """For regions that do not overlap: then taking one changes no other."""
    values = torch.randn(12, 12, dtype=torch.float64)
    labels = torch.arange(144).view(12, 12) // 9
    masks = labels == torch.arange(16)[:, None, None]
    want = torch.stack([values[mask].mean() for mask in masks])[labels]
    assert_close(region_means(values, masks), want)
    assert_close(region_means_fast(values, masks), want)
    few = region_means(values, masks, area=0.5)
    assert (few == want).double().mean() == pytest.approx(9 / 16)  # the region with which half is exceeded is the last
    assert want[few == want].min() > want[few != want].max()


def test_dilated_by_a_disc() -> None:
    mask = torch.zeros(1, 9, 9, dtype=torch.bool)
    mask[0, 4, 4] = mask[0, 0, 0] = True
    rows, columns = torch.meshgrid(torch.arange(9), torch.arange(9), indexing="ij")
    want = ((rows - 4) ** 2 + (columns - 4) ** 2 <= 9) | (rows**2 + columns**2 <= 9)
    assert torch.equal(dilated(mask, 3)[0], want)
    assert torch.equal(dilated(mask, 0), mask)


@pytest.mark.parametrize("segments", ["('grid', 4)", "(('grid', 4), ('slic', 9))", "'felzenszwalb'", "None"])
def test_cuts_are_written_in_the_recipe(segments: str, tiny_cnn: nn.Module) -> None:
    image = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    text = f"xrai(steps=2, segments={segments}, radius=1, smallest=4)"
    got = sightline.explain(tiny_cnn, image, text, target=1)
    assert got.map.shape == (2, 32, 32)
    assert all(len(one.unique()) > 1 for one in got.map) or "grid" not in segments
    assert sightline.parse(sightline.recipe.text(sightline.parse(text))) == sightline.parse(text)
    (base,) = Xrai(steps=2).base(sightline.adapt(tiny_cnn), image, [sightline.Logit(1)])
    assert_close(got.map.sum(), base.amax(dim=1).sum())


def test_regions_of_ones_own_are_not_dilated(tiny_cnn: nn.Module) -> None:
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    adapter, method = sightline.adapt(tiny_cnn), Xrai(steps=2, smallest=1)
    labels = torch.arange(16).view(4, 4).repeat_interleave(4, 0).repeat_interleave(4, 1)
    masks = labels == torch.arange(16)[:, None, None]
    given = [labels, masks, [masks, masks], [labels, labels], lambda image: labels, ("grid", 4)]
    maps = [method.on(adapter, images, [TARGET], each)[0].map for each in given]  # type: ignore[arg-type]
    (base,) = method.base(adapter, images, [TARGET])
    means = torch.nn.functional.avg_pool2d(base.amax(dim=1)[:, None], 4)[:, 0]
    for one in maps:
        assert_close(one, means.repeat_interleave(4, 1).repeat_interleave(4, 2))


def test_several_targets_share_the_passes_forward(tiny_cnn: nn.Module, images: Tensor) -> None:
    method, adapter = sightline.parse("xrai(steps=3, segments=('grid', 4))"), sightline.adapt(tiny_cnn)
    cost = sightline.methods.multi_target.multi_target_cost(method, adapter, 2)
    assert (cost.forward, cost.backward) == (6, 12)
    together = sightline.methods.multi_target.multi_target(method, adapter, images, [sightline.Logit(0), TARGET])
    assert_close(together[1].values, method(adapter, images, TARGET).values)


def test_a_flat_image_is_one_region(tiny_cnn: nn.Module) -> None:
    (masks,) = regions_of(sightline.adapt(tiny_cnn), torch.full((1, 3, 20, 20), 0.5), (), 0)
    assert masks.all()


@pytest.mark.parametrize(
    "options",
    [
        *("steps=0", "rule='x'", "blank='grey'", "segments=()", "segments=('x',)", "segments=((3,),)", "segments=(3,)"),
        *("radius=-1", "smallest=0", "area=1.5", "variant='slow'"),
    ],
)
def test_wrong_options_are_refused(options: str) -> None:
    with pytest.raises(sightline.errors.RecipeError):
        sightline.parse(f"xrai({options})")


def test_wrong_shapes_are_refused(tiny_cnn: nn.Module, images: Tensor) -> None:
    adapter = sightline.adapt(tiny_cnn)
    with pytest.raises(sightline.errors.ShapeError, match="regions"):
        Xrai(steps=1).on(adapter, images, [TARGET], torch.ones(2, 5, 5, dtype=torch.bool))
    with pytest.raises(sightline.errors.ShapeError, match="attribution"):
        Xrai(steps=1).on(adapter, images, [TARGET], ("grid", 2), [torch.zeros(1, 5, 5)])
