"""ImageNet-Hard: images that current classifiers get wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sightline.data.sets.hub import Hub
from sightline.data.source import DATASETS, Entry, Listing, Sample, Source

__all__ = ["ImageNetHard"]


@DATASETS.register(
    "imagenet_hard",
    family="classification",
    cite="taesiri2023",
    layout="""
        root        a folder written by save_to_disk, or a copy of taesiri/imagenet-hard with its Parquet files;
                    without it the repository is downloaded once by the `datasets` package
    """,
    protocols={"caap": {"seed": 0, "limit": 500}},
    filters="an image may have several classes, of which the first is taken; caap takes 500 random ones and names no "
    "seed, 0 is taken",
)
@dataclass(frozen=True, slots=True)
class ImageNetHard(Source):
    """ImageNet-Hard: 10 980 photographs of ImageNet's classes that classifiers get wrong.

    Attributes:
        root: a local copy; None downloads the repository.
        split: which part; empty takes the only one.
    """

    root: Path | None = None
    split: str = ""

    def listing(self) -> Listing:
        return self._hub().listing()

    def read(self, entry: Entry) -> Sample:
        return self._hub().read(entry)

    def _hub(self) -> Hub:
        repo = None if self.root is not None else "taesiri/imagenet-hard"
        return Hub(root=self.root, repo=repo, split=self.split)
