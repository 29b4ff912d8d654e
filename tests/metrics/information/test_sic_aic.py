from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import features
from scipy.interpolate import griddata, interp1d
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import InputError, RecipeError, TargetError
from sightline.metrics.case import Case
from sightline.metrics.information import revealed as revealed_module
from sightline.metrics.information.revealed import COUNTS, weights
from sightline.metrics.information.sic_aic import Aic, Sic, area_of_curves, performance_curve, start_from
from sightline.metrics.judge import judge
from sightline.perturb.interpolate import (
    border,
    compressed_size,
    from_uint8,
    interpolate,
    interpolate_each,
    random_pixels,
    to_uint8,
    top_pixels,
)
from sightline.recipe import parse_metric, text
from sightline.types import Contrast, Logit

SIC, AIC = "sic(minimum=0.0)", "aic(minimum=0.0)"
SHORT = "thresholds=(0.05, 0.2, 0.5), share=0.05, minimum=0.0"


def picture(seed=0, size=(24, 20)):
    """A smooth scene with some noise, as photographs are."""
    random = np.random.default_rng(seed)
    down, right = np.mgrid[: size[0], : size[1]]
    waves = np.stack([np.sin(down / 5 + k) + np.cos(right / 4 - k) for k in range(3)], axis=-1)
    return np.clip(120 + 50 * waves + random.normal(0, 8, waves.shape), 0, 255).astype(np.uint8)


def brightness(images):
    """The first class is likelier the brighter the middle is; images are normalised with 0.5."""
    middle = images[:, :, 8:16, 6:14].mean(dim=(1, 2, 3)).double()
    return torch.stack([20 * (middle - 0.5), torch.zeros_like(middle)], dim=1)


def scene(count=1):
    """Dark pictures with a bright middle, a model that looks for it, and the map that points there."""
    shots = [picture(seed) // 3 for seed in range(count)]
    for shot in shots:
        shot[8:16, 6:14] = 200 + shot[8:16, 6:14] // 3
    model = adapt(brightness)
    images = from_uint8(model, shots, torch.zeros(1, dtype=torch.float64))
    down, right = torch.meshgrid(torch.arange(24.0), torch.arange(20.0), indexing="ij")
    maps = -((down - 11.6) ** 2 + (right - 9.7) ** 2 + 1e-3 * right)
    return model, images, maps.expand(count, -1, -1)


def case(model, images, maps, target=0):
    return Case(model, images, Logit(target), maps)


# ---- interpolation ---------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.0, 0.02, 0.3, 0.9]))
def test_all_channels_are_interpolated_as_each_by_itself(seed, share):
    shot = picture(seed)
    known = np.random.default_rng(seed).random(shot.shape[:2]) < share
    cornered = known.copy()
    cornered[[0, 0, -1, -1], [0, -1, 0, -1]] = True
    want = shot.copy()
    for channel in range(3):
        values = griddata(
            np.argwhere(cornered), shot[..., channel][cornered], np.argwhere(~cornered), method="linear", fill_value=0
        )
        want[..., channel][~cornered] = np.round(values.astype(np.float32))
    assert np.array_equal(interpolate(shot, known), want)


def test_a_plane_is_interpolated_from_its_corners():
    down, right = np.mgrid[:9, :13]
    plane = np.stack([8 * down, 4 * right, 100 + down + right], axis=-1).astype(np.uint8)
    assert np.array_equal(interpolate(plane, np.zeros((9, 13), bool)), plane)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 1), (2, 2), (2, 5)])
def test_pictures_too_thin_for_triangles_are_interpolated_too(size):
    shot = picture(size=size)
    guess = interpolate(shot, np.zeros(size, bool))
    assert guess.shape == shot.shape
    assert np.array_equal(guess[[0, 0, -1, -1], [0, -1, 0, -1]], shot[[0, 0, -1, -1], [0, -1, 0, -1]])
    assert np.array_equal(interpolate(shot, np.ones(size, bool)), shot)


