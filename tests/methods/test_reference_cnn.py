"""Every file of reference numbers on CNNs has a test: where it is, and those that have no better place."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.methods import reference_cnn

import sightline

HERE = Path(__file__).parent
# which test compares with which files; the first pattern that fits counts
TESTED = {
    "model_*": "methods/reference_cnn.py",
    "inputs_lite0": "methods/reference_cnn.py",
    "act_released_*": "methods/path/test_iia.py",
    "img_released_*": "methods/path/test_iia.py",
    "iia[23]_released_*": "methods/path/test_iia.py",
    "iia_baseline_*": "methods/cam/test_fusion.py",
    "blur_ig_*": "methods/path/test_blur_ig.py",
    "guided_ig_*": "methods/path/test_guided_ig.py",
    "xrai_*": "methods/path/test_xrai.py",
    "captum_deeplift_*": "methods/gradient/test_deep_lift.py",
    "captum_gradient_lite0": "methods/gradient/test_guided.py",
    "captum_gradient_tiny_cnn": "methods/test_reference_cnn.py",
    "captum_guided_gradcam_tiny_cnn": "methods/test_reference_cnn.py",
    "captum_guided_*": "methods/gradient/test_guided.py",
    "captum_ig_*": "methods/path/test_ig.py",
    "pair_ig_tiny_cnn": "methods/path/test_ig.py",
    "pair_ig_lite0": "methods/test_reference_cnn.py",
    "captum_layer_gradcam_lite0": "methods/test_reference_cnn.py",
    "captum_layer_gradcam_*": "methods/cam/test_fusion.py",
    "captum_lrp_*": "methods/relevance/test_lrp.py",
    "captum_occlusion_*": "methods/sampling/test_occlusion.py",
    "pair_occlusion_*": "methods/sampling/test_occlusion.py",
    "extremal_*": "methods/sampling/test_extremal_perturbation.py",
    "fullgrad_*": "methods/gradient/test_full_grad_cnn.py",
    "simple_fullgrad_*": "methods/gradient/test_full_grad_cnn.py",
    "pgc_fullgrad_*": "methods/gradient/test_full_grad_cnn.py",
    "kernel_shap_*": "methods/shapley/test_kernel_shap.py",
    "lime_*": "methods/sampling/test_lime.py",
    "partition_shap_*": "methods/shapley/test_partition_shap.py",
    "rise_*": "methods/sampling/test_rise.py",
    "layer_cam_*": "methods/cam/test_products.py",
    "pgc_layer_cam_*": "methods/cam/test_products.py",
    "pgc_hires_cam_*": "methods/cam/test_products.py",
    "pgc_gradcam_elementwise_*": "methods/cam/test_products.py",
    "pgc_grad_cam_pp_*": "methods/cam/test_weights.py",
    "pgc_xgrad_cam_*": "methods/cam/test_weights.py",
    "xgrad_cam_*": "methods/cam/test_weights.py",
    "pgc_grad_cam_lite0": "methods/test_reference_cnn.py",
    "pgc_grad_cam_*": "methods/cam/test_fusion.py",
    "pgc_score_cam_lite0": "methods/test_reference_cnn.py",
    "pgc_score_cam_*": "methods/cam/test_ablation.py",
    "score_cam_authors_*": "methods/cam/test_ablation.py",
    "pgc_ablation_cam_*": "methods/cam/test_ablation.py",
    "lift_cam_*": "methods/cam/test_lift.py",
    "pgc_eigen_cam_*": "methods/cam/test_eigen.py",
    "zennit_guided_backprop_tiny_cnn": "methods/test_reference_cnn.py",
    "zennit_guided_backprop_*": "methods/gradient/test_guided.py",
    "zennit_*": "methods/relevance/test_lrp.py",
    "var_v1_*": "operators/test_contrast.py",
    "metric_infidelity_sensitivity_*": "metrics/faithfulness/test_infidelity.py",
    "metric_quantus_*": "metrics/complexity/test_complexity.py",
    "metric_road_adp_*": "metrics/faithfulness/test_road.py",
}


def place(name: str) -> str | None:
    return next((where for pattern, where in TESTED.items() if fnmatchcase(name, pattern)), None)


@pytest.mark.shared
@pytest.mark.parametrize("folder", ["cnn", "cnn_photo"])
def test_every_file_has_a_place(folder: str, shared: Path) -> None:
    names = [path.stem for path in (shared / "golden" / folder).glob("*.npz")]
    assert len(names) > 20
    assert not [name for name in names if place(name) is None]


@pytest.mark.parametrize("where", sorted(set(TESTED.values())))
def test_the_places_exist(where: str) -> None:
    assert (HERE.parent / where).is_file()


# ---- what has no better place ---------------------------------------------------------------------------------------


def test_the_gradient_is_captums() -> None:
    model, image = reference_cnn.network("tiny_cnn")
    got = sightline.explain(model, image, "gradient", target=reference_cnn.TARGET).map[0]
    reference_cnn.assert_same(got, reference_cnn.want("cams", "captum_gradient_tiny_cnn"), 1e-9)


def test_guided_grad_cam_enlarged_to_the_nearest_is_captums() -> None:
    model, image = reference_cnn.network("tiny_cnn")
    got = sightline.explain(model, image, "guided_grad_cam(mode='nearest')", target=reference_cnn.TARGET).map[0]
    reference_cnn.assert_same(got, reference_cnn.want("cams", "captum_guided_gradcam_tiny_cnn"), 1e-9)


def test_guided_backprop_is_zennits_but_for_its_merged_norms() -> None:
    model, image = reference_cnn.network("tiny_cnn")
    got = sightline.explain(model, image, "guided_backprop", target=reference_cnn.TARGET).map[0]
    numbers = reference_cnn.numbers("zennit_guided_backprop_tiny_cnn")
    reference_cnn.assert_same(got * float(numbers["logit"]), torch.from_numpy(numbers["pixels"]).double(), 1e-4)


@pytest.mark.shared
@pytest.mark.parametrize(("file", "key"), [("captum_layer_gradcam_lite0", "pixels"), ("pgc_grad_cam_lite0", "map")])
def test_grad_cam_on_a_photograph(file: str, key: str, shared: Path) -> None:
    model, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    got = sightline.explain(model, image, "grad_cam", target=155).map[0]
    want = np.load(shared / "golden" / "cnn_photo" / f"{file}.npz")[key]
    reference_cnn.assert_same(got, torch.from_numpy(want), 1e-5)


@pytest.mark.shared
@pytest.mark.slow
def test_score_cam_on_a_photograph_with_all_its_channels(shared: Path) -> None:
    model, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    got = sightline.explain(model, image, "score_cam", target=155)
    assert got.passes.forward == 1281
    want = np.load(shared / "golden" / "cnn_photo" / "pgc_score_cam_lite0.npz")["map"]
    reference_cnn.assert_same(got.map[0], torch.from_numpy(want), 1e-5)


@pytest.mark.shared
@pytest.mark.slow
def test_integrated_gradients_on_a_photograph_are_those_of_pair(shared: Path) -> None:
    """PAIR adds up both ends of 25 points and divides by 25, where a trapezoid would halve the ends and take 24.

    Its points are rounded from double precision. At the kinks of ReLU6 that decides: noise of 1e-7 on the points moves
    the map by .01 of its maximum, and on the very same points the numbers agree to 2e-7.
    """
    model, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    trapezoid = sightline.explain(model, image, "ig(steps=25, rule='trapezoid')", target=155).map[0]
    start = torch.zeros_like(image).requires_grad_()
    (gradient,) = torch.autograd.grad(model.model(start)[0, 155], start)
    ends = sightline.explain(model, image, "ixg", target=155).map[0] + (gradient * image).sum(dim=1)[0]
    want = np.load(shared / "golden" / "cnn_photo" / "pair_ig_lite0.npz")["pixels"]
    reference_cnn.assert_same((24 * trapezoid + ends / 2) / 25, torch.from_numpy(want), 5e-3)
