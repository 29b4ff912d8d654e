"""Methods made for tasks: D-RISE, ODAM and Seg-XRes-CAM against their formulas."""

import pytest
import torch
from tests.models.tasks.test_boxes import CORNERS, detector, images
from tests.models.tasks.test_dense import lraspp, pixels
from torch import Tensor, nn

import sightline
from sightline import Box, Region, adapt, parse
from sightline.models.targets import resolve_target
from sightline.seeds import generators


def test_d_rise_is_the_mean_of_masks_by_likeness() -> None:
    from sightline.methods.sampling.rise import Rise, soft_masks

    model, batch = detector("list"), images(1)
    target = resolve_target(Box(CORNERS[0], score="probability"), model, batch)
    found = sightline.explain(model, batch, "d_rise(samples=40, cells=6)", target=Box(CORNERS[0]))
    (generator,) = generators(0, batch)
    masks = soft_masks(*Rise(samples=40, cells=6)._draw((32, 32), generator), batch[0])
    total = torch.zeros(32, 32).double()
    for mask in masks:
        total += mask * target(model(batch * mask))  # the mean colour is zero after normalisation
    assert torch.allclose(found.map[0], total / 20, atol=1e-6)


def bright(batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find both boxes, each as surely as it is bright."""
    boxes = torch.tensor(CORNERS).expand(len(batch), -1, -1)
    inside = [batch[..., int(y1) : int(y2), int(x1) : int(x2)].mean(dim=(1, 2, 3)) for x1, y1, x2, y2 in CORNERS]
    return boxes, torch.tensor([[0, 1]]).expand(len(batch), -1), torch.stack(inside, dim=1)


def test_d_rise_finds_the_box_that_was_asked_for_and_not_its_neighbour() -> None:
    model, batch = adapt(bright, output="boxes", labels=("cat", "dog")), torch.ones(1, 3, 32, 32)
    for corners, other in (CORNERS, CORNERS[::-1]):
        found = sightline.explain(model, batch, "d_rise(samples=400, cells=8)", target=Box(corners))
        masks = torch.stack([resolve_target(Box(each), model, batch).mask() for each in (corners, other)])
        precision = [sightline.evaluate(model, batch, found, "average_precision", masks=mask[None]) for mask in masks]
        own, neighbour = (float(scores["average_precision"]) for scores in precision)
        assert own > 0.8
        assert neighbour < 0.2


class Two(nn.Module):
    """A feature map and a head that weighs each of its cells by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3, padding=1, stride=4)
        self.head = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, batch: Tensor) -> Tensor:
        return self.head(self.features(batch).tanh())


@pytest.mark.parametrize("pool", ["max", "mean"])
def test_seg_xres_cam_lies_between_grad_cam_and_hires_cam(pool: str) -> None:
    torch.manual_seed(0)
    model = adapt(Two().eval(), output="dense")
    batch = pixels()
    target = Region(1, torch.ones(32, 32, dtype=torch.bool))
    target = resolve_target(target, model, batch)
    fine, coarse, hires, mean = sightline.explain(
        model, batch,
        [f"seg_xres_cam(layer='features', window=1, pool={pool!r})",
         "seg_xres_cam(layer='features', window=99, pool='mean')",
         "rectify(hires_cam(layer='features'))", "rectify(seg_grad_cam(layer='features'))"], target=target,
    )  # fmt: skip
    assert torch.allclose(fine.map, hires.map, atol=1e-7)
    assert torch.allclose(coarse.map, mean.map, atol=1e-7)
    three = sightline.explain(model, batch, f"seg_xres_cam(layer='features', window=3, pool={pool!r})", target=target)
    with model.capture("features", gradient=True) as seen:
        score = target(model(batch))
    gradient = model.gradients(score, seen)["features"]
    expected = torch.zeros_like(three.map)
    for y in range(8):
        for x in range(8):
            top, left = y // 3 * 3, x // 3 * 3
            window = gradient[:, :, top : top + 3, left : left + 3].flatten(2)
            weight = window.amax(dim=2) if pool == "max" else window.mean(dim=2)
            expected[:, y, x] = (weight * seen["features"][:, :, y, x]).sum(dim=1).clamp(min=0)
    assert torch.allclose(three.map, expected, atol=1e-6)


def test_odam_is_hires_cam_after_a_relu() -> None:
    torch.manual_seed(0)
    model, batch = adapt(lraspp().eval()), pixels(1, 64)
    target = Region(1, torch.ones(64, 64, dtype=torch.bool))
    odam, hires = sightline.explain(model, batch, ["odam", "rectify(hires_cam)"], target=target)
    assert torch.equal(odam.map, hires.map)
    assert parse("drise(samples=4)") == parse("d_rise(samples=4)")