def test_known_pixels_stay_and_nothing_given_is_changed():
    shot, known = picture(), np.random.default_rng(0).random((24, 20)) < 0.2
    before = shot.copy(), known.copy()
    assert np.array_equal(interpolate(shot, known)[known], shot[known])
    assert np.array_equal(shot, before[0])
    assert np.array_equal(known, before[1])


def test_several_interpolations_come_in_the_order_they_were_asked(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    random = np.random.default_rng(0)
    sets = [random.random((24, 20)) < share for share in (0.5, 0.01, 0.9, 0.2)]
    for (guess, size), known in zip(interpolate_each(picture(), sets), sets, strict=True):
        assert np.array_equal(guess, interpolate(picture(), known))
        assert size == compressed_size(guess)


def test_a_picture_comes_back_from_the_model_as_it_was():
    model, shots = adapt(brightness), [picture(0), picture(1)]
    for dtype in (torch.float32, torch.float64):
        back = to_uint8(model, from_uint8(model, shots, torch.zeros(1, dtype=dtype)))
        assert all(np.array_equal(a, b) for a, b in zip(shots, back, strict=True))


def test_noise_holds_more_information_than_a_plane():
    noise = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    assert compressed_size(noise) > compressed_size(picture()) > compressed_size(np.zeros_like(noise))


# ---- which pixels ----------------------------------------------------------------------------------------------------


def test_an_image_has_the_same_random_pixels_in_any_batch():
    images = torch.rand(4, 3, 20, 30)
    found = random_pixels(images, 0, 0.05)
    assert found.flatten(1).sum(dim=1).tolist() == [30] * 4
    assert torch.equal(random_pixels(images[[2, 0]], 0, 0.05), found[[2, 0]])
    assert not torch.equal(random_pixels(images, 1, 0.05), found)
    assert not torch.equal(found[0], found[1])


def test_equal_pixels_are_shown_together():
    values = np.array([[3.0, 1.0, 1.0, 1.0, 0.0]])
    assert top_pixels(values, 0.2).tolist() == [[True, False, False, False, False]]
    assert top_pixels(values, 0.5).tolist() == [[True, True, True, True, False]]


# ---- curves ----------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_curve_is_the_references_where_no_two_points_have_the_same_information(seed):
    random = np.random.default_rng(seed)
    sizes = [1000.0, 100.0, *random.permutation(np.arange(101, 1000))[:13]]
    answers = [0.9, 0.1, *random.uniform(0, 1, 13)]
    amounts = [0.0, 1.0, *((np.array(sizes[2:]) - 100) / 900)]
    heights = [0.0, 1.0, *np.maximum.accumulate(np.clip((np.array(answers[2:]) - 0.1) / 0.8, 0, 1))]
    want = np.append(interp1d(amounts, heights)(np.linspace(0, 1, 1000, endpoint=False)), 1.0)
    curve, reason = performance_curve(sizes, answers)
    assert reason == ""
    np.testing.assert_allclose(curve, want, atol=1e-12)


def test_by_hand():
    curve, _ = performance_curve([200, 100, 150], [1.0, 0.0, 0.5])
    np.testing.assert_allclose(curve, np.linspace(0, 1, 1001), atol=1e-12)
    curve, _ = performance_curve([200, 100, 150, 160], [1.0, 0.0, 1.0, 0.2])  # what was regained is not lost again
    np.testing.assert_allclose(curve[[250, 500, 600, 1000]], [0.5, 1, 1, 1])


def test_of_points_with_the_same_information_the_highest_counts():
    curve, _ = performance_curve([200, 100, 150, 150], [1.0, 0.0, 0.2, 0.8])
    assert curve[500] == pytest.approx(0.8)
    assert curve[250] == pytest.approx(0.4)
    at_once, _ = performance_curve([200, 100, 90], [1.0, 0.0, 0.6])  # less information than the start counts as none
    assert at_once[0] == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("sizes", "answers", "said"),
    [
        ([200, 100, 150], [0.4, 0.1, 0.2], "the image scores 0.4, below 0.5"),
        ([200, 200, 150], [0.9, 0.1, 0.2], "as much information"),
        ([200, 100, 150], [0.9, 0.9, 0.9], "scores as much"),
    ],
)
def test_what_cannot_be_judged_is_nan_and_says_why(sizes, answers, said):
    curve, reason = performance_curve(sizes, answers, 0.5)
    assert np.isnan(curve).all()
    assert said in reason


