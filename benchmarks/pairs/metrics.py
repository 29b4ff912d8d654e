"""Metrics: captum, grad-cam and Quantus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sightline
from pairs.gradients import OWN_DRAWS
from pairs.pair import Make, Pair, Setting
from sightline.extras import require

CHANNELS = "for Quantus every channel of a pixel is a feature of its own"
METHOD = "gradient(at='pixels', variant='abs_max')"  # what metrics that ask for another map ask
SEEN = "max_sensitivity(samples={count})"


def scored(recipe: str, **options: Any) -> Make:
    """Return what makes a call of `evaluate` with one metric."""

    def make(setting: Setting) -> Callable[[], Tensor]:
        metric = Pair(recipe, "", lambda _: dict).text(setting)
        given = {key: value(setting) if callable(value) else value for key, value in options.items()}
        given = {"target": setting.target, **given}
        return lambda: sightline.evaluate(setting.adapter, setting.images, setting.maps, metric, **given)[metric]

    return make


def masks(setting: Setting) -> Tensor:
    return setting.masks


def pair(recipe: str, peer: str, theirs: Make, *, same: bool = False, **options: Any) -> Pair:
    """Return a pair of metrics, which return one number per image."""
    given = {key: options.pop(key) for key in ("masks", "method") if key in options}
    differs = options.pop("differs", "" if same else CHANNELS)
    return Pair(recipe, peer, theirs, scored(recipe, **given), shown=lambda found: found, differs=differs, **options)


# ---- captum --------------------------------------------------------------------------------------------------------


def infidelity(setting: Setting) -> Callable[[], Tensor]:
    captum, three = require("captum.metrics"), setting.maps[:, None].expand_as(setting.images) / 3

    def perturb(images: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        noise = 0.2 * torch.randn_like(images)
        return noise, images - noise

    return lambda: captum.infidelity(
        setting.network, perturb, setting.images, three, target=setting.target, n_perturb_samples=setting.count
    )


def sensitivity_max(setting: Setting) -> Callable[[], Tensor]:
    captum = require("captum.metrics")
    explainer = require("captum.attr").Saliency(setting.network)
    return lambda: captum.sensitivity_max(
        explainer.attribute, setting.leaf, perturb_radius=0.02, n_perturb_samples=setting.count, target=setting.target
    )


CAPTUM = [
    pair("infidelity(samples={count}, perturbation='noise')", "captum infidelity", infidelity, differs=OWN_DRAWS,
         bare=True),
    pair(SEEN, "captum sensitivity_max", sensitivity_max, differs=OWN_DRAWS, method=METHOD),
]  # fmt: skip


# ---- grad-cam ------------------------------------------------------------------------------------------------------


def road(setting: Setting) -> Callable[[], Tensor]:
    metric = require("pytorch_grad_cam.metrics.road").ROADCombined(percentiles=[20, 40, 60, 80])
    return _asked(setting, lambda targets: metric(setting.images, setting.maps.numpy(), targets, setting.network))


def drop(setting: Setting) -> Callable[[], Tensor]:
    metric = require("pytorch_grad_cam.metrics.cam_mult_image").DropInConfidence()
    return _asked(setting, lambda targets: metric(setting.images, setting.maps.numpy(), targets, setting.network))


def increase(setting: Setting) -> Callable[[], Tensor]:
    metric = require("pytorch_grad_cam.metrics.cam_mult_image").IncreaseInConfidence()
    return _asked(setting, lambda targets: metric(setting.images, setting.maps.numpy(), targets, setting.network))


def _asked(setting: Setting, ask: Callable[[Any], Any]) -> Callable[[], Tensor]:
    kind = require("pytorch_grad_cam.utils.model_targets").ClassifierOutputSoftmaxTarget
    return lambda: torch.as_tensor(np.asarray(ask([kind(setting.target)] * len(setting.images)))).float()


GRAD_CAM = [
    pair("road(percentiles=(20.0, 40.0, 60.0, 80.0))", "grad-cam ROADCombined", road,
         differs="grad-cam fills with other noise and solves for every pixel of all images", bare=False),
    pair("average_drop(fill='zero', scale='none', relative=False)", "grad-cam DropInConfidence", drop, same=True),
    pair("increase_in_confidence(fill='zero', scale='none')", "grad-cam IncreaseInConfidence", increase, same=True),
]  # fmt: skip


# ---- Quantus -------------------------------------------------------------------------------------------------------


def quantus(name: str, *, three: bool = True, mask: bool = False, again: bool = False, **options: Any) -> Make:
    """Return what makes a user's call of a metric of Quantus; options may be functions of the setting."""

    def make(setting: Setting) -> Callable[[], Tensor]:
        package = require("quantus")
        given = {key: value(setting) if callable(value) else value for key, value in options.items()}
        quiet = {"normalise": False, "abs": False, "disable_warnings": True, "display_progressbar": False}
        metric = getattr(package, name)(**quiet | given)
        maps = setting.maps[:, None].expand_as(setting.images) if three else setting.maps[:, None]
        call = {
            "model": setting.network,
            "x_batch": setting.images.numpy(),
            "y_batch": np.full(len(setting.images), setting.target),
            "a_batch": maps.numpy(),
            "channel_first": True,
            "softmax": True,
        }
        if mask:
            call["s_batch"] = setting.masks[:, None].numpy()
        if again:
            call |= {"explain_func": saliency_of(setting), "explain_func_kwargs": {}}
        return lambda: torch.as_tensor(np.asarray(metric(**call), dtype=float))

    return make


