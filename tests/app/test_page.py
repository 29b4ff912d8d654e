"""The page in a browser: what a person does there, with the keyboard alone, at every width, without any other host."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from importlib import resources
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from tests.app.conftest import CNN, SAMPLE, picture
from tests.app.test_jobs import block, wait_for
from tests.models.families_vlm import FAMILIES, QUESTION
from tests.report.conftest import browser, lacking  # noqa: F401 - a fixture

from sightline.app.server import SHARED, STATIC, create_app
from sightline.audit.panel import CONVOLUTIONAL

VIT = "bundled/shapes-vit"
SEGMENTER, DETECTOR = "bundled/shapes-segmenter", "bundled/shapes-detector"
TALKING = "hf/tiny-llava"


@pytest.fixture(scope="module")
def server(cnn) -> Iterator[SimpleNamespace]:
    """Run the server on a free port."""
    import sightline

    others = {name: sightline.load(name) for name in (VIT, SEGMENTER, DETECTOR)}
    talking, processor = FAMILIES["llava"]()
    others[TALKING] = sightline.adapt(talking, processor=processor, prompt=QUESTION, name=TALKING)
    application = create_app({CNN: cnn, **others})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = uvicorn.Server(uvicorn.Config(application, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    wait_for(lambda: running.started)
    yield SimpleNamespace(address=f"http://127.0.0.1:{port}/", application=application)
    running.should_exit = True
    thread.join(timeout=20)


@pytest.fixture
def page(browser, server) -> Iterator[Any]:  # noqa: F811
    """Open a page that may reach the server and nothing else; a script that fails fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text) if "Content Security" in message.text else None)
    context.route(
        "**/*", lambda route: route.continue_() if route.request.url.startswith(server.address) else route.abort()
    )
    opened.on("request", lambda request: problems.append(request.url) if not ours(request.url, server) else None)
    yield opened
    context.close()
    assert problems == []


def until(page: Any, expression: str) -> None:
    """Wait for an expression to hold; the browser's own way of waiting is forbidden by the page's content policy."""
    wait_for(lambda: bool(page.evaluate(expression)), seconds=40.0)


def ours(url: str, server: SimpleNamespace) -> bool:
    return url.startswith((server.address, "data:", "blob:"))


def visit(page: Any, address: str) -> None:
    """Open the page, and wait until its panel is complete."""
    page.goto(address)
    page.wait_for_selector("#verdict:not([hidden])", timeout=60_000)
    page.wait_for_selector("#left-method option", state="attached")


def test_the_first_visit_shows_a_ranked_panel(page, server):
    visit(page, server.address)
    recipes = page.locator("#panel code").all_inner_texts()
    assert {*CONVOLUTIONAL, "random", "sobel"} <= set(recipes)
    scores = [float(text.replace("\u2212", "-")) for text in page.locator("#panel .score").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)
    assert page.locator("#verdict strong").inner_text() == f"{recipes[0]} is the most faithful map here"
    assert page.locator("#classes button[aria-pressed=true]").count() == 1
    until(page, f"document.getElementById('detail-title').textContent.startsWith({recipes[0]!r})")


def test_a_click_on_a_class_explains_it_and_the_link_opens_it_again(page, server):
    visit(page, server.address)
    page.locator("#classes button").nth(1).click()
    label = page.locator("#classes button").nth(1).locator("span").first.inner_text()
    page.wait_for_selector("#verdict:not([hidden])")
    until(page, f"document.getElementById('detail-title').textContent.endsWith('for {label}')")
    page.locator("#panel button", has_text="full_grad").click()
    link = page.evaluate("location.href")
    assert "map=full_grad" in link
    page.goto("about:blank")
    visit(page, link)
    assert page.locator("#detail-title").inner_text() == f"full_grad for {label}"


