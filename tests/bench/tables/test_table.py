"""The table: paired, whatever the order of its rows; and what is written of it."""

import csv
import io
import json
import math
import re
import time
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from sightline.bench.stats.breakdown import ClassRow, ClassRows, by_class
from sightline.bench.stats.paired import PairedScores
from sightline.bench.stats.reduce import MEAN
from sightline.bench.tables import table_rows
from sightline.bench.tables.columns import TableRow, column
from sightline.bench.tables.number_format import number, p_value
from sightline.bench.tables.table import Table, make_table
from sightline.errors import InputError

METHODS = ("gae", "ixg", "rollout")
EASY = {"resamples": 300}


def make_rows(
    recipes=(*METHODS, "random", "sobel"),
    metrics=("insertion", "deletion"),
    images=20,
    model="vit",
    seed=0,
    spread=0.05,
) -> pd.DataFrame:
    """Return rows in which an earlier recipe is better than a later one, under either metric."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0.5, 0.2, images)
    rows = []
    for metric in metrics:
        step = 0.1 if metric == "deletion" else -0.1
        for place, recipe in enumerate(recipes):
            values = shared + step * place + rng.normal(0, spread, images)
            for each in range(images):
                rows.append(
                    {
                        "run": "a run",
                        "unit": f"{recipe}-{each // 8}",
                        "model": model,
                        "weights": "w",
                        "recipe": recipe,
                        "metric": metric,
                        "image": f"image-{each:03d}",
                        "label": each % 3,
                        "target": each % 3,
                        "value": values[each],
                        "flag": "",
                        "seed": 0,
                        "forward": 1.0 + place,
                        "backward": 1.0,
                        "metric_forward": 5.0,
                        "seconds": rng.random(),
                        "curve": None,
                        "dataset": "shapes",
                        "versions": "{}",
                    }
                )
    return pd.DataFrame(rows)


def fail(rows, image, recipe=None, flag="failed: the model answered NaN"):
    hit = (rows["image"] == image) & (rows["recipe"].eq(recipe) if recipe else True)
    return rows.assign(value=rows["value"].mask(hit), flag=rows["flag"].mask(hit, flag))


def line(table: Table, recipe, metric="insertion"):
    return next(one for one in table.rows if (one.recipe, one.metric) == (recipe, metric))


def text(table: Table) -> str:
    """Return everything that is written of a table, wall time apart."""
    spoken = table.to_json() | {"timing": None}
    return table.to_csv() + table.to_markdown() + table.to_latex() + json.dumps(spoken, allow_nan=False)


@pytest.fixture(scope="module")
def table():
    return make_table(make_rows(), **EASY)


# ---------------------------------------------------------------------------------------------------- numbers


def test_a_line_says_what_the_rows_say(table):
    rows = make_rows()
    values = rows[(rows.recipe == "ixg") & (rows.metric == "deletion")].value
    found = line(table, "ixg", "deletion")
    assert found.mean == pytest.approx(values.mean())
    assert found.standard_error == pytest.approx(scipy.stats.sem(values))
    assert found.low < found.mean < found.high
    assert (found.count, found.failed, found.degenerate, found.direction) == (20, 0, 0, "lower")
    assert (found.forward, found.backward) == (2.0, 1.0)
    assert (found.control, found.agnostic) == (False, False)
    assert line(table, "random").control
    assert line(table, "rollout").agnostic


@pytest.mark.parametrize("metric", ["insertion", "deletion"])
def test_ranks_follow_the_direction_of_the_metric(table, metric):
    ranked = [one for one in table.rows if one.metric == metric]
    assert [one.recipe for one in ranked] == [*METHODS, "random", "sobel"]
    assert [one.rank for one in ranked] == [1, 2, 3, 4, 5]
    assert [one.group for one in ranked] == list("abcde")
    assert [(one.rank_low, one.rank_high) for one in ranked] == [(place, place) for place in range(1, 6)]
    assert ranked[0].wins > 0.9 > 0.1 > ranked[-1].wins


@pytest.mark.parametrize("metric", ["insertion", "deletion"])
def test_margins_are_over_the_best_control_and_positive_when_ahead(table, metric):
    first, best, other = (line(table, recipe, metric) for recipe in ("gae", "random", "sobel"))
    assert first.margin == pytest.approx(abs(first.mean - best.mean))
    assert 0 < first.margin_low < first.margin < first.margin_high
    assert first.p_control < 0.05
    assert math.isnan(best.margin)
    assert math.isnan(best.p_control)
    assert other.margin_low < other.margin < other.margin_high < 0


def test_margin_and_comparison_are_the_same_difference(table):
    pair = next(one for one in table.comparisons if (one.metric, one.a, one.b) == ("deletion", "gae", "random"))
    found = line(table, "gae", "deletion")
    assert (found.margin, found.margin_low, found.margin_high) == pytest.approx(
        (-pair.difference, -pair.high, -pair.low)
    )
    assert found.p_control == pair.p_holm
    assert pair.different


def test_frames_one_after_the_other_give_the_table_of_one():
    parts = [part for _, part in make_rows().groupby(["model", "metric"], sort=True)]
    assert make_table(iter(parts), **EASY) == make_table(make_rows(), **EASY)
    assert make_table(iter(())).rows == ()


@pytest.mark.parametrize("most", [1, 45, 100])
def test_pairs_are_compared_a_few_at_a_time_and_come_out_the_same(monkeypatch, most):
    rows = make_rows(seed=3)
    rows = rows.drop(rows.index[[4, 50]])  # some pairs have fewer images than others
    wanted = make_table(rows, **EASY).to_json()
    monkeypatch.setattr(table_rows, "MAX_NUMBERS", most)
    assert make_table(rows, **EASY).to_json() == wanted


def test_without_a_control_there_is_no_margin():
    table = make_table(make_rows(METHODS), **EASY)
    assert all(math.isnan(one.margin) and math.isnan(one.p_control) for one in table.rows)


def test_every_two_recipes_are_compared_once(table):
    assert len(table.comparisons) == 2 * 10
    for pair in table.comparisons:
        assert pair.low <= pair.difference <= pair.high
        assert pair.p <= pair.p_holm
        assert pair.wins >= 0.5


def test_recipes_that_do_not_differ_share_letter_and_ranks():
    rows = make_rows(("gae", "ixg", "random"), spread=0.5)
    ranked = [one for one in make_table(rows, **EASY).rows if one.metric == "insertion"]
    assert {one.group for one in ranked} == {"a"}
    assert {(one.rank_low, one.rank_high) for one in ranked} == {(1, 3)}
    same = rows.assign(value=0.25)
    flat = make_table(same, **EASY)
    assert {(one.rank, one.group, one.low, one.high, one.wins) for one in flat.rows} == {(1, "a", 0.25, 0.25, 0.5)}
    assert {pair.p for pair in flat.comparisons} == {1.0}


def test_two_metrics_that_order_alike_agree(table):
    (found,) = table.agreement
    assert (found.one, found.other, found.recipes, found.images) == ("deletion", "insertion", 5, 20)
    assert found.tau == found.rho == 1.0
    assert 0.5 < found.image_tau < 1.0
    turned = make_rows()
    turned["value"] = turned["value"].where(turned["metric"] != "deletion", -turned["value"])
    assert make_table(turned, **EASY).agreement[0].tau == -1.0


def test_agreement_of_orders_is_scipys():
    rows = make_rows(spread=1.0, metrics=("insertion", "ins_del"))
    (found,) = make_table(rows, **EASY).agreement
    means = rows.pivot_table(index="recipe", columns="metric", values="value")
    assert found.tau == pytest.approx(scipy.stats.kendalltau(means.insertion, means.ins_del).statistic)
    assert found.rho == pytest.approx(scipy.stats.spearmanr(means.insertion, means.ins_del).statistic)


def test_classes_and_worst_images():
    rows = make_rows()
    table = make_table(rows, **EASY)
    chosen = rows[(rows.recipe == "ixg") & (rows.metric == "insertion") & (rows.label == 1)].value
    found = next(one for one in table.breakdown if (one.recipe, one.metric, one.label) == ("ixg", "insertion", 1))
    assert (found.mean, found.standard_error, found.count) == pytest.approx((chosen.mean(), scipy.stats.sem(chosen), 7))
    wide = rows[rows.metric == "deletion"].pivot(index="image", columns="recipe", values="value")
    short = (wide.rollout - wide.min(axis=1)).sort_values(ascending=False)
    worst = [one for one in table.worst if (one.recipe, one.metric) == ("rollout", "deletion")]
    assert [one.image for one in worst] == short.index[:5].tolist()
    assert [one.shortfall for one in worst] == pytest.approx(short[:5].tolist())
    assert worst[0].median == pytest.approx(wide.loc[worst[0].image].median())
    assert "random" not in {one.recipe for one in table.worst}


@pytest.mark.parametrize("gaps", [0.0, 0.1])
def test_classes_as_columns_are_those_of_each_recipe_alone(gaps):
    rng = np.random.default_rng(3)
    values = rng.normal(size=(400, 7)) * 1e3
    values[rng.random(values.shape) < gaps] = np.nan
    labels = tuple(None if label == 5 else label for label in rng.integers(0, 60, 400).tolist())
    names = tuple(f"r{index}" for index in range(7)), tuple(f"i{index}" for index in range(400))
    scores = PairedScores("m", "x", MEAN, *names, labels, values, values[..., None], (), ())
    wanted = []
    for label in sorted({label for label in labels if label is not None}):
        for place, recipe in enumerate(names[0]):
            own = values[np.array([each == label for each in labels]), place]
            own = own[np.isfinite(own)]
            if (count := len(own)) >= 2:
                wanted.append(
                    ClassRow("m", "x", recipe, label, own.sum() / count, own.std(ddof=1) / np.sqrt(count), count)
                )
    found = ClassRows([by_class(scores), by_class(replace(scores, metric="y"))])
    assert list(found.of("m", "x")) == wanted  # to the last digit
    assert len(found) == len(list(found)) == 2 * len(wanted)
    assert found == [*wanted, *(replace(row, metric="y") for row in wanted)]
    assert (found[3], found[-1].metric, found[1:9:3]) == (wanted[3], "y", tuple(wanted[1:9:3]))
    assert found != wanted
    with pytest.raises(IndexError):
        found[2 * len(wanted)]


def test_classes_of_one_image_and_unknown_labels_are_not_broken_down():
    rows = make_rows(images=6)
    assert make_table(rows.assign(label=None), **EASY).breakdown == ()
    assert make_table(rows.assign(label=rows["image"].str[-1].astype(int)), **EASY).breakdown == ()


def test_published_figures_are_reduced_as_published():
    rng = np.random.default_rng(0)
    rows = make_rows(("gae", "random"), metrics=("pixel_accuracy", "sic"))
    counts = rng.integers(5, 90, (len(rows), 1)) * [1.0, 2.0] + [0.0, 7.0]
    curves = np.sort(rng.random((len(rows), 11)), axis=1)
    accuracy = rows["metric"] == "pixel_accuracy"
    rows["curve"] = [list(c) if is_count else list(k) for is_count, c, k in zip(accuracy, counts, curves, strict=True)]
    table = make_table(rows, **EASY)
    right, labelled = counts[(accuracy & (rows.recipe == "gae")).to_numpy()].sum(axis=0)
    assert line(table, "gae", "pixel_accuracy").mean == pytest.approx(right / labelled)
    median = np.median(curves[(~accuracy & (rows.recipe == "gae")).to_numpy()], axis=0)
    assert line(table, "gae", "sic").mean == pytest.approx((median.sum() - (median[0] + median[-1]) / 2) / 10)
    assert table.reductions["sic"] == "area under the median curve"
    bare = make_table(rows.assign(curve=None), **EASY)
    assert bare.reductions["sic"] == "mean over images"


# --------------------------------------------------------------------------------------------------- pairing


def test_the_order_of_rows_does_not_matter(table):
    shuffled = make_rows().sample(frac=1.0, random_state=3)
    assert text(make_table(shuffled, **EASY)) == text(table)
    again = make_rows().assign(seconds=9.0)
    assert text(make_table(again, **EASY)) == text(table)


def test_the_seed_matters_a_little(table):
    other = make_table(make_rows(), seed=1, **EASY)
    assert [one.mean for one in other.rows] == [one.mean for one in table.rows]
    assert [one.low for one in other.rows] != [one.low for one in table.rows]


def test_an_image_that_one_recipe_failed_on_counts_for_the_others():
    rows = fail(make_rows(), "image-004", "ixg")
    table, whole = make_table(rows, **EASY), make_table(make_rows(), **EASY)
    without = make_table(rows[rows["image"] != "image-004"], **EASY)
    own = ("mean", "low", "high", "standard_error", "count")
    for one in table.rows:
        same = line(without if one.recipe == "ixg" else whole, one.recipe, one.metric)
        assert [getattr(one, name) for name in own] == pytest.approx([getattr(same, name) for name in own], rel=1e-12)
        assert (one.failed, one.count) == ((1, 19) if one.recipe == "ixg" else (0, 20))
    found = {(one.metric, frozenset((one.a, one.b))): one for one in table.comparisons}
    for other in (without, whole):
        for one in other.comparisons:
            with_ixg = "ixg" in (one.a, one.b)
            if with_ixg == (other is without):
                pair = found[one.metric, frozenset((one.a, one.b))]
                assert (pair.a, pair.b, pair.p, pair.wins) == (one.a, one.b, one.p, one.wins)
                assert [pair.difference, pair.low, pair.high] == pytest.approx([one.difference, one.low, one.high])
                assert pair.images == (19 if with_ixg else 20)
    assert {(one.recipe, one.image, one.reason) for one in table.unpaired} == {
        ("ixg", "image-004", "failed: the model answered NaN")
    }


def test_a_pair_is_ordered_by_the_images_that_both_scored():
    """A recipe that skips the hard images has the better mean of its own, and loses every image that both have."""
    rows = make_rows(("gae", "ixg"), ("insertion",), images=20)
    hard = rows["image"] < "image-008"
    values = np.where(hard, 0.1, 0.8) + np.where(rows["recipe"] == "gae", 0.05, 0.0) + 1e-3 * rows["value"]
    rows = rows.assign(value=np.where(hard & (rows["recipe"] == "ixg"), np.nan, values))
    table = make_table(rows, **EASY)
    assert line(table, "ixg").mean > line(table, "gae").mean
    (pair,) = table.comparisons
    assert (pair.a, pair.b, pair.images, pair.wins) == ("gae", "ixg", 12, 1.0)
    assert pair.different
    assert pair.low <= pair.difference <= pair.high
    assert pair.difference == pytest.approx(0.05, abs=0.01)
    assert line(table, "gae").rank_high == 1  # significantly better where both were measured
    assert line(table, "gae").wins == 1.0


def test_it_does_not_matter_how_an_image_failed():
    rows = make_rows()
    failed = make_table(fail(rows, "image-004", "ixg"), **EASY)
    absent = make_table(rows[(rows["image"] != "image-004") | (rows["recipe"] != "ixg")], **EASY)
    infinite = rows.assign(value=rows["value"].mask((rows["image"] == "image-004") & (rows["recipe"] == "ixg"), np.inf))
    for other in (absent, make_table(infinite, **EASY)):
        assert other.comparisons == failed.comparisons
        assert [one.low for one in other.rows] == [one.low for one in failed.rows]
    assert {one.reason for one in absent.unpaired} == {"not scored"}
    everywhere, gone = make_table(fail(rows, "image-004"), **EASY), make_table(rows[rows.image != "image-004"], **EASY)
    assert everywhere.comparisons == gone.comparisons


def test_an_undefined_score_is_degenerate_and_a_remark_is_counted():
    rows = fail(make_rows(), "image-007", "gae", flag="the image scores 0.1, below 0.8")
    rows.loc[(rows["image"] == "image-009") & (rows["recipe"] == "gae"), "flag"] = "constant map"
    found = line(make_table(rows, **EASY), "gae")
    assert (found.failed, found.degenerate, found.flagged, found.count) == (0, 1, 1, 19)


def test_a_recipe_that_hardly_ever_worked_is_set_aside():
    rows = make_rows()
    for place in range(15):
        rows = fail(rows, f"image-{place:03d}", "gae")
    table = make_table(rows, **EASY)
    aside = line(table, "gae")
    own = rows[(rows.recipe == "gae") & (rows.metric == "insertion")].value
    assert (aside.rank, aside.group, aside.count, aside.failed) == (None, "", 5, 15)
    assert aside.mean == pytest.approx(own.mean())
    assert [one for one in table.rows if one.metric == "insertion"][-1] == aside
    others = make_table(rows[rows["recipe"] != "gae"], **EASY)
    assert [one for one in table.rows if one.recipe != "gae"] == list(others.rows)


def test_nothing_scored_is_a_table_of_nothing():
    rows = make_rows(images=3).assign(value=np.nan, flag="failed: no memory")
    table = make_table(rows, **EASY)
    assert {(one.count, one.failed, one.rank) for one in table.rows} == {(0, 3, None)}
    assert all(math.isnan(one.mean) for one in table.rows)
    assert text(table)
    nothing = make_table(rows[:0], **EASY)
    assert nothing.rows == ()
    assert text(nothing)
    assert nothing.to_frame().empty


@pytest.mark.parametrize("images", [1, 2, 3])
def test_a_handful_of_images_is_told_as_such(images):
    table = make_table(make_rows(images=images), **EASY)
    assert all(math.isnan(one.low) == (images < 3) for one in table.rows)
    assert {one.group for one in table.rows} == {"a"}
    assert text(table)


def test_one_recipe_alone_comes_first():
    (found,) = make_table(make_rows(("ixg",), ("insertion",)), **EASY).rows
    assert (found.rank, found.rank_low, found.rank_high, found.group) == (1, 1, 1, "a")
    assert math.isnan(found.wins)


def test_models_do_not_mix():
    both = pd.concat([make_rows(), make_rows(model="cnn", seed=4)])
    table = make_table(both, **EASY)
    assert [one for one in table.rows if one.model == "vit"] == list(make_table(make_rows(), **EASY).rows)
    assert {one.model for one in table.agreement} == {"cnn", "vit"}
    assert len(table.agreement) == 2


def test_seeds_are_averaged_image_by_image():
    one, two = make_rows(seed=0), make_rows(seed=1).assign(seed=1)
    table = make_table(pd.concat([two, one]), **EASY)
    averaged = make_table(one.assign(value=(one["value"] + two["value"]) / 2), **EASY)
    assert [found.count for found in table.rows] == [20] * 10
    for found, wanted in zip(table.rows, averaged.rows, strict=True):
        assert (found.mean, found.low, found.p_control) == pytest.approx(
            (wanted.mean, wanted.low, wanted.p_control), nan_ok=True
        )


def test_the_same_rows_twice_are_the_same_rows(table):
    assert text(make_table(pd.concat([make_rows(), make_rows()]), **EASY)) == text(table)


def test_what_cannot_be_averaged_is_refused():
    rows = make_rows()
    with pytest.raises(InputError, match="two values of deletion"):
        make_table(pd.concat([rows, rows.assign(value=rows["value"] + 0.1)]))
    with pytest.raises(InputError, match="2 data sets, pets, shapes"):
        make_table(pd.concat([rows, rows.assign(dataset="pets")]))
    with pytest.raises(InputError, match="2 sets of weights"):
        make_table(pd.concat([rows, rows.assign(weights="v", image="other")]))
    with pytest.raises(InputError, match="no column 'value'"):
        make_table(rows.drop(columns="value"))


def test_five_columns_are_enough():
    rows = make_rows()[["model", "recipe", "metric", "image", "value"]]
    assert line(make_table(rows, **EASY), "gae").rank == 1


def test_two_hundred_images_by_sixteen_recipes_by_four_metrics_take_seconds():
    recipes = ["random", "centre", "sobel", "input_norm", *(f"ig(steps={steps})" for steps in range(5, 17))]
    rows = make_rows(recipes, ("insertion", "deletion", "ins_del", "pointing_game"), images=200)
    make_table(make_rows(images=3))  # what is loaded once does not count
    start = time.process_time()
    make_table(rows)
    assert time.process_time() - start < 5  # 0.8 on an idle core


# --------------------------------------------------------------------------------------------------- formats


def test_numbers_have_four_digits_whatever_their_last_bit():
    assert [number(x) for x in (0.5, 0.12345, 1.0, 999.96, 12345.6, -0.0, 0.1 + 0.2)] == [
        "0.5000",
        "0.1235",
        "1.000",
        "1000",
        "12346",
        "0",
        "0.3000",
    ]
    assert number(float("nan")) == number(None) == "–"
    for value in (0.12345, 0.67895, 2.00005, 123.45):
        assert number(np.nextafter(value, 0)) == number(value) == number(np.nextafter(value, 9))
    assert [p_value(p) for p in (1.0, 0.0312, 0.00001)] == ["1", "0.031", "< 0.0001"]


def test_the_frame_holds_every_line_and_no_wall_time(table):
    frame = table.to_frame()
    assert len(frame) == 10
    assert frame.columns[0] == "model"
    assert "seconds" not in frame.columns
    assert table.to_frame(timing=True)["seconds"].between(0, 1).all()
    assert frame["rank"].tolist() == [1, 2, 3, 4, 5] * 2


def test_a_new_column_is_one_field():
    """The field alone: value, frame, CSV, JSON and Markdown follow."""

    @dataclass(frozen=True, slots=True)
    class WithMedian(TableRow):
        median: float = field(metadata=column(lambda result: float(np.median(result.values)), heading="middle"))
        outliers: int | None = field(metadata=column(lambda result: int((result.values > 0.9).sum())))
        elapsed: float = field(compare=False, metadata=column(lambda result: 7.0, varies=True))

    rows = make_rows()
    table = make_table(rows, row_type=WithMedian, **EASY)
    own = rows[(rows.recipe == "gae") & (rows.metric == "insertion")].value
    assert line(table, "gae").median == pytest.approx(own.median())
    assert table.to_frame()["median"].tolist() == [row.median for row in table.rows]
    assert str(table.to_frame()["outliers"].dtype) == "Int64"
    (first, *_) = csv.DictReader(io.StringIO(table.to_csv()))
    assert (first["median"], first["outliers"]) == (number(table.rows[0].median), str(table.rows[0].outliers))
    assert table.to_json()["table"][0]["median"] == pytest.approx(table.rows[0].median)
    written = table.to_markdown()
    assert "| degenerate | middle |" in written
    assert f"| 0 | {number(table.rows[0].median)} |" in written
    assert "outliers" not in written  # it has no heading
    assert "elapsed" not in table.to_csv() + json.dumps(table.to_json())
    assert table.to_frame(timing=True)["elapsed"].eq(7.0).all()
    plain = make_table(rows, **EASY)
    assert [row.mean for row in plain.rows] == [row.mean for row in table.rows]
    assert make_table(rows[:0], row_type=WithMedian, **EASY).to_frame().columns[-1] == "outliers"


def test_the_columns_are_those_of_every_version_in_their_order(table):
    names = (
        "model,recipe,metric,direction,mean,low,high,error,count,failed,degenerate,flagged,rank,rank_low,rank_high,group,"
        "wins,margin,margin_low,margin_high,p_control,forward,backward,control,agnostic"
    )
    assert table.to_csv().splitlines()[0] == names
    assert ",".join(table.to_frame().columns) == names
    assert ",".join(table.to_json()["table"][0]) == names
    heads = "rank,recipe,mean,95 % interval,group,ranks,wins,over control,p,passes,images,failed,degenerate"
    assert f"| {heads.replace(',', ' | ')} |" in table.to_markdown()


def test_csv_can_be_read_back():
    rows = make_rows(("ig(steps=20)", "smooth_grad(ixg, samples=10)", "random"))
    table = make_table(rows.assign(recipe=rows["recipe"].replace("random", 'odd "name", really')), **EASY)
    read = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [row["recipe"] for row in read] == [one.recipe for one in table.rows]
    assert [float(row["mean"]) for row in read] == pytest.approx([one.mean for one in table.rows], rel=1e-3)
    assert {row["margin"] for row in read} == {""}
    assert "nan" not in table.to_csv()


def test_json_has_null_for_what_is_unknown(table):
    written = json.loads(json.dumps(table.to_json(), allow_nan=False))
    assert set(written) >= {"table", "comparisons", "agreement", "breakdown", "worst", "unpaired", "timing"}
    assert len(written["table"]) == 10
    assert written["table"][0]["recipe"] == "gae"
    assert written["table"][0]["mean"] == pytest.approx(table.rows[0].mean, rel=1e-9)
    assert "seconds" not in written["table"][0]
    assert next(row for row in written["table"] if row["recipe"] == "random")["margin"] is None
    assert len(written["timing"]) == 5
    assert written["settings"] == {"confidence": 0.95, "resamples": 300, "seed": 0}


def test_markdown_has_rectangular_tables():
    rows = make_rows(("plus(libra(ixg))", "raw_attention", "odd|name", "random"), metrics=("insertion", "mean_ap"))
    written = make_table(rows, **EASY).to_markdown()
    tables = [part.splitlines() for part in written.split("\n\n") if part.startswith("|")]
    assert [len(part) for part in tables] == [6, 6, 6]
    for part in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in part}) == 1
    assert "odd\\|name" in written
    assert "mean\\_ap ↑" in written
    assert "random (control)" in written
    assert re.search(r"\| plus\(libra\(ixg\)\) \| \*\*0\.\d+\*\* a \|", written)
    assert "nan" not in written.lower()


def test_latex_is_escaped_and_balanced():
    rows = make_rows(("ig(steps=20)", "raw_attention", "50%_{x}&~^\\y", "random"), metrics=("deletion", "mean_ap"))
    written = make_table(rows, **EASY).to_latex()
    body = written.split(r"\midrule")
    assert len(body) == 3  # heads, methods, controls
    assert r"50\%\_\{x\}\&\textasciitilde{}\textasciicircum{}\textbackslash{}y" in written
    assert re.search(r"ig\(steps=20\) & \$\\mathbf\{0\.\d+\}\^\{\\mathrm\{a\}\} \\pm 0\.\d+\$", written)
    assert r"deletion $\downarrow$ & mean\_ap $\uparrow$ \\" in written
    bare = re.sub(r"\\[\\&%$#_{}]", "", written)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    rows_of_cells = [row for row in written.splitlines() if row.endswith("\\\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows_of_cells} == {2}
