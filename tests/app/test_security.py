"""The server is closed to other machines, other origins and other visitors."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from tests.app.conftest import CNN, ask, follow, picture
from typer.testing import CliRunner

from sightline.app.server import create_app
from sightline.cli.main import app as command
from sightline.errors import InputError


@pytest.mark.parametrize("path", ["/", "/api/models", "/api/nothing", "/static/nothing"])
def test_every_answer_has_the_headers(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_another_name_for_this_machine_is_refused(application):
    assert TestClient(application, base_url="http://evil.example").get("/api/models").status_code == 421


def test_a_page_from_elsewhere_cannot_ask(client):
    answer = client.post("/api/pictures", content=picture(), headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert client.post("/api/pictures", content=picture(), headers={"Origin": "http://localhost"}).status_code == 201


def test_a_server_for_others_asks_for_its_token(cnn):
    with pytest.raises(InputError, match="needs a token"):
        create_app({CNN: cnn}, hosts=None)
    client = TestClient(create_app({CNN: cnn}, hosts=None, token="open sesame"), base_url="http://box.example")
    assert client.get("/api/models").status_code == 401
    assert client.get("/?token=wrong").status_code == 401
    assert client.get("/api/models", headers={"Authorization": "Bearer open sesame"}).status_code == 200
    entered = client.get("/?token=open sesame", follow_redirects=False)
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert client.get("/api/models").status_code == 200  # by the cookie


def test_the_command_wants_a_token_for_other_machines():
    outcome = CliRunner().invoke(command, ["app", "--host", "0.0.0.0"])
    assert outcome.exit_code == 2
    assert "--token" in outcome.output


def test_none_sees_the_pictures_and_jobs_of_another(visitor):
    mine, theirs = visitor(), visitor()
    shown = mine.post("/api/pictures", content=picture()).json()["id"]
    job = ask(mine, picture=shown, recipes=["random"])["id"]
    follow(mine, job)
    theirs.post("/api/pictures", content=picture(1))
    assert len(theirs.get("/api/pictures").json()) == 1
    for path in (f"/api/pictures/{shown}", f"/api/jobs/{job}", f"/api/jobs/{job}/events", f"/api/jobs/{job}/page.html",
                 f"/api/jobs/{job}/pictures/seen", f"/api/jobs/{job}/maps/0/values"):  # fmt: skip
        assert mine.get(path).status_code == 200, path
        assert theirs.get(path).status_code == 404, path
    assert theirs.delete(f"/api/jobs/{job}").status_code == 404
    assert theirs.post("/api/jobs", json={"model": CNN, "picture": shown}).status_code == 404


def test_the_cookie_is_out_of_reach_of_scripts(client):
    header = client.post("/api/pictures", content=picture()).headers["set-cookie"].lower()
    assert "httponly" in header
    assert "samesite=strict" in header


def test_looking_makes_no_visitor(application, client):
    for _ in range(3):
        client.get("/api/pictures")
    assert len(application.state.server.visitors) == 0


def test_no_file_outside_the_page_is_served(client):
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd"):
        assert client.get(path).status_code == 404


def test_nothing_is_kept_unless_asked_for(cnn, tmp_path):
    with TestClient(create_app({CNN: cnn}, keep=tmp_path / "kept"), base_url="http://localhost") as client:
        job = ask(client, recipes=["random"])["id"]
        follow(client, job)
    assert {path.name for path in (tmp_path / "kept" / job).iterdir()} == {"index.html", "result.json"}
