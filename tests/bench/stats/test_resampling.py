"""Statistics: against scipy on the same draws, against hand examples, and by how often they are right."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.bench.stats import reduce, resampling
from sightline.bench.stats.agreement import RankedRecipes, agreements, tau_b
from sightline.bench.stats.reduce import MEAN, REDUCTIONS
from sightline.bench.stats.resampling import (
    BOOTSTRAP,
    Settings,
    holm,
    paired_permutation_test,
    pairs_of,
    resample,
    win_rates,
)
from sightline.bench.stats.ties import letters, rank_intervals
from sightline.errors import InputError


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def estimate(values, **options):
    chosen = Settings(**options)
    return resample(MEAN, values[..., None], chosen).estimate(chosen.confidence)


def p_values(values, one, other, seed=0):
    return paired_permutation_test(MEAN, values[..., None], values, np.array(one), np.array(other), Settings(seed=seed))


# ------------------------------------------------------------------------------------------------ intervals


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_interval_of_a_mean_is_scipys(confidence, rng):
    values = rng.exponential(size=(30, 4))
    found = estimate(values, confidence=confidence, resamples=999, seed=5)
    for column in range(4):
        wanted = scipy.stats.bootstrap(
            (values[:, column],),
            np.mean,
            n_resamples=999,
            confidence_level=confidence,
            method="BCa",
            rng=np.random.default_rng([5, BOOTSTRAP]),
        )
        assert found.low[column] == pytest.approx(wanted.confidence_interval.low, abs=1e-9)
        assert found.high[column] == pytest.approx(wanted.confidence_interval.high, abs=1e-9)
        assert found.standard_error[column] == pytest.approx(scipy.stats.sem(values[:, column]), abs=1e-12)


@pytest.mark.parametrize("metric", ["insertion", "pixel_accuracy"])
def test_the_interval_of_a_paired_difference_is_scipys(metric, rng):
    reduction = REDUCTIONS.get(metric, MEAN)
    data = rng.gamma(2.0, size=(25, 2, 1 if reduction is MEAN else 2)).cumsum(axis=2)
    sampled = resample(reduction, data, Settings(resamples=999, seed=2))
    found = sampled.differences(np.array([0]), np.array([1])).estimate(0.95)

    def difference(images):
        return float(np.subtract(*reduction.statistic(data[images])))

    wanted = scipy.stats.bootstrap(
        (np.arange(25),),
        difference,
        n_resamples=999,
        vectorized=False,
        method="BCa",
        rng=np.random.default_rng([2, BOOTSTRAP]),
    )
    assert found.low[0] == pytest.approx(wanted.confidence_interval.low, abs=1e-9)
    assert found.high[0] == pytest.approx(wanted.confidence_interval.high, abs=1e-9)


@pytest.mark.parametrize(("draw", "least"), [("exponential", 0.92), ("normal", 0.93), ("pareto", 0.89)])
def test_the_interval_covers_the_truth_as_often_as_it_says(draw, least, rng):
    values = {
        "exponential": lambda: rng.exponential(size=(50, 2000)),
        "normal": lambda: rng.normal(1.0, size=(50, 2000)),
        "pareto": lambda: rng.pareto(5.0, size=(50, 2000)) * 4,
    }[draw]()
    found = estimate(values, resamples=1000)
    coverage = ((found.low <= 1) & (found.high >= 1)).mean()
    assert least <= coverage <= 0.965


def test_on_skewed_data_its_misses_are_more_even_than_those_of_plain_percentiles(rng):
    values = rng.exponential(size=(50, 4000))
    sampled = resample(MEAN, values[..., None], Settings(resamples=1000))
    found, plain = sampled.estimate(0.95), np.quantile(sampled.bootstrap, [0.025, 0.975], axis=0)
    uneven = [(high < 1).mean() - (low > 1).mean() for low, high in ((found.low, found.high), plain)]
    assert abs(uneven[0]) < 0.6 * uneven[1]


def test_a_paired_difference_has_a_narrower_interval_than_an_unpaired_one(rng):
    images = rng.normal(size=(60, 1))
    values = images + 0.1 * rng.normal(size=(60, 2))
    sampled = resample(MEAN, values[..., None], Settings())
    paired, alone = sampled.differences(np.array([0]), np.array([1])).estimate(0.95), sampled.estimate(0.95)
    assert (paired.high - paired.low)[0] < 0.3 * (alone.high - alone.low)[0]


def test_few_images_have_no_interval_and_equal_ones_a_point():
    one, two = estimate(np.array([[0.3]])), estimate(np.array([[0.3], [0.5]]))
    assert one.statistic[0] == 0.3
    assert np.isnan([one.low[0], one.high[0], one.standard_error[0], two.low[0], two.high[0]]).all()
    assert two.standard_error[0] == pytest.approx(0.1)
    same = estimate(np.full((7, 2), 0.1))
    assert same.low.tolist() == same.high.tolist() == same.statistic.tolist()
    assert same.standard_error == pytest.approx(0, abs=1e-15)


def test_images_that_are_right_or_wrong_do_not_fall_to_one_side_by_rounding():
    values = np.repeat([[0.1], [0.4]], [30, 30], axis=0)  # sums of these differ in the last bit by their order
    found = estimate(np.concatenate([values, 0.5 - values], axis=1))
    assert found.low[0] - 0.25 == pytest.approx(0.25 - found.high[1], abs=1e-12)
    assert found.high[0] - 0.25 == pytest.approx(0.25 - found.low[1], abs=1e-12)


def test_a_large_offset_moves_the_interval_and_nothing_else(rng):
    values = rng.exponential(size=(40, 1))
    near, far = estimate(values), estimate(values + 1e6)
    assert far.low[0] - 1e6 == pytest.approx(near.low[0], abs=1e-6)


def test_the_median_curve_has_a_bootstrap_error(rng):
    curves = np.clip(np.linspace(0, 1, 101) * rng.uniform(0.5, 2.0, size=(40, 2, 1)), 0, 1)
    found = resample(REDUCTIONS["sic"], curves, Settings(resamples=500)).estimate(0.95)
    assert ((found.low < found.statistic) & (found.statistic < found.high)).all()
    width = found.high - found.low
    assert ((found.standard_error > 0.3 * width / 3.92) & (found.standard_error < 3 * width)).all()


def test_memory_is_bounded_by_taking_turns(monkeypatch, rng):
    values = rng.random((20, 3))
    whole, p = estimate(values), p_values(values, [0, 1], [1, 2])
    monkeypatch.setattr("sightline.bench.stats.resampling.MAX_NUMBERS", 700)
    turns = estimate(values)
    np.testing.assert_allclose(turns.low, whole.low, atol=1e-12)
    np.testing.assert_allclose(p_values(values, [0, 1], [1, 2]), p, atol=1e-12)


@pytest.mark.parametrize("wrong", [{"confidence": 1.0}, {"resamples": 0}, {"seed": -1}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Settings(**wrong)


# ---------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("images", [1, 2, 5, 9, 12])
def test_for_few_images_the_test_is_exact(images, rng):
    values = rng.normal([0.4, 0.0], size=(images, 2))
    wanted = _scipy_p(values) if images > 1 else 1.0
    assert p_values(values, [0], [1])[0] == pytest.approx(wanted, abs=1e-12)


def test_with_ties_and_zeros_it_is_exact_too():
    values = np.array([[1, 0], [1, 0], [0, 0], [0, 1], [1, 0], [1, 1], [1, 0]]) * 0.1
    assert p_values(values, [0], [1])[0] == pytest.approx(_scipy_p(values), abs=1e-12)
    assert p_values(values[:, [0, 0]], [0], [1])[0] == 1.0


def test_for_many_images_it_is_scipys_but_for_chance(rng):
    values = rng.normal([0.35, 0.0], size=(40, 2))
    wanted = _scipy_p(values, n_resamples=40_000)
    assert p_values(values, [0], [1])[0] == pytest.approx(wanted, abs=4 * np.sqrt(wanted * (1 - wanted) / 10_000))


def test_a_statistic_of_counts_is_permuted_as_scipy_permutes_it(rng):
    labelled = rng.integers(20, 60, (8, 2)).astype(float)
    data = np.stack([labelled * rng.random((8, 2)), labelled], axis=2)
    reduction = REDUCTIONS["pixel_accuracy"]

    def difference(a, b):
        return np.subtract(*reduction.statistic(np.stack([_pairs(a), _pairs(b)], axis=1)))

    def _pairs(packed):
        return np.stack([packed.real, packed.imag], axis=1)

    a, b = data[..., 0].T + 1j * data[..., 1].T  # one number per image, so that its two counts move together
    wanted = scipy.stats.permutation_test((a, b), difference, permutation_type="samples", vectorized=False).pvalue
    found = paired_permutation_test(reduction, data, data[..., 0], np.array([0]), np.array([1]), Settings())
    assert found[0] == pytest.approx(wanted.real, abs=1e-12)


def test_many_pairs_get_p_values_small_enough_to_matter(rng):
    values = rng.normal(scale=0.1, size=(40, 40)) + np.arange(40)
    corrected = holm(paired_permutation_test(MEAN, values[..., None], values, *pairs_of(40), Settings()))
    assert corrected.max() < 0.05


@pytest.mark.parametrize("images", [9, 30])
def test_equal_recipes_are_called_different_as_seldom_as_it_says(images, rng):
    shared = rng.standard_t(3, size=(images, 400, 1))
    values = (shared + rng.standard_t(3, size=(images, 400, 2))).reshape(images, 800)
    p = p_values(values, np.arange(0, 800, 2), np.arange(1, 800, 2))
    for level in (0.05, 0.2, 0.5):
        assert (p <= level).mean() == pytest.approx(level, abs=3.5 * np.sqrt(level * (1 - level) / 400) + 0.004)


def test_holm_keeps_the_chance_of_a_single_false_difference(rng):
    one, other = pairs_of(5)
    wrong = lone = 0
    for _ in range(400):
        values = rng.exponential(size=(10, 1)) + rng.exponential(size=(10, 5))
        p = p_values(values, one, other)
        wrong, lone = wrong + (holm(p) <= 0.05).any(), lone + (p <= 0.05).any()
    assert wrong / 400 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
    assert lone / 400 > 0.15  # what would happen without it


def test_where_medians_cannot_be_permuted_the_images_own_values_are_tested(rng):
    curves = np.sort(rng.random((20, 2, 101)), axis=2)
    values = np.stack([np.linspace(0, 1, 20), np.linspace(0, 1, 20) + 0.5], axis=1)
    ahead = REDUCTIONS["sic"].statistic(curves).argmax()
    same, turned = (values, values[:, ::-1]) if ahead else (values[:, ::-1], values)
    agreed = paired_permutation_test(REDUCTIONS["sic"], curves, same, *pairs_of(2), Settings())
    opposed = paired_permutation_test(REDUCTIONS["sic"], curves, turned, *pairs_of(2), Settings())
    assert agreed[0] < 0.001
    assert opposed[0] == 1.0


@pytest.mark.parametrize(("rows", "images"), [(9, 52_081), (7, 13), (3, 5), (1, 1), (64, 64)])
def test_signs_are_those_of_numpys_whole_numbers(rows, images):
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    for _ in range(3):  # one after the other, since a generator may keep a half of a number
        wanted = 1 - 2 * one.integers(0, 2, size=(rows, images), dtype=np.int8)
        assert (resampling._drawn_signs(other, rows, images) == wanted).all()


@pytest.mark.parametrize("reduction", [MEAN, REDUCTIONS["pixel_accuracy"]])
def test_tests_in_blocks_of_images_are_those_of_all_at_once(rng, monkeypatch, reduction):
    data = rng.integers(1, 50, (203, 6, 2)).astype(float) if reduction is not MEAN else rng.normal(size=(203, 6, 1))
    given = (reduction, data, data[..., 0], *pairs_of(6), Settings())
    wanted = paired_permutation_test(*given)
    monkeypatch.setattr(resampling, "MAX_NUMBERS", 1000)  # a few permutations are drawn at a time, whatever follows
    few = paired_permutation_test(*given)
    for place in (resampling, reduce):
        monkeypatch.setattr(place, "MANY_IMAGES", 100)
    monkeypatch.setattr(reduce, "IMAGES_TOGETHER", 64)
    assert paired_permutation_test(*given).tolist() == few.tolist()
    np.testing.assert_allclose(few, wanted, atol=0.02)  # other draws
    counts = rng.integers(0, 3, (5, 203)).astype(float)
    np.testing.assert_allclose(reduce._summed(counts, data), np.einsum("di,irp->drp", counts, data), rtol=1e-12)


def test_holm_by_hand():
    # 0.005·5, 0.011·4, 0.02·3, then 0.04·2 = 0.08, and 0.06·1 lifted to the 0.08 before it.
    np.testing.assert_allclose(holm(np.array([0.04, 0.005, 0.06, 0.011, 0.02])), [0.08, 0.025, 0.08, 0.044, 0.06])
    assert holm(np.array([0.7, 0.9])).tolist() == [1.0, 1.0]
    assert holm(np.array([])).tolist() == []


def test_wins_by_hand():
    better = np.array([[3.0, 2.0, 1.0], [1.0, 1.0, 0.0]])
    np.testing.assert_allclose(win_rates(better), [(2 + 1.5) / 4, (1 + 1.5) / 4, 0.0])
    assert np.isnan(win_rates(better[:, :1])).all()


# ------------------------------------------------------------------------------------------ ties and agreement


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 9))
    upper = draw(st.lists(st.booleans(), min_size=count * count, max_size=count * count))
    above = np.triu(np.array(upper).reshape(count, count), k=1)
    return above | above.T


@settings(max_examples=200, deadline=None, derandomize=True)
@given(graphs())
def test_recipes_share_a_letter_exactly_if_they_are_not_different(different):
    found = letters(different)
    assert found[0].startswith("a")
    for one, other in np.ndindex(different.shape):
        assert bool(set(found[one]) & set(found[other])) != different[one, other]
    used = sorted(set("".join(found)))
    assert used == list("abcdefghijklmnopqrstuvwxyz"[: len(used)])
    members = [{place for place, letter in enumerate(found) if each in letter} for each in used]
    assert not any(one < other for one in members for other in members)


def test_letters_by_hand():
    means = np.array([5.0, 4.4, 4.0, 2.0])
    assert letters(np.abs(means[:, None] - means) > 0.7) == ["a", "ab", "b", "c"]
    assert letters(np.zeros((3, 3), dtype=bool)) == ["a", "a", "a"]
    many = letters(~np.eye(60, dtype=bool))
    assert len(set(many)) == 60


def test_rank_intervals_by_hand():
    ahead = np.array([[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=bool)
    low, high = rank_intervals(ahead)
    assert list(zip(low.tolist(), high.tolist(), strict=True)) == [(1, 2), (1, 3), (2, 3), (4, 4)]


def test_rank_intervals_hold_the_true_ranks(rng):
    truth, missed = np.array([0.6, 0.6, 0.3, 0.0]), 0
    for _ in range(200):
        values = rng.normal(size=(10, 1)) + truth + 0.3 * rng.normal(size=(10, 4))
        order = np.argsort(-values.mean(axis=0))
        one, other = pairs_of(4)
        ahead = np.zeros((4, 4), dtype=bool)
        ahead[one, other] = holm(p_values(values[:, order], one, other)) <= 0.05
        low, high = rank_intervals(ahead)
        better = 1 + (truth > truth[order][:, None]).sum(axis=1)
        worse = 4 - (truth < truth[order][:, None]).sum(axis=1)
        missed += bool(((low > worse) | (high < better)).any())
    assert missed / 200 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


def test_kendalls_tau_is_scipys(rng):
    one, other = rng.integers(0, 4, (30, 7)).astype(float), rng.integers(0, 4, (30, 7)).astype(float)
    one[0] = 1.0
    found = tau_b(one, other)
    assert np.isnan(found[0])
    wanted = [scipy.stats.kendalltau(a, b).statistic for a, b in zip(one[1:], other[1:], strict=True)]
    np.testing.assert_allclose(found[1:], wanted, atol=1e-12)


def test_metrics_with_the_same_images_are_compared_together_and_others_apart(rng):
    recipes, images = tuple("abcd"), tuple(f"i{index}" for index in range(30))

    def ranked(metric, model="m", sign=1, without=0):
        values = rng.normal(size=(30 - without, 4)).round(1)
        return RankedRecipes(model, metric, recipes, images[without:], values.mean(axis=0), values, sign)

    given = [ranked("x"), ranked("y", sign=-1), ranked("z", without=3), ranked("x", "n"), ranked("w"), ranked("y", "n")]
    found = {(one.model, one.one, one.other): one for one in agreements(given)}
    wanted = [("m", "x", "y"), ("m", "x", "z"), ("m", "x", "w"), ("m", "y", "z"), ("m", "y", "w"), ("m", "z", "w")]
    assert list(found) == [*wanted[:4], *wanted[4:], ("n", "x", "y")]
    by_name = {(each.model, each.metric): each for each in given}
    for (model, *names), agreement in found.items():
        one, other = (by_name[model, name] for name in names)
        common = max(len(images) - len(each.images) for each in (one, other))
        sides = [each.sign * each.values[common - (30 - len(each.images)) :] for each in (one, other)]
        taus = tau_b(*sides)
        assert agreement.images == 30 - common
        assert agreement.image_tau == pytest.approx(np.nanmean(taus), rel=1e-12)


def _scipy_p(values, n_resamples=9999):
    return scipy.stats.permutation_test(
        (values[:, 0], values[:, 1]),
        lambda a, b, axis: a.mean(axis=axis) - b.mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=n_resamples,
        rng=np.random.default_rng(1),
    ).pvalue
