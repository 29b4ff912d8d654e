"""Tiny vision-language models of every supported family, with their processors, built with random weights.

`FAMILIES` maps a name to a function that returns a model in eval mode and its processor; `picture` draws what they see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image
from tests.models.families_vit import randomised

from sightline.extras import require

WORDS = ["what", "is", "on", "the", "table", "?", "a", "cup", "cat", "dog", "red", "blue", "of", "and", "it", "shows"]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<image>", "<end_of_utterance>", "<fake_token_around_image>"]
SPECIAL += ["<global-img>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
SPECIAL += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
QUESTION = "what is on the table ?"
ANSWER = "a red cup"

_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_VISION = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
_TEMPLATE = (
    "{% for message in messages %}user : {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE {% else %}{{ part['text'] }} {% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}answer :{% endif %}"
)


def tokenizer(**added: Any) -> Any:
    """Return a tokenizer of whole words."""
    tokenizers = require("tokenizers")
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *WORDS, "user", "answer", ":", "\n"])}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="<unk>")
    words = tokenizers.Tokenizer(model)
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\n|[^\s]+"), "removed", invert=True)
    words.add_special_tokens(SPECIAL)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    made = require("transformers").PreTrainedTokenizerFast(tokenizer_object=words, **names, **added)
    made.model_input_names = ["input_ids", "attention_mask"]
    return made


def _number(words: Any, token: str) -> int:
    return int(words.convert_tokens_to_ids(token))


def llava() -> tuple[Any, Any]:
    transformers = require("transformers")
    words = tokenizer()
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**_VISION),
        text_config=transformers.LlamaConfig(vocab_size=len(words), **_TEXT),
        image_token_id=_number(words, "<image>"),
        image_seq_length=16,
    )
    pictures = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor = transformers.LlavaProcessor(
        pictures, words, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=_TEMPLATE.replace("IMAGE", "<image>"),
    )  # fmt: skip
    return randomised(transformers.LlavaForConditionalGeneration(config)), processor


def paligemma() -> tuple[Any, Any]:
    transformers = require("transformers")
    words = tokenizer()
    pictures = transformers.SiglipImageProcessor(size={"height": 32, "width": 32})
    pictures.image_seq_length = 16
    processor = transformers.PaliGemmaProcessor(pictures, words)
    config = transformers.PaliGemmaConfig(
        vision_config=transformers.SiglipVisionConfig(**_VISION, vision_use_head=False),
        text_config=transformers.GemmaConfig(vocab_size=len(words), head_dim=8, **_TEXT),
        image_token_id=_number(words, "<image>"),
        projection_dim=32,
    )
    return randomised(transformers.PaliGemmaForConditionalGeneration(config)), processor


def gemma3() -> tuple[Any, Any]:
    """Layers that attend to a window of tokens, and layers that attend to all; patches are pooled by fours."""
    transformers = require("transformers")
    words = tokenizer(
        extra_special_tokens={
            "image_token": "<|image_pad|>", "boi_token": "<|vision_start|>", "eoi_token": "<|vision_end|>",
        }
    )  # fmt: skip
    config = transformers.Gemma3Config(
        vision_config=transformers.SiglipVisionConfig(**_VISION | {"image_size": 64}, vision_use_head=False),
        text_config=transformers.Gemma3TextConfig(
            vocab_size=len(words), head_dim=8, sliding_window=6, **_TEXT,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        mm_tokens_per_image=16,
        image_token_index=_number(words, "<|image_pad|>"),
        boi_token_index=_number(words, "<|vision_start|>"),
        eoi_token_index=_number(words, "<|vision_end|>"),
    )  # fmt: skip
    pictures = transformers.Gemma3ImageProcessor(size={"height": 64, "width": 64})
    template = _TEMPLATE.replace("IMAGE", "<|vision_start|>")
    processor = transformers.Gemma3Processor(pictures, words, chat_template=template, image_seq_length=16)
    return randomised(transformers.Gemma3ForConditionalGeneration(config)), processor


def qwen() -> tuple[Any, Any]:
    transformers = require("transformers")
    words = tokenizer()
    config = transformers.Qwen2_5_VLConfig(
        vision_config={
            "depth": 2, "hidden_size": 24, "intermediate_size": 32, "num_heads": 2, "patch_size": 4,
            "out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1], "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        text_config={
            "vocab_size": len(words), **_TEXT,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
        },
        image_token_id=_number(words, "<|image_pad|>"), video_token_id=_number(words, "<|video_pad|>"),
        vision_start_token_id=_number(words, "<|vision_start|>"), vision_end_token_id=_number(words, "<|vision_end|>"),
    )  # fmt: skip
    sizes = {"size": {"shortest_edge": 16 * 16, "longest_edge": 64 * 64}, "patch_size": 4, "merge_size": 2}
    pictures = transformers.Qwen2VLImageProcessor(**sizes, temporal_patch_size=2)
    films = transformers.Qwen2VLVideoProcessor(**sizes, temporal_patch_size=2)
    template = _TEMPLATE.replace("IMAGE", "<|vision_start|> <|image_pad|> <|vision_end|>")
    processor = transformers.Qwen2_5_VLProcessor(pictures, words, films, chat_template=template)
    return randomised(transformers.Qwen2_5_VLForConditionalGeneration(config)), processor


def idefics(*, split: bool = False) -> tuple[Any, Any]:
    transformers = require("transformers")
    words = tokenizer()
    config = transformers.Idefics3Config(
        vision_config=_VISION,
        text_config=transformers.LlamaConfig(vocab_size=len(words), **_TEXT),
        image_token_id=_number(words, "<image>"),
        scale_factor=2,
        pad_token_id=0,
    )
    pictures = transformers.Idefics3ImageProcessor(
        size={"longest_edge": 64 if split else 32}, max_image_size={"longest_edge": 32}, do_image_splitting=split
    )
    template = _TEMPLATE.replace("IMAGE", "<image>")
    processor = transformers.Idefics3Processor(pictures, words, image_seq_len=4, chat_template=template)
    return randomised(transformers.Idefics3ForConditionalGeneration(config)), processor


def idefics_in_tiles() -> tuple[Any, Any]:
    return idefics(split=True)


def smolvlm() -> tuple[Any, Any]:
    transformers = require("transformers")
    words = tokenizer()
    config = transformers.SmolVLMConfig(
        vision_config=_VISION,
        text_config=transformers.LlamaConfig(vocab_size=len(words), **_TEXT),
        image_token_id=_number(words, "<image>"),
        scale_factor=2,
        pad_token_id=0,
    )
    pictures = transformers.Idefics3ImageProcessor(
        size={"longest_edge": 32}, max_image_size={"longest_edge": 32}, do_image_splitting=False
    )
    processor = transformers.Idefics3Processor(
        pictures, words, image_seq_len=4, chat_template=_TEMPLATE.replace("IMAGE", "<image>")
    )
    return randomised(transformers.SmolVLMForConditionalGeneration(config)), processor


FAMILIES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "llava": llava,
    "paligemma": paligemma,
    "gemma3": gemma3,
    "qwen": qwen,
    "idefics": idefics,
    "idefics_in_tiles": idefics_in_tiles,
    "smolvlm": smolvlm,
}


def picture(width: int = 48, height: int = 32, seed: int = 0) -> Image.Image:
    """Draw noise."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))
