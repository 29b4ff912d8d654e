"""Build the models of timm, torchvision, transformers and open_clip by name, with trained or with random weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import nn

from sightline.errors import PromptNeeded, UnsupportedModel, WeightsError
from sightline.extras import require
from sightline.models.adapter import Adapter
from sightline.models.facts import transformers_facts, weights_facts
from sightline.models.inputs import adapt
from sightline.models.zoo.hub import RANDOM, built, fetched, huggingface
from sightline.registry import unknown


def timm_model(name: str, pretrained: bool, options: dict[str, Any]) -> Adapter:
    """Build ``timm/NAME`` or ``timm/NAME.TAG``."""
    timm = require("timm")
    base, _, tag = name.partition(".")
    known = timm.list_pretrained(f"{base}.*") if tag and timm.is_model(base) else timm.list_models()
    if name not in known:
        raise UnsupportedModel(_unknown("timm", name, known))

    def build() -> nn.Module:
        return timm.create_model(name, pretrained=pretrained, **options)  # type: ignore[no-any-return]

    model_id = f"timm/{name}"
    if pretrained:
        model = fetched(model_id, huggingface(), build, instead=f"file:PATH.safetensors@timm/{base}{RANDOM}")
    else:
        model = built(model_id, build)
    return adapt(model.eval(), name=model_id)


def torchvision_model(name: str, pretrained: bool, options: dict[str, Any]) -> Adapter:
    """Build ``torchvision/NAME``, described by its weights whether they are loaded or not."""
    models = require("torchvision.models")
    if name not in (known := models.list_models(module=models)):
        raise UnsupportedModel(_unknown("torchvision", name, known))
    entries = models.get_model_weights(name).__members__
    chosen = options.pop("weights", "DEFAULT")
    if chosen not in entries:
        raise WeightsError(f"torchvision/{name} has no weights called {chosen!r}; there are {_few(list(entries))}")
    entry = entries[chosen]

    def build() -> nn.Module:
        return models.get_model(name, weights=entry if pretrained else None, **options)  # type: ignore[no-any-return]

    model_id = f"torchvision/{name}"
    cached = Path(torch.hub.get_dir(), "checkpoints", Path(urlsplit(entry.url).path).name).is_file()
    if pretrained and not cached:
        model = fetched(model_id, entry.url, build, instead=f"file:PATH.safetensors@{model_id}{RANDOM}", kept=False)
    else:
        model = built(model_id, build)
    facts = weights_facts(entry)
    if options.get("num_classes", len(facts["labels"])) != len(facts["labels"]):
        facts["labels"] = ()
    return adapt(model.eval(), name=model_id, **facts)


def hf_model(name: str, pretrained: bool, options: dict[str, Any]) -> Adapter:
    """Build ``hf/OWNER/NAME``, or from a folder.

    A segmentation, a detector, a vision-language model, or a CLIP model with its tokenizer where its configuration
    names one, else an image classifier.
    """
    transformers = require("transformers")
    classes = options.pop("num_classes", None)
    asked: dict[str, Any] = {fact: options.pop(fact) for fact in ("prompt", "answer") if fact in options}

    model_id = f"hf/{name}"

    def build() -> tuple[Any, Any]:
        config = transformers.AutoConfig.from_pretrained(name, **{"num_labels": classes} if classes else {})
        if _is_talking(config):
            _check_prompt(model_id, asked)
        elif asked:
            raise UnsupportedModel(f"got a prompt for {model_id}, which answers no questions; leave it out")
        task = "ForImageTextToText" if asked else _task(config)
        model = getattr(transformers, f"AutoModel{task}")
        processor = transformers.AutoImageProcessor if task and not asked else transformers.AutoProcessor
        loose = {"ignore_mismatched_sizes": True} if classes else {}  # the head is a new one
        if pretrained:
            make = model.from_pretrained(name, config=config, **loose, **options)
        else:
            make = model.from_config(config, **options)
        return make, processor.from_pretrained(name)

    if Path(name).is_dir():
        model, processor = built(model_id, build)
    else:
        model, processor = fetched(model_id, huggingface(), build, instead="hf/FOLDER")
    if asked:
        return adapt(model.eval(), processor=processor, name=model_id, **asked)
    adapter = adapt(model.eval(), **transformers_facts(model, processor) | {"name": model_id})
    return _with_tokenizer(adapter, getattr(processor, "tokenizer", None))


def _is_talking(config: Any) -> bool:
    """Tell whether a configuration is that of a model that answers questions about a picture."""
    named = [str(name) for name in config.architectures or ()]
    return hasattr(config, "vision_config") and any(name.endswith("ForConditionalGeneration") for name in named)


def _check_prompt(model_id: str, asked: dict[str, Any]) -> None:
    if "prompt" not in asked:
        raise PromptNeeded(
            f"{model_id} answers questions about a picture; say what to ask it: --prompt 'What is this?' on the "
            "command line, load(…, prompt='What is this?') in Python"
        )


def _task(config: Any) -> str:
    """Return what follows AutoModel in the name of the class that reads a model: "" for a CLIP model."""
    built_as = (config.architectures or [""])[0]
    for task in ("ForSemanticSegmentation", "ForObjectDetection"):
        if built_as.endswith(task):
            return task
    if re.search(r"For\w*Segmentation$", built_as):
        raise UnsupportedModel(
            f"{built_as} gives masks of queries, which sightline cannot read yet; take a model for semantic "
            "segmentation, or a function of images that returns logits of every label at every pixel"
        )
    clip = config.model_type == "clip" and built_as != "CLIPForImageClassification"
    return "" if clip else "ForImageClassification"


def openclip_model(name: str, pretrained: bool, options: dict[str, Any]) -> Adapter:
    """Build ``openclip/NAME:TAG``, or with a file in the place of the tag; its output is the image embedding."""
    open_clip = require("open_clip")
    base, _, tag = name.partition(":")
    if base not in (known := open_clip.list_models()):
        raise UnsupportedModel(_unknown("openclip", base, known))
    tags = open_clip.list_pretrained_tags_by_model(base)
    local = Path(tag).is_file()
    if pretrained and tag not in tags and not local:
        raise WeightsError(f"got openclip/{name}; write openclip/{base}:TAG, with one of the tags {_few(tags)}")

    def build() -> tuple[Any, Any, Any]:
        model, _, preprocess = open_clip.create_model_and_transforms(
            base, pretrained=tag if pretrained else None, **options
        )
        words = open_clip.get_model_config(base).get("text_cfg", {}).get("hf_tokenizer_name")
        return model, preprocess, open_clip.get_tokenizer(base) if words else None

    model_id = f"openclip/{name}"
    if pretrained and not local:
        made = fetched(model_id, huggingface(), build, instead=f"openclip/{base}:FILE.safetensors{RANDOM}")
    else:
        made = built(model_id, build)
    model, preprocess, tokenizer = made
    return _with_tokenizer(adapt(model.eval(), name=model_id, preprocess=preprocess), tokenizer)


def _with_tokenizer(adapter: Adapter, tokenizer: Any) -> Adapter:
    """Give an adapter with a text encoder the tokenizer that came with its model."""
    if tokenizer is not None and hasattr(adapter, "tokenizer"):
        adapter.tokenizer = tokenizer
    return adapter


def _unknown(library: str, name: str, known: list[str]) -> str:
    return unknown(f"{library}/{name}", "model", [f"{library}/{other}" for other in known])


def _few(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
