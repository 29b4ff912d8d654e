"""The public verbs `explain` and `evaluate`, and what they share with the rooms to their right."""

from sightline.api.evaluate import evaluate
from sightline.api.explain import as_method, check_needs, explain, ready, working
from sightline.models.inputs import as_batch, seen_pixels

__all__ = ["as_batch", "as_method", "check_needs", "evaluate", "explain", "ready", "seen_pixels", "working"]
