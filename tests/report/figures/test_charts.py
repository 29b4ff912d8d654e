"""MDA's order and densities, films, sweeps over settings, radar charts and attention between objects."""

from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import sightline
from sightline.audit.figures.attention_pairs import attention_pairs, patch_owners
from sightline.audit.figures.insertion_film import insertion_film
from sightline.audit.figures.option_sweep import Sweep, caap_settings, mda_baselines, mda_settings, sweep
from sightline.data.shapes import Shapes
from sightline.errors import InputError, RecipeError, UnsupportedModel
from sightline.report.figures.attention import attention_chart
from sightline.report.figures.film import film_strip
from sightline.report.figures.refinement import density_sweep, numbered_patches, patch_orders
from sightline.report.figures.sweep import radar_chart, sweep_chart


@pytest.fixture(scope="module")
def model():
    return sightline.load("bundled/shapes-cnn")


@pytest.fixture(scope="module")
def images(model):
    return model.normalise(Shapes(seed=5).draw(2).images)


@pytest.fixture(scope="module")
def refined(model, images):
    return sightline.explain(model, images[:1], "mda(seed=grad_cam, cells=2, steps=8, search='exact')")


def test_every_patch_has_its_number(refined):
    picture = np.asarray(numbered_patches(refined), dtype=int)
    plain = np.asarray(refined.overlay().crop((0, 0, 64, 64)).resize(picture.shape[1::-1]), dtype=int)
    changed = np.abs(picture - plain).max(axis=2) > 60
    half = picture.shape[0] // 2
    for rows in (slice(0, half), slice(half, None)):
        for columns in (slice(0, half), slice(half, None)):
            assert changed[rows, columns].any()


def test_the_first_patch_of_an_order_is_red_and_the_last_is_blue(refined):
    search = refined.details.images[0].search
    picture = patch_orders([refined] * 4, ["a", "b", "c", "d"], columns=3, width=64)
    assert picture.size == (2 * (40 + 3 * 64 + 20), 2 * (40 + 22 + 2 * (19 + 64) + 10))
    first, last = (
        np.asarray(_patch(picture, refined, place), dtype=int) for place in (search.order[0], search.order[-1])
    )
    assert first[0] > first[2]
    assert last[2] > last[0]
    with pytest.raises(InputError, match="got 1 names and 0 notes for 2 maps"):
        patch_orders([refined] * 2, ["a"])


def _patch(picture, refined, segment):
    """Return the colour in the middle of a patch in the first picture of a sheet."""
    rows, columns = np.nonzero(refined.details.images[0].segments.labels.cpu().numpy() == segment)
    left, top = 20 + columns.mean() + 0.5, 20 + 22 + 19 + rows.mean() + 0.5
    return picture.getpixel((round(2 * left), round(2 * top)))


def test_the_goals_and_baselines_of_mda():
    found = {name: sightline.parse(recipe) for name, recipe in mda_baselines("mda(cells=2)").items()}
    ends = {name: (one.tau, one.insertion, one.deletion) for name, one in found.items()}
    assert ends == {
        "insertion, zero": (1.0, "zero", "zero"),
        "deletion, zero": (0.0, "zero", "zero"),
        "both, zero": (0.9, "zero", "zero"),
        "insertion, blur": (1.0, "blur", "blur"),
        "deletion, blur": (0.0, "blur", "blur"),
        "both, blur": (0.9, "blur", "blur"),
        "both, blur and zero": (0.9, "blur", "zero"),
    }
    assert all((one.cells, one.search) == (2, "exact") for one in found.values())
    with pytest.raises(RecipeError, match="no baselines"):
        mda_baselines("grad_cam")


def test_densities_cost_no_pass_and_are_those_of_the_recipe(model, images, refined):
    picture = density_sweep(refined, gammas=(0.0, 1.0), kappas=(0.1, 0.5, 0.9))
    assert picture.width == 2 * (40 + 3 * 150 + 20)
    other = sightline.explain(model, images[:1], "mda(seed=grad_cam, cells=2, steps=8, search='exact', gamma=1.0)")
    assert torch.equal(refined.details.with_density(1.0).values, other.values)
    with pytest.raises(InputError, match="order of patches"):
        numbered_patches(sightline.explain(model, images[:1], "grad_cam"))


def test_a_film_begins_and_ends_with_the_image_and_its_baselines(model, images):
    maps = sightline.explain(model, images[:1], "grad_cam")
    film = insertion_film(model, images[:1], maps, frames=2, start="black", end="black")
    whole = model(images[:1]).softmax(1).amax().item()
    assert film.shares == (0.0, 0.5, 1.0)
    assert film.insertion[-1] == pytest.approx(whole)
    assert film.deletion[0] == pytest.approx(whole)
    assert film.insertion[0] == pytest.approx(film.deletion[-1])
    assert torch.equal(film.inserted[-1], maps.seen[0])
    assert (film.deleted[-1] == 0).all()
    top = maps.pixels()[0].flatten().argmax()
    assert film.inserted[1].flatten(1)[:, top].tolist() == maps.seen[0].flatten(1)[:, top].tolist()
    assert film_strip([film, film]).width == 2 * (40 + 3 * 130 + 20)
    with pytest.raises(InputError, match="one image at a time"):
        insertion_film(model, images, maps)