def test_a_set_of_images_is_summed_up_by_the_middle_curve():
    curves = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.9, 1.0], [torch.nan] * 3])
    assert area_of_curves(curves) == pytest.approx((0.45 + 0.95) / 2)
    assert area_of_curves(curves, "mean") == pytest.approx((1.9 / 3 + 0.5) / 2)
    assert np.isnan(area_of_curves(curves[3:]))
    with pytest.raises(InputError, match="'median' or 'mean'"):
        area_of_curves(curves, "mode")


# ---- the metrics -----------------------------------------------------------------------------------------------------


def test_they_share_pictures_and_passes(monkeypatch):
    model, images, maps = scene(2)
    asked = []
    monkeypatch.setattr(
        revealed_module,
        "interpolate_each",
        lambda shot, known, **kind: (asked.append(len(known)), interpolate_each(shot, known, **kind))[1],
    )
    scores = judge(case(model, images, maps), [SIC, AIC])
    assert asked == [14, 14]
    assert scores.passes.forward == 2 * 15
    for name in (SIC, AIC):
        alone = judge(case(model, images, maps), name)
        assert_close(alone[name], scores[name], rtol=0, atol=0)
        assert alone.passes.forward == 2 * parse_metric(name).cost(model).forward


def test_triangles_of_the_border_give_the_same_picture():
    shot = picture(3, (40, 36))
    down, right = np.mgrid[:40, :36]
    known = (down - 20.3) ** 2 + (right - 15.1) ** 2 < 140  # a disc, far from the corners
    assert border(known).sum() < 0.4 * known.sum()
    slow, quick = interpolate(shot, known), interpolate(shot, known, borders=True)
    assert (slow != quick).any(axis=-1).mean() < 0.1  # of four pixels on a circle, either pair of triangles is right
    assert np.array_equal(quick[known], shot[known])
    ring = np.ones((9, 9), dtype=bool)
    ring[3:6, 4] = False
    small = picture(1, (9, 9))
    assert np.array_equal(interpolate(small, ring), interpolate(small, ring, borders=True))


def fast(name, variant="fast"):
    return name.replace(")", f", variant='{variant}')")


def large_scene():
    """A picture in whose size a few bytes do not count, with a bright disc that the model looks for."""
    shot = picture(0, (96, 80)) // 3
    down, right = np.mgrid[:96, :80]
    far = (down - 46.3) ** 2 + (right - 41.7) ** 2
    shot[far < 300] += 150
    inside = torch.from_numpy(far < 300)

    def brightness_inside(images):
        score = 12 * (images[:, :, inside].mean(dim=(1, 2)).double() - 0.45)
        return torch.stack([score, torch.zeros_like(score)], dim=1)

    model = adapt(brightness_inside)
    maps = torch.from_numpy(np.sin(down / 9) + np.cos(right / 7) - far / 500)[None]
    return model, from_uint8(model, [shot], torch.zeros(1, dtype=torch.float64)), maps


