"""sightline explains what a vision model looked at, and says how far that explanation can be trusted.

>>> import sightline
>>> adapter = sightline.load("bundled/shapes-vit")
>>> images = adapter.normalise(torch.rand(1, 3, 64, 64))
>>> sightline.explain(adapter, images, "skip_plus(ixg)").map.shape
torch.Size([1, 8, 8])
"""

from importlib.metadata import version as _version

from sightline import errors
from sightline.api import evaluate, explain
from sightline.models import Adapter, Site, adapt, capture, edit, register_family
from sightline.models.zoo import load
from sightline.recipe import parse
from sightline.registry import METHODS, METRICS, OPERATORS
from sightline.types import (
    Attribution,
    Contrast,
    Logit,
    LogProbability,
    Probability,
    TextSimilarity,
    TokenGrid,
)

__version__ = _version("sightline")

__all__ = [
    "METHODS",
    "METRICS",
    "OPERATORS",
    "Adapter",
    "Attribution",
    "Contrast",
    "LogProbability",
    "Logit",
    "Probability",
    "Site",
    "TextSimilarity",
    "TokenGrid",
    "adapt",
    "capture",
    "edit",
    "errors",
    "evaluate",
    "explain",
    "load",
    "parse",
    "register_family",
]
