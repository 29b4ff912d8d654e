"""Class activation maps: grad-cam and torchcam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pairs.pair import Make, Pair, Setting, as_grad_cam_shows
from sightline.extras import require

CNN = ("cnn",)
SIGN = "the sign of a principal component is free"


def grad_cam(name: str, **options: Any) -> Make:
    """Return what makes a call of grad-cam; its hooks are set once, as its users do."""

    def make(setting: Setting) -> Callable[[], Tensor]:
        targets = [require("pytorch_grad_cam.utils.model_targets").ClassifierOutputTarget(setting.target)]
        reshape = setting.reshape if setting.kind == "vit" else None

        def work() -> Tensor:
            # made anew: hooks that stayed would slow down the other side, which runs the same network
            peer = getattr(require("pytorch_grad_cam"), name)
            with peer(setting.network, [setting.layer], reshape_transform=reshape, **options) as cam:
                cam.batch_size = setting.adapter.batch
                return torch.from_numpy(cam(setting.images, targets * len(setting.images)))

        return work

    return make


def full_grad(setting: Setting) -> Callable[[], Tensor]:
    targets = [require("pytorch_grad_cam.utils.model_targets").ClassifierOutputTarget(setting.target)]

    def work() -> Tensor:
        with require("pytorch_grad_cam").FullGrad(setting.network, []) as cam:
            return torch.from_numpy(cam(setting.images, targets * len(setting.images)))

    return work


def torchcam(name: str, **options: Any) -> Make:
    """Return what makes a call of torchcam: a forward pass, then the map of it."""

    def make(setting: Setting) -> Callable[[], Tensor]:
        peer = getattr(require("torchcam.methods"), name)
        given = {key: value(setting) if callable(value) else value for key, value in options.items()}
        scored = name not in ("CAM", "SSCAM", "ISCAM", "ScoreCAM", "SmoothGradCAMpp")

        def work() -> Tensor:
            with peer(setting.network, setting.layer, input_shape=tuple(setting.images.shape[1:]), **given) as cam:
                scores = setting.network(setting.leaf)
                (found,) = cam(class_idx=setting.target, normalized=False, **({"scores": scores} if scored else {}))
            return found.detach()  # type: ignore[no-any-return]

        return work

    return make


def count(setting: Setting) -> int:
    return setting.count


def rectified(found: Any) -> Tensor:
    map_: Tensor = found.map.clamp(min=0)
    return map_


ONE_BACKWARD = {
    "grad_cam": "GradCAM",
    "grad_cam_elementwise": "GradCAMElementWise",
    "grad_cam_pp": "GradCAMPlusPlus",
    "hires_cam": "HiResCAM",
    "xgrad_cam": "XGradCAM",
    "layer_cam": "LayerCAM",
    "fem": "FEM",
}
EIGEN = {"eigen_cam": "EigenCAM", "eigen_grad_cam": "EigenGradCAM", "kpca_cam": "KPCA_CAM"}

PAIRS = [
    *(
        Pair(ours, f"grad-cam {peer}", grad_cam(peer), shown=as_grad_cam_shows, bound=1e-3)
        for ours, peer in ONE_BACKWARD.items()
    ),
    Pair("shapley_cam", "grad-cam ShapleyCAM", grad_cam("ShapleyCAM"), kinds=CNN, shown=as_grad_cam_shows, bound=1e-3),
    *(Pair(ours, f"grad-cam {peer}", grad_cam(peer), differs=SIGN) for ours, peer in EIGEN.items()),
    Pair("finer_cam(grad_cam)", "grad-cam FinerCAM", grad_cam("FinerCAM"),
         differs="each chooses its own other classes"),
    Pair("score_cam", "grad-cam ScoreCAM", grad_cam("ScoreCAM"), shown=as_grad_cam_shows, bound=1e-3, long=True),
    Pair("ablation_cam(variant='pgc')", "grad-cam AblationCAM", grad_cam("AblationCAM"), shown=as_grad_cam_shows,
         kinds=CNN, bound=1e-3, long=True),
    Pair("full_grad", "grad-cam FullGrad", full_grad, kinds=CNN, differs="grad-cam takes the biases of fewer layers"),
    Pair("grad_cam", "torchcam GradCAM", torchcam("GradCAM"), kinds=CNN, shown=rectified),
    Pair("grad_cam_pp", "torchcam GradCAMpp", torchcam("GradCAMpp"), kinds=CNN, shown=rectified,
         differs="torchcam's weights are those of an exponential score"),
    Pair("xgrad_cam", "torchcam XGradCAM", torchcam("XGradCAM"), kinds=CNN, shown=rectified,
         differs="torchcam divides by another sum"),
    Pair("layer_cam", "torchcam LayerCAM", torchcam("LayerCAM"), kinds=CNN, shown=rectified),
    Pair("is_cam(samples=2, variant='torchcam')", "torchcam ISCAM", torchcam("ISCAM", num_samples=2), kinds=CNN,
         shown=rectified, long=True),
    Pair("ss_cam(samples=2)", "torchcam SSCAM", torchcam("SSCAM", num_samples=2), kinds=CNN, long=True,
         differs="each side draws its own random numbers"),
    Pair("smooth_grad_cam_pp(samples={count}, variant='torchcam')", "torchcam SmoothGradCAMpp",
         torchcam("SmoothGradCAMpp", num_samples=count), kinds=CNN, differs="each side draws its own random numbers"),
]  # fmt: skip
