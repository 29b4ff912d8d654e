"""What the API takes and gives, as its OpenAPI document describes it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sightline.app.jobs import Job, State
from sightline.app.models import Offer
from sightline.app.pictures import Picture

__all__ = [
    "ClassFound", "ContrastAsked", "Error", "JobAsked", "JobShown", "ModelShown", "OfferShown", "PictureShown",
]  # fmt: skip


class Error(BaseModel):
    """Why a request was refused."""

    error: str = Field(description="One sentence: what came, what was needed, what to do.")


class PictureShown(BaseModel):
    """A picture that can be explained."""

    id: str = Field(description="By which jobs name it.")
    name: str = Field(description="What to call it.")
    width: int = Field(description="In pixels, as the server keeps it.")
    height: int = Field(description="In pixels, as the server keeps it.")
    kind: str = Field(description="upload, or what a sample shows: shapes, photograph.")
    reduced: bool = Field(description="Whether it was larger than the server keeps.")

    @classmethod
    def of(cls, picture: Picture) -> PictureShown:
        """Describe a picture."""
        width, height = picture.size
        return cls(
            id=picture.identifier, name=picture.name, width=width, height=height, kind=picture.kind,
            reduced=picture.reduced,
        )  # fmt: skip


class OfferShown(BaseModel):
    """A recipe that a model can be explained with on this server."""

    recipe: str = Field(description="As jobs name it.")
    family: str = Field(description="The family of the method.")
    panel: bool = Field(description="Whether it is in the default panel of the model.")
    control: bool = Field(description="Whether it knows nothing of the model.")
    class_agnostic: bool = Field(description="Whether its map is the same for every class.")
    passes: float = Field(description="Declared cost in forward passes; a backward pass counts as two.")

    @classmethod
    def of(cls, offer: Offer) -> OfferShown:
        """Describe an offer."""
        return cls(**{name: getattr(offer, name) for name in cls.model_fields})


class ModelShown(BaseModel):
    """A model and what it can be asked."""

    id: str = Field(description="The model id.")
    name: str = Field(description="What the model is called.")
    output: str = Field(description="What its numbers are: softmax, sigmoid, value, embedding, dense, boxes.")
    classes: int | None = Field(description="How many classes it has, where that is known.")
    takes_text: bool = Field(description="Whether a text can be the target.")
    prompt: str | None = Field(description="What a vision-language model is asked by default; None for other models.")
    sample: str = Field(description="The sample that suits the model.")
    recipes: list[OfferShown] = Field(description="Recipes that work, the default panel first.")


class ClassFound(BaseModel):
    """A class of a model."""

    index: int = Field(description="Its number.")
    label: str = Field(description="Its name.")


class ContrastAsked(BaseModel):
    """Another class to compare the target with."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["against", "var"] = Field(description="Subtract the other class's map, or let the classes compete.")
    other: int = Field(ge=0, le=1_000_000, description="The other class, by number.")


class JobAsked(BaseModel):
    """A request for maps of a picture."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(max_length=200, description="One of the server's model ids.")
    picture: str = Field(max_length=100, description="A sample, or a picture of this visitor's own.")
    target: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="A class, the predicted one if left out; or a word of a vision-language model's answer, by number, "
        "the longest if left out.",
    )
    text: str = Field(default="", max_length=200, description="A text in place of a class, where the model takes one.")
    box: int | None = Field(
        default=None, ge=0, le=1000, description="A detection in place of a class, 0 for the surest, of a detector."
    )
    prompt: str = Field(default="", max_length=400, description="A question, to a vision-language model.")
    fills: bool = Field(default=False, description="Judge the maps under several fills; about twice the time.")
    recipes: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=24,
        description="Recipes the server offers; the default panel if left out.",
    )
    contrast: ContrastAsked | None = Field(default=None, description="Another class to compare the target with.")


class JobShown(BaseModel):
    """A job and what has come of it so far."""

    id: str = Field(description="By which the other routes name it.")
    model: str = Field(description="The model id.")
    picture: str = Field(description="The picture's id.")
    state: State = Field(description="waiting, running, done, cancelled or failed.")
    error: str = Field(description="Why it failed; empty otherwise.")
    image: dict[str, Any] | None = Field(description="What the model says of the picture, and the verdict once done.")
    maps: list[dict[str, Any]] = Field(description="Every map so far, in the order they were made.")
    python: str = Field(description="Python lines that give the same.")
    command: str = Field(description="The command that gives the same.")

    @classmethod
    def of(cls, job: Job, python: str = "", command: str = "") -> JobShown:
        """Describe a job."""
        return cls(
            id=job.identifier, model=job.question.model, picture=job.question.picture.identifier,
            state=job.state, error=job.error,
            image=None if job.image is None else job.image.json(),
            maps=[{"index": index, **kept.json()} for index, kept in enumerate(list(job.maps))],
            python=python, command=command,
        )  # fmt: skip
