"""The public verbs `explain` and `evaluate`, and what they share with the rooms to their right."""

from sightline.api.evaluate import evaluate
from sightline.api.explain import as_method, check_needs, explain, finished, working
from sightline.models.inputs import as_batch, seen_pixels
from sightline.models.passes import ready

__all__ = ["as_batch", "as_method", "check_needs", "evaluate", "explain", "finished", "ready", "seen_pixels", "working"]
