"""Targets of classifiers and regressions: functions of the logits that can follow their images around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import TargetError

Indices = int | tuple[int, ...]
Classes = tuple[tuple[int, ...], ...]  # the classes in a picture: one set for all images, or one per image
Output = Literal[
    "softmax", "sigmoid", "value", "embedding", "dense", "boxes", "text"
]  # what the numbers of a model are
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
    if len(set(index)) == 1:
        return logits[:, index[0]]  # nothing has to be sent to the device
    return logits.gather(1, torch.tensor(index, device=logits.device)[:, None])[:, 0]


def _take(index: Indices, rows: Sequence[int]) -> Indices:
    return index if isinstance(index, int) else tuple(index[row] for row in rows)


def _take_classes(classes: Classes | None, rows: Sequence[int]) -> Classes | None:
    return classes if classes is None or len(classes) == 1 else tuple(classes[row] for row in rows)


@dataclass(frozen=True, slots=True)
class Logit:
    """The logit of a class: one for all images, or one per image.

    `classes` are all the classes that the picture shows, one set for all images or one per image, None where unknown;
    ``var(…, classes='picture')`` lets them compete, and nothing else asks.
    """

    index: Indices
    classes: Classes | None = field(default=None, kw_only=True, repr=False)

    def __call__(self, logits: Tensor) -> Tensor:
        return _pick(logits, self.index)

    def take(self, rows: Sequence[int]) -> Logit:
        return Logit(_take(self.index, rows), classes=_take_classes(self.classes, rows))


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
    classes: Classes | None = field(default=None, kw_only=True, repr=False)

    def __call__(self, logits: Tensor) -> Tensor:
        return _pick(probabilities(logits, self.link), self.index)

    def take(self, rows: Sequence[int]) -> Probability:
        return Probability(_take(self.index, rows), self.link, classes=_take_classes(self.classes, rows))


@dataclass(frozen=True, slots=True)
class LogProbability:
    """The logarithm of the probability of a class or label."""

    index: Indices
    link: Link | None = None
    classes: Classes | None = field(default=None, kw_only=True, repr=False)

    def __call__(self, logits: Tensor) -> Tensor:
        return _pick(log_probabilities(logits, self.link), self.index)

    def take(self, rows: Sequence[int]) -> LogProbability:
        return LogProbability(_take(self.index, rows), self.link, classes=_take_classes(self.classes, rows))


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
class ResidualSoftmax:
    """The logit of a class plus the logarithm of its probability: the ReST score of ShapleyCAM."""

    index: Indices
    link: Link | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        return _pick(logits, self.index) + _pick(log_probabilities(logits, self.link), self.index)

    def take(self, rows: Sequence[int]) -> ResidualSoftmax:
        return ResidualSoftmax(_take(self.index, rows), self.link)


@dataclass(frozen=True, slots=True)
class FinerContrast:
    """The logit of a class less `gamma` times the mean logit of similar classes, the score of Finer-CAM.

    `others` are those classes, one tuple for all images or one per image. When `weighted`, the differences to each of
    them are averaged by their probabilities instead.
    """

    index: Indices
    others: tuple[tuple[int, ...], ...]
    gamma: float = 0.6
    weighted: bool = False

    def __post_init__(self) -> None:
        if not self.others or not all(self.others) or len(set(map(len, self.others))) > 1:
            raise TargetError(f"got others={self.others!r}; give a tuple of classes for each image, all of one length")

    def __call__(self, logits: Tensor) -> Tensor:
        if len(self.others) not in (1, len(logits)):
            raise TargetError(f"got others of {len(self.others)} images for {len(logits)}; give one tuple, or one each")
        own = _pick(logits, self.index)
        columns = torch.tensor(self.others, device=logits.device).expand(len(logits), -1)
        similar = logits.gather(1, columns)
        if not self.weighted:
            return own - self.gamma * similar.mean(dim=1)
        weights = logits.softmax(dim=-1).gather(1, columns)
        differences = own[:, None] - self.gamma * similar
        return (weights * differences).sum(dim=1) / (weights.sum(dim=1) + 1e-9)  # as the package grad-cam

    def take(self, rows: Sequence[int]) -> FinerContrast:
        others = self.others if len(self.others) == 1 else tuple(self.others[row] for row in rows)
        return FinerContrast(_take(self.index, rows), others, self.gamma, self.weighted)


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
class Neuron:
    """The activation of one unit of an inner layer: what makes it fire, not what decides the prediction.

    For `explain` and `evaluate`, with any method that takes gradients at the pixels or none at all; the model runs as
    far as the layer.

    Attributes:
        layer: a site of the model, as `adapt(model).sites` names them.
        unit: where in the layer's output, without the batch: (channel, row, column), (token, channel), (number,); an
            int is a whole channel, the mean over its cells.
    """

    layer: str
    unit: int | tuple[int, ...]

    def __call__(self, logits: Tensor) -> Tensor:
        return logits[:, 0]

    def take(self, rows: Sequence[int]) -> Neuron:
        return self

    @property
    def words(self) -> str:
        """The unit in words."""
        return f"{'channel' if isinstance(self.unit, int) else 'unit'} {self.unit} at {self.layer}"

    def read(self, activation: Tensor, on_grid: Callable[[Tensor], Tensor]) -> Tensor:
        """Read the unit of each image; `on_grid` lays an activation on (batch, channel, height, width)."""
        if isinstance(self.unit, int) and activation.ndim > 2:
            activation = on_grid(activation).flatten(2).mean(dim=2)
        place = (self.unit,) if isinstance(self.unit, int) else self.unit
        shape = tuple(activation.shape[1:])
        if len(place) != len(shape) or not all(-size <= at < size for at, size in zip(place, shape, strict=True)):
            raise TargetError(f"got the unit {self.unit} of {self.layer!r}, whose output has the shape {shape}")
        for at in place:
            activation = activation[:, at]
        return activation


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
        if logits.requires_grad and torch.is_grad_enabled() and not scores.requires_grad:
            raise TargetError(
                "the target function gave numbers that have no gradient by the logits; compute them from the logits "
                "without detaching or rounding, or choose a method that takes no gradient, such as rise or occlusion"
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


# ---- what metrics follow ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Logits:
    """All logits, (batch, class), instead of one number per image, so that what is read can be chosen afterwards."""

    def __call__(self, logits: Tensor) -> Tensor:
        return logits

    def take(self, rows: Sequence[int]) -> Logits:
        return self


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One where the class is the model's first choice, zero elsewhere."""

    index: Indices

    def __call__(self, logits: Tensor) -> Tensor:
        wanted = torch.as_tensor(self.index, device=logits.device)
        return (logits.argmax(dim=-1) == wanted).to(logits.dtype)

    def take(self, rows: Sequence[int]) -> Accuracy:
        return self if isinstance(self.index, int) else Accuracy(tuple(self.index[row] for row in rows))


@dataclass(frozen=True, slots=True)
class LabelAccuracy:
    """One where the probability of one of several labels is a half or more, zero elsewhere."""

    probability: Probability

    def __call__(self, logits: Tensor) -> Tensor:
        return (self.probability(logits) >= 0.5).to(logits.dtype)

    def take(self, rows: Sequence[int]) -> LabelAccuracy:
        return LabelAccuracy(self.probability.take(rows))
