"""Where the evidence is known: maps lie on it more than chance would, and a planted shortcut is caught."""

from __future__ import annotations

import pytest
import torch

import sightline
from sightline.data.shapes import SHORTCUT_CLASS, Shapes

MAPS = {
    "bundled/shapes-vit": ["ixg", "plus(ixg)", "grad_cam", "gae", "ig(steps=10)", "gradient"],
    "bundled/shapes-cnn": ["ixg", "grad_cam", "ig(steps=10)", "gradient(variant='norm')"],
}
EVERY = [(model, recipe) for model, recipes in MAPS.items() for recipe in recipes]


@pytest.mark.parametrize(("model", "recipe"), EVERY)
def test_maps_put_clearly_more_than_chance_on_the_evidence(model: str, recipe: str) -> None:
    adapter, batch = sightline.load(model), Shapes(seed=77).draw(48)
    images, masks = adapter.normalise(batch.images), batch.evidence.long()
    metrics = ["average_precision", "energy_pointing_game"]
    found, chance = (
        sightline.evaluate(
            adapter, images, sightline.explain(adapter, images, name, batch.labels), metrics, batch.labels, masks
        )
        for name in (recipe, "random")
    )
    for metric in metrics:
        margin = found[metric] - chance[metric]
        error = margin.std() / len(margin) ** 0.5
        assert margin.mean() > 5 * error, f"{metric}: {margin.mean():.3f} ± {error:.3f}"
    assert found["average_precision"].mean() > 1.7 * chance["average_precision"].mean()


CATCH = [
    ("bundled/shapes-vit", "gae"),
    ("bundled/shapes-vit", "ig(steps=10)"),
    ("bundled/shapes-cnn", "grad_cam"),
    ("bundled/shapes-cnn", "ixg"),
    ("bundled/shapes-cnn", "ig(steps=10)"),
]


@pytest.mark.parametrize(("model", "recipe"), CATCH)
def test_the_shortcut_is_caught(model: str, recipe: str) -> None:
    """Asked why a star, a map of an image with another shape and a watermark must lie on the watermark."""
    adapter, batch = sightline.load(model), Shapes(seed=77, variant="conflict").draw(64)
    images = adapter.normalise(batch.images)
    marked = batch.shortcut.flatten(1).any(dim=1) & (batch.labels != SHORTCUT_CLASS)
    fooled = marked & (adapter.predict(images).argmax(dim=1) == SHORTCUT_CLASS)
    assert fooled.sum() > 10
    maps = sightline.explain(adapter, images[fooled], recipe, target=SHORTCUT_CLASS).pixels().clamp(min=0)
    share = (maps * batch.shortcut[fooled]).sum(dim=(1, 2)) / maps.sum(dim=(1, 2))
    area = batch.shortcut[fooled].float().mean()
    assert share.mean() > 5 * area
    assert torch.isfinite(share).all()
