"""Zero-shot classification with a CLIP model: one logit per text, the scaled cosine of image and text embedding."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from sightline.errors import ShapeError, TargetError, UnsupportedModel
from sightline.models.inputs import adapt
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.wrapped import WrappedTransformer

TEMPLATES = ("a photo of a {}.",)


class ZeroShot(WrappedTransformer):
    r"""A zero-shot classifier: a CLIP visual tower whose classes are texts.

    .. math:: \text{logit}_c = s \cos(e, t_c) + b

    with the image embedding :math:`e`, the text embedding :math:`t_c` of class c, and the model's own scale s and bias
    b, which only sigmoid-trained models have: their output is a sigmoid per text, that of all others a softmax. Blocks,
    sites, start and run are the tower's.

    Attributes:
        embeddings: one unit vector per class, shape (class, channel).
        scale: s.
        bias: b.
    """

    def __init__(self, inner: VisionTransformer, labels: Sequence[str], embeddings: Tensor) -> None:
        output = "sigmoid" if isinstance(getattr(inner.model, "logit_bias", None), Tensor) else "softmax"
        facts = inner.facts | {"labels": labels, "output": output, "link": output}
        super().__init__(inner.model, inner, **facts)
        self.offers = inner.offers
        self.embeddings = F.normalize(embeddings.detach(), dim=-1)
        self.scale = _number(inner.model, "logit_scale", log=True, default=100.0)
        self.bias = _number(inner.model, "logit_bias", log=False, default=0.0)

    def check_size(self, size: tuple[int, int]) -> None:
        self.inner.check_size(size)

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.inner.logits(self.inner.forward(images)))

    def finish(self, tokens: Tensor) -> Tensor:
        return self.classify(self.inner.finish(tokens))

    def classify(self, embedding: Tensor) -> Tensor:
        """Turn image embeddings, (batch, channel), into logits, (batch, class)."""
        if embedding.shape[-1] != self.embeddings.shape[-1]:
            raise ShapeError(
                f"the text embeddings have {self.embeddings.shape[-1]} numbers and the image embeddings of {self.name} "
                f"{embedding.shape[-1]}; both must come from the same CLIP model"
            )
        return self.scale * F.normalize(embedding, dim=-1) @ self.embeddings.to(embedding).T + self.bias

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        return self.inner.encode_text(texts)


def zero_shot(
    model: Any,
    texts: Sequence[str],
    templates: Sequence[str] = TEMPLATES,
    tokenizer: Any = None,
    *,
    embeddings: Tensor | None = None,
) -> ZeroShot:
    """Return an adapter whose classes are `texts`.

    Args:
        model: a CLIP model of open_clip or transformers, a visual tower of timm or either, or an adapter of one.
        texts: the classes, "dog" rather than "a photo of a dog.".
        templates: sentences with a place for the class; a class is the mean of its unit embeddings over the templates.
        tokenizer: the model's own, where it does not come with it (transformers).
        embeddings: one text embedding per class, shape (class, channel), instead of running a text encoder; for towers
            that have none.
    """
    if isinstance(texts, str) or not texts:
        raise TargetError(f"got {texts!r} as the classes of a zero-shot model; a list of at least one text is needed")
    adapter = adapt(model)
    if not isinstance(adapter, VisionTransformer):
        raise UnsupportedModel(f"{adapter.name} has no transformer as visual tower; zero_shot needs a CLIP that does")
    if tokenizer is not None:
        adapter = copy(adapter)
        adapter.tokenizer = tokenizer  # type: ignore[attr-defined]
    if embeddings is None:
        embeddings = _encode(adapter, texts, templates)
    if embeddings.ndim != 2 or len(embeddings) != len(texts):
        raise ShapeError(
            f"got embeddings of shape {tuple(embeddings.shape)} for {len(texts)} classes; one row per class is needed"
        )
    return ZeroShot(adapter, texts, embeddings)


def _encode(adapter: VisionTransformer, texts: Sequence[str], templates: Sequence[str]) -> Tensor:
    for template in templates:
        if "{}" not in template:
            raise TargetError(f"the template {template!r} has no place for the class; write {{}} where it belongs")
    sentences = [template.replace("{}", text) for text in texts for template in templates]
    embeddings: Tensor = F.normalize(adapter.encode_text(sentences), dim=-1)
    return embeddings.reshape(len(texts), len(templates), -1).mean(dim=1)


def _number(model: Any, name: str, *, log: bool, default: float) -> float:
    value = getattr(model, name, None)
    if not isinstance(value, Tensor):
        return default
    return float((value.detach().exp() if log else value.detach()).reshape(()))
