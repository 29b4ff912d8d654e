"""Sufficiency of a set of maps: Quantus on the same maps, closed forms, and edges."""

from __future__ import annotations

import pytest
import torch
from tests.metrics.peer_quantus import batch, maps, plain, quantus

from sightline.audit.evidence.sufficiency import sufficiency
from sightline.errors import InputError


def test_it_is_that_of_quantus():
    metric = quantus.Sufficiency(threshold=0.95, **plain())
    given = batch(3)
    more = metric.custom_batch_preprocess(**given)
    want = metric.evaluate_batch(**more)
    got = sufficiency(maps(3), more["y_pred_classes"].tolist(), threshold=0.95)
    assert got.nan_to_num(0.0).tolist() == pytest.approx(want.tolist())


def test_like_maps_of_one_class_suffice_and_of_two_classes_do_not():
    near = torch.tensor([0.0, 0.01, 9.0, 9.01]).reshape(4, 1, 1).expand(-1, 2, 2)
    assert sufficiency(near, [1, 1, 2, 2]).tolist() == [1.0] * 4
    assert sufficiency(near, [1, 2, 1, 2]).tolist() == [0.0] * 4


def test_without_a_like_map_there_is_no_number():
    far = torch.tensor([0.0, 1.0, 5.0]).reshape(3, 1, 1).expand(-1, 2, 2)
    found = sufficiency(far, [1, 1, 1], threshold=0.3)
    assert found[:2].tolist() == [1.0, 1.0]
    assert found[2].isnan()


def test_one_image_is_no_set():
    with pytest.raises(InputError, match="two images or more"):
        sufficiency(torch.zeros(1, 2, 2), [0])
