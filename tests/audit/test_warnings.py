"""Warnings held back in one thread are heard in the others."""

import threading
import warnings
from collections.abc import Callable

import pytest
import torch

import tiny
from sightline.audit.panel import metrics_of, score_map, without_warnings
from sightline.audit.ranking import rank_image
from sightline.errors import SightlineWarning, warn
from sightline.methods.foreign import Foreign
from sightline.models import adapt
from sightline.recipe import parse
from sightline.types import Logit


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_nothing_is_said_while_warnings_are_held_back_and_again_afterwards(recwarn: pytest.WarningsRecorder) -> None:
    with without_warnings():
        warn("held back")
    assert len(recwarn) == 0
    with pytest.warns(SightlineWarning, match="heard"):
        warn("heard")


def test_another_thread_is_heard_while_warnings_are_held_back() -> None:
    with pytest.warns(SightlineWarning, match="from the other thread"), without_warnings():
        in_thread(lambda: warn("from the other thread"))


def test_filters_that_all_threads_share_are_left_alone() -> None:
    filters, shown = list(warnings.filters), warnings.showwarning
    with without_warnings():
        assert (list(warnings.filters), warnings.showwarning) == (filters, shown)


def test_a_warning_names_the_line_that_caused_it() -> None:
    with pytest.warns(SightlineWarning, match="here") as heard:
        warn("here")
    assert heard[0].filename == __file__


def test_a_ranking_in_a_thread_keeps_its_warnings_while_another_map_is_scored() -> None:
    model, images = adapt(lambda images: images.flatten(1)[:, :4]), torch.rand(1, 3, 8, 8)
    panel = [parse("centre"), parse("rollout")]  # the second needs attention maps, which a function does not show
    with pytest.warns(SightlineWarning, match="left out rollout"), without_warnings():
        in_thread(lambda: rank_image(model, images, panel, 1, named=False))


def test_a_constant_map_is_flagged_and_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    model, images = adapt(tiny.Cnn().eval()), torch.rand(1, 3, 32, 32)
    constant = Foreign(Constant())
    scored = score_map(model, images, constant, Logit(1), metrics_of(model, Logit(1), 100))
    assert "constant map" in scored.flags
    assert len(recwarn) == 0


class Constant:
    def attribute(self, inputs: torch.Tensor, **_: object) -> torch.Tensor:
        return torch.ones_like(inputs)
