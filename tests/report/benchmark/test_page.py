"""The page of a benchmark: its charts, its tables, its pictures, and what may stand in it."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from tests.report import invented

from sightline.bench.tables.table import make_table
from sightline.formatting import (
    format_count,
    format_difference,
    format_interval,
    format_p,
    format_percent,
    format_score,
    format_seconds,
)
from sightline.report.benchmark.failures import failure_table
from sightline.report.benchmark.gallery import choose_images, render_gallery, transparent_overlay
from sightline.report.benchmark.page import TABLES, render_benchmark, write_benchmark
from sightline.report.benchmark.sanity import SanityResult
from sightline.report.charts.cost import Point, cost_chart, pareto_front
from sightline.report.charts.curve import axis_number, log_ticks, nice_range, nice_ticks, shorten
from sightline.report.charts.mean_curve import Series, group_insertion_deletion, mean_curve, mean_curve_chart, y_range
from sightline.report.figure import overlay

VOID = {"meta", "img", "br", "wbr"}


class Reader(HTMLParser):
    """Read a page and note its tags; a tag that is closed out of order fails at once."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "wbr":
            self.words.append("\0")  # a word goes on behind it
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).replace(" \0 ", "").split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.tags if name == tag]


@pytest.fixture(scope="module")
def frame():
    return invented.rows()


@pytest.fixture(scope="module")
def table(frame):
    return make_table(frame, resamples=200)


@pytest.fixture(scope="module")
def page(frame, table):
    return invented.page(frame, table)


@pytest.fixture(scope="module")
def html(page):
    return render_benchmark(page)


# ---- the page ------------------------------------------------------------------------------------------------------


def test_the_page_is_well_formed_and_every_id_is_used_once(html):
    reader = Reader(html)
    ids = [found["id"] for _, found in reader.tags if "id" in found]
    assert len(ids) == len(set(ids)) > 50


def test_what_refers_to_an_id_finds_it(html):
    reader = Reader(html)
    ids = {found["id"] for _, found in reader.tags if "id" in found}
    asked = {word for _, found in reader.tags for name in ("aria-labelledby", "aria-controls") if name in found
             for word in (found[name] or "").split()}  # fmt: skip
    asked |= {(found["href"] or "")[1:] for found in reader.all("a") if (found["href"] or "").startswith("#")}
    assert asked <= ids


def test_the_page_needs_nothing_else(html):
    reader = Reader(html)
    sources = [found.get("src") or found.get("href") or "" for _, found in reader.tags]
    assert all(source.startswith(("data:", "#")) or source in ("", *TABLES) for source in sources)
    assert not re.search(r"url\((?!data:)|@import|https?://", html)
    assert "default-src 'none'" in html


def test_every_recipe_metric_and_section_is_there(html, table):
    text = Reader(html).text
    for line in table.rows:
        assert line.recipe in text
        assert line.metric in text
    for words in ("Curves", "Gallery", "Sanity", "Do the metrics agree?", "Failures and flags", "Run it again",
                  "sightline bench run plan.toml", "@misc{nobody", "2.13.0", "Table 1 of nobody.",
                  "my-methods 1.4, source 5f0e1d2c3b4a"):  # fmt: skip
        assert words in text


def test_controls_and_class_agnostic_methods_are_marked(html):
    rows = re.findall(r'<tr class="([^"]*)">(.*?)</tr>', html, flags=re.DOTALL)
    marked = [re.search(r"<code>(.*?)</code>", body) for kind, body in rows if "control" in kind]
    assert {found[1] for found in marked if found} == set(invented.CONTROLS)
    assert re.search(r'<code>rollout</code> <span class="tag"[^>]*>class-agnostic', html)


def test_the_leader_is_named_in_a_sentence_and_sanity_has_no_leader(html):
    text = Reader(html).text
    assert "leads with" in text.partition("deletion ↓")[2][:60]
    assert text.count("leads with") == 3


def test_the_metrics_stand_in_the_order_asked_for(frame, table):
    text = Reader(render_benchmark(invented.page(frame, table, metrics=invented.METRICS, gallery=[]))).text
    assert text.index("insertion ↑") < text.index("deletion ↓") < text.index("average_precision ↑")