def test_scrubbing_follows_the_curve_and_removes_pixels_in_the_order_of_the_map(page, server):
    visit(page, server.address)
    before = page.evaluate(PIXELS)
    page.select_option("#scrub-kind", "deletion")
    for step in (0, 14, 28):
        page.locator("#scrub").fill(str(step))
        answer = page.locator("#scrub-answer").inner_text()
        curve = newest(server).maps[opened(page, server)].scored.curves["deletion"]
        assert answer.endswith(f"is {curve[step]:.3f}")
    assert page.evaluate(PIXELS) != before
    gone = page.evaluate(PIXELS)
    assert len(set(zip(gone[0::4], gone[1::4], gone[2::4], strict=True))) == 1  # every pixel is the mean colour
    page.select_option("#scrub-kind", "insertion")
    page.locator("#scrub").fill("28")
    assert len(set(page.evaluate(PIXELS))) > 50


PIXELS = """() => { const canvas = document.getElementById("large");
    return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]; }"""


def newest(server: SimpleNamespace) -> Any:
    """Return the panel that was asked for last."""
    visitor = list(server.application.state.server.visitors._known.values())[-1]
    return list(visitor.jobs.values())[-1]


def opened(page: Any, server: SimpleNamespace) -> int:
    recipe = page.locator("#detail-title").inner_text().split(" for ")[0]
    return [kept.attribution.recipe for kept in newest(server).maps].index(recipe)


def test_hovering_reads_the_value_of_the_map(page, server):
    visit(page, server.address)
    page.locator("#large").scroll_into_view_if_needed()
    box = page.locator("#large").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.26, box["y"] + box["height"] * 0.51)
    kept = newest(server).maps[opened(page, server)]
    said = page.locator("#readout").inner_text()
    x, y = 16, 32
    assert f"at pixel {x}, {y}" in said
    shown = float(said.split()[1].rstrip(";").replace("\u2212", "-"))
    assert shown == pytest.approx(float(kept.pixels()[y, x]), rel=0.01)


def test_layers_have_a_slider(page, server):
    visit(page, f"{server.address}#model={VIT}&map=rollout")
    page.wait_for_selector("#layer-field:not([hidden])")
    before = page.evaluate(PIXELS)
    page.locator("#layer").fill("4")
    until(page, "location.hash.includes('layer=4')")
    assert page.evaluate(PIXELS) != before


def test_an_upload_is_explained(page, server):
    visit(page, server.address)
    count = page.locator("#pictures button").count()
    page.set_input_files("#file", files=[{"name": "mine.png", "mimeType": "image/png", "buffer": picture(5)}])
    until(page, f"document.querySelectorAll('#pictures button').length === {count + 1}")
    until(page, "document.getElementById('seen-name').textContent.startsWith('mine.png')")
    page.wait_for_selector("#verdict:not([hidden])", timeout=30_000)


def test_what_cannot_be_read_is_said_in_a_sentence(page, server):
    visit(page, server.address)
    page.set_input_files("#file", files=[{"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no picture"}])
    page.wait_for_selector("#error:not([hidden])")
    assert "notes.txt is not an image" in page.locator("#error").inner_text()
    assert page.locator("#panel canvas").count() > 3  # what was there stays


def test_a_job_can_be_cancelled(page, server):
    visit(page, server.address)
    gate = threading.Event()
    block(server.application, gate)
    page.select_option("#more", "occlusion")
    page.click("#more-go")
    page.click("#cancel")
    until(page, "document.getElementById('error').textContent.startsWith('Cancelled')")
    gate.set()
    assert newest(server).state == "cancelled"
    assert page.locator("#progress").is_hidden()


@pytest.mark.parametrize("model", [SEGMENTER, DETECTOR])
def test_a_click_on_an_object_or_region_explains_it(page, server, model):
    visit(page, f"{server.address}#model={model}")
    first = page.locator("#detail-title").inner_text().partition(" for ")[2]
    objects = newest(server).events[1][1]["objects"]
    other = next(each for each in objects if each["index"] != newest(server).events[1][1]["chosen"])
    place = page.locator("#objects").bounding_box()
    left, upper, right, lower = other["box"]
    x, y = inside(newest(server), other) or ((left + right) / 2, (upper + lower) / 2)
    page.mouse.click(place["x"] + place["width"] * x, place["y"] + place["height"] * y)
    until(page, f"location.hash.includes('{'target' if model == SEGMENTER else 'box'}={other['index']}')")
    page.wait_for_selector("#verdict:not([hidden])", timeout=60_000)
    title = page.locator("#detail-title").inner_text().partition(" for ")[2]
    assert title != first
    assert other["label"] in title
    assert page.locator("#object-list button[aria-pressed=true]").inner_text().startswith(other["label"])


