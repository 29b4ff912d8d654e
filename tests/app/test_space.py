"""The Gradio app: the ranking of the library, asked for through its own client, and refusals in a sentence."""

from __future__ import annotations

import importlib.util

import pytest
from tests.app.conftest import CNN, SAMPLE

import sightline
from sightline.app.limits import Limits
from sightline.app.maps import MapCache
from sightline.app.models import Models
from sightline.app.pictures import samples
from sightline.app.space import create_space, explain_picture
from sightline.errors import SightlineError


def test_maps_come_one_by_one_and_end_in_the_ranking_of_the_library(cnn):
    offered, cache = Models([], Limits(), {CNN: cnn}), MapCache(10_000_000)
    picture = samples()[SAMPLE].open()
    steps = list(explain_picture(picture, CNN, "star", models=offered, cache=cache))
    assert [len(gallery) for _, gallery, _ in steps] == sorted(len(gallery) for _, gallery, _ in steps)
    verdict, gallery, rows = steps[-1]
    expected = sightline.rank(cnn, picture, target="star", fills=False)[0]
    assert verdict.startswith(f"**{expected.verdict.headline}.**")
    assert [row[0] for row in rows] == [each.recipe for each in expected.maps]
    assert [caption.partition(":")[0] for _, caption in gallery] == [row[0] for row in rows]


@pytest.mark.parametrize(("given", "sentence"), [({"target": "zebra"}, "no class"), ({"model": "timm/x"}, "offers")])
def test_what_the_server_does_not_offer_is_refused(cnn, given, sentence):
    offered = Models([], Limits(), {CNN: cnn})
    asked = {"model": CNN, "target": "", **given}
    with pytest.raises(SightlineError, match=sentence):
        list(explain_picture(samples()[SAMPLE].open(), **asked, models=offered, cache=MapCache(1)))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # gradio's own use of other packages is not ours to mend
@pytest.mark.skipif(importlib.util.find_spec("gradio") is None, reason="needs the extra space")
def test_the_space_answers_its_client(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    from gradio_client import Client, handle_file

    space = create_space([CNN])
    _, address, _ = space.launch(prevent_thread_lock=True, quiet=True, share=False, server_name="127.0.0.1")
    try:
        picture = tmp_path / "picture.png"
        samples()[SAMPLE].open().save(picture)
        client = Client(address, verbose=False)
        verdict, gallery, table = client.predict(handle_file(picture), CNN, "star", False, api_name="/explain")
        assert "Explained: star" in verdict
        assert len(gallery) == len(table["data"]) > 3
    finally:
        space.close()
