"""The package grad-cam in the same process, and maps shown as it shows them."""

from __future__ import annotations

from typing import Any

import torch
from tests.methods import reference_cnn
from torch import Tensor, nn

import sightline
from sightline.extras import repair_torchvision


def peer_map(name: str, model: nn.Module, layer: Any, images: Tensor, target: int, **options: Any) -> Tensor:
    """Return the peer's map: rectified and scaled to [0, 1] twice, at image size."""
    repair_torchvision()
    import pytorch_grad_cam
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    tokens = hasattr(model, "blocks")
    reshape = (lambda x: x[:, 1:].transpose(1, 2).unflatten(-1, (4, 4))) if tokens else None
    with getattr(pytorch_grad_cam, name)(model, [layer], reshape_transform=reshape, **options) as cam:
        cam.batch_size = 1
        return torch.from_numpy(cam(images, [ClassifierOutputTarget(target)] * len(images)))


def as_the_peer_shows(attribution: sightline.Attribution) -> Tensor:
    """Rectify and scale a map as grad-cam does, at image size."""
    low = _to_unit(attribution.map.clamp(min=0))
    return _to_unit(torch.nn.functional.interpolate(low[:, None], attribution.grid.image, mode="bilinear")[:, 0])


def _to_unit(maps: Tensor) -> Tensor:
    maps = maps - maps.amin(dim=(1, 2), keepdim=True)
    return maps / (1e-7 + maps.amax(dim=(1, 2), keepdim=True))


def against_reference(recipe: str, network: str, key: str, tolerance: float, rectified: bool = False) -> None:
    """Compare a map on one of the reference networks; `recipe` has its layer left out."""
    model, image = reference_cnn.network(network)
    name, _, options = recipe.partition("(")
    layer = reference_cnn.LAYERS[network]
    text = f"{name}(layer={layer!r}{', ' + options if options else ')'}"
    got = sightline.explain(model, image, text, target=reference_cnn.TARGET).map[0]
    want = reference_cnn.want("cams", f"{key}_{network}")
    reference_cnn.assert_same(got.clamp(min=0) if rectified else got, want, tolerance)
