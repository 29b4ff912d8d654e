"""Every metric on every kind of output: right numbers or one sentence that refuses, never a softmax of sigmoids."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.conformance.test_metrics import FAST, SIDE, pictures
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.errors import SightlineError
from sightline.metrics.judge import Scores
from sightline.models.adapter import Adapter
from sightline.perturb.impute import impute
from sightline.registry import METRICS
from sightline.types import Probability, TextSimilarity, Value

# Metrics that read a probability, and those that ask whether the model is right.
PROBABILITY = [
    *("insertion", "deletion", "ins_del", "average_drop", "increase_in_confidence", "road", "irof", "sic"),
    "average_gain",
    *("insertion_mda", "deletion_mda", "ins_del_mda", "mas_insertion", "mas_deletion", "mas_ins_del", "monotonicity"),
    *("probability_positive", "probability_negative", "deletion_aopc", "insertion_aopc"),
    *("saco", "adcc", "faithfulness_correlation", "faithfulness_estimate", "monotonicity_nguyen", "monotonicity_arya"),
    *("region_perturbation", "selectivity", "pixel_flipping", "non_sensitivity", "soundness"),
]
ACCURACY = [
    *("positive", "negative", "deletion_accuracy", "insertion_accuracy", "aic", "f_fidelity_plus", "f_fidelity_minus"),
]
OF_TRUTH = ["positive", "negative", "deletion_accuracy", "insertion_accuracy", "deletion_aopc", "insertion_aopc"]
# Metrics that can follow the number itself instead.
WITH_LOGIT = [
    *("insertion", "deletion", "ins_del", "average_drop", "increase_in_confidence", "road", "irof", "saco"),
    *("faithfulness_correlation", "faithfulness_estimate", "monotonicity_nguyen", "monotonicity_arya"),
    *("region_perturbation", "selectivity", "pixel_flipping", "non_sensitivity", "f_fidelity_plus", "f_fidelity_minus"),
    "soundness",
]


class Labels(nn.Module):
    """Three labels at once, each a weighted sum of its own; the first is that of a corner, with a logit of about 8."""

    def __init__(self, others: float = 6.0, sigmoid: bool = False) -> None:
        super().__init__()
        self.head = nn.Linear(SIDE * SIDE, 3).double()
        self.sigmoid = sigmoid
        weights = torch.rand(3, SIDE, SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) / SIDE**2
        weights[0, : SIDE // 2, : SIDE // 2] += 4 / SIDE**2
        with torch.no_grad():
            self.head.weight.copy_(20 * weights.flatten(1))
            self.head.bias.copy_(torch.tensor([-10.0, others, others]))

    def forward(self, images: Tensor) -> Tensor:
        logits = self.head(images.mean(dim=1).double().flatten(1))
        return logits.sigmoid() if self.sigmoid else logits


class Numbers(nn.Module):
    """As many numbers as are asked for, none of them a class."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.head = nn.Linear(SIDE * SIDE, count).double()
        with torch.no_grad():
            random = torch.Generator().manual_seed(6)
            self.head.weight.copy_(torch.rand(self.head.weight.shape, dtype=torch.float64, generator=random) / 16)
            self.head.bias.fill_(0.5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.mean(dim=1).double().flatten(1))


def recipe_of(name: str) -> str:
    return FAST.get(name, name)