def test_a_sweep_scores_every_setting_on_every_image(model, images):
    found = sweep(model, images, {"a": "grad_cam", "b": "ixg"}, ["sparseness"], [0, 1])
    maps = sightline.explain(model, images, "ixg", [0, 1])
    scores = sightline.evaluate(model, images, maps, ["sparseness"])["sparseness"]
    assert np.allclose(found.scores["sparseness"][:, 1], scores)
    assert found.means()["sparseness"]["b"] == pytest.approx(scores.mean().item())
    ElementTree.fromstring(sweep_chart(found, title="a < b"))
    assert sweep_chart(found).count("<circle") == 2
    assert sweep_chart(found, ordered=True).count("<circle") == 0
    with pytest.raises(RecipeError, match="no recipe"):
        sweep(model, images, [])


def test_the_ablations_of_caap_are_recipes():
    assert caap_settings("depth", 2) == {"1": "caap(last=1)", "2": "caap(last=2)"}
    for ablation in ("depth", "neighbourhood", "blank"):
        recipes = [str(sightline.parse(recipe)) for recipe in caap_settings(ablation, 6).values()]
        assert len(set(recipes)) == len(recipes) > 3
    with pytest.raises(RecipeError, match="depth, neighbourhood and blank"):
        caap_settings("width", 2)


def test_the_densities_of_a_sweep_share_one_search(model, images):
    base = "mda(seed=grad_cam, cells=2, steps=8, search='exact')"
    recipes = mda_settings("kappa", base, (0.1, 0.9))
    assert list(recipes) == ["0.1", "0.9"]
    maps = sightline.explain(model, images[:1], list(recipes.values()))
    assert maps[0].details.images[0] is maps[1].details.images[0]
    assert torch.equal(maps[1].values, maps[0].details.with_density(1.0, kappa=0.9).values)
    assert len(mda_settings("tau")) == 11
    with pytest.raises(RecipeError, match="gamma, kappa, tau"):
        mda_settings("seed")


def test_further_out_is_better_on_every_axis():
    good, bad = np.array([[0.9, 0.1]]), np.array([[0.1, 0.9]])
    found = Sweep({"one": "ixg", "other": "gae"}, {"insertion": good, "deletion": bad, "ins_del": good})
    paths = [
        path.get("d")
        for path in ElementTree.fromstring(radar_chart(found)).iter()
        if "fill-opacity" in path.get("style", "")
    ]

    def radii(path):
        points = [tuple(map(float, point.split())) for point in path[1:-1].split("L")]
        return [np.hypot(x - 350, y - 220) for x, y in points]

    assert np.allclose(radii(paths[0]), 150, atol=0.2)
    assert np.allclose(radii(paths[1]), 0.15 * 150, atol=0.2)
    named = {f"insertion(step={step}, score='logit')": good for step in (100, 200, 300, 400)}
    drawing = ElementTree.fromstring(radar_chart(Sweep({"one": "ixg", "other": "gae"}, named)))
    for text in (each for each in drawing.iter() if each.get("text-anchor")):  # seven points for a letter
        room = 7 * len(text.text) * {"start": 0, "end": 1, "middle": 0.5}[text.get("text-anchor")]
        assert float(text.get("x")) - room >= 0
        assert float(text.get("x")) + 7 * len(text.text) - room <= 700
    with pytest.raises(InputError, match="three axes"):
        radar_chart(Sweep({"one": "ixg"}, {"insertion": good[:, :1]}))


def test_patches_belong_to_what_covers_most_of_them():
    masks = torch.zeros(2, 4, 4)
    masks[0, :2, :2] = 1
    masks[1, 2:, 2:] = 1
    masks[:, :2, 2:] = -1
    assert patch_owners(masks, 2, 2).tolist() == [0, -2, -1, 1]


def test_attention_between_objects_is_the_mean_weight_over_pairs():
    vit = sightline.load("bundled/shapes-vit")
    images = vit.normalise(Shapes(seed=5).draw(1).images)
    masks = torch.zeros(2, 64, 64)
    masks[0, :8, :8] = masks[1, 8:16, :8] = 1  # a patch each
    found = attention_pairs(vit, images, [masks])
    with torch.no_grad(), vit.capture("block.2.probabilities") as seen:
        vit(images)
        weights = seen["block.2.probabilities"][0].mean(dim=0) * 65
    grid = vit.grid_of(images)
    one, other = grid.prefix, grid.prefix + grid.width
    expected = ((weights[one, one] + weights[other, other]) / 2, (weights[one, other] + weights[other, one]) / 2)
    assert np.allclose(found[0, 2, :2], [float(value) for value in expected], atol=1e-5)
    alone = attention_pairs(vit, images, [masks[:1]])
    assert np.isnan(alone[:, :, 1]).all()
    assert "between objects" not in attention_chart(alone)
    assert "between objects" in attention_chart(found)
    with pytest.raises(UnsupportedModel, match="no attention"):
        attention_pairs(sightline.load("bundled/shapes-cnn"), images, [masks])
