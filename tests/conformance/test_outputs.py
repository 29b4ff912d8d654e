"""Every method on every kind of output and model: it runs, or it refuses in one sentence whose way out then runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests import tiny
from tests.conformance.test_methods import FAST
from tests.models.fingerprint import fingerprint
from tests.models.tasks.test_boxes import Linear
from torch import Tensor, nn

import sightline
from sightline import Adapter, Box, Probability, Region, Similarity, Value, adapt
from sightline.errors import SightlineError
from sightline.registry import METHODS


class Segmenter(nn.Module):
    """An encoder and a decoder with a connection past the coarsest map, as in a U-Net."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU())
        self.bottom = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.ReLU())
        self.head = nn.Conv2d(14, 3, 1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        fine = self.down(images)
        coarse = nn.functional.interpolate(self.bottom(fine), scale_factor=2.0)
        return {"mask_logits": self.head(torch.cat([fine, coarse], dim=1))}


class Detector(nn.Module):
    """A feature map each of whose cells is a box with the logits of two labels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU())
        self.stage = nn.Sequential(nn.Conv2d(6, 6, 3, stride=2, padding=1), nn.ReLU())
        self.head = nn.Conv2d(6, 2, 1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.stage(self.stem(images))).flatten(2).mT
        y, x = torch.meshgrid(*(torch.arange(8.0) * 4,) * 2, indexing="ij")
        corners = torch.stack([x, y, x + 8, y + 8], dim=-1).flatten(0, 1).clamp(max=32)
        return {"boxes": corners.expand(len(images), -1, -1), "logits": logits}


def found(images: Tensor) -> Any:
    """Find two boxes in each image; no gradients reach them."""
    with torch.no_grad():
        return Linear("list")(images)


MASK = torch.zeros(32, 32, dtype=torch.bool)
MASK[4:20, 8:24] = True
KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any], Any]] = {
    "sigmoid-vit": (tiny.vit, {"output": "sigmoid"}, Probability(1)),
    "sigmoid-cnn": (lambda: tiny.Cnn().eval(), {"output": "sigmoid"}, 3),
    "value-vit": (lambda: tiny.vit(num_classes=2), {"output": "value"}, Value(1)),
    "value-cnn": (lambda: tiny.Cnn().eval(), {"output": "value"}, Value(4)),
    "embedding-vit": (lambda: tiny.vit(num_classes=0), {}, Similarity(torch.arange(16.0) - 8)),
    "embedding-cnn": (lambda: tiny.Cnn().eval(), {"output": "embedding"}, Similarity(torch.arange(5.0) - 2)),
    "dense-cnn": (lambda: Segmenter().eval(), {"output": "dense"}, Region(2, MASK)),
    "dense-function": (lambda: lambda x: x[:, :2, ::2, ::2], {"output": "dense"}, Region(1, MASK)),
    "boxes-cnn": (lambda: Detector().eval(), {"output": "boxes"}, Box(0)),
    "boxes-function": (lambda: found, {"output": "boxes", "labels": ("cat", "dog")}, Box(0)),
}
IMAGES = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def ways_out(message: str, recipe: str) -> Iterator[str]:
    """Read off a refusal what it says will do: other methods, or another layer."""
    if match := re.search(r"choose a cut, such as '([^']+)'", message):
        yield f"{recipe.partition('(')[0]}(layer={match[1]!r})"
    elif match := re.search(r"Methods that work: (.*)$", message):
        yield from match[1].split(", ")[:3]
    elif match := re.search(r"; (\w+), (\w+) and (\w+) work now", message):
        yield from match.groups()
    else:  # names of methods without options of their own, after what is wrong
        words = re.findall(r"\b\w+\b(?!\()", message.partition(";")[2])
        yield from dict.fromkeys(word for word in words if word in METHODS)


@pytest.mark.filterwarnings("ignore::sightline.errors.SightlineWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_runs_or_refuses_and_its_way_out_runs(kind: str) -> None:
    build, facts, target = KINDS[kind]
    model = adapt(build(), **facts)
    before = fingerprint(model.model) if isinstance(model.model, nn.Module) else None
    logits = model.predict(IMAGES)
    tried: set[str] = set()
    ran = 0
    for name in METHODS:
        recipe = FAST.get(name, name)
        refusal = refused(model, recipe, target)
        ran += refusal is None
        if refusal is None:
            continue
        assert refusal.count(". ") <= 1, refusal
        others = list(ways_out(refusal, recipe))
        assert others, f"{name} on {kind} names no way out: {refusal}"
        for other in others:
            if other not in tried:
                tried.add(other)
                assert refused(model, FAST.get(other, other), target) is None, f"{name} on {kind} named {other}"
    assert ran >= 8
    assert torch.equal(model.predict(IMAGES), logits)
    assert before is None or fingerprint(model.model) == before


def refused(model: Adapter, recipe: str, target: Any) -> str | None:
    """Explain; return the sentence of a refusal, None where the method runs."""
    try:
        map = sightline.explain(model, IMAGES, recipe, target=target)
    except SightlineError as error:
        return str(error)
    assert torch.isfinite(map.values).all()
    return None
