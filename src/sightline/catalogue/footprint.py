"""What a method holds in memory, in words, read from the cost and the needs that it declares."""

from __future__ import annotations

import re
from collections.abc import Collection

__all__ = ["footprint"]

# Words of costs that grow with an option, with the image or with the layer: those passes run in batches.
_SEVERAL = re.compile(r"\b(steps?²?|samples?|per|each|times|once|at most|about|as iia2)\b")


def footprint(cost: str, needs: Collection[str]) -> str:
    """Say what a method holds at once; `method.cost(model).peak` says it in bytes.

    >>> footprint("1 forward, 1 backward", ["attention"])
    'the graph of one image, with the attention of every block'
    >>> footprint("steps forward, steps backward", [])
    'the graph of a batch of images'
    """
    if cost == "none":
        return "the image"
    if "the method's" in cost:
        return "the method's"
    held = "graph" if "backward" in cost else "activations"
    images = "a batch of images" if _SEVERAL.search(cost) else "one image"
    attention = ", with the attention of every block" if "attention" in needs else ""
    return f"the {held} of {images}{attention}"
