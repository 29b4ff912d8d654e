"""One unit of an inner layer as the output of a model: what Captum calls neuron attribution.

The model is run as far as the layer and no further, and the unit's activation is its one number. Gradients at the
pixels, perturbations and metrics then work on it as on any regression, whatever the method.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sightline.errors import TargetError, UnsupportedModel
from sightline.models.adapter import Adapter
from sightline.models.blackbox import Opaque
from sightline.targets.classes import Neuron

__all__ = ["NeuronModel", "of_target"]


class _ReachedError(Exception):
    """The layer has been reached; carries its activation out of the forward pass."""

    def __init__(self, activation: Tensor) -> None:
        super().__init__()
        self.activation = activation


class Unit(nn.Module):
    """A model cut off behind a layer, with the activation of one unit as its output, (batch, 1)."""

    def __init__(self, inner: Adapter, neuron: Neuron) -> None:
        super().__init__()
        self.module = inner.model  # so that it moves along
        self._inner = (inner,)  # in a tuple: an adapter is no module
        self.neuron = neuron
        self.training = inner.model.training

    def forward(self, images: Tensor) -> Tensor:
        return self.neuron.read(self._activation(images), self._on_grid(images))[:, None]

    def _activation(self, images: Tensor) -> Tensor:
        inner = self._inner[0]

        def stop(value: Tensor) -> Tensor:
            raise _ReachedError(value)

        try:
            with inner.edit({self.neuron.layer: stop}):
                inner.forward(images)
        except _ReachedError as reached:
            return reached.activation
        raise TargetError(f"{inner.name} does not run the layer {self.neuron.layer!r}; choose one that an image passes")

    def _on_grid(self, images: Tensor) -> Any:
        inner = self._inner[0]
        return lambda values: inner.to_map(self.neuron.layer, values, images)


class NeuronModel(Opaque):
    """The adapter of a unit: gradients at the pixels, and what needs a convolutional network where it is one."""

    def __init__(self, inner: Adapter, neuron: Neuron) -> None:
        if not isinstance(inner.model, nn.Module):
            raise UnsupportedModel(f"{inner.name} is a function, whose layers cannot be seen; give the module itself")
        inner.find(neuron.layer)
        names = ("preprocess", "mean", "std", "input_size", "batch")
        facts = {name: fact for name, fact in inner.facts.items() if name in names}
        name = f"{neuron.words} of {inner.name}"
        super().__init__(Unit(inner, neuron), name=name, output="value", **facts)
        self.neuron, self._convolutional = neuron, inner.offers & {"cuts"}
        self.default_size = inner.default_size

    @property
    def offers(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"gradient"}) | self._convolutional


def of_target(model: Adapter, target: Any) -> Adapter:
    """Return the model that a target belongs to: one that ends in the unit for a `Neuron`, else the model itself."""
    return NeuronModel(model, target) if isinstance(target, Neuron) else model