def inside(job: Any, wanted: dict[str, Any]) -> tuple[float, float] | None:
    """Return a place in the region of a label, in shares of the picture; None for a detection."""
    if job.labels is None:
        return None
    rows, columns = (job.labels == wanted["index"]).nonzero()
    middle = len(rows) // 2
    return (columns[middle] + 0.5) / job.labels.shape[1], (rows[middle] + 0.5) / job.labels.shape[0]


def test_a_question_is_answered_and_every_word_has_its_map(page, server):
    visit(page, f"{server.address}#model={TALKING}")
    assert page.input_value("#prompt-query") == QUESTION
    page.fill("#prompt-query", "is it a cat ?")
    page.press("#prompt-query", "Enter")
    until(page, "location.hash.includes('prompt=is')")
    page.wait_for_selector("#verdict:not([hidden])", timeout=60_000)
    words = newest(server).events[1][1]["words"]
    assert page.locator("#words button").all_inner_texts() == words
    assert page.locator("#words button[aria-pressed=true]").inner_text() == max(words, key=len)
    page.click("#words li:nth-child(1) button")
    until(page, "location.hash.includes('target=0')")
    page.wait_for_selector("#verdict:not([hidden])", timeout=60_000)
    assert page.locator("#detail-title").inner_text().endswith(f" for {words[0]}")
    page.click("#every-word-go")
    until(page, f"document.querySelectorAll('#word-maps canvas').length === {len(words)}")
    assert page.locator("#word-maps strong").all_inner_texts() == words


def test_the_verdict_under_several_fills_is_asked_for_and_may_be_withheld(page, server):
    visit(page, server.address)
    assert page.locator("#fills-table").is_hidden()
    page.click("#fills-go")
    page.wait_for_selector("#fills-table:not([hidden])", timeout=60_000)
    rows = page.locator("#fills-table tbody tr")
    assert rows.count() == page.locator("#panel li").count()
    assert page.locator("#fills-field").is_hidden()
    assert "fills=1" in page.evaluate("location.href")
    verdict = newest(server).image.verdict
    assert page.locator("#verdict strong").inner_text() == verdict.headline
    assert ("doubt" in page.locator("#verdict").get_attribute("class")) == (verdict.best is None)
    best = newest(server).image.maps[0]
    assert rows.first.locator("th").inner_text().startswith(best.recipe)


def test_the_verdict_is_shown_after_the_maps_that_it_speaks_of(page, server):
    waiting: list[Any] = []
    answered: list[bool] = []  # until then answers take their time
    page.route("**/maps/**", lambda route: route.continue_() if answered else waiting.append(route))
    page.goto(server.address)
    until(page, "document.getElementById('progress').checkVisibility()")
    wait_for(lambda: bool(page.evaluate("true")) and len(waiting) >= len(CONVOLUTIONAL), seconds=60.0)
    wait_for(lambda: newest(server).state == "done", seconds=60.0)
    until(page, "document.getElementById('progress').hidden")  # the verdict has arrived
    assert page.locator("#verdict").is_hidden()
    answered.append(True)
    for route in waiting:
        route.continue_()
    page.wait_for_selector("#verdict:not([hidden])", timeout=60_000)
    assert page.locator("#panel li").count() == len(newest(server).image.maps)


def test_a_map_of_single_pixels_is_shown_smoothed_and_says_so(page, server):
    visit(page, server.address)
    page.select_option("#more", "ixg")
    page.click("#more-go")
    until(page, "document.getElementById('detail-title').textContent.startsWith('ixg')")
    assert page.locator("#panel button", has_text="ixg").first.locator(".tag").all_inner_texts()[0] == "shown smoothed"
    before = page.evaluate(PIXELS)
    page.locator("#smooth").uncheck()
    assert page.evaluate(PIXELS) != before


