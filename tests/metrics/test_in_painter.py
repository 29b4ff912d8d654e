"""A user's in-painter as fill: the same numbers as a colour it imitates, the right holes, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import InputError, RecipeError
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.perturb.impute import impute
from sightline.recipe import parse_metric, text
from sightline.types import Logit

MEAN = 0.5  # of the adapter: zero after normalisation
WITH_IN_PAINTER = [
    *("insertion(step=64, fill='zero')", "deletion(step=64)", "pixel_flipping(step=64, fill='zero')"),
    *("positive(fill='zero')", "probability_negative(fill='zero')", "infidelity(samples=6)"),
    *("irof(segments=(4, 4), fill='zero')", "single_deletion", "saco(fill='zero')", "sensitivity_n(samples=3)"),
    *("faithfulness_correlation(samples=6, fill='zero')", "faithfulness_estimate(step=64, fill='zero')"),
    *("mu_fidelity(samples=6)", "selectivity(fill='zero')", "region_perturbation(fill='zero', steps=5)"),
    *("f_fidelity_plus(score='probability', samples=2)", "monotonicity_arya(step=64, fill='zero')"),
    *("non_sensitivity(fill='zero', samples=1, grid=(3, 3))",),
]
REFUSING = ["average_drop", "coherency", "adcc", "completeness", "insertion_mda", "deletion_aopc"]


def grey(pictures, missing):
    return torch.full_like(pictures, MEAN)


def case_of(model, images):
    maps = torch.randn(2, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Case(adapt(model, mean=(MEAN,) * 3, std=(0.5,) * 3), images, Logit((1, 3)), maps)


@pytest.mark.parametrize("recipe", WITH_IN_PAINTER)
def test_an_in_painter_that_paints_the_mean_colour_is_the_fill_zero(recipe, tiny_cnn, images):
    metric = parse_metric(recipe)
    painted = judge(case_of(tiny_cnn, images), [replace(metric, fill=grey)])
    plain = judge(case_of(tiny_cnn, images), [metric])
    got, want = (next(iter(scores.values())) for scores in (painted, plain))
    ends = recipe.startswith(("insertion", "deletion", "pixel_flipping", "irof", "selectivity", "monotonicity"))
    if ends:  # of an image of which nothing is known there is nothing to paint from: its mean colour
        got, want = (next(iter(scores.curves.values()))[:, 1:-1] for scores in (painted, plain))
    assert_close(got, want, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_insertion_and_deletion_in_one_metric(tiny_cnn, images):
    metric = parse_metric("ins_del(step=64)")
    scores = judge(case_of(tiny_cnn, images), [replace(metric, fill=(grey, grey))])
    plain = judge(case_of(tiny_cnn, images), [replace(metric, fill=("zero", "zero"))])
    got, want = (next(iter(each.curves.values()))[:, 1:-1] for each in (scores, plain))
    assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_it_is_told_which_pixels_are_missing_and_known_ones_stay(tiny_cnn, images):
    seen = []

    def painter(pictures, missing):
        seen.append((pictures, missing))
        return torch.stack([impute(picture, holes) for picture, holes in zip(pictures, missing, strict=True)]) + 0.0

    case = case_of(tiny_cnn, images)
    metric = replace(parse_metric("deletion(step=256)"), fill=painter)
    (curve,) = judge(case, [metric]).curves.values()
    pictures, missing = (torch.cat(parts) for parts in zip(*seen, strict=True))
    assert missing.flatten(1).sum(dim=1).tolist() == [256, 512, 768] * 2
    assert_close(pictures[:3], case.model.denormalise(images[:1]).expand(3, -1, -1, -1))
    order = case.maps[0].flatten().argsort(descending=True)
    holes = torch.zeros(1024, dtype=torch.bool)
    holes[order[:512]] = True
    filled = impute(case.model.denormalise(images[0]), holes.reshape(32, 32))
    with torch.no_grad():
        want = tiny_cnn(case.model.normalise(filled)[None]).softmax(dim=1)[0, 1]
    assert curve[0, 2].item() == pytest.approx(want.item(), abs=1e-9)


@pytest.mark.parametrize("wrong", [lambda p, m: p[:, :1], lambda p, m: p * float("nan"), lambda p, m: None])
def test_what_is_no_picture_is_refused_in_one_sentence(wrong, tiny_cnn, images):
    with pytest.raises(InputError, match="it must give finite pixel values"):
        judge(case_of(tiny_cnn, images), [replace(parse_metric("single_deletion"), fill=wrong)])


@pytest.mark.parametrize("name", REFUSING)
def test_where_no_whole_pixels_are_removed_it_is_refused(name, tiny_cnn, images):
    from sightline.recipe import parse

    case = replace(case_of(tiny_cnn, images), method=parse("ixg"))
    with pytest.raises(RecipeError, match="whole pixels"):
        judge(case, [replace(parse_metric(name), fill=grey)])


def test_a_recipe_cannot_hold_one():
    assert text(replace(parse_metric("deletion"), fill=grey)) == "deletion(fill=grey)"
    with pytest.raises(RecipeError, match="cannot read 'grey' as the option fill of deletion; give a literal"):
        parse_metric("deletion(fill=grey)")
    with pytest.raises(RecipeError):
        parse_metric("deletion(fill=3)")
