"""sightline explains what a vision model looked at, and says how far that explanation can be trusted.

>>> import sightline, torch
>>> model = sightline.load("bundled/shapes-vit")
>>> images = model.normalise(torch.rand(1, 3, 64, 64))
>>> sightline.explain(model, images, "plus(libra(ixg))").map.shape
torch.Size([1, 8, 8])

Names are fetched when they are first used, so that the command line can answer ``--help`` without loading torch.
"""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sightline import errors
    from sightline.api.evaluate import evaluate
    from sightline.api.explain import explain
    from sightline.audit.comparison import Comparison, compare
    from sightline.audit.ranking import Ranking, rank
    from sightline.audit.sanity import SanityCheck, sanity
    from sightline.audit.tuning import Tuning, tune
    from sightline.catalogue.cards import card
    from sightline.citations import cite
    from sightline.metrics.judge import Scores
    from sightline.models.adapter import Adapter
    from sightline.models.capture import Site, capture
    from sightline.models.edit import edit
    from sightline.models.inputs import adapt, register_family
    from sightline.models.zoo.ids import load
    from sightline.recipe import parse
    from sightline.registry import METHODS, METRICS, OPERATORS
    from sightline.targets.tasks import Box, Region, Similarity
    from sightline.targets.words import Word
    from sightline.types import (
        Attribution,
        Contrast,
        FinerContrast,
        Logit,
        LogProbability,
        Neuron,
        Probability,
        ResidualSoftmax,
        TextSimilarity,
        TokenGrid,
        Value,
    )

__version__ = _version("sightline")

__all__ = [
    "METHODS",
    "METRICS",
    "OPERATORS",
    "Adapter",
    "Attribution",
    "Box",
    "Comparison",
    "Contrast",
    "FinerContrast",
    "LogProbability",
    "Logit",
    "Neuron",
    "Probability",
    "Ranking",
    "Region",
    "ResidualSoftmax",
    "SanityCheck",
    "Scores",
    "Similarity",
    "Site",
    "TextSimilarity",
    "TokenGrid",
    "Tuning",
    "Value",
    "Word",
    "adapt",
    "capture",
    "card",
    "cite",
    "compare",
    "edit",
    "errors",
    "evaluate",
    "explain",
    "load",
    "parse",
    "rank",
    "register_family",
    "sanity",
    "tune",
]

_HOMES = {
    "api": ("evaluate", "explain"),
    "audit.comparison": ("Comparison", "compare"),
    "audit.ranking": ("Ranking", "rank"),
    "audit.sanity": ("SanityCheck", "sanity"),
    "audit.tuning": ("Tuning", "tune"),
    "catalogue.cards": ("card",),
    "citations": ("cite",),
    "metrics.judge": ("Scores",),
    "models": ("Adapter", "Site", "adapt", "capture", "edit", "register_family"),
    "models.zoo": ("load",),
    "recipe": ("parse",),
    "registry": ("METHODS", "METRICS", "OPERATORS"),
    "targets.tasks": ("Box", "Region", "Similarity"),
    "targets.words": ("Word",),
    "types": (
        "Attribution",
        "Contrast",
        "FinerContrast",
        "Logit",
        "LogProbability",
        "Neuron",
        "Probability",
        "ResidualSoftmax",
        "TextSimilarity",
        "TokenGrid",
        "Value",
    ),
}


def __getattr__(name: str) -> Any:
    """Fetch a public name, or a module of the package, from where it lives."""
    if name.startswith("__"):
        raise AttributeError(name)
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is not None:
        globals()[name] = value = getattr(_import_module(f"sightline.{home}"), name)
        return value
    try:
        return _import_module(f"sightline.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"sightline.{name}":
            raise
        raise AttributeError(f"sightline has no {name}; it has {', '.join(__all__)}") from None


def __dir__() -> list[str]:
    return sorted(__all__)
