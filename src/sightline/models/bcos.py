"""B-cos networks: dynamic linear networks, whose weights for an image can be held fixed ("explanation mode").

They are fed six channels, the colours and one minus the colours, of images between 0 and 1; the adapter takes the three
colours as all others do. The modules of the package ``bcos`` say of themselves that they can hold their weights fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sightline.models.blackbox import Opaque

SWITCH = "set_explanation_mode"


class Bcos(Opaque):
    """A B-cos network: gradients at the pixels, and a mode in which its weights for an image are constants."""

    kind = "bcos"

    def forward(self, images: Tensor) -> Any:
        return self.model(self.encoded(images))

    def encoded(self, images: Tensor) -> Tensor:
        """Return the six channels that the network is fed; six channels, or a network of three, are left alone."""
        if images.shape[1] != 3 or not self._six_channels:
            return images
        raw = self.denormalise(images)
        return torch.cat([raw, 1 - raw], dim=1)

    @property
    def _six_channels(self) -> bool:
        first = next((m for m in self.modules if getattr(m, "in_channels", None) is not None), None)
        return getattr(first, "in_channels", 3) == 6

    @contextmanager
    def explanation_mode(self) -> Iterator[None]:
        """Hold the network's weights for each image fixed in the backward pass; modules get their own mode back."""
        with ExitStack() as stack:
            for module in self.modules:
                if (switch := getattr(module, SWITCH, None)) is not None:
                    stack.callback(switch, bool(getattr(module, "is_in_explanation_mode", False)))
                    switch(True)
            yield


def recognise(model: nn.Module, facts: dict[str, Any]) -> Bcos | None:
    """Adapt a network with modules that have an explanation mode."""
    if not any(hasattr(module, SWITCH) for module in model.modules()):
        return None
    defaults: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    if getattr(model, "to_probabilities", None) is torch.sigmoid:  # said by the package's own networks
        defaults["output"] = "sigmoid"
    return Bcos(model, **defaults | facts)
