"""Methods that ask the model about changed images: captum, shap, lime and zennit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairs.gradients import OWN_DRAWS, captum
from pairs.pair import Make, Pair, Setting
from sightline.extras import require

GRID = (2, 4)  # superpixels down and across


def labels(setting: Setting) -> Tensor:
    return setting.segments(*GRID)


def batch(setting: Setting) -> int:
    size: int = setting.adapter.batch
    return size


def first(found: Tensor) -> Tensor:
    return found[:, 0]


def feature_mask(setting: Setting) -> Tensor:
    return labels(setting)[None, None]


def window(part: int) -> Callable[[Setting], tuple[int, ...]]:
    """Return the shape of a window that covers a share of the image, all channels."""
    return lambda setting: (setting.images.shape[1], *(side // part for side in setting.images.shape[2:]))


def quarter(setting: Setting) -> int:
    return setting.images.shape[-1] // 4


def spread(found: Any) -> Tensor:
    """Give every pixel the value of its superpixel."""
    pixels: Tensor = found.pixels(mode="nearest")
    return pixels


# ---- shap ----------------------------------------------------------------------------------------------------------


def play_of(setting: Setting) -> Callable[[Any], Any]:
    """Return the game that shap plays: which superpixels are shown, the score of the class."""
    members = labels(setting)

    def play(rows: Any) -> Any:
        scores = []
        with torch.no_grad():
            for part in torch.as_tensor(np.asarray(rows)).to(setting.images).split(setting.adapter.batch):
                scores.append(setting.network(setting.images * part[:, members][:, None])[:, setting.target])
        return torch.cat(scores).numpy()

    return play


def kernel_explainer(setting: Setting) -> Callable[[], Tensor]:
    shap, size = require("shap"), GRID[0] * GRID[1]

    def work() -> Tensor:
        # made anew for every picture, as its users must: the game is the picture's, and its empty image is asked here
        explainer = shap.KernelExplainer(play_of(setting), np.zeros((1, size)))
        found = explainer.shap_values(np.ones((1, size)), nsamples=samples(setting) - 2, l1_reg=False, silent=True)
        return torch.from_numpy(np.asarray(found)).reshape(1, *GRID)

    return work


# ---- lime ----------------------------------------------------------------------------------------------------------


def lime_image(setting: Setting) -> Callable[[], Tensor]:
    explainer = require("lime.lime_image").LimeImageExplainer(random_state=0, verbose=False)
    members, picture = labels(setting), setting.images[0].permute(1, 2, 0).double().numpy()

    def classify(pictures: Any) -> Any:
        with torch.no_grad():
            given = torch.as_tensor(np.asarray(pictures)).movedim(-1, 1).to(setting.images).contiguous()
            return setting.network(given).softmax(dim=-1).numpy()

    def work() -> Tensor:
        explainer.random_state = explainer.base.random_state = np.random.RandomState(0)
        found = explainer.explain_instance(
            picture, classify, labels=(setting.target,), top_labels=None, num_samples=samples(setting),
            batch_size=setting.adapter.batch, segmentation_fn=lambda _: members.numpy(),
        )  # fmt: skip
        coefficients = dict(found.local_exp[setting.target])
        return torch.tensor([coefficients[index] for index in range(len(coefficients))]).reshape(1, *GRID)

    return work


def corners(found: Any) -> Tensor:
    """Return the value of every superpixel from the pixels of the map."""
    pixels: Tensor = found.pixels(mode="nearest")
    height, width = pixels.shape[1:]
    return pixels[:, height // (2 * GRID[0]) :: height // GRID[0], width // (2 * GRID[1]) :: width // GRID[1]]


def samples(setting: Setting) -> int:
    return 4 * setting.count


# ---- zennit --------------------------------------------------------------------------------------------------------


def zennit_drop(setting: Setting) -> Callable[[], Tensor]:
    """Return what calls zennit, told to cover the window and not the rest, and takes its scores from the image's."""
    zennit, side = require("zennit.attribution"), quarter(setting)
    cover = partial(zennit.occlude_independent, invert=True)
    only = torch.eye(setting.adapter.output_size)[[setting.target]].to(setting.images)

    def work() -> Tensor:
        with zennit.Occlusion(setting.network, window=side, stride=side, occlusion_fn=cover) as explainer:
            output, scores = explainer(setting.images, lambda logits: logits * only)
        return output.detach()[:, setting.target, None, None] - scores[:, 0]

    return work


ABLATION: Make = captum("FeatureAblation", feature_mask=feature_mask, perturbations_per_eval=batch, reduce=first)

PAIRS = [
    Pair("occlusion(window={side}, stride={side})", "captum Occlusion",
         captum("Occlusion", sliding_window_shapes=window(4), strides=window(4), perturbations_per_eval=batch,
                reduce=first), shown=spread),
    Pair("feature_ablation(segments=('grid', 2, 4))", "captum FeatureAblation", ABLATION, shown=spread, bare=True),
    Pair("shapley_sampling(samples={count}, segments=('grid', 2, 4))", "captum ShapleyValueSampling",
         captum("ShapleyValueSampling", feature_mask=feature_mask, n_samples=lambda setting: setting.count,
                perturbations_per_eval=batch, reduce=first), differs=OWN_DRAWS, bare=True),
    Pair("kernel_shap(samples={draws}, segments=('grid', 2, 4))", "captum KernelShap",
         captum("KernelShap", feature_mask=feature_mask, n_samples=samples, perturbations_per_eval=batch,
                reduce=first), differs=OWN_DRAWS, bare=True),
    Pair("kernel_shap(samples={draws}, segments=('grid', 2, 4))", "shap KernelExplainer", kernel_explainer,
         differs=OWN_DRAWS, bare=True),
    Pair("lime(samples={samples}, segments=('grid', 2, 4), variant='package')", "lime LimeImageExplainer", lime_image,
         shown=corners, bare=True),
    Pair("occlusion(window={side}, stride={side})", "zennit Occlusion",
         zennit_drop, shown=spread, batch=1),
]  # fmt: skip
