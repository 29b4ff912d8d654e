"""The API: what is asked comes as `sightline.rank` and `sightline.explain` give it, and nothing else is let in."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from tests.app.conftest import CNN, SAMPLE, ask, follow, picture
from tests.models.families_vit import OPEN_CLIP

import sightline
from sightline.app.pictures import samples
from sightline.app.server import create_app
from sightline.extras import require


def test_maps_come_one_by_one_and_end_in_the_ranking_of_the_library(client, cnn):
    job = ask(client)
    events = follow(client, job["id"])
    kinds = [kind for kind, _ in events]
    assert kinds[:4] == ["state", "image", "map", "progress"]
    assert kinds[-2:] == ["verdict", "end"]
    expected = sightline.rank(cnn, samples()[SAMPLE].open(), fills=False)[0]
    verdict = dict(events)["verdict"]
    assert verdict["order"] == [each.recipe for each in expected.maps]
    assert verdict["best"] == expected.verdict.best
    result = client.get(f"/api/jobs/{job['id']}/result.json").json()["images"][0]
    for mine, theirs in zip(result["maps"], expected.json()["maps"], strict=True):
        assert {**mine, "seconds": 0} == {**theirs, "seconds": 0}


def test_progress_only_grows_and_ends_at_one(client):
    shares = [data["done"] for kind, data in follow(client, ask(client)["id"]) if kind == "progress"]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_values_are_the_library_s_own(client, cnn):
    job = ask(client, recipes=["grad_cam"], target=4)
    follow(client, job["id"])
    data = client.get(f"/api/jobs/{job['id']}/maps/0/values").content
    expected = sightline.explain(cnn, samples()[SAMPLE].open(), "grad_cam", target=4)
    np.testing.assert_allclose(np.frombuffer(data, "<f4").reshape(64, 64), expected.pixels()[0], rtol=1e-5, atol=1e-7)


def test_files_to_keep_can_be_read(client, tmp_path):
    job = ask(client, recipes=["grad_cam", "random"])["id"]
    follow(client, job)
    kept = tmp_path / "map.safetensors"
    kept.write_bytes(client.get(f"/api/jobs/{job}/maps/0/map.safetensors").content)
    assert sightline.Attribution.load(kept).recipe == "grad_cam"
    assert Image.open(io.BytesIO(client.get(f"/api/jobs/{job}/maps/0/overlay.png").content)).format == "PNG"
    page = client.get(f"/api/jobs/{job}/page.html")
    assert "attachment" in page.headers["content-disposition"]
    assert "grad_cam" in page.text


def test_the_python_and_the_command_give_the_same_map(client, cnn, tmp_path, monkeypatch):
    job = ask(client, recipes=["grad_cam"], target=4)["id"]
    follow(client, job)
    samples()[SAMPLE].open().save(tmp_path / f"{SAMPLE}.png")
    monkeypatch.chdir(tmp_path)
    lines = client.get(f"/api/jobs/{job}/maps/0/snippets").json()
    names: dict[str, object] = {}
    exec(lines["python"], names)
    data = np.frombuffer(client.get(f"/api/jobs/{job}/maps/0/values").content, "<f4")
    np.testing.assert_allclose(data, names["attribution"].pixels()[0].flatten(), rtol=1e-5, atol=1e-7)
    assert lines["command"] == f"sightline explain {SAMPLE}.png --model {CNN} --method grad_cam --target 4"


def test_what_pixels_become_is_what_the_metrics_use(client, cnn):
    job = ask(client, recipes=["random"])["id"]
    follow(client, job)
    fill = Image.open(io.BytesIO(client.get(f"/api/jobs/{job}/pictures/deletion").content))
    mean = torch.tensor(np.asarray(fill)).float().mean(dim=(0, 1)) / 255
    torch.testing.assert_close(cnn.normalise(mean[None, :, None, None]).flatten(), torch.zeros(3), atol=0.02, rtol=0)


def test_two_classes_contrasted(client, cnn):
    image = samples()[SAMPLE].open()
    job = ask(client, recipes=["ixg"], target=2, contrast={"kind": "against", "other": 4})["id"]
    follow(client, job)
    difference = np.frombuffer(client.get(f"/api/jobs/{job}/maps/0/values").content, "<f4")
    apart = [sightline.explain(cnn, image, "ixg", target=index).pixels()[0].flatten().numpy() for index in (2, 4)]
    np.testing.assert_allclose(difference, apart[0] - apart[1], atol=1e-5)


def test_shares_of_two_classes_sum_to_one(client):
    job = ask(client, recipes=["ixg"], target=2, contrast={"kind": "var", "other": 4})["id"]
    kept = [data for kind, data in follow(client, job) if kind == "map"][-1]
    assert kept["classes"] == [2, 4]
    shares = [
        np.frombuffer(client.get(f"/api/jobs/{job}/maps/0/values?share={index}").content, "<f4") for index in (0, 1)
    ]
    np.testing.assert_allclose(shares[0] + shares[1], 1.0, atol=1e-5)


def test_the_second_who_asks_the_same_gets_the_map_that_is_known(client, visitor, application):
    first = follow(client, ask(client, recipes=["conductance(steps=10)"])["id"])
    other = visitor()
    again = follow(other, ask(other, recipes=["conductance(steps=10)"])["id"])
    maps = [[data for kind, data in events if kind == "map"] for events in (first, again)]
    assert (len(maps[0]), len(maps[1])) == (2, 1)
    assert maps[1][0]["seconds"] == maps[0][1]["seconds"]


def test_events_go_on_after_the_last_one_that_was_heard(client):
    job = ask(client, recipes=["random"])["id"]
    events = follow(client, job)
    assert follow(client, job, last=1) == events[2:]


def test_classes_are_found_by_a_part_of_their_name(client):
    found = client.get("/api/classes", params={"model": CNN, "query": "TRI"}).json()
    assert [each["label"] for each in found] == ["triangle"]


def test_cards_are_those_of_the_library(client):
    from sightline.catalogue.cards import card

    answer = client.get("/api/cards/grad_cam").json()
    assert answer["formula"] == card("grad_cam").formula
    assert client.get("/api/cards/grad_kam").json()["error"].startswith("there is no method called 'grad_kam'")


# ---- pictures -------------------------------------------------------------------------------------------------------


def test_an_upload_is_encoded_anew_and_explained(client):
    comment = Image.new("RGB", (64, 64), "red")
    buffer = io.BytesIO()
    comment.save(buffer, format="JPEG", comment=b"where I live")
    shown = client.post("/api/pictures", params={"name": "../../etc/my photo.jpg"}, content=buffer.getvalue()).json()
    assert shown["name"] == "my-photo.jpg"
    kept = client.get(f"/api/pictures/{shown['id']}")
    assert b"where I live" not in kept.content
    assert Image.open(io.BytesIO(kept.content)).size == (64, 64)
    assert follow(client, ask(client, picture=shown["id"], recipes=["random"])["id"])[-1][1]["state"] == "done"


@pytest.mark.parametrize(
    ("data", "status", "sentence"),
    [
        (b"", 422, "is not an image"),
        (b"<svg onload='alert(1)'/>", 422, "is not an image"),
        (picture()[:200], 422, ""),
        (b"\0" * 300_000, 413, "smaller"),
        (picture(size=(500, 500), kind="GIF"), 413, "smaller"),
    ],
    ids=["empty", "vector graphic", "cut short", "too many bytes", "too many pixels"],
)
def test_what_is_no_picture_is_refused_in_a_sentence(client, data, status, sentence):
    answer = client.post("/api/pictures", content=data)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]
    assert client.get("/api/pictures").json() == []


def test_a_large_picture_is_reduced_and_the_oldest_goes(client):
    shown = [client.post("/api/pictures", content=picture(seed, (150, 60))).json() for seed in range(3)]
    assert (shown[0]["width"], shown[0]["height"], shown[0]["reduced"]) == (100, 40, True)
    assert [each["id"] for each in client.get("/api/pictures").json()] == [each["id"] for each in shown[1:]]
    assert client.delete(f"/api/pictures/{shown[2]['id']}").status_code == 204
    assert client.get(f"/api/pictures/{shown[2]['id']}").status_code == 404


# ---- what is not on the lists ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"model": "timm/vit_base_patch16_224"}, "this server offers"),
        ({"model": "py:os:getcwd"}, "this server offers"),
        ({"recipes": ["grad_cam(layer=3)"]}, "does not offer"),
        ({"recipes": ["extremal_perturbation"]}, "does not offer"),
        ({"recipes": []}, "recipes"),
        ({"target": 8}, "has classes 0 to 7"),
        ({"target": -1}, "target"),
        ({"contrast": {"kind": "against", "other": 99}}, "has classes 0 to 7"),
        ({"contrast": {"kind": "mda", "other": 1}}, "contrast.kind"),
        ({"device": "cuda"}, "device"),
        ({"picture": "/etc/passwd"}, "no such picture"),
    ],
)
def test_what_the_server_does_not_offer_is_refused(client, asked, sentence):
    answer = client.post("/api/jobs", json={"model": CNN, "picture": SAMPLE, **asked})
    assert answer.status_code in (404, 422)
    assert sentence in answer.json()["error"]


def test_a_text_for_a_model_of_classes_fails_in_a_sentence(client):
    kind, data = follow(client, ask(client, text="a star", recipes=["ixg"])["id"])[-1]
    assert (kind, data["state"]) == ("end", "failed")
    assert "text encoder" in data["error"]


def test_every_offer_keeps_to_the_limit_of_passes(application, client):
    offers = client.get("/api/model", params={"model": CNN}).json()["recipes"]
    assert {"grad_cam", "ixg", "random"} <= {each["recipe"] for each in offers}
    assert max(each["passes"] for each in offers) <= application.state.server.limits.passes


# ---- several fills --------------------------------------------------------------------------------------------------


def test_maps_are_judged_under_several_fills_when_asked_and_what_is_known_is_not_made_again(client, cnn):
    recipes = ["grad_cam", "ixg", "centre"]
    follow(client, ask(client, recipes=recipes)["id"])
    events = follow(client, ask(client, recipes=recipes, fills=True)["id"])
    expected = sightline.rank(cnn, samples()[SAMPLE].open(), recipes, fills=True)[0]
    verdict = dict(events)["verdict"]
    assert verdict["fills"] == [room.fill for room in expected.rooms]
    assert verdict["withheld"] == expected.verdict.withheld
    assert verdict["order"] == [each.recipe for each in expected.maps]
    for mine, theirs in zip(verdict["judged"], expected.maps, strict=True):
        assert mine["share"] == theirs.share
        assert mine["fills"] == pytest.approx(theirs.fills.means, abs=1e-5)
    maps = [data for kind, data in events if kind == "map"]
    assert [(data["recipe"], data["interval"] is not None) for data in maps] == [
        (recipe, judged) for recipe in recipes for judged in (False, True)
    ]
    plain = dict(follow(client, ask(client, recipes=recipes)["id"]))["verdict"]
    assert plain["fills"] == []  # what somebody asked for under fills does not change another's ranking
    assert {each["interval"] for each in plain["judged"]} == {None}


# ---- objects and regions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["detector", "segmenter"])
def test_an_object_or_a_region_is_explained(name):
    model = sightline.load(f"bundled/shapes-{name}")
    with TestClient(create_app({CNN: model}), base_url="http://localhost") as client:
        known = dict(follow(client, ask(client, recipes=["ixg"])["id"]))["image"]
        index = known["objects"][1]["index"]
        wanted = sightline.Box(index) if name == "detector" else sightline.Region(index)
        job = ask(client, recipes=["ixg"], **{"box" if name == "detector" else "target": index})
        image = dict(follow(client, job["id"]))["image"]
        assert image["chosen"] == index
        assert image["chosen"] != known["chosen"]
        data = np.frombuffer(client.get(f"/api/jobs/{job['id']}/maps/0/values").content, "<f4")
        expected = sightline.explain(model, samples()[SAMPLE].open(), "ixg", target=wanted)
        np.testing.assert_allclose(data, expected.pixels()[0].flatten(), rtol=1e-4, atol=1e-7)
        labels = client.get(f"/api/jobs/{job['id']}/labels")
        if name == "segmenter":
            cells = np.frombuffer(labels.content, "<i2").reshape(image["labels_size"])
            assert (cells == index).any()
        else:
            assert labels.status_code == 404
            assert "sightline.Box(1)" in job["python"]
            assert "--target box:1" in job["command"]


def test_a_detection_of_a_classifier_is_refused(client):
    answer = client.post("/api/jobs", json={"model": CNN, "picture": SAMPLE, "box": 0})
    assert answer.status_code == 422
    assert "is no detector" in answer.json()["error"]


# ---- texts ----------------------------------------------------------------------------------------------------------


def test_a_text_is_explained_by_a_model_that_compares_pictures_with_texts():
    name = "openclip/tiny"
    model = OPEN_CLIP["open_clip/clip"].build()
    settings = {"size": 32, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25), "interpolation": "bicubic"}
    require("open_clip.model").set_model_preprocess_cfg(model, settings)
    clip = sightline.adapt(model, tokenizer=lambda texts: torch.tensor([[len(text), *[9] * 15] for text in texts]))
    with TestClient(create_app({name: clip}), base_url="http://localhost") as client:
        assert client.get("/api/model", params={"model": name}).json()["takes_text"] is True
        job = ask(client, model=name, text="a star", recipes=["ixg"])["id"]
        events = dict(follow(client, job))
        assert events["end"]["state"] == "done", events["end"]
        assert "a star" in events["image"]["label"]
        data = np.frombuffer(client.get(f"/api/jobs/{job}/maps/0/values").content, "<f4")
    target = sightline.TextSimilarity("a star")
    expected = sightline.explain(clip, samples()[SAMPLE].open(), "ixg", target=target).pixels()[0]
    np.testing.assert_allclose(data, expected.flatten(), rtol=1e-4, atol=1e-7)