def saliency_of(setting: Setting) -> Callable[..., Any]:
    """Return what Quantus asks for another map: captum's, as its own examples do."""
    explainer = require("captum.attr").Saliency(setting.network)

    def explain(model: Any, inputs: Any, targets: Any, **_: Any) -> Any:
        leaf = torch.as_tensor(inputs).reshape(-1, *setting.images.shape[1:]).requires_grad_()
        found = explainer.attribute(leaf, target=setting.target)
        return found.amax(dim=1, keepdim=True).numpy()

    return explain


def third(setting: Setting) -> int:
    """Return how many values of three channels a step of a curve with three times as many steps changes.

    Quantus demands a divisor of the pixels of one channel.
    """
    return setting.images[0, 0].numel() // setting.count


def twelfth(setting: Setting) -> int:
    """Return the same for a curve with twelve times as many steps."""
    return third(setting) // 4


def patch(setting: Setting) -> int:
    side: int = setting.images.shape[-1] // 4
    return side


def count(setting: Setting) -> int:
    return setting.count


def black(**options: Any) -> dict[str, Any]:
    return {"perturb_baseline": "black", **options}


LOCAL = {"three": False, "mask": True}
AGAIN = {"three": False, "again": True, "nr_samples": count}
QUANTUS = [
    pair("pixel_flipping(step={few})", "quantus PixelFlipping",
         quantus("PixelFlipping", **black(features_in_step=twelfth)), bare=True,
         reason="Quantus leaves the unchanged image out of its curve: one pass fewer of the few that are taken here"),
    pair("faithfulness_estimate(step={fewer})", "quantus FaithfulnessEstimate",
         quantus("FaithfulnessEstimate", **black(features_in_step=third)), bare=True),
    pair("faithfulness_correlation(size={fewer}, samples={count})", "quantus FaithfulnessCorrelation",
         quantus("FaithfulnessCorrelation", **black(subset_size=third, nr_runs=count)), bare=True),
    pair("max_sensitivity(samples={count})", "quantus MaxSensitivity", quantus("MaxSensitivity", **AGAIN),
         differs=OWN_DRAWS, method=METHOD),
    pair("average_sensitivity(samples={count})", "quantus AvgSensitivity", quantus("AvgSensitivity", **AGAIN),
         differs=OWN_DRAWS, method=METHOD),
    pair("local_lipschitz(samples={count})", "quantus LocalLipschitzEstimate",
         quantus("LocalLipschitzEstimate", **AGAIN), differs=OWN_DRAWS, method=METHOD),
    pair("relevance_mass_accuracy(part='magnitude')", "quantus RelevanceMassAccuracy",
         quantus("RelevanceMassAccuracy", **LOCAL), same=True, masks=masks),
    pair("relevance_rank_accuracy", "quantus RelevanceRankAccuracy",
         quantus("RelevanceRankAccuracy", **LOCAL), same=True, masks=masks),
    pair("top_k_intersection(k=100)", "quantus TopKIntersection",
         quantus("TopKIntersection", k=100, **LOCAL), same=True, masks=masks),
    pair("auc_roc", "quantus AUC", quantus("AUC", **LOCAL), same=True, masks=masks),
    pair("pointing_game", "quantus PointingGame", quantus("PointingGame", **LOCAL), same=True, masks=masks),
]  # fmt: skip

PAIRS = [*CAPTUM, *GRAD_CAM, *QUANTUS]
