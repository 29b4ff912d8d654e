"""Plans: which models, methods and metrics, on which images.

A plan is a TOML file::

    name = "first-look"
    models = ["bundled/shapes-vit"]
    methods = ["gae", "rollout", "plus(libra(ixg))"]
    metrics = ["insertion", "deletion", "average_precision"]
    dataset = "shapes(count=40)"
    limit = 16

Whatever is wrong with it is said before any work is done, one sentence for each mistake.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sightline.errors import InputError, RecipeError, SightlineError

__all__ = ["ExpandedPlan", "Layout", "Plan", "make_plan", "read_plan"]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Words = Annotated[list[str], BeforeValidator(_as_list)]


class Layout(BaseModel):
    """How a published table is laid out, so that the report can print it alike.

    Attributes:
        rows: what goes down, the outermost first.
        columns: what goes across.
        cell: the value; or "gain", the value with VAR and by how much per cent that is more than without.
        error: whether standard errors are printed.
        seconds: whether there is a column of seconds per image, mean and standard deviation.
        average: whether gains are averaged over methods, in a row of their own.
        differences: columns that are one metric less another, by name.
        scale: what values are multiplied by.
        digits: after the point.
    """

    model_config: ClassVar[ConfigDict] = {"extra": "forbid", "frozen": True, "strict": True}

    rows: list[Literal["heading", "model", "method", "metric"]] = Field(["method"])
    columns: list[Literal["heading", "model", "method", "metric"]] = Field(["model", "metric"])
    cell: Literal["value", "gain"] = Field("value")
    error: bool = Field(False)
    seconds: bool = Field(False)
    average: bool = Field(False)
    differences: dict[str, Annotated[list[str], Field(min_length=2, max_length=2)]] = Field({})
    scale: float = Field(1.0)
    digits: int = Field(3, ge=0)


class Plan(BaseModel):
    """The settings of a benchmark run; a mistake in one is explained by its description."""

    model_config: ClassVar[ConfigDict] = {"extra": "forbid", "frozen": True, "strict": True}

    name: str = Field(description="the run's name in every row, a short word such as 'first-look'", min_length=1)
    models: Words = Field(description="a list of model ids, such as ['timm/vit_base_patch16_224']", min_length=1)
    methods: Words = Field(description="a list of recipes, such as ['gae', 'ig(steps=20)']", min_length=1)
    metrics: Words = Field([], description="a list of metrics, such as ['insertion', 'deletion(step=448)']")
    protocol: str | None = Field(None, description="the metrics of a paper, such as 'caap', beside those named")
    dataset: str | dict[str, Any] = Field(
        description="the images: the name of a data set, a folder, or a table with name and options"
    )
    limit: int | None = Field(None, description="how many images at most, 1 or more", ge=1)
    seed: int | None = Field(
        None, description="chooses the images at random instead of the first ones, 0 or more", ge=0
    )
    target: Literal["predicted", "label"] = Field("predicted", description="the class explained: predicted or label")
    batch: int = Field(8, description="images per unit of work, 1 or more; it decides the last digits", ge=1)
    threads: int = Field(1, description="threads per worker, 1 or more; it decides the last digits", ge=1)
    device: Literal["cpu", "cuda"] = Field("cpu", description="where models run: cpu or cuda")
    resize: Literal["model", "squash", "crop"] = Field(
        "model",
        description="'model' for its own preprocessing, 'squash' to its size whatever the shape of the image, 'crop' "
        "for the short side to its size and the middle of that",
    )
    confidence: float | None = Field(
        None, description="the least probability that every model must give the explained class, 0 to 1", ge=0, le=1
    )
    correct: bool = Field(False, description="whether every model must predict the label: true or false")
    per_class: int | None = Field(
        None, description="how many images at most of each predicted class are kept of these, 1 or more", ge=1
    )
    enlarge: Literal["nearest", "bilinear", "bicubic"] | None = Field(
        None, description="how maps become pixels: nearest, bilinear or bicubic; left out, as each method says"
    )
    classes: Words = Field([], description="for CLIP models, what to choose between, such as ['cat', 'dog']")
    controls: bool = Field(True, description="whether random, centre, sobel and input_norm run along: true or false")
    maps: bool | int = Field(16, description="how many images keep their maps for the report: true for all, or false")
    figure: str | dict[str, Any] | None = Field(
        None,
        description="a figure in place of a table: its name, such as 'panel', or a table with name and options",
    )
    title: str = Field("", description="a heading for the report")
    source: str = Field("", description="which published table this is")
    cite: Words = Field([], description="keys into the bibliography")
    notes: Words = Field([], description="what a reader should know")
    heading: str = Field("", description="what the published table calls this part of it, such as 'COCO'")
    labels: dict[str, str] = Field({}, description="what the published table calls a recipe, metric or model")
    layout: Layout | None = Field(None, description="how the published table is laid out")
    printed: dict[str, dict[str, list[float | str | None]]] = Field(
        {}, description="the published numbers: for each model and recipe, one for each metric"
    )

    @property
    def asks_models(self) -> bool:
        """Whether its models are asked which images to take."""
        return self.confidence is not None or self.correct or self.per_class is not None

    def expanded(self) -> ExpandedPlan:
        """Return the canonical recipes of a plan that `make_plan` has checked."""
        return _expanded(self)[0]


@dataclass(frozen=True)
class ExpandedPlan:
    """The canonical recipes of a plan, each once, in its order, controls last."""

    recipes: tuple[str, ...]
    metrics: tuple[str, ...]


def read_plan(path: str | Path, **changes: Any) -> Plan:
    """Read a plan from a TOML file that holds no panels; `changes` that are not None take the place of its settings.

    `sightline.bench.panels.read_plan_file` reads those that do.

    Raises:
        InputError: the file cannot be read.
        RecipeError: it is not a sound plan.
    """
    path = Path(path)
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no plan {path}; give a TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the plan {path} cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:  # no TOML, a number of thousands of digits, deep nesting
        raise RecipeError(f"{path} is not TOML: {error}") from None
    return make_plan({**settings, **{key: value for key, value in changes.items() if value is not None}}, str(path))


def make_plan(settings: dict[str, Any], where: str = "the plan") -> Plan:
    """Check settings, and say what is wrong with them."""
    try:
        plan = Plan.model_validate(settings)
    except ValidationError as error:
        raise RecipeError(_mistakes(where, [*dict.fromkeys(map(_sentence, error.errors()))])) from None
    if wrong := [*_wrong_models(plan), *_expanded(plan)[1]]:
        raise RecipeError(_mistakes(where, wrong))
    return plan


def _mistakes(where: str, sentences: Sequence[str]) -> str:
    if len(sentences) == 1:
        return f"{where}: {sentences[0]}"
    return "\n".join([f"{where} has {len(sentences)} mistakes:", *(f"- {sentence}" for sentence in sentences)])


def _sentence(mistake: Any) -> str:
    """Say in our words what pydantic found: the setting, what came, what it means."""
    from sightline.registry import unknown

    key = str(mistake["loc"][0])
    if mistake["type"] == "extra_forbidden" and len(mistake["loc"]) == 1:
        names = list(Plan.model_fields)
        return unknown(key, "setting", names, otherwise=f"a plan has {', '.join(names)}")
    meaning = Plan.model_fields[key].description
    if mistake["type"] == "missing":
        return f"{key} is missing; write {key} = …, {meaning}"
    index = "".join(f"[{part}]" for part in mistake["loc"][1:] if isinstance(part, int))
    return f"{key}{index} is {mistake['input']!r}; give {meaning}"


def _wrong_models(plan: Plan) -> list[str]:
    """Find ids that no library can answer to, without loading any."""
    from sightline.models.zoo.ids import KNOWN, LIBRARIES, list_models
    from sightline.registry import load_plugins, unknown

    load_plugins()
    wrong = []
    for model in plan.models:
        library, _, name = model.partition("/")
        closed = library in ("bundled", "package")
        if model.startswith("file:") or (library in LIBRARIES and name and not closed):
            continue
        if not (closed and name in KNOWN[library]):
            wrong.append(f"models: {unknown(model, 'model', list_models())}")
    return wrong


def _expanded(plan: Plan) -> tuple[ExpandedPlan, list[str]]:
    """Build every method and metric once; return their recipes, and a sentence for each that cannot be built."""
    from sightline.methods.chance.controls import CONTROLS
    from sightline.metrics.protocols import find_protocol
    from sightline.recipe import parse, parse_metric, text

    scored = plan.metrics or plan.protocol or plan.figure is not None
    wrong = [] if scored else ["metrics is missing; name one at least, or a protocol"]

    def canonical_recipes(key: str, recipes: Sequence[str], parse: Callable[[str], object]) -> tuple[str, ...]:
        canonical: dict[str, None] = {}
        for recipe in recipes:
            try:
                canonical[text(parse(recipe))] = None
            except SightlineError as error:
                wrong.append(f"{key}: {error}")
        return tuple(canonical)

    metrics = list(plan.metrics)
    if plan.protocol is not None:
        try:
            metrics += find_protocol(plan.protocol).metrics
        except RecipeError as error:
            wrong.append(f"protocol: {error}")
    expanded = ExpandedPlan(
        canonical_recipes("methods", [*plan.methods, *(CONTROLS if plan.controls else ())], parse),
        canonical_recipes("metrics", metrics, parse_metric),
    )
    return expanded, wrong
