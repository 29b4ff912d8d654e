"""Vision-language models of transformers: which part of the picture made it say this word.

The blocks are the layers of the language model, its tokens those of the text and of the picture. Methods are shown the
text tokens first and then the image tokens by rows, whatever order the model has them in; so the text is the prefix,
and the image tokens lie on a grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from sightline.errors import InputError, UnsupportedModel
from sightline.models.adapter import Adapter
from sightline.models.capture import ATTENTION_PLACES, Site, recorded_call
from sightline.models.facts import transformers_facts
from sightline.models.passes import setting, spend
from sightline.models.signature import Ending
from sightline.models.vision_language.image_formats import image_format
from sightline.models.vision_language.layout import Layout, layer_arguments, make_layout
from sightline.models.vision_language.prompt import (
    answer_tokens,
    split_words,
    text_inputs,
    token_number,
    tokenise,
    with_image_token,
)
from sightline.models.vision_language.token_order import inverse, rearranged, shown_order
from sightline.models.vit.adapter import Block, VisionTransformer, first_attribute, first_path
from sightline.models.vit.transformers import plain_attention
from sightline.types import TokenGrid

LONGEST = 24  # tokens of an answer, unless told otherwise
_USUAL = (224, 224)


class VisionLanguage(VisionTransformer):
    """A vision-language model that is asked about a picture.

    Its output is ``text``: the logits of every token at every place of the answer, given the picture, the prompt and
    the answer before that place. Without an answer it is those of the first token that the model would say. The adapter
    is that of one prompt and one answer; `asked`, `answering` and `with_answer` return another.

    Attributes:
        processor: transformers' processor of the model: its image processor and its tokenizer.
        prompt: what is asked, as it was given.
        answer_tokens: of the answer; empty where the model has not answered.
    """

    offers = frozenset({"gradient", "layers", "attention", "tokens", "language"})

    def __init__(self, model: Any, *, processor: Any, prompt: str, answer: str | None = None, **facts: Any) -> None:
        self.language: Any = first_path(model, ("model.language_model", "model.text_model"))
        if not hasattr(self.language, "layers") or not hasattr(model, "lm_head"):
            raise UnsupportedModel(
                f"sightline cannot read {type(model).__name__} yet; LLaVA, PaliGemma, Gemma 3, Qwen2.5-VL, Idefics3 "
                "and SmolVLM work, and adapt(model, forward=…) explains any model by its pixels"
            )
        self.processor = processor
        self.prompt = prompt
        self.format = image_format(model.config, processor)
        self._written = with_image_token(prompt, processor, str(model.config.model_type))
        self.answer_tokens = answer_tokens(answer, processor.tokenizer) if answer is not None else ()
        self._forget()
        described = transformers_facts(model, processor) | {"preprocess": self._preprocess, "labels": ()}
        size = _size(self._preprocess(_blank(_USUAL)))
        described |= {"input_size": size if self.format.fixed else None, "output": "text"}
        super().__init__(model, **described | facts)
        self.default_size = size
        self.blocks = tuple(_block(layer) for layer in self.language.layers)
        self.final_norm = self.language.norm

    # ---- questions and answers ----------------------------------------------------------------------------------

    def asked(self, prompt: str) -> Self:
        """Return the adapter of another prompt, without an answer."""
        written = with_image_token(prompt, self.processor, str(self.model.config.model_type))
        return self._changed(prompt=prompt, _written=written, answer_tokens=())

    def with_answer(self, answer: str | Sequence[int]) -> Self:
        """Return the adapter of an answer, given as a text or as tokens."""
        tokens = answer_tokens(answer, self.processor.tokenizer) if isinstance(answer, str) else tuple(answer)
        return self._changed(answer_tokens=tokens)

    def answering(self, images: Any, longest: int = LONGEST) -> Self:
        """Let the model answer about one image, always with its likeliest token; return the adapter of that answer.

        `images` is an image as `explain` takes it; `longest` is the number of tokens after which the answer is cut. It
        costs about a forward pass for each of them.
        """
        from sightline.models.inputs import as_batch

        batch = as_batch(self, images)
        if len(batch) != 1:
            raise InputError(f"got {len(batch)} images to answer about; give one, each may have its own answer")
        tokens = self._changed(answer_tokens=())._generate(batch, longest)
        return self._changed(answer_tokens=tokens)

    def _generate(self, batch: Tensor, longest: int) -> tuple[int, ...]:
        inputs = self._inputs(batch)
        length = inputs["input_ids"].shape[1]
        limit = min(longest, self._longest - length)
        if limit < 1:
            raise InputError(self._too_long(length + 1))
        with torch.no_grad(), self.evaluating(), self._as_it_was():
            said = self.model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=limit)
        spend(forward=said.shape[1] - length)
        tokens = said[0, length:].tolist()
        special = set(self.processor.tokenizer.all_special_ids)
        while len(tokens) > 1 and tokens[-1] in special:  # the end of the answer is no word
            tokens.pop()
        return tuple(tokens)

    @property
    def answer(self) -> str:
        """The answer in writing."""
        return self.written(self.answer_tokens)

    @property
    def words(self) -> list[tuple[str, tuple[int, ...]]]:
        """The words of the answer, each with the places of its tokens."""
        return split_words(self.answer_tokens, self.processor.tokenizer)

    @property
    def vocabulary(self) -> int:
        """How many tokens the model has a logit for."""
        return int(self.model.lm_head.weight.shape[0])

    def written(self, tokens: Sequence[int]) -> str:
        """Return tokens as text."""
        return str(self.processor.tokenizer.decode(list(tokens))).strip()

    def token_number(self, token: int | str) -> int:
        """Return the number of a token, or say that there is none."""
        return token_number(token, self.processor.tokenizer, self.vocabulary)

    def vocabulary_logits(self, hidden: Tensor, tokens: Sequence[int]) -> Tensor:
        """Return the logits of some tokens, (…, token), of what the final norm gives, (…, channel)."""
        head = self.model.lm_head
        bias = getattr(head, "bias", None)
        logits: Tensor = hidden @ head.weight[list(tokens)].T
        return logits if bias is None else logits + bias[list(tokens)]

    def context_tokens(self, size: tuple[int, int]) -> Tensor:
        """Return the numbers of the tokens before the image tokens as methods are shown them, (text token,)."""
        layout = self._layout(size)
        return layout.text["input_ids"][0][layout.positions[0, : layout.prefix]]

    # ---- facts --------------------------------------------------------------------------------------------------

    @property
    def image_token(self) -> int:
        """The number of the token that stands for a part of the picture."""
        return int(self.model.config.image_token_id)

    @property
    def places(self) -> int:
        """How many places of the answer have logits."""
        return max(1, len(self.answer_tokens))

    @property
    def ending(self) -> Ending:
        return Ending(None, self.places * self.vocabulary)

    @property
    def entry(self) -> Site:  # type: ignore[override]  # the order of the tokens is that of the prompt
        return Site(self.language.layers[0], "input", self._order)

    @cached_property
    def sites(self) -> Mapping[str, Site]:
        inside = {name: Site(site.module, site.place, self._order) for name, site in super().sites.items()}
        assert set(ATTENTION_PLACES) <= {name.rpartition(".")[2] for name in inside}
        return inside

    @property
    def patch(self) -> tuple[int, int]:  # type: ignore[override]  # it depends on the size of the image
        height, width = self._size or self.default_size
        grid = self._layout((height, width)).grid
        return height // grid[0], width // grid[1]

    @property
    def prefix(self) -> int:  # type: ignore[override]
        return self.prefix_of(self._size or self.default_size)

    def prefix_of(self, size: tuple[int, int]) -> int:
        """Return how many tokens have no place in an image of this size: those of the text."""
        return self._layout(size).prefix

    @property
    def pool(self) -> str:
        return "answer"

    @property
    def pooled_tokens(self) -> tuple[int, ...]:
        """The text tokens at which the tokens of the answer are predicted."""
        return tuple(range(self.prefix - self.places, self.prefix))

    def grid_for(self, size: tuple[int, int]) -> TokenGrid:
        return TokenGrid(*self._layout(size).grid, self.prefix_of(size), size)

    def check_size(self, size: tuple[int, int]) -> None:
        super().check_size(size)
        self._layout(size)

    def with_facts(self, **facts: Any) -> Self:
        changed = super().with_facts(**facts)
        changed._forget()
        return changed

    # ---- running ------------------------------------------------------------------------------------------------

    def interceptable(self) -> Any:
        return plain_attention(self.modules)

    def forward(self, images: Tensor) -> Any:
        inputs = self._inputs(images)
        with self._as_it_was():
            return self.model(**inputs, logits_to_keep=self.places, use_cache=False)

    def start(self, images: Tensor) -> Tensor:
        with recorded_call(self.language.layers[0]) as called:
            tokens = super().start(images)
        calls = self._calls.setdefault(_size(images), {})
        calls[self._kinds[0]] = called
        if len(calls) < len(set(self._kinds)):
            with ThreadPoolExecutor(1) as alone:  # captures and edits of this thread are none of that one's
                calls |= alone.submit(self._recorded, _size(images)).result()
            spend(forward=1)
        spend(forward=len(images) * (1 - self._language_share))
        return tokens

    @cached_property
    def _kinds(self) -> tuple[str, ...]:
        """How each layer attends: over all tokens before its own, or over a window of them."""
        said = getattr(self.language.config, "layer_types", None)
        return tuple(said or [""] * len(self.language.layers))[: len(self.language.layers)]

    def _recorded(self, size: tuple[int, int]) -> dict[str, dict[str, Any]]:
        """Return what the first layer of each kind is called with; one pass over a blank image, once for every size."""
        with ExitStack() as stack, torch.no_grad():
            calls = {
                kind: stack.enter_context(recorded_call(self.language.layers[self._kinds.index(kind)]))
                for kind in dict.fromkeys(self._kinds)
            }
            self.forward(torch.zeros(1, 3, *size, dtype=self.dtype, device=self.device))
        return calls

    def step(self, tokens: Tensor, index: int, keep: Tensor | None) -> Tensor:
        size = self._size or self.default_size
        if size not in self._calls:
            self.start(torch.zeros(1, 3, *size, dtype=self.dtype, device=self.device))
        positions = self._layout(size).kept(keep).to(tokens.device)
        self._shown = shown_order(positions)
        arguments = layer_arguments(
            self._calls[size][self._kinds[index]], positions.sort(dim=1).values if keep is not None else None
        )
        own = rearranged(tokens, inverse(self._shown), 1)
        output = self.language.layers[index](own, **arguments)
        return rearranged(output[0] if isinstance(output, tuple) else output, self._shown, 1)

    def run(self, tokens: Tensor, first: int = 0, last: int | None = None, *, keep: Tensor | None = None) -> Tensor:
        last = self.depth if last is None else last
        share = min(1.0, tokens.shape[1] / self.grid_for(self._size or self.default_size).tokens)
        for index in range(first, last):
            tokens = self.step(tokens, index, keep)
        spend(forward=self._language_share * share * len(tokens) * (last - first) / self.depth)
        return tokens

    def finish(self, tokens: Tensor) -> Tensor:
        prefix = self.prefix
        self._shown = torch.arange(tokens.shape[1], device=tokens.device)[None]  # the norm runs in the order shown
        predicting = self.language.norm(tokens)[:, prefix - self.places : prefix]
        return self.logits(self.model.lm_head(predicting))

    def remaining(self, site: str) -> float:
        share = super().remaining(site)
        return share if site == "image" else share * self._language_share

    # ---- tokens -------------------------------------------------------------------------------------------------

    def _order(self) -> Tensor:
        """Return where the tokens that methods are shown stand in the model's sequence, as it runs now."""
        return self._shown

    def _inputs(self, images: Tensor) -> dict[str, Tensor]:
        layout = self._layout(_size(images))
        self._shown = shown_order(layout.positions.to(images.device))
        texts = {name: row.to(images.device).expand(len(images), -1) for name, row in layout.text.items()}
        return texts | self.format.inputs(images)

    def _layout(self, size: tuple[int, int]) -> Layout:
        """Return what is read beside images of this size, made once."""
        if size not in self._layouts:
            self._layouts[size] = self._made_layout(size)
        return self._layouts[size]

    def _made_layout(self, size: tuple[int, int]) -> Layout:
        made = _size(self._preprocess(_blank(size)))
        if made != size:
            raise InputError(
                f"got images of {size[0]}×{size[1]} pixels; the processor of {self.name} makes them "
                f"{made[0]}×{made[1]}: give PIL images and let the model's own preprocessing do it"
            )
        text = text_inputs(
            tokenise(self._written, self.processor, size), self.answer_tokens, str(self.model.config.model_type)
        )
        is_image = text["input_ids"][0] == self.image_token
        if is_image[-self.places :].any():
            raise InputError(f"the prompt {self.prompt[:40]!r} ends with the picture; write the question behind it")
        if len(is_image) > self._longest:
            raise InputError(self._too_long(len(is_image)))
        return make_layout(text, is_image, self.format, size)

    @property
    def _longest(self) -> int:
        return int(getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 2**31)

    def _too_long(self, count: int) -> str:
        return (
            f"picture, prompt and answer have {count} tokens and {self.name} reads {self._longest}; shorten the "
            "prompt, or give a smaller picture"
        )

    @cached_property
    def _language_share(self) -> float:
        """The share of the parameters that a pass through the language model uses."""
        after = sum(p.numel() for module in (self.language.layers, self.model.lm_head) for p in module.parameters())
        before = first_attribute(self.model.model, ("vision_tower", "visual", "vision_model"))
        return after / (after + sum(p.numel() for p in before.parameters())) if before is not None else 1.0

    def _preprocess(self, picture: Any) -> Tensor:
        pictures = self.processor.image_processor
        extra = {"return_row_col_info": True} if hasattr(pictures, "do_image_splitting") else {}
        return self.format.pixels(pictures(images=[picture], return_tensors="pt", **extra))

    def _changed(self, **attributes: Any) -> Self:
        changed = copy(self)
        vars(changed).update(attributes)
        changed._forget()
        changed.preprocess = changed._preprocess if self.preprocess == self._preprocess else self.preprocess
        return changed

    def _forget(self) -> None:
        """Drop what was worked out for another prompt or answer."""
        self._layouts: dict[tuple[int, int], Layout] = {}
        self._calls: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}  # by size, and by how a layer attends
        self._shown = torch.zeros(1, 0, dtype=torch.long)
        self._width, self._shape = None, ()
        vars(self).pop("sites", None)

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """Give back what Qwen-VL notes on itself of the last picture it saw."""
        noting = [module for module in self.modules if "rope_deltas" in vars(module)]
        with setting("rope_deltas", None, noting):
            yield


