"""Segments: partitions, pasted and painted."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from sightline.errors import ShapeError
from sightline.perturb.segments import Segments, grid_segments, slic_segments


def test_a_grid_of_patches_is_numbered_row_by_row() -> None:
    labels = grid_segments((4, 6), (2, 3)).labels
    expected = torch.tensor([[0, 1, 2], [3, 4, 5]]).repeat_interleave(2, dim=0).repeat_interleave(2, dim=1)
    assert torch.equal(labels, expected)
    assert torch.equal(grid_segments((4, 6), (2, 3), patch=(2, 2)).labels, expected)


def test_pixels_beyond_the_last_patch_belong_to_it() -> None:
    segments = grid_segments((7, 5), (2, 2), patch=(2, 2))
    assert segments.pixels.tolist() == [4, 6, 10, 15]
    assert grid_segments((7, 5), (2, 2)).pixels.tolist() == [12, 8, 9, 6]


@pytest.mark.parametrize("labels", [
    torch.tensor([[0, 0, 2], [0, 2, 2]]), torch.tensor([[1, 2]]), torch.tensor([0, 1]),
])  # fmt: skip
def test_labels_with_gaps_or_of_another_shape_are_refused(labels: torch.Tensor) -> None:
    with pytest.raises(ShapeError, match="run from 0 without a gap"):
        Segments(labels)


def odd() -> Segments:
    """Three segments, none of them a rectangle."""
    return Segments(torch.tensor([[0, 0, 1, 1], [0, 1, 1, 2], [2, 2, 2, 2]]))


def test_pasting_changes_the_segment_alone() -> None:
    canvas, source = torch.zeros(3, 3, 4), torch.rand(3, 3, 4) + 1
    odd().paste(canvas, source, 1)
    assert_close(canvas, source * (odd().labels == 1))


def test_pasting_every_segment_gives_the_source() -> None:
    canvas, source = torch.zeros(3, 3, 4), torch.rand(3, 3, 4)
    for segment in range(3):
        odd().paste(canvas, source, segment)
    assert torch.equal(canvas, source)


def test_means_undo_paint_and_sums_count_pixels() -> None:
    values = torch.tensor([0.5, -2.0, 7.0], dtype=torch.float64)
    assert_close(odd().means(odd().paint(values)), values)
    assert_close(odd().sums(torch.ones(3, 4)), torch.tensor([3.0, 4.0, 5.0]))
    assert odd().pixels.tolist() == [3, 4, 5]


def test_superpixels_are_about_as_many_as_asked_and_not_the_patches() -> None:
    raw = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    segments = slic_segments(raw, 16)
    assert segments.count == 16
    assert not torch.equal(segments.labels, grid_segments((64, 64), (4, 4)).labels)
