"""Photographs, masks and synthetic sets."""

from sightline.data.images import find_images, read_image
from sightline.data.masks import fit_mask, read_mask
from sightline.data.shapes import Batch, Sample, Shapes

__all__ = ["Batch", "Sample", "Shapes", "find_images", "fit_mask", "read_image", "read_mask"]