def test_the_fast_form_compresses_hard_only_what_the_area_depends_on(monkeypatch):
    model, images, maps = large_scene()
    hard = []

    def noted(shot, quick=False):
        hard.extend([] if quick else [shot])
        return compressed_size(shot, quick=quick)

    monkeypatch.setattr(revealed_module, "compressed_size", noted)
    scores = judge(case(model, images, maps), [fast(SIC), fast(AIC)])
    assert 2 < len(hard) < 15
    assert scores.passes.forward == 15
    exact = judge(case(model, images, maps), [SIC, AIC])
    for name in (SIC, AIC):
        assert scores[fast(name)].item() == pytest.approx(exact[name].item(), abs=1e-3)
        assert 0.05 < exact[name].item() < 0.95


def test_with_every_picture_compressed_hard_the_fast_form_is_the_exact_one(monkeypatch):
    model, images, maps = scene()
    monkeypatch.setattr(revealed_module, "COUNTS", -1.0)
    for name in (SIC, AIC):
        (slow, quick) = (judge(case(model, images, maps), each)[each].item() for each in (name, fast(name)))
        assert slow == quick


def test_the_border_form_is_near_the_exact_one():
    model, images, maps = large_scene()
    for name in (SIC, AIC):
        (slow, quick) = (judge(case(model, images, maps), each)[each].item() for each in (name, fast(name, "border")))
        assert quick == pytest.approx(slow, abs=0.01)


def test_the_weight_of_a_size_is_how_fast_the_area_changes_with_it():
    scores = np.array([1.0, 0.0, 0.1, 0.1, 0.4, 0.9])
    sizes = np.array([100.0, 10.0, 20.0, 30.0, 50.0, 80.0])
    assert_close(weights(scores), np.array([0.05, 0.15, 0.4, 0.3]))
    for index, weight in enumerate(weights(scores)):
        moved = sizes.copy()
        moved[2 + index] += 0.9  # a hundredth of the way
        before, after = (performance_curve(each, scores)[0] for each in (sizes, moved))
        assert np.trapezoid(before - after, dx=1e-3) == pytest.approx(0.01 * weight, abs=3e-4)
    assert (weights(np.array([0.3, 0.3, 0.5])) == 0).all()  # no curve
    assert 0 < COUNTS < 0.1


def test_the_map_that_finds_the_evidence_beats_its_negative():
    # not its shuffle: scattered pixels let the whole of a smooth picture be guessed for little information
    model, images, maps = scene()
    for name in (SIC, AIC):
        true, wrong = (judge(case(model, images, each), name)[name].item() for each in (maps, -maps))
        assert true > 1.5 * wrong


def test_a_positive_affine_change_of_the_map_changes_nothing():
    model, images, maps = scene()
    first, second = (judge(case(model, images, each), [SIC, AIC]) for each in (maps, 4 * maps + 8))
    for name in (SIC, AIC):
        assert_close(first[name], second[name], rtol=0, atol=0)


def test_a_batch_equals_its_images_one_by_one():
    model, images, maps = scene(3)
    together = judge(case(model, images, maps), f"sic({SHORT})")
    alone = [judge(case(model, images[row : row + 1], maps[:1]), f"sic({SHORT})") for row in range(3)]
    (values,) = together.values()
    assert_close(values, torch.cat([next(iter(one.values())) for one in alone]), rtol=0, atol=1e-12)


def test_given_pixels_stand_in_for_random_ones():
    model, images, maps = scene()
    given_ = case(model, images, maps)
    start_from(given_, random_pixels(images, 7, 0.01))
    seeded = judge(case(model, images, maps), "sic(minimum=0.0, seed=7)")
    assert_close(judge(given_, SIC)[SIC], next(iter(seeded.values())), rtol=0, atol=0)
    with pytest.raises(InputError, match="one mask per image"):
        start_from(given_, torch.zeros(1, 2, 2))


