"""`sightline explain --prompt`: a vision-language model from a folder, and a map for every word of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.models.families_vlm import FAMILIES, QUESTION, picture

Type = Callable[..., Any]
QUICK = ("--method", "ixg", "--method", "random", "--metric-step", 512)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and its processor as transformers saves them, and a picture."""
    place = tmp_path_factory.mktemp("model")
    for part in FAMILIES["llava"]():
        part.save_pretrained(place)
    picture(64, 48).save(place / "photo.png")
    return place


def test_every_word_of_an_answer_gets_its_map(sightline: Type, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    question = ("--model", f"hf/{folder}", "--prompt", QUESTION, "--answer", "a cup")
    result = sightline("explain", folder / "photo.png", *question, *QUICK, "--out", out, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert [image["label"] for image in told["images"]] == ["a", "cup"]
    assert {image["answer"] for image in told["images"]} == {"a cup"}
    assert all(0 < image["probability"] < 1 for image in told["images"])
    for image in told["images"]:
        assert all(Path(each["overlay"]).is_file() for each in image["maps"])
    page = Path(told["page"]).read_text()
    assert "photo.png: a cup" in page
    assert "--prompt" in page


def test_the_model_answers_itself_and_one_word_can_be_asked_for(sightline: Type, folder: Path, tmp_path: Path) -> None:
    words = ("explain", folder / "photo.png", "--model", f"hf/{folder}", "--prompt", QUESTION, "--target", "0", *QUICK)
    result = sightline(*words, "--no-page", "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.stderr
    (image,) = json.loads(result.stdout)["images"]
    assert image["answer"].split()[0] == image["label"]
    assert image["prompt"] == QUESTION


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "answers questions about a picture; say what to ask it: --prompt"),
        (("--answer", "a cup"), "got --answer without --prompt"),
        (("--prompt", QUESTION, "--answer", "a zebra"), "the tokenizer does not have 'zebra'"),
        (("--prompt", "<image> <image> what"), "has 2 places for a picture"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_sentence(
    sightline: Type, folder: Path, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    result = sightline("explain", folder / "photo.png", "--model", f"hf/{folder}", *words, "--out", tmp_path / "out")
    assert result.exit_code != 0
    assert sentence in " ".join(result.stderr.split())


def test_a_classifier_answers_no_questions(sightline: Type, folder: Path) -> None:
    result = sightline("explain", folder / "photo.png", "--model", "bundled/shapes-vit", "--prompt", QUESTION)
    assert result.exit_code != 0
    assert "which answers no questions" in " ".join(result.stderr.split())
