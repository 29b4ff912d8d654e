"""Reductions: the same statistics as the metrics' own, of all images, resampled and by jackknife."""

import numpy as np
import pytest
import torch

from sightline.bench.stats.reduce import MEAN, REDUCTIONS, AreaOfMedian, _thinned, reduction_of
from sightline.metrics.information.sic_aic import area_of_curves
from sightline.metrics.localisation.segmentation import mean_iou_of, pixel_accuracy_of
from sightline.registry import METRICS

OWN = {
    "pixel_accuracy": pixel_accuracy_of,
    "mean_iou": mean_iou_of,
    "sic": area_of_curves,
    "aic": area_of_curves,
}


def data_for(metric: str, images: int = 9, recipes: int = 3) -> np.ndarray:
    rng = np.random.default_rng(3)
    if metric == "pixel_accuracy":
        labelled = rng.integers(50, 100, (images, recipes))
        return np.stack([rng.integers(0, labelled), labelled], axis=2).astype(float)
    if metric == "mean_iou":
        unions = rng.integers(20, 60, (images, recipes, 2))
        return np.concatenate([rng.integers(0, unions), unions], axis=2).astype(float)
    return np.sort(rng.random((images, recipes, 101)), axis=2) if metric in OWN else rng.random((images, recipes, 1))


def taken(data: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.repeat(data, counts.astype(int), axis=0)


def test_every_reduction_is_that_of_a_metric():
    assert set(REDUCTIONS) == set(OWN) <= set(METRICS)
    assert reduction_of("insertion(step=448)") is MEAN
    assert reduction_of("sic(seed=2)") is REDUCTIONS["sic"]


@pytest.mark.parametrize("metric", OWN)
def test_the_statistic_is_the_one_the_metric_publishes(metric):
    data = data_for(metric)
    statistics = REDUCTIONS[metric].statistic(data)
    for column, statistic in enumerate(statistics):
        assert statistic == pytest.approx(OWN[metric](torch.from_numpy(data[:, column])), abs=1e-12)


@pytest.mark.parametrize("images", [2, 7, 8])
@pytest.mark.parametrize("metric", [*OWN, "insertion"])
def test_resampling_is_taking_images_again(metric, images):
    reduction, data, rng = reduction_of(metric), data_for(metric, images), np.random.default_rng(4)
    counts = np.stack([np.bincount(rng.integers(0, images, images), minlength=images) for _ in range(6)]).astype(float)
    wanted = np.stack([reduction.statistic(taken(_seen(metric, data), each)) for each in counts])
    np.testing.assert_allclose(reduction.resampled(data, counts), wanted + _missed(metric, data), atol=1e-12)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("images", [2, 3, 7, 8])
@pytest.mark.parametrize("metric", [*OWN, "insertion"])
def test_the_jackknife_takes_all_but_one(metric, images, ties):
    reduction, data = reduction_of(metric), data_for(metric, images)
    if ties:
        data = np.round(data, 1)
    wanted = np.stack([reduction.statistic(np.delete(_seen(metric, data), each, axis=0)) for each in range(images)])
    np.testing.assert_allclose(reduction.jackknife(data), wanted + _missed(metric, data), atol=1e-12)


@pytest.mark.parametrize("metric", ["pixel_accuracy", "mean_iou", "insertion"])
def test_permuting_is_exchanging_the_images_of_two_recipes(metric):
    reduction, data, rng = reduction_of(metric), data_for(metric), np.random.default_rng(4)
    one, other = np.array([0, 0, 1]), np.array([1, 2, 2])
    signs = rng.choice([-1.0, 1.0], size=(5, len(data)))
    wanted = np.empty((5, 3))
    for draw, pair in np.ndindex(5, 3):
        stays = (signs[draw] > 0)[:, None]
        a, b = data[:, one[pair]], data[:, other[pair]]
        sides = np.stack([np.where(stays, a, b), np.where(stays, b, a)], axis=1)
        wanted[draw, pair] = np.subtract(*reduction.statistic(sides))
    np.testing.assert_allclose(reduction.permuted(data, signs, one, other), wanted, atol=1e-12)


def test_a_long_curve_is_thinned_for_the_bootstrap_and_keeps_its_area():
    data = np.sort(np.random.default_rng(4).random((8, 2, 1001)), axis=2)
    assert _thinned(data).shape == (8, 2, 51)
    assert np.array_equal(_thinned(data)[..., [0, -1]], data[..., [0, -1]])
    once = AreaOfMedian().resampled(data, np.ones((1, 8)))
    np.testing.assert_allclose(once[0], AreaOfMedian().statistic(data), atol=1e-12)


def test_no_labelled_pixel_is_no_statistic():
    assert np.isnan(REDUCTIONS["pixel_accuracy"].statistic(np.zeros((2, 1, 2)))).all()
    assert np.isnan(REDUCTIONS["mean_iou"].statistic(np.zeros((2, 1, 4)))).all()


def _seen(metric: str, data: np.ndarray) -> np.ndarray:
    return _thinned(data) if metric in ("sic", "aic") else data


def _missed(metric: str, data: np.ndarray) -> np.ndarray:
    return reduction_of(metric).statistic(data) - reduction_of(metric).statistic(_seen(metric, data))