def images_and_maps() -> tuple[Tensor, Tensor]:
    images = pictures(2)
    random = torch.rand(2, SIDE, SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    return images, images.mean(dim=1) + 0.3 * random


def evaluated(model: Adapter, recipe: str, target: Any = None, method: str = "sobel") -> Scores:
    images, maps = images_and_maps()
    masks = torch.zeros(2, SIDE, SIDE, dtype=torch.long)
    masks[:, : SIDE // 2, : SIDE // 2] = 1
    return sightline.evaluate(model, images, maps, recipe, target=target, masks=masks, method=method)


def multi_label(**options: Any) -> Adapter:
    return sightline.adapt(Labels(**options).eval(), output="sigmoid", mean=(0.0,) * 3, std=(1.0,) * 3)


def check_numbers(scores: Scores, name: str, *, within: bool = True) -> None:
    (values,), (flags,) = scores.values(), scores.flags.values()
    low, high = METRICS[name].build.range
    for value, flag in zip(values.tolist(), flags, strict=True):
        if value != value:
            assert flag, f"{name} gives no number and does not say why"
        elif within:
            assert low - 1e-9 <= value <= high + 1e-9


# ---- several labels at once ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in METRICS if name != "random_logit"])
@pytest.mark.parametrize("target", [0, Probability(0)], ids=["logit", "probability"])
def test_a_label_is_judged_by_its_own_logit_alone(name: str, target: Any) -> None:
    """What a softmax or an argmax would not let pass: the logits of the other labels change nothing."""
    quiet, loud = (evaluated(multi_label(others=bias), recipe_of(name), target) for bias in (-6.0, 60.0))
    check_numbers(quiet, name)
    for low, high in zip(quiet.values(), loud.values(), strict=True):
        assert_close(low, high, equal_nan=True)
    assert quiet.flags == loud.flags


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", METRICS)
def test_a_model_that_ends_in_a_sigmoid_scores_as_its_logits_do(name: str) -> None:
    facts: dict[str, Any] = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "input_size": (SIDE, SIDE)}
    ended = sightline.adapt(Labels(sigmoid=True).eval(), **facts)
    assert (ended.output, ended.link) == ("sigmoid", "identity")
    plain, same = (evaluated(model, recipe_of(name), Probability(0)) for model in (multi_label(), ended))
    for wanted, got in zip(plain.values(), same.values(), strict=True):
        assert_close(got, wanted, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_the_numbers_of_a_multi_label_model_are_those_computed_by_hand() -> None:
    model = multi_label()
    images, maps = images_and_maps()
    recipes = ["insertion(fill='zero', step=16)", "deletion(step=16)", "average_drop", "road(noise=0.0)"]
    scores = sightline.evaluate(model, images, maps, recipes, target=0)

    def probability(batch: Tensor) -> Tensor:
        return 1 / (1 + torch.exp(-model.model(batch)[:, 0]))

    assert (probability(images) > 0.999).all()
    for row, (image, values) in enumerate(zip(images, maps, strict=True)):
        order = values.flatten().argsort(descending=True)
        inserted, deleted = [], []
        for count in range(0, SIDE**2 + 1, 16):
            kept = torch.zeros(SIDE**2, dtype=torch.float64)
            kept[order[:count]] = 1
            kept = kept.reshape(SIDE, SIDE)
            inserted.append(probability((image * kept)[None]))
            deleted.append(probability((image * (1 - kept))[None]))
        for recipe, curve in (("insertion(fill='zero', step=16)", inserted), ("deletion(step=16)", deleted)):
            heights = torch.cat(curve)
            assert_close(scores[recipe][row], (heights[:-1] + heights[1:]).sum() / 2 / (len(heights) - 1))

        seen = probability((image * (values - values.min()) / (values.max() - values.min()))[None])
        whole = probability(image[None])
        assert_close(scores["average_drop"][row], ((whole - seen) / whole)[0])

        margins = []
        for percent in range(10, 100, 10):
            least, most = (
                probability(impute(image, each >= each.quantile(percent / 100))[None]) for each in (-values, values)
            )
            margins.append((least - most) / 2)
        assert_close(scores["road(noise=0.0)"][row], torch.cat(margins).mean())
    softmax = model.model(images).sigmoid().softmax(dim=-1)[:, 0]
    assert (scores["insertion(fill='zero', step=16)"] > softmax + 0.1).all(), "not the softmax of sigmoids"


def test_a_label_is_right_where_its_probability_is_a_half() -> None:
    """With 90 % of its pixels gone the label's logit is below 0, although the others' are lower still."""
    scores = evaluated(multi_label(others=-60.0), "positive(include_zero=True)", 0)
    (curve,) = scores.curves.values()
    assert curve[:, 0].tolist() == [1.0, 1.0]
    assert curve[:, -1].tolist() == [0.0, 0.0]


@pytest.mark.filterwarnings("ignore")
def test_another_label_is_explained_through_the_same_link() -> None:
    model = multi_label()
    images, _ = images_and_maps()
    first = sightline.explain(model, images, "ixg", target=Probability(0))
    other = sightline.explain(model, images, "ixg", target=Probability(1))
    recipe = "random_logit(against='likeliest', similarity='cosine')"
    with torch.no_grad():
        model.model.head.bias[2] = -9.0  # so that label 1 is the likeliest other one
    scores = sightline.evaluate(model, images, first, recipe, target=Probability(0), method="ixg")
    from sightline.metrics.similarity import cosine

    assert_close(scores[recipe], cosine(first.pixels(), other.pixels()))


# ---- values and embeddings -------------------------------------------------------------------------------------------


def regression(**facts: Any) -> Adapter:
    return sightline.adapt(Numbers(1).eval(), name="net", **facts)


def embedding() -> Adapter:
    return sightline.adapt(Numbers(4).eval(), name="net", output="embedding")


OUTPUTS: dict[str, tuple[Any, Any]] = {
    "one number": (regression, None),
    "one number, as a function": (lambda: sightline.adapt(Numbers(1).forward, name="net"), 0),
    "value": (lambda: regression(output="value"), None),
    "value by its number": (lambda: regression(output="value"), 0),
    "embedding": (embedding, Value(2)),
    "embedding by its number": (embedding, 2),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("kind", OUTPUTS)
def test_what_has_no_probability_is_refused_in_one_sentence_and_the_rest_is_measured(name: str, kind: str) -> None:
    build, target = OUTPUTS[kind]
    model = build()
    if "function" in kind and (
        name.startswith("randomisation") or name.endswith(("_mprt", "representation_stability"))
    ):
        pytest.skip("a function has no layers to randomise or to look into")
    if name not in PROBABILITY + ACCURACY:
        check_numbers(evaluated(model, recipe_of(name), target), name)
        return
    with pytest.raises(SightlineError) as refused:
        evaluated(model, recipe_of(name), target)
    sentence = str(refused.value)
    assert ";" in sentence, "it says what to do"
    assert ". " not in sentence, "one sentence"
    if kind.startswith("one number"):
        assert "one number per image, whose softmax is always 1; say adapt(model, output='value')" in sentence
    elif not (isinstance(target, Value) or target is None) or name not in OF_TRUTH:
        assert "insertion(score='logit')" in sentence


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WITH_LOGIT)
@pytest.mark.parametrize("kind", OUTPUTS)
def test_the_number_itself_can_be_followed(name: str, kind: str) -> None:
    build, target = OUTPUTS[kind]
    step = ", step=16" if name in ("insertion", "deletion", "ins_del") else ""
    check_numbers(evaluated(build(), f"{name}(score='logit'{step})", target), name, within=False)


def test_the_area_under_a_value_is_the_values_own() -> None:
    model = regression(output="value", mean=(0.0,) * 3, std=(1.0,) * 3)
    images, maps = images_and_maps()
    scores = sightline.evaluate(model, images, maps, "deletion(step=256, score='logit')")
    whole, empty = model.model(images)[:, 0], model.model(torch.zeros_like(images))[:, 0]
    assert_close(scores["deletion(step=256, score='logit')"], (whole + empty) / 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", METRICS)
def test_a_similarity_to_a_text_is_followed_itself(name: str) -> None:
    target = TextSimilarity(embedding=(1.0, 0.5, -1.0, 2.0))
    if name in [*ACCURACY, *OF_TRUTH, "random_logit"]:
        with pytest.raises(SightlineError, match="class"):
            evaluated(embedding(), recipe_of(name), target)
    else:
        check_numbers(evaluated(embedding(), recipe_of(name), target), name, within=False)
