"""Attributions as objects: taken apart, joined, shown, saved, and what they know of what was explained."""

import pickle
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
import torch
from PIL import Image

import sightline
from sightline import Attribution
from sightline.data.shapes import Shapes
from sightline.errors import InputError, OutputError, ShapeError

mpl.use("agg")


@pytest.fixture(scope="module")
def model():
    return sightline.load("bundled/shapes-vit")


@pytest.fixture(scope="module")
def images(model):
    return model.normalise(Shapes(seed=4).draw(3).images)


@pytest.fixture(scope="module")
def attribution(model, images):
    return sightline.explain(model, images, "gae", target=["star", "ring", 0])


def test_it_knows_what_was_explained_and_on_which_pixels(attribution, model, images):
    assert attribution.target == sightline.Logit((4, 1, 0))
    assert attribution.labels == ("star", "ring", "circle")
    assert attribution.seen.dtype == torch.uint8
    shown = attribution.seen.float() / 255
    assert (shown - model.denormalise(images)).abs().max() < 0.003


def test_other_targets_are_named_in_words(model, images):
    one = images[:1]
    assert sightline.explain(model, one, "ixg", sightline.Contrast(4, 1)).labels == ("star rather than ring",)
    assert sightline.explain(model, one, "ixg", sightline.Value(2)).labels == ("value 2",)

    def brightness(logits):
        return logits.mean(dim=1)

    assert sightline.explain(model, one, "ixg", brightness).labels == ("brightness",)


def test_an_image_is_taken_out_with_all_that_belongs_to_it(attribution):
    second = attribution[1]
    assert len(attribution) == 3
    assert len(second) == 1
    assert torch.equal(second.values, attribution.values[:, 1:2])
    assert (second.labels, second.target) == (("ring",), sightline.Logit((1,)))
    assert second.passes.forward == pytest.approx(attribution.passes.forward / 3)
    assert [each.labels[0] for each in attribution] == ["star", "ring", "circle"]
    assert attribution[-2:].labels == ("ring", "circle")
    with pytest.raises(IndexError):
        attribution[3]


def test_parts_are_joined_again(attribution):
    joined = Attribution.join(list(attribution))
    assert torch.equal(joined.values, attribution.values)
    assert (joined.labels, joined.target) == (attribution.labels, attribution.target)
    assert torch.equal(joined.seen, attribution.seen)
    with pytest.raises(ShapeError, match="only batches of one recipe"):
        Attribution.join([attribution, sightline.Attribution(attribution.values, attribution.grid, "ixg")])


def test_one_image_each_of_the_same_class_is_no_class_for_all(model, images):
    parts = [sightline.explain(model, image[None], "gae", target=[2]) for image in images]
    assert Attribution.join(parts).target in (sightline.Logit(2), sightline.Logit((2, 2, 2)))


def test_details_keep_their_type_in_a_batch_of_any_size(model, images):
    recipe = "var(ixg, classes=(0, 1, 2), distribution=True)"
    whole = sightline.explain(model, images, recipe, target=0)
    parts = sightline.explain(model, images, recipe, target=0, batch_size=1)
    assert type(parts.details) is type(whole.details)
    assert torch.allclose(parts.details.distribution, whole.details.distribution, atol=1e-6)
    assert torch.equal(whole[2].details.distribution, whole.details.take([2]).distribution)


def test_it_is_one_line_of_text(attribution):
    assert repr(attribution) == "Attribution(gae: 3 images, 8×8, 6 layers; 3 forward, 3 backward)"


def test_a_notebook_shows_the_overlays_offline(attribution):
    html = attribution._repr_html_()
    assert html.count("<img") == 3
    assert "gae: star" in html
    assert "http" not in html


def test_the_overlay_lies_on_the_pixels_the_model_saw(model):
    wide = np.zeros((64, 192, 3), dtype=np.uint8)
    wide[:, 64:128] = (255, 255, 0)  # the centre crop is yellow, the rest black
    attribution = sightline.explain(model, Image.fromarray(wide), "centre")
    assert attribution.seen.shape == (1, 3, 64, 64)
    assert (attribution.seen[0, 0] > 200).float().mean() > 0.9
    drawn = attribution.overlay(scale=False)
    assert drawn.width == drawn.height
    assert attribution.overlay().width > drawn.width  # the colour scale beside it


def test_an_overlay_of_an_image_that_is_not_there_is_refused(attribution):
    with pytest.raises(ShapeError, match="got index 7; the attribution has 3 images"):
        attribution.overlay(7)


def test_a_plot_returns_its_axes(attribution):
    from matplotlib import pyplot

    ax = attribution.plot()
    assert ax.get_title() == "gae: star"
    _, given = pyplot.subplots()
    assert attribution.plot(given, index=1) is given
    pyplot.close("all")


def test_it_is_saved_and_read_back(attribution, tmp_path):
    path = attribution.save(tmp_path / "new" / "map.safetensors")
    read = Attribution.load(path)
    assert torch.equal(read.values, attribution.values)
    assert torch.equal(read.seen, attribution.seen)
    assert (read.recipe, read.grid, read.passes) == (attribution.recipe, attribution.grid, attribution.passes)
    assert (read.labels, read.target, read.flags) == (attribution.labels, attribution.target, attribution.flags)
    assert (read.layers, read.own, read.enlarge) == (attribution.layers, attribution.own, attribution.enlarge)
    other = replace(
        attribution, layers=("a", "b", "c", "d", "e", "f")[: len(attribution.values)], own=1, enlarge="nearest"
    )
    read = Attribution.load(other.save(tmp_path / "other.safetensors"))
    assert (read.layers, read.own, read.enlarge) == (other.layers, 1, "nearest")


@pytest.mark.parametrize(
    "target",
    [
        2,
        sightline.Contrast(1, 2),
        sightline.Probability((1, 2, 3)),
        sightline.Value(1),
        [0, sightline.Contrast(1, 2), 3],
    ],
)
def test_every_target_of_ours_is_read_back(model, images, target, tmp_path):
    attribution = sightline.explain(model, images, "random", target=target)
    assert Attribution.load(attribution.save(tmp_path / "a.safetensors")).target == attribution.target


def test_a_file_that_is_none_is_refused(tmp_path, attribution):
    with pytest.raises(InputError, match="does not exist"):
        Attribution.load(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"no map")
    with pytest.raises(InputError, match="holds no attribution"):
        Attribution.load(tmp_path / "bad.safetensors")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        attribution.save(tmp_path / "file" / "map.safetensors")


def test_it_becomes_an_array_and_moves(attribution):
    assert np.array_equal(attribution.numpy(), attribution.map.numpy())
    assert attribution.to(torch.float64).values.dtype == torch.float64
    assert attribution.to("cpu").seen.dtype == torch.uint8


def test_it_survives_another_process(attribution):
    copy = pickle.loads(pickle.dumps(attribution))
    assert torch.equal(copy.values, attribution.values)
    assert copy.labels == attribution.labels