def test_two_classes_are_compared_with_one_cursor(page, server):
    visit(page, server.address)
    page.click("#compare-go")
    page.wait_for_selector("#against-go:not([disabled])", timeout=30_000)
    page.locator("#left canvas").focus()
    page.keyboard.press("ArrowRight")
    said = page.locator("#compare-readout").inner_text()
    assert said.count("at pixel 33, 32") == 2
    page.click("#var-go")
    until(page, "document.querySelectorAll('#shares:not([hidden]) span').length === 2")
    page.click("#against-go")
    until(page, "document.getElementById('contrast-title').textContent.includes('minus')")


def test_shares_are_shown_once_they_have_a_name(page, server):
    visit(page, server.address)
    page.click("#compare-go")
    page.wait_for_selector("#var-go:not([disabled])", timeout=30_000)
    waiting: list[Any] = []
    page.route("**share=*", lambda route: waiting.append(route))  # answers that take their time
    page.click("#var-go")
    wait_for(lambda: bool(page.evaluate("true")) and len(waiting) == 2, seconds=40.0)
    assert not page.locator("#shares").is_visible()
    for route in waiting:
        route.continue_()
    page.wait_for_selector("#shares:not([hidden])", timeout=30_000)
    assert page.locator("#shares").get_attribute("aria-label").startswith("Shares on average: ")


def test_two_models_are_compared(page, server):
    visit(page, server.address)
    page.select_option("#right-model", VIT)
    until(page, "[...document.querySelectorAll('#right-method option')].some((each) => each.value === 'gae')")
    page.select_option("#right-method", "gae")
    page.click("#compare-go")
    until(page, "document.getElementById('compare-readout').textContent.includes('gae for')")


def test_the_card_tells_formula_and_citation(page, server):
    visit(page, f"{server.address}#map=full_grad")
    page.click("#card-open")
    page.wait_for_selector("#card[open]")
    text = page.locator("#card").inner_text()
    assert "Srinivas" in text
    page.keyboard.press("Escape")
    assert page.locator("#card").is_hidden()


def test_the_keyboard_alone_is_enough(page, server):
    visit(page, server.address)
    for wanted in ("classes", "panel", "large", "scrub", "left-method"):
        reach(page, wanted)
    page.locator("#panel button").nth(1).focus()
    page.keyboard.press("Enter")
    recipe = page.locator("#panel code").nth(1).inner_text()
    assert page.locator("#detail-title").inner_text().startswith(f"{recipe} for")
    reach(page, "scrub")
    page.keyboard.press("ArrowRight")
    assert "removed" in page.locator("#scrub-answer").inner_text()


def reach(page: Any, name: str) -> None:
    """Press Tab until an element, or one inside it, has the focus."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if page.evaluate(f"document.getElementById({name!r}).contains(document.activeElement)"):
            return
    pytest.fail(f"Tab never reaches {name}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing_and_nothing_is_cut_off(browser, server, scheme, width):  # noqa: F811
    try:
        checker = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    except ModuleNotFoundError:
        lacking("axe-playwright-python")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    visit(page, server.address)
    page.locator("details").evaluate_all("all => all.forEach((details) => { details.open = true })")
    page.click("#compare-go")
    page.wait_for_selector("#var-go:not([disabled])", timeout=30_000)
    page.click("#var-go")
    page.wait_for_selector("#shares:not([hidden])", timeout=30_000)
    page.evaluate(checker)
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("#card-open")
    page.wait_for_selector("#card[open]")
    assert violations(page) == []
    context.close()


def violations(page: Any) -> list[str]:
    found = page.evaluate("async () => (await axe.run()).violations")
    return [f"{rule['id']}: {node['target']} {node['failureSummary']}" for rule in found for node in rule["nodes"]]


def test_the_page_is_light_and_names_no_other_host():
    files = [path for folder in (STATIC, SHARED) for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 300_000
    for path in files:
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path.name
        assert "https://" not in text, path.name


def test_the_first_map_and_the_panel_come_soon(page, server):
    page.goto("about:blank")
    begun = time.process_time()
    page.goto(f"{server.address}#picture={SAMPLE}&target=3")
    page.wait_for_selector("#panel canvas")
    first = time.process_time() - begun
    page.wait_for_selector("#verdict:not([hidden])", timeout=60_000)
    assert first < 2.0
    assert time.process_time() - begun < 15.0
