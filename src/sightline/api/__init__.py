"""The public verbs `explain` and `evaluate`, and what they share with the rooms to their right."""

from sightline.api.batches import as_batch, seen_pixels
from sightline.api.evaluate import evaluate
from sightline.api.explain import explain
from sightline.api.requirements import as_method, check_needs, ready, working

__all__ = ["as_batch", "as_method", "check_needs", "evaluate", "explain", "ready", "seen_pixels", "working"]
