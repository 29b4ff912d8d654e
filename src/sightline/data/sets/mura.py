"""MURA: radiographs of the upper limb, normal or not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sightline.data.annotation_files import first_existing
from sightline.data.images import find_images
from sightline.data.source import DATASETS, Entry, Listing, Source

__all__ = ["Mura"]

STUDY = re.compile(r"study\d+_(positive|negative)")


@DATASETS.register(
    "mura",
    family="classification",
    cite="rajpurkar2017",
    layout="""
        root/[MURA-v1.1/]valid/XR_ELBOW/patient11204/study1_negative/image1.png
    """,
    protocols={"skipplus": {"split": "train", "seed": 43, "limit": 2000}},
    filters="skipplus shuffled the copy KhalfounMehdi/MURA by seed 43, in that copy's order: "
    "hub(repo='KhalfounMehdi/MURA', split='train', seed=43, limit=2000)",
)
@dataclass(frozen=True, slots=True)
class Mura(Source):
    """MURA: radiographs of the upper limb, normal (0) or abnormal (1).

    Attributes:
        root: the folder.
        split: 'valid' or 'train'.
        part: take only this part of the body, for instance 'XR_ELBOW'; empty takes all.
    """

    root: Path
    split: Literal["valid", "train"] = "valid"
    part: str = ""

    def listing(self) -> Listing:
        folders = (self.root / "MURA-v1.1" / self.split, self.root / self.split)
        top = first_existing(folders, "the folder of radiographs")
        entries, skipped = [], []
        for path in find_images(top):
            name = path.relative_to(top)
            study = STUDY.fullmatch(path.parent.name)
            id = name.with_suffix("").as_posix()
            if study is None:
                skipped.append((id, "its folder is not called study…_positive or study…_negative"))
            elif self.part in ("", name.parts[0]):
                entries.append(Entry(id, path, int(study[1] == "positive")))
        return Listing(tuple(entries), tuple(skipped))
