"""Gradients, paths and propagation rules: captum, zennit, PAIR's saliency and shap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sightline
from pairs.pair import Make, Pair, Setting
from sightline.extras import require

CHECKS = "one pass alone: what is left are checks of images and target, and the pixels that are kept to be shown"
SEEDED = "noise depends on the seed and the image alone, not on the batch: drawn copy by copy, seeded by a hash"
OWN_DRAWS = "each side draws its own random numbers"
CNN = ("cnn",)


def pool_of(setting: Setting) -> Tensor:
    """Three images that stand for a data set."""
    shape = (3, *setting.images.shape[1:])
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(setting.images)


# ---- captum --------------------------------------------------------------------------------------------------------


def captum(name: str, *, layer: bool = False, reduce: Callable[[Tensor], Tensor] | None = None, **options: Any) -> Make:
    """Return what makes a call of captum's; options may be functions of the setting."""

    def make(setting: Setting) -> Callable[[], Tensor]:
        peer = getattr(require("captum.attr"), name)
        explainer = peer(setting.network, setting.layer) if layer else peer(setting.network)
        given = {key: value(setting) if callable(value) else value for key, value in options.items()}
        leaf, summed = setting.leaf, reduce or (lambda found: found.sum(dim=1))
        return lambda: summed(explainer.attribute(leaf, target=setting.target, **given)).detach()

    return make


def tunnel(name: str, **options: Any) -> Make:
    """Return what makes a call of captum's noise tunnel around one of its methods."""

    def make(setting: Setting) -> Callable[[], Tensor]:
        attr = require("captum.attr")
        explainer = attr.NoiseTunnel(getattr(attr, name)(setting.network))
        leaf, spread = setting.leaf, float(0.15 * (setting.images.max() - setting.images.min()))
        given = {"nt_samples": setting.count, "nt_type": "smoothgrad", "stdevs": spread, **options}
        return lambda: explainer.attribute(leaf, target=setting.target, **given).sum(dim=1).detach()

    return make


def count(setting: Setting) -> int:
    return setting.count


def with_pool(recipe: str) -> Make:
    """Return what makes a call of a method that is given a pool of baselines."""

    def make(setting: Setting) -> Callable[[], Any]:
        method = sightline.METHODS[recipe].build(samples=3, pool=pool_of(setting))
        return lambda: sightline.explain(setting.adapter, setting.images, method, target=setting.target)

    return make


INTERCEPTED = (
    "every call of the network is intercepted, so that a ReLU that is a function, or shared, is changed as well"
)
SLOPES = (
    "the slope of every activation is several passes over it; captum has no rule for ReLU6, all activations of "
    "EfficientNet-Lite0: it takes plain gradients there, and its contributions do not add up"
)

CAPTUM = [
    Pair("gradient(at='pixels', variant='abs_max')", "captum Saliency",
         captum("Saliency", reduce=lambda g: g.amax(dim=1)), bare=True, reason=CHECKS),
    Pair("ixg(at='pixels')", "captum InputXGradient", captum("InputXGradient"), bare=True, reason=CHECKS),
    Pair("ig(steps={count})", "captum IntegratedGradients", captum("IntegratedGradients", n_steps=count), bare=True),
    Pair("smooth_grad(samples={count}, at='pixels')", "captum NoiseTunnel", tunnel("Saliency", abs=False),
         differs=OWN_DRAWS, bare=True, reason=SEEDED),
    Pair("smooth(ixg(at='pixels'), samples={count})", "captum NoiseTunnel", tunnel("InputXGradient"),
         differs=OWN_DRAWS),
    Pair("gradient_shap(samples=3)", "captum GradientShap", captum("GradientShap", baselines=pool_of, n_samples=3),
         with_pool("gradient_shap"), differs=OWN_DRAWS, bare=True),
    Pair("deep_lift(at='pixels')", "captum DeepLift", captum("DeepLift"), kinds=CNN, bare=True, reason=SLOPES),
    Pair("deep_lift_shap(samples=3)", "captum DeepLiftShap", captum("DeepLiftShap", baselines=pool_of),
         with_pool("deep_lift_shap"), kinds=CNN, reason=SLOPES),
    Pair("guided_backprop(variant='captum')", "captum GuidedBackprop", captum("GuidedBackprop"), kinds=CNN, bare=True,
         reason=INTERCEPTED),
    Pair("deconvnet(variant='captum')", "captum Deconvolution", captum("Deconvolution"), kinds=CNN, bare=True,
         reason=INTERCEPTED),
    Pair("guided_grad_cam(variant='captum')", "captum GuidedGradCam",
         captum("GuidedGradCam", layer=True, interpolate_mode="bilinear"), kinds=CNN),
    Pair("lrp(preset='captum')", "captum LRP", captum("LRP"), kinds=CNN),
    Pair("grad_cam", "captum LayerGradCam", captum("LayerGradCam", layer=True), kinds=CNN),
    Pair("hires_cam", "captum LayerGradientXActivation", captum("LayerGradientXActivation", layer=True), kinds=CNN),
    Pair("conductance(steps={count})", "captum LayerConductance",
         captum("LayerConductance", layer=True, n_steps=count, method="riemann_trapezoid"), kinds=CNN),
    Pair("internal_influence(steps={count}, layer='{layer}')", "captum InternalInfluence",
         captum("InternalInfluence", layer=True, n_steps=count, method="gausslegendre"), kinds=CNN,
         differs="constant at the last feature map of most CNNs, where sightline says so and returns zeros"),
]  # fmt: skip


