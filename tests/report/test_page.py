"""The page of one run: one file, well formed, escaped, honest about its ranking."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from sightline.audit.panel import Verdict
from sightline.errors import MissingExtra, OutputError
from sightline.report import page as page_module
from sightline.report.charts.curve import SERIES, line_chart
from sightline.report.page import ExplainPage, ImageSection, MapCard, load_template, render_page, write_page

VOID = {"meta", "img", "br", "link", "input", "hr"}


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
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.tags if name == tag and attributes.items() <= found.items()]


FAITHFUL = Verdict(
    "gae is the most faithful map here",
    "Judged by insertion \N{MINUS SIGN} deletion, measured on this very image. Controls that know nothing of the model "
    "stand beside it for comparison (random). It leads the best of them by 0.50.",
    "most faithful on this image",
    "gae",
)
BEATEN = Verdict(
    "No method beat the controls on this image", "The control centre comes first.", "a control comes first"
)


def card(recipe: str, rank: int | None, ins_del: float | None = 0.5, **options: object) -> MapCard:
    picture = Image.new("RGB", (16, 12), "#c08040")
    scores = {"insertion": 0.75, "deletion": 0.25, "ins_del": ins_del}
    curves = {"insertion": [0.0, 0.5, 0.9], "deletion": [0.9, 0.3, 0.0]}
    base = MapCard(recipe, picture, picture, scores, curves, 3, 1.5, 0.25, rank)
    return replace(base, **options)


def section(name: str = "cat.png", **options: object) -> ImageSection:
    pixels = np.random.default_rng(5).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    maps = [card("random", 3, 0.1, note="control"), card("gae", 1, 0.6), card("ixg", 2, 0.4)]
    base = ImageSection(name, Image.fromarray(pixels), [("cat", 0.9), ("dog", 0.0004)], "cat", 0.9, maps, FAITHFUL)
    return replace(base, **options)


def page(*sections: ImageSection, **options: object) -> ExplainPage:
    base = ExplainPage("Why cat?", "bundled/shapes-vit", sections or (section(),), "sightline explain cat.png")
    return replace(base, **options)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_a_page_of_any_length_is_well_formed_and_shows_each_image(tmp_path, count):
    sections = [section(f"photo {index}.png") for index in range(count)]
    path = write_page(replace(page(), sections=sections), tmp_path / "page.html")
    reader = Reader(path.read_text("utf-8"))
    names = [found["aria-labelledby"] for found in reader.all("section") if "aria-labelledby" in found]
    assert len(names) == count
    assert all(f"photo {index}.png" in reader.text for index in range(count))
    assert len(reader.all("nav")) == (1 if count > 1 else 0)


def test_ids_are_unique_and_every_reference_leads_to_one():
    reader = Reader(render_page(page(section("a"), section("a"))))
    ids = [found["id"] for _, found in reader.tags if "id" in found]
    assert len(ids) == len(set(ids))
    wanted = {found["href"][1:] for _, found in reader.tags if "href" in found}
    for _, found in reader.tags:
        wanted |= set((found.get("aria-labelledby") or "").split())
    assert wanted <= set(ids)


def test_a_page_needs_no_other_file():
    text = render_page(page(bibtex="@misc{a, url = {https://example.org}}"))
    reader = Reader(text)
    for _, found in reader.tags:
        assert (found.get("src") or "data:image/").startswith("data:image/")
        assert (found.get("href") or "#").startswith("#")
    assert reader.all("link") == []
    assert re.findall(r"https?://[\w.]+", text) == ["https://example.org"]
    assert "@import" not in text
    assert "url(http" not in text


def test_html_in_any_text_is_escaped():
    evil = "<script>alert(1)</script><img src=x onerror='a'>\"&"
    nasty = section(
        evil,
        classes=[(evil, 0.5)],
        target=evil,
        maps=[card(evil, 1, note=evil, cite=evil, scores={evil: 0.5})],
    )
    text = render_page(ExplainPage(evil, evil, [nasty, nasty], evil, {evil: evil}, {evil: evil}, bibtex=evil))
    reader = Reader(text)
    assert len(reader.all("script")) == 2
    assert "alert(1)</script>" not in text
    assert all((found["src"] or "").startswith("data:") for found in reader.all("img"))
    assert reader.text.count("<script>alert(1)</script>") > 10


def test_maps_stand_in_the_order_of_their_rank_and_those_without_one_come_last():
    maps = [card("unscored", None), card("third", 3), card("first", 1), card("second", 2)]
    text = render_page(page(section(maps=maps)))
    places = [text.index(f"<code>{name}</code></span>") for name in ("first", "second", "third", "unscored")]
    assert places == sorted(places)


def test_the_best_map_wears_the_badge_and_the_judge_is_named():
    reader = Reader(render_page(page()))
    assert reader.text.count("Most faithful on this image") == 1
    assert "gae is the most faithful map here" in reader.text
    assert "Judged by insertion \N{MINUS SIGN} deletion, measured on this very image." in reader.text
    assert "for comparison (random). It leads the best of them by 0.50." in reader.text


def test_a_control_in_front_is_said_plainly():
    text = Reader(render_page(page(section(maps=[card("centre", 1, note="control")], verdict=BEATEN)))).text
    assert "No method beat the controls on this image" in text
    assert "Most faithful on this image" not in text
    assert "A control comes first" in text


def test_a_missing_score_is_a_dash_and_never_nan():
    scores = {"insertion": float("nan"), "deletion": None, "ins_del": float("inf")}
    text = Reader(render_page(page(section(maps=[card("gae", 1, scores=scores, curves={})])))).text
    assert "nan" not in text.lower().split()
    assert "inf" not in text.split()
    assert "None" not in text
    assert text.count("\N{EN DASH}") >= 6


def test_a_section_without_maps_or_classes_is_shown():
    reader = Reader(render_page(page(section(maps=[], classes=[], target_probability=float("nan")))))
    assert "cat.png" in reader.text
    assert reader.all("table") == []


def test_every_map_can_be_toggled_by_buttons_with_a_pressed_state():
    reader = Reader(render_page(page()))
    groups = [found for found in reader.all("div", role="group") if found.get("class") == "views"]
    assert len(groups) == 1 + 3
    assert len(reader.all("button", **{"aria-pressed": "true"})) == 4
    assert len(reader.all("button", **{"aria-pressed": "false"})) == 8
    assert all(found.get("alt") is not None for found in reader.all("img"))


def test_large_pictures_are_made_smaller_and_flat_ones_embedded_as_png():
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (1500, 2000, 3), dtype=np.uint8))
    assert page_module.embed(noise).startswith("data:image/jpeg;base64,")
    assert len(page_module.embed(noise)) < 600_000
    assert page_module.embed(Image.new("RGBA", (64, 64), "#ff8800")).startswith("data:image/png;base64,")
    assert noise.size == (2000, 1500)


def test_a_name_with_bytes_that_are_no_text_still_gives_a_page(tmp_path):
    path = write_page(page(section("caf\udce9.png")), tmp_path / "page.html")
    assert "caf?.png" in path.read_text("utf-8")


def test_a_page_below_a_file_is_an_output_error_and_nothing_is_half_written(tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(OutputError, match="its folder is a file"):
        write_page(page(), tmp_path / "file" / "page.html")
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_missing_jinja2_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    load_template.cache_clear()  # a page was written before, in this process
    with pytest.raises(MissingExtra, match="report"):
        write_page(page(), tmp_path / "page.html")
    assert [found.name for found in tmp_path.iterdir()] == []


def test_a_chart_is_one_accessible_svg_with_a_legend():
    text = line_chart({"a<b": [0, 1], "c": [1, 0.5, 0]}, x_label="x", y_label="y", title="T & t")
    reader = Reader(text)
    (svg,) = reader.all("svg", role="img")
    assert set(svg["aria-labelledby"].split()) == {reader.all("title")[0]["id"], reader.all("desc")[0]["id"]}
    assert "T & t" in reader.text
    assert "a<b from 0.00 to 1.00" in reader.text
    assert all(f"--series-{index}, {SERIES[index - 1]}" in text for index in (1, 2))


def test_a_chart_without_a_visible_title_is_still_named():
    text = Reader(line_chart({"insertion": [0, 1], "deletion": [1, 0]}, x_label="", y_label="", title="")).text
    assert text.startswith("insertion and deletion Curves against steps.")


def test_a_curve_ends_at_the_corners_of_the_plot():
    text = line_chart({"a": [0.0, 1.0]}, x_label="", y_label="", title="", size=(240, 100))
    assert 'd="M40.0 110.0L226.0 10.0"' in text


def test_values_outside_the_axis_stay_on_its_edge_and_nan_breaks_the_line():
    text = line_chart({"a": [-5.0, float("nan"), 9.0, float("inf")]}, x_label="", y_label="", title="", size=(240, 100))
    assert 'd="M40.0 110.0M164.0 10.0L226.0 10.0"' in text


@pytest.mark.parametrize("values", [[], [0.5], [float("nan")] * 3])
def test_a_curve_of_few_or_no_values_does_no_harm(values):
    text = line_chart({"a": values}, x_label="x", y_label="y", title="t")
    Reader(text)
    assert "Mnan" not in text
    assert "Lnan" not in text


def test_no_two_of_sixteen_curves_look_alike():
    text = line_chart({str(index): [0, 1] for index in range(16)}, x_label="x", y_label="y", title="t")
    styles = re.findall(r'd="M[\d.]+ [\d.]+L[^"]+"[^>]* style="([^"]+)"', text)
    assert len(styles) == len(set(styles)) == 16


def test_a_control_is_drawn_in_grey():
    text = line_chart({"gae": [0, 1], "random": [0, 1]}, x_label="x", y_label="y", title="t", muted=["random"])
    assert text.count("--series-muted") == 2
    assert "--series-2" not in text