def test_an_image_that_is_not_sure_is_not_judged():
    model, images, maps = scene()
    wrong = judge(case(model, images, maps, target=1), ["sic", "aic"])
    assert torch.isnan(wrong["sic"]).all()
    assert torch.isnan(wrong["aic"]).all()
    assert "below 0.8" in wrong.flags["sic"][0]
    assert torch.isnan(wrong.curves["aic"]).all()


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_a_constant_map_shows_everything_at_once_and_is_flagged(value):
    model, images, maps = scene()
    scores = judge(case(model, images, torch.full_like(maps, value)), SIC)
    assert scores[SIC].item() == pytest.approx(0.5)  # nothing but the two ends
    assert scores.flags[SIC] == ("constant map",)


def test_a_tiny_transformer_and_huge_maps(tiny_vit, images):
    maps = torch.zeros(2, 32, 32, dtype=torch.float64)
    maps[:, 3, 4] = 1e300
    scores = judge(Case(adapt(tiny_vit), images, Logit(1), maps), [f"sic({SHORT})", f"aic({SHORT})"])
    assert all(values.shape == (2,) for values in scores.values())
    assert scores.passes.forward == 2 * 5


def test_accuracy_needs_a_class(tiny_vit, images):
    contrast = Case(adapt(tiny_vit), images, Contrast(0, 1), torch.rand(2, 32, 32))
    assert judge(contrast, f"sic({SHORT})")
    with pytest.raises(TargetError, match="needs a class"):
        judge(contrast, f"aic({SHORT})")


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("sic(thresholds=())", "above 0"),
        ("aic(thresholds=(0.0, 0.5))", "above 0"),
        ("sic(thresholds=(0.5, 0.1))", "rising order"),
        ("sic(share=1.0)", "share=1.0"),
    ],
)
def test_wrong_options_are_refused_at_once(recipe, said):
    with pytest.raises(RecipeError, match=said):
        parse_metric(recipe)


def test_recipes_come_back_as_they_were():
    assert text(Sic(minimum=0.5)) == "sic(minimum=0.5)"
    assert parse_metric("aic(thresholds=(0.1, 0.5), seed=3)") == Aic(thresholds=(0.1, 0.5), seed=3)


# ---- reference numbers -----------------------------------------------------------------------------------------------


def test_guesses_and_sizes_are_those_of_the_reference(shared):
    numbers = np.load(shared / "golden/photo/metric_sic_aic_A.npz")
    shot = np.load(shared / "golden/photo/inputs_A.npz")["rgb_uint8"]
    start = numbers["random_mask"] > 0
    blurred = interpolate(shot, start)
    assert np.array_equal(blurred, numbers["interpolated_uint8_t0"])
    tenth = interpolate(shot, start | top_pixels(numbers["map_gae"], 0.1))
    assert np.array_equal(tenth, numbers["interpolated_uint8_t0.1"])
    want = numbers["sic_entropy_bytes"][[1, 9]]
    same = features.version("webp") == "1.6.0"
    np.testing.assert_allclose([compressed_size(blurred), compressed_size(tenth)], want, rtol=0 if same else 0.02)


@pytest.mark.slow
def test_curves_are_those_of_the_reference(shared, real_vit):
    numbers = np.load(shared / "golden/photo/metric_sic_aic_A.npz")
    images = torch.from_numpy(np.load(shared / "golden/photo/inputs_A.npz")["input"])
    known = case(adapt(real_vit), images, torch.from_numpy(numbers["map_gae"])[None], target=155)
    start_from(known, torch.from_numpy(numbers["random_mask"])[None])
    scores = judge(known, ["sic(minimum=0.5)", "aic(minimum=0.5)"])
    tolerance = 1e-5 if features.version("webp") == "1.6.0" else 0.005
    for name in ("sic", "aic"):
        found = scores[f"{name}(minimum=0.5)"].item()
        assert found == pytest.approx(float(numbers[f"{name}_auc_f64"]), abs=tolerance)
        if tolerance < 0.005:
            curve = torch.from_numpy(numbers[f"{name}_curve_y"]).double()
            assert_close(scores.curves[f"{name}(minimum=0.5)"][0], curve, rtol=0, atol=1e-4)
