from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from sightline import adapt, explain
from sightline.errors import InputError, RecipeError
from sightline.metrics.case import Case
from sightline.metrics.sanity.random_logit import RandomLogit
from sightline.metrics.similarity import SIMILARITIES, spearman
from sightline.recipe import parse
from sightline.types import Contrast, Logit, Probability


def case_of(model, images, recipe="ixg", target=None):
    adapter, method, aim = adapt(model), parse(recipe), target or Logit((1, 3))
    return Case(adapter, images, aim, explain(adapter, images, method, target=aim).pixels(), method=method)


@pytest.mark.parametrize("against", ["likeliest", "unlikeliest"])
@pytest.mark.parametrize("kind", [Logit, Probability])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_it_compares_with_the_map_of_the_other_class(similarity, kind, against, tiny_cnn, images):
    case = case_of(tiny_cnn, images, target=kind((1, 3)))
    logits = case.clean.clone()
    logits[0, 1] = logits[1, 3] = -torch.inf if against == "likeliest" else torch.inf
    others = (logits if against == "likeliest" else -logits).argmax(dim=1).tolist()
    want = explain(tiny_cnn, images, "ixg", target=kind(tuple(others))).pixels()
    found = RandomLogit(similarity, against)(case)
    assert_close(found.values, SIMILARITIES[similarity](case.maps, want))
    assert found.flags == ("", "")


def test_the_random_class_is_never_the_explained_one_and_depends_on_image_and_seed(tiny_cnn):
    images = torch.randn(40, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    case = Case(adapt(tiny_cnn), images, Logit(2), torch.zeros(40, 8, 8), method=parse("ixg"))
    drawn = RandomLogit()._others(case, (2,) * 40)
    assert set(drawn) == {0, 1, 3, 4}
    assert drawn == RandomLogit()._others(case, (2,) * 40)
    assert drawn != RandomLogit(seed=1)._others(case, (2,) * 40)
    part = Case(adapt(tiny_cnn), images[7:9], Logit(2), torch.zeros(2, 8, 8), method=parse("ixg"))
    assert RandomLogit()._others(part, (2, 2)) == drawn[7:9]


@pytest.mark.parametrize("recipe", ["rollout", "sobel"])
def test_a_method_that_ignores_the_class_scores_one(recipe, tiny_vit, images):
    assert_close(RandomLogit()(case_of(tiny_vit, images, recipe)).values, torch.ones(2, dtype=torch.float64))


def test_a_method_that_answers_for_the_class_scores_less(tiny_vit, images):
    assert (RandomLogit()(case_of(tiny_vit, images)).values < 0.9).all()


def test_absolute_values_are_compared_on_request():
    weight = torch.randn(3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    model = Opposites(weight).eval()
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    case = case_of(model, images, target=Logit(0))
    assert_close(RandomLogit()(case).values, -torch.ones(2, dtype=torch.float64))
    assert_close(RandomLogit(absolute=True)(case).values, torch.ones(2, dtype=torch.float64))


class Opposites(torch.nn.Module):
    """Two classes, one the negative of the other, so their maps are too."""

    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, images):
        score = (images * self.weight).sum(dim=(1, 2, 3))
        return torch.stack([score, -score], dim=1)


def test_constant_maps_and_single_classes_are_flagged(tiny_cnn, images):
    maps = torch.zeros(2, 32, 32)
    maps[0, 0, 0] = 1
    found = RandomLogit()(Case(adapt(tiny_cnn), images, Logit(0), maps, method=parse("ixg")))
    assert found.values.isnan().tolist() == [False, True]
    assert found.flags == ("", "constant map")

    def single(x):
        return x.mean(dim=(1, 2, 3))[:, None]

    found = RandomLogit()(Case(adapt(single), images, Logit(0), torch.rand(2, 32, 32), method=parse("sobel")))
    assert found.values.isnan().all()
    assert found.flags == ("a single class",) * 2


def test_a_target_without_a_class_is_refused(tiny_cnn, images):
    case = Case(adapt(tiny_cnn), images, Contrast(0, 1), torch.rand(2, 32, 32), method=parse("ixg"))
    with pytest.raises(InputError, match="names no class"):
        RandomLogit()(case)


@pytest.mark.parametrize("options", [{"similarity": "hog"}, {"against": "best"}])
def test_wrong_options_are_refused(options):
    with pytest.raises(RecipeError, match="choose from"):
        RandomLogit(**options)


def test_it_is_spearman_unless_told_otherwise(tiny_cnn, images):
    case = case_of(tiny_cnn, images)
    others = RandomLogit()._others(case, (1, 3))
    want = explain(tiny_cnn, images, "ixg", target=Logit(others)).pixels()
    assert_close(RandomLogit()(case).values, spearman(case.maps, want))