# ---- zennit --------------------------------------------------------------------------------------------------------


def attributor(name: str, composite: str = "", **options: Any) -> Make:
    """Return what makes a call of zennit's attributor, under a composite."""

    def make(setting: Setting) -> Callable[[], Tensor]:
        peer = getattr(require("zennit.attribution"), name)
        given = {key: value(setting) if callable(value) else value for key, value in options.items()}
        rules = _composite(composite, setting)
        start = torch.eye(setting.adapter.output_size)[[setting.target]].to(setting.images)

        def work() -> Tensor:
            with peer(setting.network, rules, **given) as explainer:
                return explainer(setting.images, start)[1].sum(dim=1).detach()  # type: ignore[no-any-return]

        return work

    return make


def _composite(name: str, setting: Setting) -> Any:
    if not name:
        return None
    canonizers = []
    if type(setting.network).__name__ == "ResNet":
        canonizers = [require("zennit.torchvision").ResNetCanonizer()]
    return getattr(require("zennit.composites"), name)(canonizers=canonizers)


AS_ZENNIT = "zennit's batch norms and residual sums are canonised only where it knows the architecture"
ZENNIT = [
    Pair("gradient(at='pixels')", "zennit Gradient", attributor("Gradient"), bare=True, reason=CHECKS),
    Pair("smooth_grad(samples={count}, at='pixels')", "zennit SmoothGrad",
         attributor("SmoothGrad", noise_level=0.15, n_iter=count), differs=OWN_DRAWS, bare=True, batch=1,
         reason=SEEDED),
    Pair("ig(steps={count}, rule='right')", "zennit IntegratedGradients",
         attributor("IntegratedGradients", n_iter=count),
         differs="zennit's points begin at the baseline", bare=True, batch=1),
    Pair("guided_backprop", "zennit GuidedBackprop", attributor("Gradient", "GuidedBackprop"), kinds=CNN, bare=True,
         differs=AS_ZENNIT, reason=INTERCEPTED),
    Pair("deconvnet", "zennit DeconvNet", attributor("Gradient", "DeconvNet"), kinds=CNN, bare=True,
         differs=AS_ZENNIT, reason=INTERCEPTED),
    *(
        Pair(f"lrp(composite='{ours}')", f"zennit {name}", attributor("Gradient", name), kinds=CNN, differs=AS_ZENNIT)
        for ours, name in {
            "epsilon_plus": "EpsilonPlus",
            "epsilon_plus_flat": "EpsilonPlusFlat",
            "epsilon_alpha2_beta1": "EpsilonAlpha2Beta1",
            "epsilon_alpha2_beta1_flat": "EpsilonAlpha2Beta1Flat",
            "excitation_backprop": "ExcitationBackprop",
        }.items()
    ),
]  # fmt: skip


# ---- PAIR's saliency -----------------------------------------------------------------------------------------------


def pair_saliency(name: str, **options: Any) -> Make:
    """Return what makes a call of PAIR's, whose pictures and gradients are arrays of one image, channels last."""

    def make(setting: Setting) -> Callable[[], Tensor]:
        explainer = getattr(require("saliency.core"), name)()
        given = {key: value(setting) if callable(value) else value for key, value in options.items()}
        pixels = setting.images[0].permute(1, 2, 0).numpy()

        def ask(batch: Any, call_model_args: Any = None, expected_keys: Any = None) -> dict[str, Any]:
            given = torch.as_tensor(np.asarray(batch), dtype=setting.images.dtype).permute(0, 3, 1, 2)
            leaf = given.contiguous().requires_grad_()
            (gradient,) = torch.autograd.grad(setting.network(leaf)[:, setting.target].sum(), leaf)
            return {"INPUT_OUTPUT_GRADIENTS": gradient.permute(0, 2, 3, 1).numpy()}

        def work() -> Tensor:
            found = np.asarray(explainer.GetMask(pixels, ask, **given))
            return torch.from_numpy(found.sum(axis=-1) if found.ndim == 3 else found)[None]

        return work

    return make


def baseline(setting: Setting) -> Any:
    return np.zeros((*setting.images.shape[2:], setting.images.shape[1]), dtype=np.float32)


SALIENCY = [
    Pair("gradient(at='pixels')", "PAIR GradientSaliency", pair_saliency("GradientSaliency"), bare=True, reason=CHECKS),
    Pair("ig(steps={count})", "PAIR IntegratedGradients",
         pair_saliency("IntegratedGradients", x_steps=count, x_baseline=baseline, batch_size=16),
         differs="PAIR's points lie elsewhere on the path", bare=True),
    Pair("blur_ig(steps={count}, sigma=20.0)", "PAIR BlurIG",
         pair_saliency("BlurIG", steps=count, max_sigma=20, batch_size=16), bound=1e-3),
]  # fmt: skip


# ---- shap ----------------------------------------------------------------------------------------------------------


def gradient_explainer(setting: Setting) -> Callable[[], Tensor]:
    explainer = require("shap").GradientExplainer(setting.network, pool_of(setting), batch_size=setting.adapter.batch)

    def work() -> Tensor:
        found = explainer.shap_values(setting.images, nsamples=3, ranked_outputs=1)[0]
        return torch.from_numpy(np.asarray(found))

    return work


SHAP = [
    Pair("gradient_shap(samples=3)", "shap GradientExplainer", gradient_explainer, with_pool("gradient_shap"),
         differs=OWN_DRAWS, bare=True),
]  # fmt: skip

PAIRS = [*CAPTUM, *ZENNIT, *SALIENCY, *SHAP]