def _block(layer: Any) -> Block:
    return Block(
        layer,
        attention=layer.self_attn,
        norm1=layer.input_layernorm,
        norm2=first_attribute(layer, ("pre_feedforward_layernorm", "post_attention_layernorm")),
        mlp=layer.mlp,
        projection=getattr(layer.self_attn, "o_proj", None),
    )


def _size(images: Tensor) -> tuple[int, int]:
    return images.shape[-2], images.shape[-1]


def _blank(size: tuple[int, int]) -> Any:
    from PIL import Image

    return Image.new("RGB", (size[1], size[0]))


def recognise(model: nn.Module, facts: dict[str, Any]) -> Adapter | None:
    """Adapt a vision-language model of transformers with its processor and a prompt."""
    config = getattr(model, "config", None)
    talks = type(model).__name__.endswith("ForConditionalGeneration") and hasattr(model, "lm_head")
    if not talks or not hasattr(config, "vision_config") or not hasattr(config, "image_token_id"):
        return None
    if facts.get("processor") is None or facts.get("prompt") is None:
        raise UnsupportedModel(
            f"{type(model).__name__} answers questions about a picture; call adapt(model, processor=…, prompt=…) with "
            "transformers' processor for it and a question"
        )
    return VisionLanguage(model, **facts)
