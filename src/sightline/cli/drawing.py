"""Draw what was found of one image: the section of the page, the overlays in files, and the record of both."""

from __future__ import annotations

from typing import Any

from sightline.audit.ranking import Look, Rated
from sightline.citations import keys_of, references, specs_of
from sightline.cli.staged_output import Outbox, safe
from sightline.report.figure import heat, overlay
from sightline.report.page import ImageSection, MapCard, verdict

__all__ = ["facts", "named", "record", "section_of"]


def section_of(name: str, found: Look) -> ImageSection:
    """Return what the page shows of an image: the picture, the classes, every map drawn."""
    return ImageSection(
        name=name,
        picture=found.frame.picture,
        classes=[(one.label, one.probability) for one in found.top],
        target=found.target.label,
        target_probability=found.target.probability,
        maps=[_card(found, rated) for rated in found.maps],
    )


def record(outbox: Outbox, stem: str, found: Look, section: ImageSection) -> dict[str, Any]:
    """Write an overlay per map, and return all that is known of the image as plain data."""
    folder, width = outbox.subfolder(stem), len(str(len(found.maps)))
    maps = []
    for place, (rated, card) in enumerate(zip(found.maps, section.maps, strict=True), 1):
        name = f"{folder}/{place:0{width}}-{safe(rated.recipe)}.png"
        path = outbox.png(name, card.picture, {"recipe": rated.recipe, "target": found.target.label})
        maps.append(facts(rated) | {"overlay": str(path)})
    judged = verdict(section.maps)
    return {
        **named(found),
        "top": [one.json() for one in found.top],
        "metric_step": found.step,
        "verdict": f"{judged.headline}. {judged.reason}",
        "maps": maps,
    }


def named(found: Look) -> dict[str, Any]:
    """Return what was explained, as plain data."""
    target = found.target
    return {"target": target.index, "label": target.label, "probability": target.probability}


def facts(rated: Rated) -> dict[str, Any]:
    """Return what was measured of a map, as plain data."""
    return {
        "recipe": rated.recipe,
        "rank": rated.rank,
        "insertion": rated.insertion,
        "deletion": rated.deletion,
        "ins_del": rated.ins_del,
        "passes": {"forward": rated.passes.forward, "backward": rated.passes.backward},
        "seconds": round(rated.seconds, 4),
        "control": rated.control,
        "class_agnostic": rated.agnostic,
        "flags": list(rated.flags),
    }


def _card(found: Look, rated: Rated) -> MapCard:
    picture = found.frame.picture
    return MapCard(
        recipe=rated.recipe,
        picture=overlay(picture, rated.map),
        heat=heat(rated.map, picture.size),
        scores={"ins_del": rated.ins_del, "insertion": rated.insertion, "deletion": rated.deletion},
        curves=rated.curves,
        passes_forward=rated.passes.forward,
        passes_backward=rated.passes.backward,
        seconds=rated.seconds,
        rank=rated.rank,
        note=rated.mark,
        cite=_cited(rated.recipe),
    )


def _cited(recipe: str) -> str:
    """Return the papers behind a recipe in a few words: first author and year of each."""
    known = references()
    return "; ".join(known[key].brief for key in keys_of(specs_of(recipe)) if key in known)