def test_a_page_of_almost_nothing_is_still_a_page():
    frame = invented.rows(images=1, methods={"gae": (0.5, 1, 1)}, metrics=("average_precision",), failures=False)
    bare = {"plan": {}, "gallery": (), "sanity": (), "left_out": {}, "skipped": (), "bibtex": "", "intro": ()}
    reader = Reader(render_benchmark(invented.page(frame, **bare)))
    assert "None: every map was made" in reader.text
    assert "Gallery" not in reader.text


def test_a_run_in_which_everything_failed_is_reported():
    frame = invented.rows(images=3, failures=False)
    frame["value"], frame["curve"], frame["flag"] = np.nan, None, "failed: the disk is full"
    reader = Reader(render_benchmark(invented.page(frame, gallery=())))
    assert "failed: the disk is full" in reader.text


def test_two_models_have_a_leaderboard_each():
    frame = invented.rows(images=6, models=("bundled/shapes-vit", "bundled/shapes-cnn"))
    html = render_benchmark(invented.page(frame, gallery=()))
    assert [found["id"] for found in Reader(html).all("section")][:2] == ["model-1", "model-2"]


@pytest.mark.parametrize("models", [("bundled/shapes-vit",), ("bundled/shapes-vit", "bundled/shapes-cnn")])
def test_headings_never_skip_a_level(models):
    frame = invented.rows(images=6, models=models)
    gallery = [image for model in models for image in invented.gallery(frame[frame["model"] == model], count=3)]
    sanity = [SanityResult(model, "gae", "passes", "Changes.") for model in models]
    reader = Reader(render_benchmark(invented.page(frame, gallery=gallery, sanity=sanity)))
    levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(level <= before + 1 for before, level in pairwise(levels))


HOSTILE = "<script>alert('1')</script>"
QUOTED = '"><img src=x onerror=alert(2)>{{ 7 * 7 }}'


def test_hostile_names_stay_text():
    frame = invented.rows(images=4, methods={HOSTILE: (0.6, 1, 1), QUOTED: (0.5, 2, 2)})
    frame.loc[frame["image"] == "photo-0000", "image"] = f"a{HOSTILE}.jpg"
    frame.loc[frame["image"] == "photo-0001", "flag"] = f"constant map {QUOTED}"
    frame.loc[:, "model"] = f"m/{QUOTED}"
    html = render_benchmark(
        invented.page(
            frame,
            title=HOSTILE,
            intro=[QUOTED],
            facts=[(HOSTILE, QUOTED)],
            warnings=[HOSTILE],
            plan={"name": "</pre></script>" + HOSTILE},
            skipped=[(QUOTED, HOSTILE)],
            versions=[(HOSTILE, QUOTED)],
            packages=[{"name": HOSTILE, "version": QUOTED, "digest": HOSTILE}],
            left_out={QUOTED: [(HOSTILE, QUOTED)]},
            command=HOSTILE,
            bibtex=QUOTED,
        )
    )
    reader = Reader(html)
    assert len(reader.all("script")) == 2
    assert all((found["src"] or "").startswith("data:image/") for found in reader.all("img"))
    assert not any(name.startswith("on") for _, found in reader.tags for name in found)
    assert reader.text.count(HOSTILE) > 10
    assert "{{ 7 * 7 }}" in reader.text


def test_the_tables_lie_beside_the_page(page, table, tmp_path):
    paths = write_benchmark(page, tmp_path / "report")
    assert [path.name for path in paths] == ["index.html", *TABLES]
    assert (tmp_path / "report" / "table.csv").read_text() == table.to_csv()
    assert (tmp_path / "report" / "table.tex").read_text() == table.to_latex()


def test_the_page_of_a_large_run_stays_below_15_megabytes():
    frame = invented.rows(images=200, points=225)
    page = invented.page(frame, make_table(frame, resamples=20), gallery=invented.gallery(frame, count=70))
    html = render_benchmark(page)
    assert 5e6 < len(html.encode()) < 15e6


# ---- charts --------------------------------------------------------------------------------------------------------


