from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from tests import tiny
from torch import nn
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import InputError, MissingExtra, RecipeError, RegistryError, UnsupportedModel
from sightline.metrics import judge as judge_module
from sightline.metrics.case import Case, Measurement
from sightline.metrics.faithfulness.insertion_deletion import Deletion, Insertion
from sightline.metrics.judge import Scores, judge
from sightline.recipe import parse
from sightline.registry import METRICS, Spec
from sightline.types import Logit, Passes


def linear(images):
    p = 0.1 + 0.8 * images.sigmoid().mean(dim=(1, 2, 3))
    return torch.stack([p.log(), (1 - p).log()], dim=1)


def case_of(model=linear, batch=2, masks=False, size=(8, 8)):
    generator = torch.Generator().manual_seed(0)
    images, maps = torch.rand(batch, 3, *size, generator=generator), torch.rand(batch, *size, generator=generator)
    given = torch.randint(0, 2, maps.shape, generator=generator) if masks else None
    return Case(adapt(model), images, Logit(0), maps, given)


def test_there_is_one_number_per_image_and_metric():
    scores = judge(case_of(batch=3), ["insertion(step=8)", "deletion(step=8)"])
    assert list(scores) == ["insertion(step=8)", "deletion(step=8)"]
    assert {name: tuple(values.shape) for name, values in scores.items()} == dict.fromkeys(scores, (3,))
    assert {name: tuple(curve.shape) for name, curve in scores.curves.items()} == dict.fromkeys(scores, (3, 9))
    assert scores.flags == dict.fromkeys(scores, ("", "", ""))


def test_metrics_of_one_curve_share_it():
    apart = [judge(case_of(), name) for name in ("insertion(step=8)", "deletion(step=8)", "ins_del(step=8)")]
    together = judge(case_of(), ["insertion(step=8)", "deletion(step=8)", "ins_del(step=8)"])
    assert [scores.passes.forward for scores in apart] == [2 * 9, 2 * 9, 2 * 17]
    assert together.passes == Passes(forward=2 * 17)
    for scores in apart:
        for name in scores:
            assert_close(together[name], scores[name])


def test_a_metric_is_named_by_its_canonical_recipe_and_found_under_any():
    scores = judge(case_of(), ["insertion(fill='blur', step=32)", Insertion(step=32), Deletion()])
    assert list(scores) == ["insertion(step=32)", "deletion"]
    assert_close(scores["insertion(radius=5, step=32)"], scores["insertion(step=32)"])
    assert "deletion(step=224)" in scores
    assert "deletion(step=225)" not in scores
    assert "no recipe (" not in scores
    with pytest.raises(KeyError, match=r"ins_del was not scored; there is insertion\(step=32\), deletion"):
        scores["ins_del"]


def test_one_metric_may_be_given_alone():
    assert list(judge(case_of(), "deletion")) == ["deletion"]
    assert list(judge(case_of(), Deletion())) == ["deletion"]


def test_scores_without_a_curve_have_none():
    scores = judge(case_of(masks=True), ["average_precision", "insertion(step=32)"])
    assert list(scores.curves) == ["insertion(step=32)"]
    assert len(scores) == 2


def test_a_metric_that_needs_masks_is_named_before_any_pass_is_spent():
    def must_not_run(images):
        raise AssertionError

    with pytest.raises(InputError, match=r"average_precision needs masks; give masks=… of shape \(2, 8, 8\)"):
        judge(case_of(must_not_run), ["insertion", "average_precision"])


def test_a_metric_that_needs_what_the_model_lacks_is_named(monkeypatch):
    spec = Spec("token_thing", "metric", "", "", "", frozenset({"tokens"}), "higher", False, "", build=Insertion)
    monkeypatch.setattr(judge_module, "spec_of", lambda metric: spec)
    with pytest.raises(UnsupportedModel, match="insertion needs tokens, which linear does not offer"):
        judge(case_of(), "insertion")
    assert len(judge(case_of(tiny.vit(), size=(32, 32)), "insertion(step=512)")) == 1


@pytest.mark.parametrize("metrics", [[], ()])
def test_no_metric_is_refused(metrics):
    with pytest.raises(InputError, match="got no metric"):
        judge(case_of(), metrics)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("insertoin", "did you mean 'insertion'"),
        ("insertion(steps=3)", "no option called 'steps'"),
        ("insertion(step=0)", "got step=0"),
        ("insertion(fill='noise')", "insertion got fill='noise'"),
        ("insertion(step='a')", "insertion got step='a'"),
        ("deletion(radius=9)", "only fill='blur' has them"),
        ("ins_del(fill=('zero', 'zero'), sigma=9.0)", "only fill='blur' has them"),
        ("insertion(__import__('os'))", "cannot read"),
    ],
)
def test_a_wrong_recipe_is_refused(recipe, message):
    with pytest.raises(RecipeError, match=message):
        judge(case_of(), [recipe])


def test_a_metric_nobody_registered_is_refused():
    class Mine:
        range = (0.0, 1.0)

        def __call__(self, case: Case, /) -> Measurement:
            return Measurement(torch.zeros(2))

        def cost(self, model, /):
            return Passes()

    with pytest.raises(RegistryError, match="Mine is not registered"):
        judge(case_of(), [Mine()])


