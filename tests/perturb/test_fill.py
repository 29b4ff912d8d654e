from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch.nn import functional as F
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import RecipeError
from sightline.perturb.fill import Black, Blur, Mean, White, Zero, kernel_line, make_fill

FILLS = [Zero(), Black(), White(), Mean(), Blur(), Blur(2, 9.0)]
fills = pytest.mark.parametrize("fill", FILLS, ids=repr)


@pytest.fixture
def model():
    return adapt(lambda images: images.mean(dim=(2, 3)), mean=(0.4, 0.5, 0.6), std=(0.1, 0.2, 0.3))


@pytest.fixture
def images():
    return torch.randn(2, 3, 20, 24, generator=torch.Generator().manual_seed(0))


def test_zero_is_the_mean_colour(model, images):
    raw = model.denormalise(Zero()(model, images))
    assert_close(raw, torch.tensor([0.4, 0.5, 0.6])[:, None, None].expand_as(images))


@pytest.mark.parametrize(("fill", "value"), [(Black(), 0.0), (White(), 1.0)])
def test_black_and_white_are_so_before_normalisation(model, images, fill, value):
    raw = model.denormalise(fill(model, images))
    assert_close(raw, torch.full_like(images, value), rtol=0, atol=1e-6)


def test_mean_is_each_images_own_colour(model, images):
    got = Mean()(model, images)
    assert_close(got, images.mean(dim=(2, 3), keepdim=True).expand_as(images))
    assert got.is_contiguous()


def kernel_of(radius, sigma):
    """The kernel as RISE makes it, in two dimensions."""
    point = np.zeros((2 * radius + 1, 2 * radius + 1))
    point[radius, radius] = 1
    return torch.from_numpy(gaussian_filter(point, sigma))


@pytest.mark.parametrize(("radius", "sigma"), [(5, 5.0), (15, 31.0), (1, 0.5), (7, 100.0)])
def test_the_blur_is_a_zero_padded_convolution_with_the_kernel_of_rise(model, images, radius, sigma):
    kernel = kernel_of(radius, sigma)
    want = torch.stack(
        [F.conv2d(image[:, None], kernel[None, None], padding=radius)[:, 0] for image in images.double()]
    )
    assert_close(Blur(radius, sigma)(model, images.double()), want, rtol=0, atol=1e-12)
    assert_close(Blur(radius, sigma)(model, images).double(), want, rtol=0, atol=1e-5)


def test_the_kernel_is_flatter_than_a_gaussian_and_sums_to_one():
    kernel = np.outer(kernel_line(5, 5.0), kernel_line(5, 5.0))
    assert kernel.sum() == pytest.approx(1, abs=1e-12)
    assert kernel.min() / kernel.max() == pytest.approx(0.876, abs=1e-3)  # measured on the authors' kernel


def test_the_border_fades_to_the_mean_colour(model):
    blurred = Blur()(model, torch.ones(1, 3, 40, 40))
    assert_close(blurred[..., 20, 20], torch.ones(1, 3))
    assert blurred[..., 0, 0].max() < 0.5


@fills
def test_a_batch_is_filled_as_its_images_one_by_one(fill, model, images):
    alone = torch.cat([fill(model, image[None]) for image in images])
    assert_close(fill(model, images), alone)


@fills
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_shape_and_precision_are_kept_and_the_images_untouched(fill, dtype, model, images):
    given = images.to(dtype)
    before = given.clone()
    got = fill(model, given)
    assert got.shape == given.shape
    assert got.dtype == dtype
    assert_close(given, before, rtol=0, atol=0)


@pytest.mark.shared
def test_the_blurred_photograph_is_that_of_the_authors(model, shared):
    golden = np.load(shared / "golden" / "photo" / "metric_rise_A.npz")
    photograph = torch.from_numpy(np.load(shared / "golden" / "photo" / "inputs_A.npz")["input"])
    assert_close(Blur()(model, photograph)[0], torch.from_numpy(golden["blurred"]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "fill"), [("zero", Zero()), ("black", Black()), ("white", White()), ("mean", Mean()), ("blur", Blur())]
)
def test_a_fill_is_made_from_its_name(name, fill):
    assert make_fill(name) == fill


def test_the_blur_takes_its_options():
    assert make_fill("blur", radius=15, sigma=31.0) == Blur(15, 31.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "noise"}, "got fill='noise'; choose from zero, blur, black, white, mean"),
        ({"name": "zero", "radius": 3}, "only fill='blur' has them"),
        ({"name": "blur", "radius": 0}, "radius ≥ 1"),
        ({"name": "blur", "sigma": 0.0}, "sigma > 0"),
        ({"name": "blur", "sigma": float("nan")}, "sigma > 0"),
    ],
)
def test_a_wrong_option_is_refused(options, message):
    with pytest.raises(RecipeError, match=message):
        make_fill(**options)
