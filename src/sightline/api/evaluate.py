"""Score attributions: one number per image and metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sightline.api.explain import as_method
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.judge import Scores, judge
from sightline.metrics.protocols import protocol_metrics
from sightline.models.cnn.adapter import Convolutional
from sightline.models.cnn.layout import in_either_layout
from sightline.models.inputs import adapt, as_batch
from sightline.models.neuron import of_target
from sightline.models.passes import ready
from sightline.models.targets import resolve_target
from sightline.recipe import parse
from sightline.types import Attribution, Method

__all__ = ["evaluate"]


def evaluate(
    model: Any,
    images: Any,
    attribution: Attribution | Tensor,
    metrics: str | Sequence[str] | None = None,
    target: Any = None,
    masks: Tensor | None = None,
    *,
    labels: Any = None,
    method: str | Method | Any = None,
    protocol: str | None = None,
) -> Scores:
    """Score an attribution: one number per image and metric, never a mean.

    Args:
        model: as for `explain`.
        images: as for `explain`, the same images.
        attribution: what `explain` returned, enlarged as it says itself, or any (batch, H, W) tensor at image size.
        metrics: names or recipes, such as ``["insertion", "deletion(step=448)"]``.
        target: as for `explain`; by default what the attribution explained, or the predicted class for a plain tensor.
        masks: (batch, H, W) integers, 1 evidence, 0 background, -1 ignore; only localisation metrics need them.
        labels: the true class of each image, where a metric asks whether the model is right; by default the target's.
        method: what made the maps, where a metric asks it again; by default the attribution's own.
        protocol: the metrics of a paper, such as ``"caap"``, beside those that are named; those that need masks or a
            method are left out where there is none. What else it fixes is in ``PROTOCOLS`` of
            `sightline.metrics.protocols`.
    """
    explained = attribution if isinstance(attribution, Attribution) else None
    maps = explained.pixels() if explained is not None else torch.as_tensor(attribution)
    if target is None and explained is not None:
        target = explained.target
    adapter = of_target(adapt(model), target)
    batch = as_batch(adapter, images)
    made_by = _made_by(attribution) if method is None else as_method(method)
    named = [metrics] if isinstance(metrics, str) else list(metrics or ())
    if protocol is not None:
        named += protocol_metrics(protocol, masks=masks is not None, method=made_by is not None)
    truth = None if labels is None else tuple(int(label) for label in torch.as_tensor(labels).reshape(-1))
    enlarge = None if explained is None else explained.enlarge

    def work() -> Scores:
        with ready(adapter):
            resolved = resolve_target(target, adapter, batch)
            return judge(Case(adapter, batch, resolved, maps, masks, truth, made_by, enlarge), named)

    return in_either_layout(adapter.model, work) if isinstance(adapter, Convolutional) else work()


def _made_by(attribution: Attribution | Tensor) -> Method | None:
    """Return the method an attribution came from, if it is still known."""
    if not isinstance(attribution, Attribution) or not attribution.recipe:
        return None
    if attribution.source is not None:
        return as_method(attribution.source)
    try:
        return parse(attribution.recipe)
    except RecipeError:
        return None
