"""Whatever the files of a data set hold, its images are read or refused in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from tests.data import miniature
from tests.fuzz.cases import CASES, try_all

from sightline.data import open_dataset
from sightline.errors import SightlineError


def csv_file(root: Path) -> Path:
    miniature.picture(root / "a.png")
    miniature.table(root / "list.csv", {"path": "a.png", "label": 1, "mask": "a.png"}, {"path": "b.png", "label": 2})
    return root


def predictions(root: Path) -> Path:
    rows = [{"id": f"shape-{n:06d}", "predicted": n, "probability": 0.5} for n in range(8)]
    return miniature.table(root / "table.csv", *rows)


# How each set is written, how it is opened, and which of its files hold text.
SETS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "csv": (csv_file, "csv(root='list.csv')", "list.csv"),
    "labelled": (miniature.labelled, "labelled(root='.')", "labels.csv"),
    "coco": (miniature.coco, "coco(root='.')", "annotations/instances_val2017.json"),
    "categories": (miniature.coco, "coco(root='.', regions='category')", "annotations/instances_val2017.json"),
    "part_imagenet": (miniature.part_imagenet, "part_imagenet(root='.')", "annotations/val.json"),
    "voc": (miniature.voc, "voc(root='.')", "VOCdevkit/VOC2012/ImageSets/Segmentation/val.txt"),
    "imagenet_s": (miniature.imagenet_s, "imagenet_s(root='.')", "ImageNetS_categories_im919.txt"),
    "imagenet": (miniature.imagenet_flat, "imagenet(root='.')", "*.txt"),
    "kaggle": (miniature.imagenet_kaggle, "imagenet(root='.')", "*.csv"),
    "pets": (miniature.pets, "pets(root='.')", "*/annotations/test.txt"),
    "food101": (miniature.food, "food101(root='.')", "*/meta/*.txt"),
    "predictions": (predictions, "shapes(count=4, predictions='table.csv', confidence=0.2)", "table.csv"),
}
ODD = st.one_of(
    st.sampled_from(["", "\0", "../../etc/passwd", "/dev/zero", "nan", "1e999", "-1", "9" * 5000, "\ud800", "a" * 300]),
    st.text(max_size=6),
)
VALUES = st.recursive(
    st.one_of(ODD, st.integers(), st.floats(), st.booleans(), st.none(), st.sampled_from([2**63, 10**400, -(2**40)])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["size", "counts", "id"]), inner),
    max_leaves=4,
)


@st.composite
def letters_changed(draw: st.DrawFn, text: str) -> bytes:
    """Cut, double and replace letters, cells and lines."""
    for _ in range(draw(st.integers(1, 5))):
        place, length = draw(st.integers(0, len(text))), draw(st.sampled_from([0, 1, 3, 20, 200]))
        other = draw(st.one_of(ODD, st.sampled_from([",", '"', "\n", ";", " ", "[", "}", text[:40]])))
        text = text[:place] + other + text[place + length :]
    return text.encode(draw(st.sampled_from(["utf-8", "utf-16", "latin-1"])), "replace")


@st.composite
def values_changed(draw: st.DrawFn, text: str) -> bytes:
    """Put other values somewhere into a JSON file."""
    whole = [json.loads(text)]
    for _ in range(draw(st.integers(1, 4))):
        place: Any = whole
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or draw(st.integers(0, 5)) == 0:
                place[key] = draw(VALUES)
                break
            place = place[key]
    return json.dumps(whole[0]).encode("utf-8", "surrogatepass")


@st.composite
def contents(draw: st.DrawFn, path: Path, text: str) -> bytes:
    choices = [letters_changed(text), st.binary(max_size=60)]
    return draw(st.one_of(*choices, *([values_changed(text)] * 2 if path.suffix == ".json" else [])))


def check(path: Path, recipe: str, data: bytes) -> None:
    path.write_bytes(data)
    with suppress(SightlineError):
        dataset = open_dataset(recipe)
        for name in dataset.ids[:4]:
            with suppress(SightlineError):
                dataset.read(name)


@CASES
@pytest.mark.parametrize("name", SETS)
def test_any_file_is_a_data_set_or_is_refused(
    name: str, cases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, recipe, pattern = SETS[name]
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    files = sorted(tmp_path.glob(pattern))
    assert files
    for path in files:
        text = path.read_text(encoding="utf-8")
        each = max(cases // (len(SETS) * len(files)), 1)
        try_all(each, contents(path, text), partial(check, path, recipe))
        path.write_text(text, encoding="utf-8")
        assert open_dataset(recipe).ids, "the file as it was is a data set"


LONG, DIGITS = "a" * 300, "9" * 5000
# What broke a data set once: names that no file system takes, numbers that no machine holds, keys that are missing.
FOUND = [
    ("csv", f"path,label\n{LONG}.png,1\n"),
    ("csv", f"path,label\n{LONG}/a.png,1\n"),
    ("labelled", f"file,label\n{LONG},1\n"),
    ("labelled", f"file,label\n{LONG}.png,1\n"),
    ("labelled", "file,label\np0.png,1e999\n"),
    ("labelled", "file,label\np0.png,nan\n"),
    ("voc", LONG),
    ("pets", f"Abyssinian_201 {DIGITS} 1 1"),
    ("imagenet", f"ILSVRC2012_val_00000001.JPEG {DIGITS}"),
    ("kaggle", f"ImageId,PredictionString\nILSVRC2012_val_00000001,n01440764 2 3 5 {DIGITS}\n"),
    ("coco", f'{{"images": {DIGITS}, "annotations": [], "categories": []}}'),
    *(
        (name, json.dumps({"images": [image], "annotations": [annotation], "categories": []}))
        for name in ("coco", "categories", "part_imagenet")
        for image, annotation in [
            ({"id": 1, "file_name": LONG, "height": 16, "width": 24}, {"image_id": 1, "category_id": 1}),
            ({"id": 1, "file_name": "000000000001.jpg", "height": 16, "width": 24}, {"image_id": 1}),
            (
                {"id": 1, "file_name": "000000000001.jpg", "height": -1, "width": 2**40},
                {"image_id": 1, "category_id": 1},
            ),
            ({"id": 1, "file_name": "n01440764_0.JPEG", "height": 16, "width": 24}, {"image_id": 0, "category_id": []}),
        ]
    ),
]


@pytest.mark.parametrize(("name", "text"), FOUND)
def test_what_broke_a_data_set_once_is_refused(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, recipe, pattern = SETS[name]
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    check(next(tmp_path.glob(pattern)), recipe, text.encode())
