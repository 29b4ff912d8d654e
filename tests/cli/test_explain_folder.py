"""`sightline explain` over a folder: written image by image, stopped, killed and resumed, split over pages."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import sightline as package
from sightline.audit import panel as audit_panel
from sightline.data.shapes import Shapes
from sightline.errors import NumericalError
from sightline.report.explain_files import explain_files

CNN = "bundled/shapes-cnn"
QUICK = ("--model", CNN, "--metric-step", 4096, "--method", "random")


@pytest.fixture
def folder(tmp_path):
    """Five different pictures, 0.png to 4.png."""
    (tmp_path / "many").mkdir()
    for index in range(5):
        Image.fromarray(Shapes(seed=5)[index].image).save(tmp_path / "many" / f"{index}.png")
    return tmp_path / "many"


@pytest.fixture
def explained(monkeypatch):
    """Count the maps that are made."""
    calls = []

    def counted(*words, **options):
        calls.append(words)
        return attribute(*words, **options)

    attribute = audit_panel.attribute
    monkeypatch.setattr(audit_panel, "attribute", counted)
    return calls


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def stopped_after(monkeypatch, count, error=KeyboardInterrupt):
    """Stop at the map after so many."""
    calls = []

    def stopping(*words, **options):
        calls.append(words)
        if len(calls) == count + 1:
            raise error
        return attribute(*words, **options)

    attribute = audit_panel.attribute
    monkeypatch.setattr(audit_panel, "attribute", stopping)
    return calls


def test_a_run_that_is_stopped_goes_on_and_explains_nothing_twice(sightline, folder, tmp_path, monkeypatch):
    words = ("explain", folder, *QUICK, "--out", tmp_path / "o", "--jsonl")
    with monkeypatch.context() as patch:
        stopped_after(patch, 3)
        stopped = sightline(*words)
    assert stopped.exit_code == 130
    assert stopped.stderr == "note: stopped; 3 of 5 images are done, and the same command goes on from there\n"
    assert [Path(line["path"]).name for line in lines(stopped)] == ["0.png", "1.png", "2.png"]
    page = (tmp_path / "o" / "index.html").read_text(encoding="utf-8")
    assert "2.png" in page
    assert "3.png" not in page
    with monkeypatch.context() as patch:
        calls = stopped_after(patch, 5)
        resumed = sightline(*words)
    assert resumed.exit_code == 0
    assert len(calls) == 2
    assert "3 of 5 images were explained before" in resumed.stderr
    assert lines(resumed)[:3] == lines(stopped)  # seconds and all
    assert len(lines(resumed)) == 5
    page = (tmp_path / "o" / "index.html").read_text(encoding="utf-8")
    assert all(page.count(f'alt="The photograph {index}.png"') == 1 for index in range(5))


def test_a_run_that_is_killed_goes_on(sightline, folder, tmp_path):
    words = ["explain", folder, *QUICK, "--out", tmp_path / "o", "--jsonl"]
    program = [sys.executable, "-m", "sightline", *map(str, words)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        first = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.kill()
    done = len(list((tmp_path / "o" / ".sightline").glob("*.json")))
    assert done >= 2
    resumed = sightline(*words)
    assert resumed.exit_code == 0
    assert lines(resumed)[:2] == first
    assert f"{done} of 5 images were explained before" in resumed.stderr
    assert (tmp_path / "o" / "index.html").exists()


def test_what_changed_is_explained_again_and_what_is_new_is_added(sightline, folder, tmp_path, explained):
    words = ("explain", folder, *QUICK, "--out", tmp_path / "o", "--json")
    sightline(*words)
    assert len(explained) == 5
    Image.fromarray(Shapes(seed=6)[0].image).save(folder / "1.png")
    Image.fromarray(Shapes(seed=6)[1].image).save(folder / "5.png")
    (tmp_path / "o" / "3" / "1-random.png").unlink()
    record = json.loads(sightline(*words).stdout)
    assert len(explained) == 5 + 3
    assert len(record["images"]) == 6
    assert len(list((tmp_path / "o" / ".sightline").glob("*.json"))) == 6
    sightline(*words, "--method", "centre")
    assert len(explained) == 8 + 2 * 6
    sightline(*words, "--method", "centre", "--no-resume")
    assert len(explained) == 8 + 4 * 6


def test_another_model_is_not_taken_for_the_same(folder, tmp_path, explained):
    run = explain_files(package.load(CNN), folder / "0.png", ["random"], out=tmp_path / "o", step=4096)
    assert len(list(run)) == 1
    other = package.load(CNN)
    next(other.model.parameters()).data.mul_(2)
    run = explain_files(other, folder / "0.png", ["random"], out=tmp_path / "o", step=4096)
    assert len(list(run)) == 1
    assert run.resumed == []
    assert len(explained) == 2


def test_what_failed_is_tried_again(sightline, folder, tmp_path, monkeypatch):
    words = ("explain", folder, *QUICK, "--method", "centre", "--out", tmp_path / "o", "--jsonl")
    with monkeypatch.context() as patch:
        stopped_after(patch, 4, NumericalError("random gave NaN"))
        failed = sightline(*words)
    assert failed.exit_code == 1
    assert [line for line in lines(failed) if "error" in line] == [
        {"path": str(folder / "2.png"), "error": "random gave NaN", "recipe": "random"}
    ]
    again = sightline(*words)
    assert again.exit_code == 0
    assert "4 of 5 images were explained before" in again.stderr


def test_many_images_are_split_over_pages_with_an_index(sightline, folder, tmp_path):
    out = tmp_path / "o"
    sightline("explain", folder, *QUICK, "--out", out, "--per-page", 2)
    assert {path.name for path in out.glob("*.html")} == {"index.html", "page-1.html", "page-2.html", "page-3.html"}
    index = (out / "index.html").read_text(encoding="utf-8")
    assert "The photograph" not in index
    links = re.findall(r'href="(page-\d\.html)#([^"]+)">(\d\.png)<', index)
    assert [(page, name) for page, _, name in links] == [
        ("page-1.html", "0.png"), ("page-1.html", "1.png"), ("page-2.html", "2.png"), ("page-2.html", "3.png"),
        ("page-3.html", "4.png"),
    ]  # fmt: skip
    for page, anchor, name in links:
        shown = (out / page).read_text(encoding="utf-8")
        assert f'id="{anchor}"' in shown
        assert f"The photograph {name}" in shown
    assert re.findall(r'href="([a-z0-9-]+\.html)"', (out / "page-2.html").read_text(encoding="utf-8")) == [
        "index.html", "page-1.html", "page-3.html",
    ]  # fmt: skip
    sightline("explain", folder, *QUICK, "--out", out)
    assert {path.name for path in out.glob("*.html")} == {"index.html"}


def test_progress_is_said_where_no_terminal_shows_a_bar(sightline, folder, tmp_path):
    for index in range(5, 10):
        shutil.copy(folder / "0.png", folder / f"{index}.png")
    result = sightline("explain", folder, *QUICK, "--out", tmp_path / "o", "--no-page", "--jsonl")
    said = [re.match(r"(\d+) % done, about .+ left$", line) for line in result.stderr.splitlines()]
    assert [int(each[1]) for each in said] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert len(lines(result)) == 10


def test_python_gives_what_the_command_prints(sightline, folder, tmp_path):
    words = ("explain", folder, *QUICK, "--method", "grad_cam", "--out", tmp_path / "o", "--jsonl")
    printed = lines(sightline(*words))
    run = explain_files(package.load(CNN), folder, ["random", "grad_cam"], out=tmp_path / "o", step=4096)
    assert len(run) == 5
    assert list(run) == printed
    assert len(run.resumed) == 5
