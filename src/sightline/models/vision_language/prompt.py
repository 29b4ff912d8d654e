"""A question about a picture as the tokens of a language model, and an answer cut into words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from sightline.errors import InputError, TargetError

TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
IN_FRONT = ("paligemma",)  # models whose picture always stands before the text


def with_image_token(prompt: str, processor: Any, model_type: str) -> str:
    """Return the prompt as the model reads it: with a place for the picture, and in the frame of a chat.

    A prompt that names the image token is taken as it is; any other is put into the processor's chat template.
    """
    if not prompt.strip():
        raise InputError("got an empty prompt; ask the model something about the picture")
    token = str(processor.image_token)
    if token in prompt:
        return prompt
    if model_type in IN_FRONT:
        return token + prompt
    if not getattr(processor, "chat_template", None):
        raise InputError(
            f"the prompt {prompt[:40]!r} has no place for the picture, and the processor has no chat template; "
            f"write {token} where it belongs"
        )
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": prompt}]}
    return str(processor.apply_chat_template([message], add_generation_prompt=True))


def tokenise(prompt: str, processor: Any, size: tuple[int, int]) -> dict[str, Tensor]:
    """Return the numbers that the processor makes of a prompt with a blank picture of this height and width."""
    token = str(processor.image_token)
    if prompt.count(token) != 1:
        raise InputError(
            f"the prompt {prompt[:40]!r} has {prompt.count(token)} places for a picture; one is needed: write {token} "
            "once, where it belongs"
        )
    blank = Image.new("RGB", (size[1], size[0]))
    try:
        inputs = processor(text=[prompt], images=[blank])
    except ValueError as error:
        reason = str(error).split("\n", 1)[0]
        raise InputError(f"the processor cannot take the prompt {prompt[:40]!r} with one picture: {reason}") from error
    return {name: torch.as_tensor(inputs[name]) for name in TEXT_INPUTS if name in inputs}


def text_inputs(inputs: dict[str, Tensor], answer: Sequence[int], model_type: str) -> dict[str, Tensor]:
    """Return the inputs that hold a number for each token, with all tokens of the answer but the last behind them.

    PaliGemma marks the answer by its token type; for other models that mark is the picture's.
    """
    answered = int(model_type in IN_FRONT)
    added = dict.fromkeys(TEXT_INPUTS, 1) | {"mm_token_type_ids": 0, "token_type_ids": answered}
    longer = {name: _appended(row, [added[name]] * len(answer[:-1])) for name, row in inputs.items()}
    return longer | {"input_ids": _appended(inputs["input_ids"], answer[:-1])}


def _appended(row: Tensor, numbers: Sequence[int]) -> Tensor:
    return torch.cat([row, row.new_tensor([list(numbers)])], dim=1) if numbers else row


def answer_tokens(answer: str, tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens of a given answer, or say which word the tokenizer does not have."""
    tokens = tuple(tokenizer(answer, add_special_tokens=False)["input_ids"])
    if not tokens:
        raise TargetError("got an empty answer; give the words that the model says, or let it answer itself")
    if tokenizer.unk_token_id in tokens:
        missing = [word for word in answer.split() if tokenizer.unk_token_id in tokenizer(word)["input_ids"]]
        named = repr(missing[0]) if missing else f"a part of {answer[:40]!r}"
        raise TargetError(f"the tokenizer does not have {named}; give an answer in words that it has")
    return tokens


def token_number(token: int | str, tokenizer: Any, vocabulary: int) -> int:
    """Return the number of a token, given as one or as the text it stands for."""
    if isinstance(token, int):
        if not 0 <= token < vocabulary:
            raise TargetError(f"got token {token}; the model has tokens 0 to {vocabulary - 1}")
        return token
    known = tokenizer.get_vocab()
    if token in known:
        return int(known[token])
    pieces = tokenizer(token, add_special_tokens=False)["input_ids"]
    if len(pieces) != 1 or pieces[0] == tokenizer.unk_token_id:
        made_of = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(pieces)))
        raise TargetError(f"the tokenizer does not have the token {token!r}; it makes {made_of or 'nothing'} of it")
    return int(pieces[0])


def split_words(tokens: Sequence[int], tokenizer: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Return the words of an answer, each with the places of its tokens; a word begins where white space does."""
    said = [str(tokenizer.decode(list(tokens[:count]))) for count in range(len(tokens) + 1)]
    pieces = [
        after[len(before) :] if after.startswith(before) else str(tokenizer.decode([tokens[place]]))
        for place, (before, after) in enumerate(pairwise(said))
    ]
    words: list[tuple[str, tuple[int, ...]]] = []
    for place, piece in enumerate(pieces):
        new = not words or piece[:1].isspace() or words[-1][0][-1:].isspace()
        if new:
            words.append((piece, (place,)))
        else:
            words[-1] = words[-1][0] + piece, (*words[-1][1], place)
    return [(word.strip(), places) for word, places in words]
