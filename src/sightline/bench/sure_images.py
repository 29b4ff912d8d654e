"""Which images a plan's models are sure of: asked of the models themselves, before a run is cut into units.

Some papers keep what their model classifies correctly, or with some probability at least. A plan says so with
``confidence = 0.6``, ``correct = true`` and ``per_class = 5``; every one of its models has to agree, and the limit
counts what is left.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import torch

from sightline import api
from sightline.api.prepare import prepare
from sightline.bench.plan import Plan
from sightline.data.dataset import Dataset, Sample
from sightline.errors import InputError
from sightline.models.adapter import Adapter
from sightline.types import probabilities

__all__ = ["sure_images"]


def sure_images(plan: Plan, dataset: Dataset) -> Dataset:
    """Return the images that every model of a plan is sure of, up to its limit, and why the others are left out.

    A plan that asks nothing of its models gets the data set as it is, and no model is loaded.

    Raises:
        InputError: none is left.
    """
    if not plan.asks_models:
        return dataset
    models = [_load(name, plan) for name in dict.fromkeys(plan.models)]
    skipped = list(dataset.skipped)
    taken: Counter[int] = Counter()  # images of each predicted class

    def is_kept(id: str) -> bool:
        try:
            reason = _reason(dataset.read(id), models, plan, taken)
        except InputError as error:
            reason = str(error)
        if reason:
            skipped.append((id, reason))
        return not reason

    kept = list(islice((id for id in dataset.ids if is_kept(id)), plan.limit))
    if not kept:
        raise InputError(
            f"no picture of {dataset.name} is left that the plan's models are sure of; of {len(skipped)} left out the "
            f"first is {skipped[0][0]!r}: {skipped[0][1]}"
        )
    return replace(dataset, entries={id: dataset.entries[id] for id in kept}, skipped=tuple(skipped))


def _load(name: str, plan: Plan) -> Adapter:
    from sightline.models import zoo

    model = zoo.load(name, classes=list(plan.classes) or None if name.startswith("openclip/") else None)
    if isinstance(model.model, torch.nn.Module) and plan.device != "cpu":
        model.model.to(plan.device)
    return model


def _reason(sample: Sample, models: list[Adapter], plan: Plan, taken: Counter[int]) -> str:
    """Return why an image is left out, an empty text where it is not; count what is taken."""
    classes = set()
    for model in models:
        image, _ = prepare(model, sample, plan.resize)
        with api.ready(model):
            likely = probabilities(model.predict(model.accept(image[None])).double(), model.link)[0]
        predicted = int(likely.argmax())
        if plan.correct and predicted != sample.label:
            return f"{model.name} takes it for {predicted}, and it is {sample.label}"
        explained = predicted if plan.target == "predicted" or sample.label is None else sample.label
        if plan.confidence is not None and float(likely[explained]) < plan.confidence:
            return f"{model.name} gives its class {float(likely[explained]):.2g}, below {plan.confidence:g}"
        classes.add(predicted)
    if plan.per_class is not None and any(taken[predicted] >= plan.per_class for predicted in classes):
        return f"its class has {plan.per_class} pictures already"
    taken.update(classes)
    return ""
