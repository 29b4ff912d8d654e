"""How `explain` runs a method: as its class says, however the class is built."""

from dataclasses import dataclass, replace

import torch

import sightline
from sightline.methods.gradient.gradient import InputTimesGradient


@dataclass(frozen=True, slots=True)
class Doubled(InputTimesGradient):
    """A plug-in that explains several targets at once, and changes what it says of one."""

    def __call__(self, model, images, target):
        whole = InputTimesGradient.__call__(self, model, images, target)
        return replace(whole, values=2 * whole.values)


def test_a_method_with_a_call_of_its_own_is_called(tiny_vit, images):
    plain = sightline.explain(tiny_vit, images, InputTimesGradient(), target=1)
    doubled = sightline.explain(tiny_vit, images, Doubled(), target=1)
    torch.testing.assert_close(doubled.values, 2 * plain.values)