def test_ticks_are_round_and_within():
    assert nice_ticks(0, 1) == [0, 0.25, 0.5, 0.75, 1]
    assert nice_ticks(-0.31, 0.62) == [-0.25, 0.0, 0.25, 0.5]
    assert log_ticks(1, 40) == [1, 2, 5, 10, 20]
    assert log_ticks(1, 1e6) == [1, 10, 100, 1e3, 1e4, 1e5, 1e6]
    assert [axis_number(value) for value in (0.25, -0.5, 5000.0)] == ["0.25", "−0.5", "5,000"]


def test_a_range_is_never_empty():
    assert nice_range([]) == nice_range([np.nan]) == (0, 1)
    for values in ([0.4], [0.0, 0.0], [-2.0, -2.0]):
        low, high = nice_range(values)
        assert low < values[0] < high


def point(name: str, passes: float, value: float, control: bool = False) -> Point:
    return Point(name, "1", passes, value, value - 0.05, value + 0.05, control)


def test_the_front_holds_what_no_cheaper_method_beats():
    points = [point("a", 1, 0.5), point("b", 2, 0.4), point("c", 4, 0.7), point("d", 4, 0.6), point("e", 9, 0.7)]
    assert [one.name for one in pareto_front(points, higher=True)] == ["a", "c"]
    assert [one.name for one in pareto_front(points, higher=False)] == ["a", "b"]
    assert pareto_front([point("control", 0, 0.9, control=True)], higher=True) == []


def markers(svg: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)]


def test_passes_are_on_a_logarithmic_axis():
    (a, _), (b, _), (c, _) = markers(cost_chart(
        [point("a", 1, 0.2), point("b", 10, 0.5), point("c", 100, 0.8)], title="t", y_label="y", higher=True
    ))  # fmt: skip
    assert b - a == pytest.approx(c - b, abs=0.2)
    assert b - a > 150


def test_markers_of_the_same_price_do_not_cover_each_other():
    points = [point(f"m{place}", 2, 0.5 + 0.002 * place) for place in range(6)]
    places = markers(cost_chart(points, title="t", y_label="y", higher=True))
    apart = [max(abs(x - u), abs(y - v)) for k, (x, y) in enumerate(places) for u, v in places[:k]]
    assert min(apart) >= 16.9


def test_names_lie_inside_the_drawing_and_are_escaped():
    points = [point(f"<b>{'long' * 6}-{place}", 3.0**place, 0.3 + 0.1 * place) for place in range(5)]
    svg = cost_chart(points, title="t", y_label="y", higher=False)
    assert "<b>" not in svg
    assert svg.count("lower is better") == 1


def test_a_long_name_loses_its_middle():
    assert shorten("short", 10) == "short"
    assert shorten("abcdefghijklmnop", 11) == "abcdef…mnop"


def test_a_chart_without_a_number_is_nothing():
    assert cost_chart([point("a", 1, np.nan)], title="t", y_label="y", higher=True) == ""


def test_a_band_is_the_mean_and_its_t_interval():
    from scipy.stats import t

    curves = np.random.default_rng(0).random((7, 11))
    band = mean_curve(list(curves), points=11)
    low, high = t.interval(0.95, 6, loc=curves.mean(0), scale=curves.std(0, ddof=1) / np.sqrt(7))
    np.testing.assert_allclose([band.mean, band.low, band.high], [curves.mean(0), low, high], rtol=1e-12)


def test_curves_that_are_missing_or_broken_do_not_count():
    band = mean_curve([None, [0.0, 1.0], [np.nan, 1.0], [], [0.0, 0.5, 1.0]], points=3)
    assert band.count == 2
    assert band.mean.tolist() == [0, 0.5, 1]
    assert mean_curve([None, []]) is None


def test_a_single_curve_has_no_band():
    band = mean_curve([[0.0, 1.0]])
    svg = mean_curve_chart({"insertion": Series(band, 1)}, title="t")
    assert "opacity:.22" not in svg
    assert "series-1" in svg


def test_insertion_and_deletion_of_the_same_kind_share_a_panel():
    metrics = ["deletion(step=448)", "iou", "insertion", "insertion(step=448)", "ins_del", "mas_insertion", "deletion"]
    assert list(group_insertion_deletion(metrics).values()) == [
        ["deletion(step=448)", "insertion(step=448)"],
        ["insertion", "deletion"],
        ["mas_insertion"],
    ]


