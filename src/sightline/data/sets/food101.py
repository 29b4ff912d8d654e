"""Food-101: dishes, a thousand photographs of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sightline.data.annotation_files import first_existing, read_lines
from sightline.data.source import DATASETS, Entry, Listing, Source, file_problem, path_inside

__all__ = ["Food101"]


@DATASETS.register(
    "food101",
    family="classification",
    cite="bossard2014",
    layout="""
        root/[food-101/]images/apple_pie/1011328.jpg
        root/[food-101/]meta/test.txt                   one picture per line, apple_pie/1011328
        root/[food-101/]meta/classes.txt                one class per line
    """,
    protocols={"caap": {"seed": 0, "limit": 500}},
    filters="caap takes 500 random images and names no seed; 0 is taken",
)
@dataclass(frozen=True, slots=True)
class Food101(Source):
    """Food-101: photographs of 101 dishes.

    Labels count the dishes from 0 in alphabetical order.

    Attributes:
        root: the folder, as torchvision leaves it.
        split: 'test' or 'train'.
    """

    root: Path
    split: Literal["test", "train"] = "test"

    def listing(self) -> Listing:
        top = self.root / "food-101" if (self.root / "food-101").is_dir() else self.root
        table = first_existing([top / "meta" / f"{self.split}.txt"], "the list of pictures")
        named = first_existing([top / "meta" / "classes.txt"], "the list of classes")
        classes = {name: index for index, name in enumerate(sorted(line[0] for line in read_lines(named)))}
        entries, skipped = [], []
        for name in (line[0] for line in read_lines(table)):
            label = classes.get(name.partition("/")[0])
            reason = file_problem(top / "images", f"{name}.jpg")
            if label is None:
                reason = "its folder is none of the classes"
            if reason:
                skipped.append((name, reason))
            else:
                entries.append(Entry(name, path_inside(top / "images", f"{name}.jpg"), label))
        return Listing(tuple(entries), tuple(skipped))
