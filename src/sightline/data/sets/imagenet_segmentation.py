"""ImageNet-Segmentation: images and masks in one MATLAB file of version 7.3, which is HDF5."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sightline.data.annotation_files import first_existing
from sightline.data.images import MAX_PIXELS
from sightline.data.source import DATASETS, Entry, Listing, Sample, Source
from sightline.errors import InputError
from sightline.extras import require

__all__ = ["ImageNetSegmentation"]


@DATASETS.register(
    "imagenet_segmentation",
    family="segmentation",
    cite="guillaumin2014",
    layout="""
        root                 gtsegs_ijcv.mat, or the folder that holds it
        /value/img[i, 0]     reference to a picture, (3, width, height)
        /value/gt[i, 0]      reference to a cell with a reference to its mask, (width, height), 0 or 1
    """,
    protocols={"iia": {}, "mda": {}},
    filters="no image is left out; the file tells no classes, so papers explain the predicted one",
)
@dataclass(frozen=True, slots=True)
class ImageNetSegmentation(Source):
    """ImageNet-Segmentation: 4276 photographs of 445 ImageNet classes with the outline of the object, without labels.

    Attributes:
        root: gtsegs_ijcv.mat, or the folder that holds it.
    """

    root: Path

    def listing(self) -> Listing:
        with _opened(self._file()) as file:
            count = int(_item(file, "value/img").shape[0])
        return Listing(tuple(Entry(f"segmented-{row:04d}", details=row) for row in range(count)))

    def read(self, entry: Entry) -> Sample:
        with _opened(self._file()) as file:
            pixels = _pixels(file[_item(file, "value/img")[entry.details, 0]])
            cell = file[_item(file, "value/gt")[entry.details, 0]]
            mask = _pixels(file[cell[0, 0]])
        if pixels.ndim != 3 or pixels.shape[0] != 3 or mask.ndim != 2:
            raise InputError(
                f"{entry.id!r} holds arrays of shape {pixels.shape} and {mask.shape}; (3, width, height) and "
                "(width, height) are needed"
            )
        if not set(np.unique(mask).tolist()) <= {0, 1}:
            raise InputError(f"the mask of {entry.id!r} holds other numbers than 0 and 1; restore the file")
        image = Image.fromarray(np.ascontiguousarray(pixels.transpose(2, 1, 0)).astype(np.uint8))
        return Sample(entry.id, image, None, np.ascontiguousarray(mask.T).astype(np.int8))

    def _file(self) -> Path:
        return first_existing([self.root / "gtsegs_ijcv.mat"], "the file") if self.root.is_dir() else self.root


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open an HDF5 file; whatever is wrong with it becomes one sentence."""
    h5py = require("h5py")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except InputError:
        raise
    except (OSError, KeyError, ValueError, IndexError, RuntimeError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged, or not gtsegs_ijcv.mat in HDF5 ({error}); restore it") from error


def _item(file: Any, name: str) -> Any:
    if name not in file:
        raise InputError(f"{file.filename} has no /{name}; give gtsegs_ijcv.mat as published")
    return file[name]


def _pixels(array: Any) -> Any:
    if array.size > 3 * MAX_PIXELS:
        raise InputError(f"an array of {array.size} numbers is larger than any picture that is read; restore the file")
    return array[()]