def test_the_axis_of_curves_widens_only_where_it_must():
    assert y_range([mean_curve([[0.0, 1.0]])]) == (0, 1)
    low, high = y_range([mean_curve([[-1.0, 3.0]])])
    assert low < -1
    assert high > 3


# ---- pictures ------------------------------------------------------------------------------------------------------


def opened(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition("base64,")[2])))


def test_a_transparent_overlay_on_the_faded_photograph_equals_the_overlay():
    photograph, map = invented.photograph(1, 96), np.random.default_rng(0).normal(size=(8, 8))
    faded = Image.blend(photograph, photograph.convert("L").convert("RGB"), 0.7).convert("RGBA")
    mixed = Image.alpha_composite(faded, transparent_overlay(map, photograph.size)).convert("RGB")
    difference = np.abs(np.asarray(mixed, dtype=float) - np.asarray(overlay(photograph, map), dtype=float))
    assert difference.max() <= 2


def test_pictures_are_small_and_can_be_opened(frame):
    (shown,) = render_gallery(invented.gallery(frame, count=1))
    assert opened(shown["photo"]).size == (224, 224)
    assert {opened(tile["src"]).size for tile in shown["tiles"]} == {(128, 128)}
    assert len(shown["tiles"]) == 16


def test_without_a_photograph_maps_stand_alone(frame):
    (shown,) = render_gallery(invented.gallery(frame, count=1, photographs=False))
    assert shown["photo"] == ""
    assert opened(shown["tiles"][0]["src"]).mode == "RGB"


def test_the_gallery_keeps_to_its_budget_but_shows_one(frame):
    images = invented.gallery(frame, count=4, recipes=["gae", "sobel"])
    rendered = render_gallery(images)
    size = [len(image["photo"]) + sum(len(tile["src"]) for tile in image["tiles"]) for image in rendered]
    assert len(render_gallery(images, budget=sum(size[:3]))) == 3
    assert len(render_gallery(images, budget=0)) == 1


def test_images_are_chosen_from_easy_to_hard():
    scores = {f"i{place}": -place for place in range(9)}
    assert choose_images(scores, 3) == ["i0", "i4", "i8"]
    assert choose_images(scores, 99) == list(scores)
    assert choose_images({"a": float("nan"), "b": 0.1}, 2) == ["b", "a"]
    assert choose_images(scores, 0) == []


# ---- numbers and failures ------------------------------------------------------------------------------------------


def test_numbers_are_written_for_people():
    assert [format_score(value) for value in (0.12345, -0.5, 12.345, 1234.5, 2e-5, None, np.nan)] == [
        "0.123", "−0.500", "12.35", "1,234.5", "2.0e−05", "–", "–",
    ]  # fmt: skip
    assert [format_difference(value) for value in (0.2, -0.2, 0.0)] == ["+0.200", "−0.200", "0.000"]
    assert format_interval(0.1, 0.25) == "0.100 to 0.250"
    assert format_interval(0.1, np.nan) == "–"
    assert [format_count(value) for value in (3, 12.5, 4000.0, None)] == ["3", "12.5", "4,000", "–"]
    assert [format_seconds(value) for value in (0.0041, 1.2, 35.4)] == ["0.004", "1.20", "35"]
    assert [format_percent(value) for value in (0.666, None)] == ["67 %", "–"]
    assert [format_p(value) for value in (1e-5, 0.0123, None)] == ["p < 0.001", "p = 0.012", "–"]


def test_failures_come_first_and_are_counted_by_image(frame):
    table = failure_table(frame, {"m": [("layer_cam", "it needs layers")]})
    assert [(row["recipe"], row["count"]) for row in table["rows"]] == [("layer_cam", 0), ("cam", 1), ("rollout", 1)]
    assert table["rows"][1]["flag"] == "failed: the model returned NaN; check its weights"
    assert "1 map could not be made or scored; 4 scores have a remark" in table["summary"]


def test_a_sound_run_has_no_failure_table():
    assert failure_table(invented.rows(images=2, failures=False))["rows"] == []
