"""Figures of how maps behave: while layers are randomised, and when evidence is masked."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import sightline
from sightline.audit.figures.class_maps import class_maps
from sightline.audit.figures.evidence_masking import mask_evidence, strongest
from sightline.audit.figures.randomisation_curves import RandomisationCurves, randomisation_curves
from sightline.data.shapes import Shapes
from sightline.errors import InputError
from sightline.report.charts.curve import SERIES
from sightline.report.figures.band_chart import Band, Chart, charts_document
from sightline.report.figures.masking import masked_evidence
from sightline.report.figures.randomisation import randomisation_chart


@pytest.fixture(scope="module")
def model():
    return sightline.load("bundled/shapes-cnn")


@pytest.fixture(scope="module")
def images(model):
    return model.normalise(Shapes(seed=5).draw(2).images)


def lines_of(text):
    """Return the style of every line in an SVG file that is no band, grid or tick."""
    root = ElementTree.fromstring(text)
    return [
        path.get("style") for path in root.iter("{http://www.w3.org/2000/svg}path") if "fill:none" in path.get("style")
    ]


def test_a_chart_is_an_svg_file_with_a_band_per_curve():
    values = np.array([[0.0, 1.0], [0.2, 0.8], [np.nan, 5.0]])
    chart = Chart("scores <1>", [Band("one", values), Band("other", values + 1, 1, dashed=True)], ["a", "b"])
    text = charts_document([chart], title="both", x_label="stage")
    assert len(lines_of(text)) == 4  # two curves and their legend
    assert sum("dasharray" in style for style in lines_of(text)) == 2
    assert text.count("opacity:.18") == 2
    assert "one from 0.10 to 0.90, 2 images" in text
    with pytest.raises(InputError, match="no mean to draw"):
        charts_document([Chart("", [Band("none", values[2:])], ["a", "b"])], title="", x_label="")
    with pytest.raises(InputError, match="give every chart one"):
        charts_document([], title="", x_label="")


def test_a_method_is_dashed_where_an_operator_stands_beside_it():
    ones = {name: np.ones((2, 3)) for name in ("spearman", "pearson", "cosine", "ssim")}
    found = [RandomisationCurves(recipe, "ixg", (0.0, 0.5, 1.0), ones) for recipe in ("ixg", "var(ixg)")]
    both = lines_of(randomisation_chart(found))
    assert len(both) == 4 * 2 + 2
    assert [("dasharray" in style) for style in both[:2]] == [True, False]
    assert all(SERIES[0] in style for style in both)
    assert not any("dasharray" in style for style in lines_of(randomisation_chart(found[:1])))
    assert re.findall(r">(\d+ %)<", randomisation_chart(found))[:3] == ["0 %", "50 %", "100 %"]


def test_the_curves_are_those_of_the_metrics(model, images):
    found = randomisation_curves(model, images, ["grad_cam", "sobel"], [0, 1], operator="", stages=2)
    maps = sightline.explain(model, images, "grad_cam", [0, 1])
    scores = sightline.evaluate(model, images, maps, ["randomisation_spearman(stages=2)"])
    assert np.allclose(found[0].curves["spearman"][:, 1:].mean(axis=1), scores["randomisation_spearman(stages=2)"])
    assert np.allclose(found[1].curves["ssim"], 1)  # edges do not know the model
    pair = randomisation_curves(model, images, ["grad_cam"], operator="var", stages=1)
    assert [one.recipe for one in pair] == ["grad_cam", "var(grad_cam)"]


def test_only_the_strongest_positive_pixels_are_masked():
    values = torch.tensor([[4.0, 3.0], [-1.0, 0.0]])
    assert strongest(values, 0.25).tolist() == [[True, False], [False, False]]
    assert strongest(values, 1.0).tolist() == [[True, True], [False, False]]


def test_masking_the_evidence_gives_the_probabilities_of_the_masked_image(model, images):
    maps = class_maps(model, images[:1], ["ixg"], ["star", "circle"])[0]
    found = mask_evidence(model, images[:1], maps, share=0.2)
    classes = [model.labels.index(name) for name in ("star", "circle")]
    assert np.allclose(found.before, model(images[:1]).softmax(1)[0, classes].detach())
    black = model.normalise(torch.zeros(1, 3, 64, 64))
    for row in range(2):
        masked = torch.where(found.removed[row], black, images[:1])
        assert np.allclose(found.after[row], model(masked).softmax(1)[0, classes].detach(), atol=1e-6)
    assert 0 < found.removed.float().mean() <= 0.2
    assert (found.seen[0][:, found.removed[0]] == 0).all()
    picture = masked_evidence([found, found])
    assert picture.width == 2 * (40 + 5 * 190 + 4 * 10)
    assert picture.height == 2 * (40 + 2 * (22 + 19 + 190 + 2 * 18) + 10)  # a line for each class below the images


def test_what_cannot_be_masked_is_refused(model, images):
    maps = class_maps(model, images[:1], ["ixg"], ["star"])[0]
    with pytest.raises(InputError, match="share=0"):
        mask_evidence(model, images[:1], maps, share=0)
    with pytest.raises(InputError, match="one image at a time"):
        mask_evidence(model, images, maps)
