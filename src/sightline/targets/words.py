"""The target of vision-language models: a word of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sightline.errors import TargetError
from sightline.targets.tasks import TaskScore

__all__ = ["Word"]


@dataclass(frozen=True, slots=True)
class Word:
    r"""The log-probability of a word of a vision-language model's answer: why it says that word.

    For models whose output is ``text``. Of a word of several tokens it is the sum over its tokens, each given the
    picture, the prompt and the answer before it,

    .. math:: \sum_{t \in \text{word}} \log p(y_t \mid x, y_{<t})

    Attributes:
        word: which of the answer, by number or as it is written; None for the whole answer. Of a model without an
            answer it is the first token that it would say.
        token: a token, by number or as it is written, that is explained at the place of the word's first token instead
            of what is said there: why "cat" rather than silence.
        score: what is read: log_probability, probability, or logit for the sum of the tokens' logits.
        places: of its tokens in the answer; `explain` fills it in.
        tokens: their numbers in the vocabulary; `explain` fills it in.
        vocabulary: how many tokens there are; `explain` fills it in.
        text: the word in writing; `explain` fills it in.
    """

    word: int | str | None = None
    token: int | str | None = None
    score: TaskScore = field(default="log_probability", kw_only=True)
    places: tuple[int, ...] = field(default=(), kw_only=True, repr=False)
    tokens: tuple[int, ...] = field(default=(), kw_only=True, repr=False)
    vocabulary: int = field(default=0, kw_only=True, repr=False)
    text: str = field(default="", kw_only=True, repr=False)

    def __call__(self, logits: Tensor) -> Tensor:
        if not self.places or logits.shape[-1] % self.vocabulary:
            raise TargetError(
                f"{self!r} has not been looked for in an answer of this model; give the target to explain() with a "
                "vision-language model"
            )
        read = logits.reshape(len(logits), -1, self.vocabulary)[:, list(self.places)]
        if self.score != "logit":
            read = read.log_softmax(dim=-1)
        columns = torch.tensor(self.tokens, device=logits.device)[None, :, None].expand(len(logits), -1, 1)
        total = read.gather(2, columns).sum(dim=(1, 2))
        return total.exp() if self.score == "probability" else total

    def take(self, rows: Sequence[int]) -> Word:
        return self
