"""Protocols: which metrics a paper used, with which options, and what else it fixed.

A metric is only half of a published figure. The other half, who chose the class, how images were resized, which were
left out and how the numbers were put together, is told here in words: other choices move every figure by a point or
two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sightline.errors import RecipeError
from sightline.registry import METRICS, no_such

SEGMENTATION = ("pixel_accuracy", "mean_ap", "mean_iou", "mean_f1")
SEGMENTED = (
    "pixel_accuracy and mean_iou are ratios of counts over the whole set (pixel_accuracy_of, mean_iou_of), mean_ap and "
    "mean_f1 are means, the latter over rows of pixels"
)


@dataclass(frozen=True, slots=True)
class Published:
    """How a paper measured.

    Attributes:
        name: what `evaluate` knows it by.
        cite: keys into the bibliography.
        metrics: recipes of the metrics, with the options that the paper or its program fixes.
        classes: which class is explained, and which is asked for.
        resize: how images become the model's input.
        images: which data sets, and which images are left out.
        reduction: how the values of images become the printed figures.
        open: what paper and program leave open or disagree on, and what was decided here.
    """

    name: str
    cite: str
    metrics: tuple[str, ...]
    classes: str
    resize: str
    images: str
    reduction: str
    open: str

    def __str__(self) -> str:
        told = ("classes", "resize", "images", "reduction", "open")
        lines = [f"{self.name} ({self.cite})", f"  metrics: {', '.join(self.metrics)}"]
        return "\n".join([*lines, *(f"  {name}: {getattr(self, name)}" for name in told)])


_ALL = (
    Published(
        name="rise",
        cite="petsiuk2018",
        metrics=("insertion", "deletion", "ins_del"),
        classes="the class predicted on the clean image is explained and followed",
        resize="the model's own preprocessing",
        images="ImageNet validation set",
        reduction="means over images",
        open="the authors' notebook takes steps of 8 · 224 pixels on many images: insertion(step=1792)",
    ),
    Published(
        name="mda",
        cite="mda2025, walker2024mas",
        metrics=(
            "insertion_mda",
            "deletion_mda",
            "mas_insertion",
            "mas_deletion",
            "positive",
            "negative",
            "monotonicity",
            *SEGMENTATION,
        ),
        classes="the class predicted on the clean image; positive and negative ask for the label",
        resize="short side to 224, centre crop of 224; for segmentation (224, 224), masks by nearest neighbour",
        images="5000 of the ImageNet validation set: correctly classified with a probability of 60 % or more, RGB, at "
        "most five per predicted class in the order of file names, a map that is not all zero, a blur of at most 101 "
        "pixels that leaves the class 1 %; 100 of them for monotonicity",
        reduction=f"means over images; {SEGMENTED}",
        open="the text averages raw responses, the program takes the area under monotone scaled ones, as is done here; "
        "its mean_ap is of the binarised map and its segmentation loop ends after 101 images, so those columns are not "
        "comparable; its monotonicity driver does not run as released",
    ),
    Published(
        name="chefer",
        cite="chefer2021transformer",
        metrics=("positive", "negative", *SEGMENTATION),
        classes="two runs, one explaining the predicted class and one the label; accuracy is against the label in "
        "both: give labels. Segmentation explains the predicted class",
        resize="(224, 224), without regard to the aspect ratio, and mean = std = 0.5; masks by nearest neighbour",
        images="the whole ImageNet validation set; ImageNet-Segmentation",
        reduction=f"means over images times 100; {SEGMENTED}",
        open="the script stores one accuracy per fraction; that the published area is the plain trapezoid over 0.1 to "
        "0.9, at most 80, is inferred from its size",
    ),
    Published(
        name="iia",
        cite="iia2023",
        metrics=(
            "positive(include_zero=True)",
            "negative(include_zero=True)",
            "probability_positive",
            "probability_negative",
            "average_drop",
            "increase_in_confidence",
            "sic",
            "aic",
            *SEGMENTATION,
        ),
        classes="two runs, one explaining the predicted class and one the label; accuracy is against the label: give "
        "labels",
        resize="(224, 224), without regard to the aspect ratio",
        images="the whole ImageNet validation set; ImageNet-Segmentation, COCO 2017 with the union of all annotations "
        "as the object, VOC 2012 with every label above zero as object, the border too",
        reduction=f"means over images times 100, areas at most 90; {SEGMENTED}",
        open="there is no code for the perturbation tests. INS and DEL are taken to be probability_negative and "
        "probability_positive, as later code of the same group has them; sic and aic to be PAIR's. Its drop rounds "
        "images to eight bits, and its segmentation maps are made of images that were not normalised; neither is done "
        "here",
    ),
    Published(
        name="skipplus",
        cite="skipplus2024",
        metrics=(
            "deletion_accuracy",
            "insertion_accuracy",
            "deletion_aopc",
            "insertion_aopc",
            "average_precision",
        ),
        classes="the label is explained and followed: give it as target; for segmentation the class with the largest "
        "area",
        resize="the model's own preprocessing; masks by nearest neighbour through the same resize and crop",
        images="5000 of the ImageNet validation set, drawn by seed; 2000 of MURA; 5000 of ImageNet-S whose class "
        "covers at least 5 % of the picture",
        reduction="means over images times 100; deletion_accuracy and insertion_aopc are printed as 100 less the "
        "value, so that higher is better everywhere; the spread is that of ten folds",
        open="the text follows the predicted class, the program the label, as is done here; published as figures only",
    ),
    Published(
        name="caap",
        cite="caap2026",
        metrics=("insertion", "deletion", "ins_del", "aupr1", "aupr0", "pointing_game"),
        classes="one class per image is explained and followed; the predicted one here",
        resize="not told; the model's own preprocessing here",
        images="500 random images of the ImageNet validation set, and of Oxford-IIIT Pet, ImageNet-Hard and Food-101; "
        "for localisation ImageNet-S, 128 images by the granularity of the figures",
        reduction="means over images times 100, with standard errors",
        open="the constant that deleted pixels become is not named, zero after normalisation is taken, as in the "
        "protocol it refers to; nor is the kind of precision-recall area, the step-wise one is taken",
    ),
    Published(
        name="var",
        cite="var2025",
        metrics=(
            "region_attribution",
            "iou",
            "f1",
            "precision",
            "recall",
            "aic",
            "randomisation_spearman",
            "randomisation_pearson",
            "randomisation_cosine",
        ),
        classes="on composed pictures the class of each cell, judged by its cell; on COCO the ImageNet class an "
        "object's category is mapped to",
        resize="short side to 256, centre crop of 224; cells of a quad (112, 112) and COCO (224, 224), without "
        "regard to the aspect ratio",
        images="quads of four ImageNet validation images; COCO objects of at least 1 % of the picture to which the "
        "model gives 0.0001 or more; the first 1000 validation images for aic, 10000 for randomisation",
        reduction="means over images; randomisation as a curve over the share of randomised layers",
        open="the blur's width is taken from its program (OpenCV's default for 11 pixels); whose aic it is, it does "
        "not say, PAIR's is taken",
    ),
    Published(
        name="pair",
        cite="kapishnikov2019",
        metrics=("sic", "aic"),
        classes="the class predicted on the clean image is explained and followed",
        resize="the model's own preprocessing; pictures are rounded to eight bits before their size is measured",
        images="ImageNet validation set; left out are images with a probability below 80 %, and those whose blurred "
        "picture is as likely or as large as the image",
        reduction="the area under the median curve of all images (area_of_curves), not the mean of areas",
        open="byte counts depend on the version of libwebp",
    ),
)

PROTOCOLS: Mapping[str, Published] = MappingProxyType({protocol.name: protocol for protocol in _ALL})


def find_protocol(name: str) -> Published:
    """Return a protocol, or say which there are."""
    if name not in PROTOCOLS:
        raise RecipeError(f"{no_such(name, 'protocol')}; choose from {_names()}")
    return PROTOCOLS[name]


def protocol_metrics(name: str, *, masks: bool = True, method: bool = True) -> list[str]:
    """Return the recipes of a protocol, less those that need masks, or the method, where there are none.

    >>> protocol_metrics("caap", masks=False)
    ['insertion', 'deletion', 'ins_del']
    """
    missing = ({"masks"} if not masks else set()) | ({"method"} if not method else set())
    recipes = [recipe for recipe in find_protocol(name).metrics if not _needs(recipe) & missing]
    if not recipes:
        raise RecipeError(f"every metric of the protocol {name!r} needs {' and '.join(sorted(missing))}; give them")
    return recipes


def _needs(recipe: str) -> frozenset[str]:
    return METRICS[recipe.partition("(")[0]].needs


def _names() -> str:
    return ", ".join(PROTOCOLS)