def test_a_model_in_training_is_judged_as_it_is_used_and_left_in_training():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, images):
            return linear(self.drop(images))

    model = Dropping().train()
    scores = judge(case_of(model), "deletion(step=8)")
    assert_close(scores["deletion(step=8)"], judge(case_of(), "deletion(step=8)")["deletion(step=8)"])
    assert model.training
    assert model.drop.training


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_says_what_it_is(name):
    spec, metric = METRICS[name], METRICS[name].build()
    assert spec.direction in ("higher", "lower")
    assert spec.family
    assert spec.cite
    assert spec.cost
    assert spec.parity
    assert metric.range[0] < metric.range[1]
    assert spec.summary.endswith(".")
    assert ".. math::" in spec.doc
    assert hash(metric) == hash(spec.build())


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_costs_what_it_says_and_a_batch_equals_its_images(name):
    model = tiny.vit().double()
    case, method = case_of(model, batch=3, masks=True, size=(32, 32)), parse("sobel")  # asking sobel again is free
    whole = Case(case.model, case.images.double(), Logit((0, 1, 2)), case.maps, case.masks, method=method)
    scores = judge(whole, name)
    declared = 3 * METRICS[name].build().cost(adapt(model)).forward
    at_most = METRICS[name].cost.startswith("at most")  # of a search that ends when it ends
    assert scores.passes.forward == pytest.approx(declared) or (at_most and 0 < scores.passes.forward < declared)
    for row in range(3):
        cut = slice(row, row + 1)
        alone = replace(whole, images=whole.images[cut], target=Logit(row), maps=case.maps[cut], masks=case.masks[cut])
        assert_close(judge(alone, name)[name], scores[name][cut], equal_nan=True)


def test_scores_can_be_read_as_a_mapping():
    scores = Scores({"deletion": Measurement(torch.tensor([0.5]))}, Passes())
    assert dict(scores) == {"deletion": torch.tensor([0.5])}


def shown(images=3, recipe="insertion"):
    values, flags = torch.arange(images) / 8, tuple("constant map" if row == 1 else "" for row in range(images))
    second = Measurement(torch.full((images,), float("nan")), None, ("<no> & none",) * images)
    return Scores({recipe: Measurement(values, None, flags), "deletion": second}, Passes())


def test_scores_become_a_data_frame_with_a_row_per_image_and_metric():
    frame = shown().to_pandas()
    assert list(frame.columns) == ["image", "metric", "value", "flag"]
    assert frame["image"].tolist() == [0, 0, 1, 1, 2, 2]
    assert frame["metric"].tolist() == ["insertion", "deletion"] * 3
    insertion = frame[frame["metric"] == "insertion"]
    assert insertion["value"].tolist() == [0.0, 0.125, 0.25]
    assert insertion["flag"].tolist() == ["", "constant map", ""]
    assert frame["value"].isna().sum() == 3
    assert len(Scores({}, Passes()).to_pandas()) == 0


def test_scores_of_a_model_become_a_data_frame():
    scores = judge(case_of(batch=3), ["insertion(step=8)", "deletion(step=8)"])
    means = scores.to_pandas().groupby("metric")["value"].mean()
    assert means["deletion(step=8)"] == pytest.approx(scores["deletion(step=8)"].mean().item())


def test_scores_without_pandas_name_the_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r'pandas is not installed; pip install "sightline\[bench\]"'):
        shown().to_pandas()


def test_scores_show_themselves_in_one_line_and_as_a_table():
    assert repr(shown()) == "Scores(insertion, deletion; 3 images)"
    assert repr(shown(1)) == "Scores(insertion, deletion; 1 image)"
    page = shown(recipe="insertion(fill='<x>')")._repr_html_()
    assert page.count("<tr>") == 4
    assert "<th>insertion(fill=&#x27;&lt;x&gt;&#x27;)</th>" in page
    assert '<td title="constant map">0.125 *</td>' in page
    assert "&lt;no&gt; &amp; none" in page
    assert "<x>" not in page
    assert "<no>" not in page
    assert "http" not in page


def test_a_table_of_many_images_is_cut_short():
    page = shown(53)._repr_html_()
    assert "… 3 more" in page
    assert page.count("<tr>") == 1 + 50 + 1
    assert "more" not in shown(50)._repr_html_()


def test_insertion_its_aligned_form_and_monotonicity_share_one_curve():
    names = ["insertion_mda(step=64)", "mas_insertion(step=64)", "monotonicity(unit='pixel', step=64, window=31)"]
    apart = [judge(fading(), name).passes.forward for name in names]
    together = judge(fading(), names)
    assert together.passes.forward == max(apart)
    assert sum(apart) > 2 * together.passes.forward
    for name in names:
        assert_close(together[name], judge(fading(), name)[name])


def fading():
    """A case whose class vanishes in a blur, so that there is a curve to follow."""

    def sharpness(images):
        edges = images.diff(dim=-1).abs().mean(dim=(1, 2, 3))
        return torch.stack([60 * edges - 6, torch.zeros_like(edges)], dim=1)

    random = torch.Generator().manual_seed(4)
    images, maps = torch.rand(1, 3, 32, 32, generator=random), torch.rand(1, 32, 32, generator=random)
    return Case(adapt(sharpness), images, Logit(0), maps)
