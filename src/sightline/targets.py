"""Targets: what is explained, as functions of a model's output that can follow their images around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import TargetError

Indices = int | tuple[int, ...]
Output = Literal["softmax", "sigmoid", "value", "embedding", "dense", "boxes"]  # what the numbers of a model are
Link = Literal["softmax", "sigmoid", "identity"]  # how they become probabilities


class Target(Protocol):
    """What is explained: any function of the logits, (batch, class) -> (batch,), that can follow its images around."""

    def __call__(self, logits: Tensor) -> Tensor: ...

    def take(self, rows: Sequence[int]) -> Target:
        """Return the target for these images of the batch, in this order, repetitions allowed."""
        ...


def _pick(logits: Tensor, index: Indices) -> Tensor:
    """Read one column per image."""
    if isinstance(index, int):
        return logits[:, index]
    if len(index) != len(logits):
        raise TargetError(f"got {len(index)} target classes for {len(logits)} images; give one, or one per image")
    return logits.gather(1, torch.tensor(index, device=logits.device)[:, None])[:, 0]


def _take(index: Indices, rows: Sequence[int]) -> Indices:
    return index if isinstance(index, int) else tuple(index[row] for row in rows)


@dataclass(frozen=True, slots=True)
class Logit:
    """The logit of a class: one for all images, or one per image."""

    index: Indices

    def __call__(self, logits: Tensor) -> Tensor:
        return _pick(logits, self.index)

    def take(self, rows: Sequence[int]) -> Logit:
        return Logit(_take(self.index, rows))


@dataclass(frozen=True, slots=True)
class Value:
    """One number of a regression's output, or one dimension of an embedding; `index` is the same for all images."""

    index: Indices = 0

    def __call__(self, logits: Tensor) -> Tensor:
        return _pick(logits, self.index)

    def take(self, rows: Sequence[int]) -> Value:
        return Value(_take(self.index, rows))


def probabilities(logits: Tensor, link: Link | None) -> Tensor:
    """Turn logits into probabilities: a softmax over classes, a sigmoid per label, or nothing where they are that."""
    if link == "identity":
        return logits
    return logits.sigmoid() if link == "sigmoid" else logits.softmax(dim=-1)


def log_probabilities(logits: Tensor, link: Link | None) -> Tensor:
    """Turn logits into the logarithms of probabilities."""
    if link == "identity":
        return logits.clamp(min=torch.finfo(logits.dtype).tiny).log()
    return F.logsigmoid(logits) if link == "sigmoid" else logits.log_softmax(dim=-1)


@dataclass(frozen=True, slots=True)
class Probability:
    """The probability of a class or label; `link` is how logits become one, by default as the model's output says."""

    index: Indices
    link: Link | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        return _pick(probabilities(logits, self.link), self.index)

    def take(self, rows: Sequence[int]) -> Probability:
        return Probability(_take(self.index, rows), self.link)


@dataclass(frozen=True, slots=True)
class LogProbability:
    """The logarithm of the probability of a class or label."""

    index: Indices
    link: Link | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        return _pick(log_probabilities(logits, self.link), self.index)

    def take(self, rows: Sequence[int]) -> LogProbability:
        return LogProbability(_take(self.index, rows), self.link)


@dataclass(frozen=True, slots=True)
class Contrast:
    """The logit of class `a` minus the logit of class `b`: why this and not that."""

    a: Indices
    b: Indices

    def __call__(self, logits: Tensor) -> Tensor:
        return _pick(logits, self.a) - _pick(logits, self.b)

    def take(self, rows: Sequence[int]) -> Contrast:
        return Contrast(_take(self.a, rows), _take(self.b, rows))


@dataclass(frozen=True, slots=True)
class TextSimilarity:
    """The cosine between a CLIP image embedding and a text's.

    For a visual tower without classes, whose output is the image embedding. Give the text, which `explain` encodes
    with the model's own text encoder, or its embedding.
    """

    text: str = ""
    embedding: tuple[float, ...] = ()

    def __call__(self, logits: Tensor) -> Tensor:
        if not self.embedding:
            raise TargetError(
                f"the text {self.text!r} has no embedding yet; pass the target to explain() with a CLIP model, "
                "or give embedding=…"
            )
        if len(self.embedding) != logits.shape[-1]:
            raise TargetError(
                f"the text embedding has {len(self.embedding)} numbers and the model's output {logits.shape[-1]}; "
                "use TextSimilarity with a CLIP tower that returns image embeddings, or Logit with one that has classes"
            )
        text = torch.tensor(self.embedding, dtype=logits.dtype, device=logits.device)
        return F.cosine_similarity(logits, text[None], dim=-1)

    def take(self, rows: Sequence[int]) -> TextSimilarity:
        return self


@dataclass(frozen=True, slots=True)
class Custom:
    """Any function of the logits as a target; `explain` wraps a plain callable in this."""

    function: Callable[[Tensor], Tensor]

    def __call__(self, logits: Tensor) -> Tensor:
        scores = self.function(logits)
        if not isinstance(scores, Tensor) or scores.shape != logits.shape[:1]:
            shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise TargetError(
                f"the target function gave {shape} for logits of shape {tuple(logits.shape)}; "
                f"it must give one number per image, shape ({len(logits)},)"
            )
        return scores

    def take(self, rows: Sequence[int]) -> Custom:
        return self


@dataclass(frozen=True, slots=True)
class PerImage:
    """A different target for each image of the batch."""

    targets: tuple[Target, ...]

    def __call__(self, logits: Tensor) -> Tensor:
        if len(self.targets) != len(logits):
            raise TargetError(f"got {len(self.targets)} targets for {len(logits)} images; give one per image")
        rows = [target.take([row])(logits[row : row + 1]) for row, target in enumerate(self.targets)]
        return torch.cat(rows)

    def take(self, rows: Sequence[int]) -> PerImage:
        return PerImage(tuple(self.targets[row] for row in rows))
