"""The output of vision-language models, the logits of every token at every place of an answer; words found there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sightline.errors import TargetError
from sightline.targets.words import Word
from sightline.types import PerImage, Target

if TYPE_CHECKING:
    from sightline.models.adapter import Adapter


def read_words(output: Any) -> Tensor | None:
    """Return the logits of an answer, (batch, place, token); None where there are none."""
    logits = getattr(output, "logits", output)
    return logits if isinstance(logits, Tensor) and logits.ndim == 3 else None


def resolve_word(target: Any, model: Adapter, images: Tensor) -> Target:
    """Return a word as the tokens that stand for it.

    None is the whole answer, or the token that the model would say first, which costs a forward pass; a text or a
    number is a word of the answer.
    """
    word = target if isinstance(target, Word) else Word(target)
    if word.places:
        return word
    asked: Any = model  # a VisionLanguage adapter, which knows its answer; its module imports this one
    if not asked.answer_tokens and word.token is None:
        return _first_token(word, asked, images)
    places, text = _places(word.word, asked)
    if word.token is None:
        tokens = tuple(asked.answer_tokens[place] for place in places)
    else:
        places, tokens = places[:1], (asked.token_number(word.token),)
        text = asked.written(tokens)
    return replace(word, places=places, tokens=tokens, vocabulary=asked.vocabulary, text=text)


def _first_token(word: Word, model: Any, images: Tensor) -> Target:
    """Return the likeliest first token of each image."""
    if word.word not in (None, 0):
        raise TargetError(
            f"got the word {word.word!r}, and {model.name} has not answered yet; let it answer with "
            "adapter.answering(images), or say what it answers with adapt(model, …, answer=…)"
        )
    tokens = model.check_logits(model.predict(images)).argmax(dim=-1).tolist()
    each = [
        replace(word, places=(0,), tokens=(token,), vocabulary=model.vocabulary, text=model.written([token]))
        for token in tokens
    ]
    return each[0] if len(set(tokens)) == 1 else PerImage(tuple(each))


def _places(wanted: int | str | None, model: Any) -> tuple[tuple[int, ...], str]:
    """Return the places of a word's tokens in the answer, and how it is written."""
    words = model.words or [("", (0,))]
    if wanted is None:
        return tuple(place for _, places in words for place in places), model.answer
    if isinstance(wanted, int):
        if not 0 <= wanted < len(words):
            raise TargetError(f"got word {wanted}; the answer {model.answer!r} has words 0 to {len(words) - 1}")
        return words[wanted][1], words[wanted][0]
    found = [(places, word) for word, places in words if _plain(word) == _plain(wanted)]
    if not found:
        raise TargetError(f"the answer {model.answer!r} has no word {wanted!r}; give one of its words or a number")
    return found[0]


def _plain(word: str) -> str:
    return word.casefold().strip(" .,;:!?\"'()") or word
