"""A Gradio app around the page's own functions, for Hugging Face Spaces: choose a picture, see its maps come, ranked.

A Space needs one file: ``from sightline.app.space import create_space; create_space(["bundled/shapes-vit"]).launch()``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from PIL import Image

from sightline.app.jobs import Job
from sightline.app.limits import Limits
from sightline.app.maps import KeptMap, MapCache
from sightline.app.models import Models, found_models
from sightline.app.pictures import Picture, png, read_upload, samples
from sightline.app.question import Question
from sightline.app.work import answer
from sightline.errors import InputError, SightlineError
from sightline.extras import require
from sightline.formatting import format_score
from sightline.models.adapter import Adapter
from sightline.models.targets import find_class
from sightline.models.vision_language.adapter import VisionLanguage

__all__ = ["Shown", "create_space", "explain_picture"]

Shown = tuple[str, list[tuple[Image.Image, str]], list[list[Any]]]  # the verdict, pictures with captions, a table
HEADS = ["map", "insertion \N{MINUS SIGN} deletion", "insertion", "deletion", "control"]


def explain_picture(
    picture: Image.Image | None, model: str, target: str = "", fills: bool = False, *, models: Models, cache: MapCache
) -> Iterator[Shown]:
    """Yield what there is to show whenever a map has come or was scored, and the verdict at the end.

    Args:
        picture: to be explained.
        model: one of the ids that `models` offers.
        target: a class by number or name, or a text for a model that compares pictures with texts; empty for the
            predicted class, the surest box or the largest region.
        fills: judge the maps under several fills.
        models: those that are offered.
        cache: of maps.
    """
    if picture is None:
        raise InputError("got no picture; choose one, or take a sample")
    uploaded = read_upload(png(picture.convert("RGB")), "picture.png", models.limits)
    question = _question(uploaded, models.check(model), target.strip(), fills, models)
    job = Job(question, partial(answer, question, models, cache))
    while job.advance():
        yield _shown(job)
    if job.state != "done":
        raise InputError(job.error or f"the work was {job.state}")
    yield _shown(job)


def create_space(ids: Sequence[str] = (), *, limits: Limits | None = None) -> Any:
    """Return the Gradio app, whose ``launch()`` starts it, with these models, or those found on the machine."""
    gradio = require("gradio")
    limits = Limits() if limits is None else limits
    models = Models(ids or found_models(), limits)
    explain = partial(_explained, models, MapCache(limits.cached_bytes))
    with gradio.Blocks(title="sightline: what did the model look at?", analytics_enabled=False) as space:
        gradio.Markdown("# What did the model look at?\nMaps of the picture, ranked by what was measured on it.")
        with gradio.Row():
            picture = gradio.Image(type="pil", label="Picture", value=next(iter(samples().values())).open())
            with gradio.Column():
                model = gradio.Dropdown(models.ids, value=models.ids[0], label="Model")
                target = gradio.Textbox(label="A class, a text or a question; empty for what the model says")
                fills = gradio.Checkbox(label="Judge under several fills (about twice the time)")
                button = gradio.Button("Explain", variant="primary")
        verdict = gradio.Markdown()
        gallery = gradio.Gallery(label="Maps, the most faithful first", columns=4, object_fit="contain")
        table = gradio.Dataframe(headers=HEADS, label="Scores on this picture")
        given, shown = [picture, model, target, fills], [verdict, gallery, table]
        button.click(explain, given, shown, api_name="explain", concurrency_limit=1)
    return space


def _explained(
    models: Models, cache: MapCache, picture: Image.Image | None, model: str, target: str, fills: bool
) -> Iterator[Shown]:
    """Explain a picture; what cannot be done is said in a sentence on the page."""
    try:
        yield from explain_picture(picture, model, target, fills, models=models, cache=cache)
    except SightlineError as error:
        raise require("gradio").Error(str(error)) from error


def _question(picture: Picture, model: str, target: str, fills: bool, models: Models) -> Question:
    adapter = models.load(model)
    recipes = models.check_recipes(model, None)
    if target and adapter.declared_output == "embedding" and type(adapter).encode_text is not Adapter.encode_text:
        return Question(model, picture, recipes, words=target[:200], fills=fills)
    if isinstance(adapter, VisionLanguage):
        return Question(model, picture, recipes, fills=fills, prompt=target[:400])
    index = find_class(adapter, target) if target else None
    return Question(model, picture, recipes, index, fills=fills)


def _shown(job: Job) -> Shown:
    maps = sorted(job.maps, key=_score, reverse=True)
    gallery = [(kept.attribution.overlay(), _caption(kept)) for kept in maps]
    image = job.image
    if image is None or job.state != "done":
        scored = sum(kept.scored is not None for kept in maps)
        return f"{scored} maps scored so far", gallery, [_row(kept) for kept in maps]
    verdict = f"**{image.verdict.headline}.** {image.verdict.reason}\n\nExplained: {image.target.label}"
    return verdict, gallery, [_row(kept) for kept in maps]


def _score(kept: KeptMap) -> float:
    return float("-inf") if kept.scored is None else kept.scored.score


def _caption(kept: KeptMap) -> str:
    scored = kept.scored
    told = "not scored yet" if scored is None else ", ".join(filter(None, (format_score(scored.score), scored.note)))
    return f"{kept.attribution.recipe}: {told}"


def _row(kept: KeptMap) -> list[Any]:
    scored = kept.scored
    if scored is None:
        return [kept.attribution.recipe, "", "", "", ""]
    numbers = (scored.score, scored.insertion, scored.deletion)
    return [kept.attribution.recipe, *(format_score(number) for number in numbers), "yes" if scored.control else ""]
