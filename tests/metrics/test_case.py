from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import InputError
from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.models.passes import counting
from sightline.perturb.curve import Curve
from sightline.perturb.fill import Blur, Zero
from sightline.types import Logit


def linear(images):
    p = 0.1 + 0.8 * images.mean(dim=(1, 2, 3))
    return torch.stack([p.log(), (1 - p).log()], dim=1)


def case_of(maps=None, masks=None, **facts):
    maps = torch.rand(2, 4, 5, generator=torch.Generator().manual_seed(0)) if maps is None else maps
    images = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(1))
    return Case(adapt(linear, **facts), images, Logit(0), maps, masks)


def test_nothing_runs_before_it_is_asked_for():
    with counting() as meter:
        case_of()
    assert meter.passes.forward == 0


def test_the_clean_logits_are_computed_once():
    case = case_of()
    with counting() as meter:
        assert case.clean is case.clean
    assert meter.passes.forward == 2
    assert_close(case.clean, linear(case.images))


def test_clean_logits_that_are_not_known_come_from_the_pass_of_the_changed_images():
    case, sizes, shared = case_of(), [], {}
    changed = 0.5 * case.images

    def watched(images):
        sizes.append(len(images))
        return linear(images) + 1e-6 * torch.arange(len(images))[:, None]  # rounding depends on the place in a batch

    for known, batches in ((None, [4]), (shared, [2, 2]), (shared, [2])):  # numbers of sharing cases have no order
        again = Case(adapt(watched), case.images, Logit(0), case.maps, known=known)
        sizes.clear()
        with counting() as meter:
            got, clean = again.predict_with_clean(changed), again.clean
        assert sizes == batches
        assert meter.passes.forward == 4  # also where another case has computed half of them
        assert_close(got, linear(changed))
        assert_close(clean, linear(case.images))
    alone = Case(adapt(watched), case.images, Logit(0), case.maps)
    sizes.clear()
    assert torch.equal(alone.predict_with_clean(case.images.clone()), alone.clean)
    assert sizes == [4]


def test_a_curve_is_computed_once_however_often_it_is_described():
    case = case_of()
    with counting() as meter:
        first = case.curve(Curve("insert", Blur(1, 2.0), step=4))
        again = case.curve(Curve(step=4, fill=Blur(1, 2.0), direction="insert"))
    assert first is again
    assert meter.passes.forward == 2 * 6


def test_curves_share_their_ends():
    case = case_of()
    with counting() as meter:
        case.curve(Curve("insert", Zero(), step=4))
        case.curve(Curve("delete", Zero(), step=4))
        case.curve(Curve("delete", Blur(1, 2.0), step=4))
    assert meter.passes.forward == 2 * (3 * 4 + 3)


def test_what_is_computed_once_may_be_none():
    case, calls = case_of(), []
    assert case.once("nothing", lambda: calls.append(1)) is None
    assert case.once("nothing", lambda: calls.append(1)) is None
    assert calls == [1]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.int64, torch.float32),
        (torch.bool, torch.float32),
    ],
)
def test_maps_are_never_made_coarser(given, kept):
    maps = torch.randint(0, 2, (2, 4, 5)).to(given)
    case = case_of(maps)
    assert case.maps.dtype == kept
    assert_close(case.maps, maps.to(kept))


def test_constant_maps_are_flagged():
    maps = torch.rand(2, 4, 5)
    maps[1] = 3.0
    assert case_of(maps).flags == ("", "constant map")


def test_a_map_of_one_pixel_is_constant():
    case = Case(adapt(linear), torch.rand(1, 3, 1, 1), Logit(0), torch.rand(1, 1, 1))
    assert case.flags == ("constant map",)


def test_a_map_that_requires_grad_is_taken_as_numbers():
    maps = torch.rand(2, 4, 5, requires_grad=True)
    assert not case_of(maps).maps.requires_grad


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        (torch.full((2, 4, 5), float("nan")), "map of image 0 holds NaN"),
        (torch.zeros(2, 2, 2), r"maps of shape \(2, 2, 2\) for images of \(2, 4, 5\); give them at image size"),
        (torch.zeros(1, 4, 5), r"maps of shape \(1, 4, 5\) for images of \(2, 4, 5\)"),
        (torch.zeros(4, 5), r"maps of shape \(4, 5\)"),
    ],
)
def test_maps_that_cannot_be_judged_are_refused(maps, message):
    with pytest.raises(InputError, match=message):
        case_of(maps)


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (torch.zeros(2, 8, 10, dtype=torch.int64), r"masks of shape \(2, 8, 10\) for images of \(2, 4, 5\)"),
        (torch.zeros(2, 4, 5), "masks of torch.float32; give integers"),
        (torch.full((2, 4, 5), 255), "mask values from 255 to 255"),
        (torch.full((2, 4, 5), -2), "mask values from -2 to -2"),
    ],
)
def test_masks_that_say_something_else_are_refused(masks, message):
    with pytest.raises(InputError, match=message):
        case_of(masks=masks)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int64])
def test_masks_of_any_integer_type_are_taken(dtype):
    masks = torch.ones(2, 4, 5, dtype=dtype)
    assert_close(case_of(masks=masks).evidence, torch.ones(2, 4, 5, dtype=torch.int8))


def test_evidence_without_masks_is_an_error():
    with pytest.raises(InputError, match="there are no masks"):
        _ = case_of().evidence


def test_a_measurement_has_a_flag_for_every_image():
    assert Measurement(torch.zeros(3)).flags == ("", "", "")
    assert Measurement(torch.zeros(2), flags=("", "constant map")).flags == ("", "constant map")


def test_flags_are_joined_image_by_image():
    first = flags_where(torch.tensor([True, False, True]), "a")
    second = flags_where(torch.tensor([True, True, False]), "b")
    assert join_flags(first, second) == ("a; b", "b", "a")
