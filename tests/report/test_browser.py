"""The page in a browser: nothing complains, nothing is fetched, tables sort, pictures load, a phone is wide enough."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.report import invented

from sightline.report.benchmark.page import write_benchmark

CONTRAST = Path(__file__).with_name("contrast.js").read_text("utf-8")
BOARD = ".panel:not([hidden]) table.leader"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("report")
    frame = invented.rows(images=9)
    write_benchmark(invented.page(frame), folder)
    return (folder / "index.html").as_uri()


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Any]:
    """Open the page at a size and in a colour scheme; whatever it complains of or asks for is noted."""
    opened = []

    def go(width: int = 1280, scheme: str = "light", **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        opened.append(context)
        page = context.new_page()
        page.complaints, page.asked = [], []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(address)
        return page

    yield go
    for context in opened:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_complains_and_nothing_is_fetched(visit, address, width, scheme):
    page = visit(width, scheme)
    page.wait_for_timeout(100)
    assert page.complaints == []
    assert [url for url in page.asked if not url.startswith("data:")] == [address]


def test_every_picture_loads(visit):
    page = visit()
    page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true })")
    page.wait_for_function("Array.from(document.images).every((one) => one.complete)")
    widths = page.evaluate("Array.from(document.images, (one) => one.naturalWidth)")
    assert len(widths) == 6 * 16
    assert min(widths) > 0
    photo = page.locator(".frame .tile").first.evaluate("one => getComputedStyle(one, '::before').backgroundImage")
    assert photo.startswith('url("data:image/')


@pytest.mark.parametrize("width", [390, 820, 1280])
def test_the_page_never_scrolls_sideways(visit, width):
    page = visit(width)
    page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true })")
    for tab in page.get_by_role("tab").all():
        tab.click()
        room = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert room == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_the_contrast_of_wcag(visit, scheme):
    page = visit(scheme=scheme)
    page.locator("details").evaluate_all("all => all.forEach((details) => { details.open = true })")
    page.locator(".shade, .tau").evaluate_all("all => all.forEach((cell) => cell.style.setProperty('--s', '1'))")
    for tab in page.get_by_role("tab").all():
        tab.click()
        assert page.evaluate(CONTRAST) == []


def column(page: Any, number: int) -> list[str]:
    """Return what a column of the leaderboard is sorted by, as it stands now."""
    rows = page.locator(f"{BOARD} tbody tr")
    values: list[str] = rows.evaluate_all(
        "(rows, number) => rows.map((row) => row.cells[number].dataset.value)", number
    )
    return values


def test_a_click_sorts_and_another_turns_the_order_round(visit):
    page = visit()
    page.get_by_role("tab", name="deletion").click()
    head = page.locator(f"{BOARD} thead th").nth(2)
    for direction in ("ascending", "descending"):  # lower is better, so the lowest come first
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == direction
        values = list(map(float, column(page, 2)))
        assert values == sorted(values, reverse=direction == "descending")
    assert page.locator(f"{BOARD} thead th[aria-sort]").count() == 1


def test_every_column_sorts_and_empty_cells_stay_last(visit):
    page = visit()
    page.get_by_role("tab", name="insertion").click()
    heads = page.locator(f"{BOARD} thead th button")
    assert heads.count() == 12
    for number in range(12):
        seen = []
        for _ in range(2):
            heads.nth(number).click()
            seen.append(column(page, number))
        full = [[value for value in values if value] for values in seen]
        assert full == [values[: len(full[0])] for values in seen]
        assert [_key(value) for value in full[0]] == [_key(value) for value in reversed(full[1])]


def _key(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def test_the_keyboard_sorts_and_changes_tabs(visit):
    page = visit()
    tab = page.get_by_role("tab").first
    tab.focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab").nth(1).get_attribute("aria-selected") == "true"
    assert page.locator(".panel:not([hidden])").count() == 1
    button = page.locator(f"{BOARD} thead button").nth(1)
    button.focus()
    for key, direction in (("Enter", "ascending"), ("Space", "descending")):
        page.keyboard.press(key)
        assert page.locator(f"{BOARD} thead th").nth(1).get_attribute("aria-sort") == direction
        names = column(page, 1)
        assert names == sorted(names, key=str.lower, reverse=direction == "descending")


def test_the_theme_follows_the_system_until_it_is_chosen(visit):
    page = visit(scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    assert dark == "rgb(19, 21, 25)"
    button = page.get_by_role("button", name="Theme")
    button.click()
    assert page.evaluate(ground) == "rgb(246, 246, 244)"
    button.click()
    assert page.evaluate(ground) == dark
    assert button.inner_text() == "Theme: dark"


def test_without_scripts_everything_is_seen(visit):
    page = visit(java_script_enabled=False)
    panels = page.locator(".panel")
    assert panels.count() == 5
    assert all(panel.is_visible() for panel in panels.all())


def test_it_prints_every_panel_on_white(visit):
    page = visit(scheme="dark")
    page.emulate_media(media="print")
    assert all(panel.is_visible() for panel in page.locator(".panel").all())
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(246, 246, 244)"
    assert not page.get_by_role("tab").first.is_visible()
