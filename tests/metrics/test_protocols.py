from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import sightline
from sightline import adapt
from sightline.errors import InputError, RecipeError
from sightline.metrics.protocols import PROTOCOLS, find_protocol, protocol_metrics
from sightline.recipe import parse_metric, text

BIBLIOGRAPHY = Path(__file__).parents[2] / "docs" / "references.bib"


def judged(protocol, **more):
    def logits(images):
        return images.mean(dim=(2, 3)).repeat(1, 2)[:, :4]

    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    maps = torch.rand(2, 16, 16, generator=torch.Generator().manual_seed(1))
    return sightline.evaluate(adapt(logits), images, maps, target=0, protocol=protocol, **more)


def test_there_is_one_for_every_paper():
    assert list(PROTOCOLS) == ["rise", "mda", "chefer", "iia", "skipplus", "caap", "var", "pair"]
    assert all(PROTOCOLS[name].name == name for name in PROTOCOLS)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_recipe_can_be_built_and_is_written_in_its_shortest_form(name):
    recipes = protocol_metrics(name)
    assert recipes == [text(parse_metric(recipe)) for recipe in recipes]
    assert len(set(recipes)) == len(recipes)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_says_what_metrics_cannot(name):
    told = str(PROTOCOLS[name])
    for word in ("metrics:", "classes:", "resize:", "images:", "reduction:", "open:"):
        assert word in told
    known = set(re.findall(r"^@\w+\{([^,]+),", BIBLIOGRAPHY.read_text(), flags=re.MULTILINE))
    assert set(PROTOCOLS[name].cite.split(", ")) <= known


def test_the_measured_options_are_those_of_the_papers():
    assert protocol_metrics("caap") == ["insertion", "deletion", "ins_del", "aupr1", "aupr0", "pointing_game"]
    assert parse_metric(PROTOCOLS["iia"].metrics[0]).shares[0] == 0.0
    assert parse_metric(PROTOCOLS["chefer"].metrics[0]).shares[0] == 0.1


def test_without_masks_or_a_method_the_metrics_that_need_them_are_left_out():
    assert protocol_metrics("chefer", masks=False) == ["positive", "negative"]
    assert protocol_metrics("var", masks=False, method=False) == ["aic"]
    assert "randomisation_spearman" in protocol_metrics("var", masks=False)


def test_evaluate_runs_a_protocol():
    scores = judged("chefer", labels=[0, 1])
    assert list(scores) == ["positive", "negative"]
    assert scores["positive"].shape == (2,)
    masks = torch.zeros(2, 16, 16, dtype=torch.int64)
    masks[:, :8] = 1
    assert set(judged("chefer", masks=masks)) == set(PROTOCOLS["chefer"].metrics)


def test_metrics_can_be_added_to_a_protocol():
    scores = judged("rise", metrics=["deletion(step=128)", "insertion"])
    assert list(scores) == ["deletion(step=128)", "insertion", "deletion", "ins_del"]
    alone = sightline.evaluate(
        adapt(lambda x: x.mean(dim=(2, 3))), torch.rand(1, 3, 8, 8), torch.rand(1, 8, 8), "deletion"
    )
    assert list(alone) == ["deletion"]


def test_an_unknown_protocol_and_none_at_all_are_refused():
    with pytest.raises(RecipeError, match="no protocol called 'cap'; choose from rise, mda"):
        find_protocol("cap")
    with pytest.raises(RecipeError, match="cap"):
        judged("cap")
    with pytest.raises(InputError, match="no metric"):
        judged(None)


def test_protocols_cannot_be_changed():
    with pytest.raises(TypeError):
        PROTOCOLS["mine"] = PROTOCOLS["rise"]  # type: ignore[index]
