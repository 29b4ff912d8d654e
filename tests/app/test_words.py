"""Vision-language models on the server: a question to the model, and maps for the words of its answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.app.conftest import CNN, SAMPLE, follow
from tests.models.families_vlm import FAMILIES, QUESTION

import sightline
from sightline.app.limits import Limits
from sightline.app.maps import MapCache
from sightline.app.models import PROMPT, Models
from sightline.app.pictures import samples
from sightline.app.server import create_app
from sightline.app.space import explain_picture

TALKING = "hf/tiny-llava"


@pytest.fixture(scope="module")
def talking() -> sightline.Adapter:
    model, processor = FAMILIES["llava"]()
    return sightline.adapt(model, processor=processor, prompt=PROMPT, name=TALKING)


@pytest.fixture
def client(talking, cnn) -> TestClient:
    with TestClient(create_app({TALKING: talking, CNN: cnn}), base_url="http://localhost") as client:
        yield client


def ask(client: TestClient, **options: object) -> tuple[dict, list]:
    asked = {"model": TALKING, "picture": SAMPLE, "recipes": ["ixg"], **options}
    job = client.post("/api/jobs", json=asked)
    assert job.status_code == 202, job.text
    events = follow(client, job.json()["id"])
    return job.json(), events


def event(events: list, kind: str) -> dict:
    return next(data for name, data in events if name == kind)


def test_the_answer_comes_with_its_words_and_each_has_its_map(client, talking):
    assert client.get("/api/model", params={"model": TALKING}).json()["prompt"] == PROMPT
    _, events = ask(client, prompt=QUESTION)
    image = event(events, "image")
    said = talking.asked(QUESTION).answering(samples()[SAMPLE].open())
    assert image["prompt"] == QUESTION
    assert image["words"] == [word for word, _ in said.words]
    assert image["label"] == max(image["words"], key=len)
    assert image["words"][image["chosen"]] == image["label"]
    job, events = ask(client, prompt=QUESTION, target=1)
    assert event(events, "image")["label"] == image["words"][1]
    assert f"--prompt '{QUESTION}'" in job["command"]
    assert f"prompt={QUESTION!r}" in job["python"]
    assert "target=1" in job["python"]
    kept = next(iter(client.app.state.server.visitors._known.values())).jobs[job["id"]].maps[0]
    expected = sightline.explain(said, samples()[SAMPLE].open(), "ixg", target=1)
    assert kept.attribution.values.equal(expected.values)


def test_another_question_is_another_map(client):
    first = ask(client, prompt=QUESTION, target=0)[1]
    other = ask(client, prompt="is it a cat ?", target=0)[1]
    assert event(first, "image")["prompt"] != event(other, "image")["prompt"]
    state = client.app.state.server
    assert len({key[2] for key in state.cache._kept}) == 2  # the prompt is in the key


def test_the_model_answers_a_question_once(client, talking, monkeypatch):
    ask(client, prompt=QUESTION)
    monkeypatch.setattr(type(talking), "answering", None)
    assert event(ask(client, prompt=QUESTION, target=0)[1], "end")["state"] == "done"


def test_a_word_that_was_not_said_is_refused_in_a_sentence(client):
    end = event(ask(client, target=500)[1], "end")
    assert end["state"] == "failed"
    assert "word" in end["error"]


def test_a_classifier_takes_no_question(client):
    answer = client.post("/api/jobs", json={"model": CNN, "picture": SAMPLE, "prompt": "what is it?"})
    assert answer.status_code == 422
    assert "leave the prompt out" in answer.json()["error"]


def test_a_model_from_a_folder_is_asked_something_by_default(tmp_path: Path):
    for part in FAMILIES["llava"]():
        part.save_pretrained(tmp_path)
    assert Models([f"hf/{tmp_path}"], Limits()).load(f"hf/{tmp_path}").prompt == PROMPT


def test_the_space_takes_a_question(talking):
    offered = Models([], Limits(), {TALKING: talking})
    offered.check_recipes = lambda model, recipes: ("ixg",)  # type: ignore[method-assign]
    shown: Callable = explain_picture
    *_, (verdict, gallery, _) = shown(
        samples()[SAMPLE].open(), TALKING, QUESTION, models=offered, cache=MapCache(10_000_000)
    )
    assert "Explained: " in verdict
    assert len(gallery) == 1
