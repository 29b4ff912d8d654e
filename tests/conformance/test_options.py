"""Every numeric option of every method, operator, metric and data set, given numbers that nobody means."""

from __future__ import annotations

import math
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny
from tests.conformance.test_methods import FAST as FAST_METHODS
from tests.conformance.test_metrics import FAST as FAST_METRICS
from tests.conformance.test_metrics import Evidence, case_of, pictures
from tests.data import miniature

import sightline
from sightline.catalogue.options import hints_of
from sightline.data import DATASETS, open_dataset
from sightline.data.selection import Selection
from sightline.errors import SightlineError, UnsupportedModel
from sightline.metrics.judge import judge
from sightline.recipe import example, parse, parse_metric
from sightline.registry import METHODS, METRICS, OPERATORS

VALUES = (0, -1, 10**12, 2**63, 1e308, -1e308, math.nan, math.inf, 1e-320)
FAST_OPERATORS = {
    "smooth": "smooth(ixg, samples=2)",
    "refine_cam": "refine_cam(grad_cam, layer=(-2, -1))",
    "mda": "mda(seed=None, cells=2, steps=3)",
}
BUILD_SECONDS, RUN_SECONDS, MEMORY = 1.0, 20, 2**31


@contextmanager
def limited(memory: int = MEMORY) -> Iterator[None]:
    """Stop what takes too long, and give it so many bytes of memory and no more."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"it took more than {RUN_SECONDS} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, before[1]))
    signal.setitimer(signal.ITIMER_PROF, RUN_SECONDS)  # of processor time, whatever else the machine does
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def built(thing: Any, option: str, value: Any) -> Any:
    """Build it with another value of an option; None where that is refused, at once and in one sentence."""
    begin = time.process_time()
    with told_in_a_sentence():
        return replace(thing, **{option: value})
    assert time.process_time() - begin < BUILD_SECONDS
    return None


@contextmanager
def told_in_a_sentence() -> Iterator[None]:
    """Let pass what sightline refuses in one sentence, and nothing else."""
    said = ""
    with suppress(SightlineError):
        try:
            yield
        except SightlineError as error:
            said = str(error)
            raise
    assert "\n" not in said


def numeric(kinds: Any) -> list[Any]:
    """List every option of a registry that may hold a number, with the values it is given."""
    found = []
    for name in kinds:
        hints = hints_of(kinds[name].build)
        for field in fields(kinds[name].build):
            kind = str(hints[field.name])
            if "int" in kind or "float" in kind or "Any" in kind:
                found.append(pytest.param(name, field.name, kind, id=f"{name}-{field.name}"))
    return found


def values(kind: str) -> list[Any]:
    """Return the numbers; where the option takes tuples, tuples of them; where it takes superpixels, cuts with them."""
    inside = [(each,) for each in VALUES] if "tuple" in kind else []
    names = ("grid", "slic") if "Any" in kind or "str | tuple" in kind else ()
    return [*VALUES, *inside, *((name, each) for name in names for each in VALUES)]


def explained(method: Any) -> None:
    """Run a method on the first tiny model that it can run on."""
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    for model in (tiny.vit().double(), tiny.Cnn().eval().double()):
        with suppress(UnsupportedModel), limited():
            sightline.explain(model, images, method, target=1)
            return


def run_all(thing: Any, option: str, kind: str, use: Any) -> None:
    for value in values(kind):
        method = built(thing, option, value)
        try:
            with told_in_a_sentence():
                if method is not None:
                    use(method)
        except BaseException as error:
            error.add_note(f"{option}={value!r}")
            raise


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "option", "kind"), numeric(METHODS))
def test_no_number_breaks_a_method(name: str, option: str, kind: str) -> None:
    run_all(parse(FAST_METHODS.get(name, name)), option, kind, explained)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "option", "kind"), numeric(OPERATORS))
def test_no_number_breaks_an_operator(name: str, option: str, kind: str) -> None:
    run_all(parse(FAST_OPERATORS.get(name, example(OPERATORS[name]))), option, kind, explained)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "option", "kind"), numeric(METRICS))
def test_no_number_breaks_a_metric(name: str, option: str, kind: str) -> None:
    images = pictures(2)

    def use(metric: Any) -> None:
        with limited():
            judge(case_of(Evidence().maps(images), images), [metric])

    run_all(parse_metric(FAST_METRICS.get(name, name)), option, kind, use)


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The options without which a data set cannot be opened."""
    return {
        "shapes": {"count": 4},
        "shapes_scenes": {"count": 4},
        "quads": {"of": "shapes(count=8)"},
        "coco": {"root": str(miniature.coco(tmp_path / "coco"))},
        "imagenet_s": {"root": str(miniature.imagenet_s(tmp_path / "imagenet_s"))},
    }


COMMON_OPTIONS = [pytest.param("shapes", f.name, "", id=f.name) for f in fields(Selection) if f.name != "predictions"]


@pytest.mark.parametrize(("name", "option", "kind"), [*numeric(DATASETS), *COMMON_OPTIONS])
def test_no_number_breaks_a_data_set(name: str, option: str, kind: str, roots: dict[str, dict[str, Any]]) -> None:
    for value in values(kind):
        begin = time.process_time()
        with told_in_a_sentence(), limited():
            dataset = open_dataset({"name": name, **roots[name], option: value})
            dataset.read(dataset.ids[0])
        assert time.process_time() - begin < 3 * BUILD_SECONDS


@pytest.mark.parametrize(
    "text", ["shapes(count=100000000000000000000)", "hub(root='')", "hub(root='  ')", "hub(repo='')", "folder(root='')"]
)
def test_a_data_set_that_cannot_be_is_refused_at_once(text: str) -> None:
    begin = time.process_time()
    with pytest.raises(SightlineError):
        open_dataset(text)
    assert time.process_time() - begin < BUILD_SECONDS


@pytest.mark.parametrize(
    "recipe", ["ig(steps={})", "smooth_grad(samples={})", "rise(samples={})", "kernel_shap(samples={})"]
)
def test_memory_does_not_grow_with_steps_or_samples(recipe: str) -> None:
    """All points of a path at once would take 4000 × 3 × 64 × 64 doubles, 390 MB, and the layers as much again."""
    model = tiny.Cnn().eval().double()
    images = torch.randn(1, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    sightline.explain(model, images, recipe.format(64), target=1)
    with limited(2**28):
        sightline.explain(model, images, recipe.format(4000), target=1)
