"""Photographs, masks, data sets and synthetic sets."""

from sightline.data.dataset import DATASETS, Dataset, Sample, open_dataset
from sightline.data.images import find_images, read_image
from sightline.data.mask_transform import transform_mask
from sightline.data.masks import fit_mask, read_mask
from sightline.data.shapes import Batch, Shapes

__all__ = [
    "DATASETS",
    "Batch",
    "Dataset",
    "Sample",
    "Shapes",
    "find_images",
    "fit_mask",
    "open_dataset",
    "read_image",
    "read_mask",
    "transform_mask",
]
