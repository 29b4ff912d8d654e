"""Names that other packages and papers use for what is registered here under another name.

An alias is understood wherever a recipe is read; `attribution.recipe` and every table then hold the registered name. A
word that may mean several methods is not an alias: the error names them.
"""

from __future__ import annotations

from collections.abc import Iterable

from sightline.registry import no_such, unknown

__all__ = ["ALIASES", "AMBIGUOUS", "registered_name", "unknown_method"]

ALIASES = {
    "ablationcam": "ablation_cam",
    "attention_rollout": "rollout",
    "blur_integrated_gradients": "blur_ig",
    "deeplift": "deep_lift",
    "drise": "d_rise",
    "eigencam": "eigen_cam",
    "fullgrad": "full_grad",
    "generic_attention_explainability": "gae",
    "grad_cam_plus_plus": "grad_cam_pp",
    "grad_cam_plusplus": "grad_cam_pp",
    "gradcam": "grad_cam",
    "gradcam_pp": "grad_cam_pp",
    "gradcam_plusplus": "grad_cam_pp",
    "gradcampp": "grad_cam_pp",
    "gradient_x_input": "ixg",
    "guided_backpropagation": "guided_backprop",
    "guided_gradcam": "guided_grad_cam",
    "guided_integrated_gradients": "guided_ig",
    "hirescam": "hires_cam",
    "input_x_gradient": "ixg",
    "integrated_gradient": "ig",
    "integrated_gradients": "ig",
    "kernelshap": "kernel_shap",
    "layer_wise_relevance_propagation": "lrp",
    "layercam": "layer_cam",
    "liftcam": "lift_cam",
    "scorecam": "score_cam",
    "seg_grad_cam": "grad_cam",
    "segxrescam": "seg_xres_cam",
    "smoothgrad": "smooth_grad",
    "transformer_attribution": "t_attr",
    "vanilla_gradient": "gradient",
    "xgradcam": "xgrad_cam",
}

AMBIGUOUS = {
    "attention": ("raw_attention", "rollout", "gae"),
    "attnlrp": ("libra(ixg, preset='attn_lrp')",),
    "attn_lrp": ("libra(ixg, preset='attn_lrp')",),
    "chefer": ("gae", "t_attr"),
    "noise_tunnel": ("smooth(ixg)", "smooth_grad"),
    "perturbation": ("occlusion", "rise", "extremal_perturbation"),
    "saliency": ("gradient", "gradient(variant='abs_max')"),
    "shap": ("kernel_shap", "partition_shap"),
    "shapley": ("kernel_shap", "partition_shap"),
}


def registered_name(name: str) -> str:
    """Return the name a method is registered under; any other word is returned as it is.

    >>> registered_name("integrated_gradients")
    'ig'
    """
    return ALIASES.get(name, name)


def unknown_method(name: str, known: Iterable[str]) -> str:
    """Say that there is no method of this name, and which ones may have been meant."""
    if meant := AMBIGUOUS.get(name):
        return f"{no_such(name, 'method')}; did you mean {' or '.join(meant)}?"
    return unknown(name, "method", known)
