"""Targets of every output kind: completeness of integrated gradients, and likeness to an embedding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny
from torch import nn

import sightline
from sightline import Logit, LogProbability, Probability, Similarity, Value, adapt, errors
from sightline.models.targets import resolve_target

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 5, stride=4), nn.Tanh(), nn.Flatten(), nn.Linear(196, 5))
    return nn.Sequential(*layers).double().eval()


@pytest.mark.parametrize(("output", "target"), [
    ("softmax", Logit(1)), ("softmax", Probability(1)), ("softmax", LogProbability(2)), ("sigmoid", Logit((1, 3))),
    ("sigmoid", Probability(1)), ("sigmoid", LogProbability((0, 1))), ("value", Value(4)), ("embedding", Value(2)),
    ("embedding", Similarity(torch.arange(5.0) - 1)), ("embedding", Similarity(IMAGES[:1] * 0.3 + 1)),
])  # fmt: skip
def test_integrated_gradients_is_complete(output: Any, target: Any) -> None:
    model = adapt(network(), output=output)
    resolved = resolve_target(target, model, IMAGES)
    found = sightline.explain(model, IMAGES, "ig(steps=60, rule='gauss_legendre')", target=target)
    blank = torch.zeros_like(IMAGES)
    difference = resolved(model.predict(IMAGES)) - resolved(model.predict(blank))
    assert torch.allclose(found.map.sum(dim=(1, 2)), difference, atol=1e-5)


def test_several_labels_are_read_by_a_sigmoid_in_maps_and_metrics() -> None:
    model = adapt(network(), output="sigmoid")
    probability = model.model(IMAGES)[:, 3].sigmoid()
    found = sightline.explain(model, IMAGES, "ixg", target=3)
    curve = sightline.evaluate(model, IMAGES, found, "deletion(step=512)").curves["deletion(step=512)"]
    assert torch.allclose(curve[:, 0], probability)


def test_similarity_is_the_cosine_to_another_image_of_the_model() -> None:
    model = adapt(tiny.vit(num_classes=0).eval())
    images = torch.randn(3, 3, *tiny.vit(num_classes=0).patch_embed.img_size)
    target = resolve_target(Similarity(images[:1]), model, images)
    embeddings = model.predict(images)
    expected = nn.functional.cosine_similarity(embeddings, embeddings[:1])
    assert torch.allclose(target(embeddings), expected)
    assert torch.allclose(target.take([2, 0])(embeddings[[2, 0]]), expected[[2, 0]])
    each = resolve_target(Similarity(embeddings.flip(0)), model, images)
    assert torch.allclose(each(embeddings)[[0, 2]], expected[[2, 2]])
    found = sightline.explain(model, images, "grad_cam", target=Similarity(images[:1]))
    assert found.map.shape[0] == 3


def test_similarity_is_kept_in_a_file_and_another_size_is_refused(tmp_path: Path) -> None:
    model = adapt(network(), output="embedding")
    found = sightline.explain(model, IMAGES, "ixg", target=Similarity(torch.ones(5)))
    assert sightline.Attribution.load(found.save(tmp_path / "map.safetensors")).target == found.target
    with pytest.raises(errors.TargetError, match=r"got an embedding of shape \(4,\) for an output of \(2, 5\)"):
        sightline.explain(model, IMAGES, "ixg", target=Similarity(torch.ones(4)))
