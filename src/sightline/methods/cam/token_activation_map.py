"""Token Activation Map: where a vision-language model's image tokens already hold the word that it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError, UnsupportedMethod, UnsupportedModel
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.vision_language.adapter import VisionLanguage
from sightline.registry import METHODS
from sightline.targets.words import Word
from sightline.types import Attribution, Passes, PerImage, Target, TokenGrid


@METHODS.register(
    "token_activation_map",
    family="cam",
    cite="li2025tam",
    cost="1 forward",
    needs=("language",),
    parity="the formula written out with loops on a random model, 1e-5; not run against the authors' code",
)
@dataclass(frozen=True, slots=True)
class TokenActivationMap(MultiTarget):
    r"""Token Activation Map (TAM): the logit of the said token at every image token, less what earlier words explain.

    .. math:: a^{(t)}_i = \mathrm{ReLU}(h_i \cdot W_{y_t}), \qquad
        A = \mathrm{ReLU}\Bigl(a^{(t)} - s \sum_{j < t} w_j\, a^{(j)}\Bigr), \qquad
        w_j \propto \mathrm{ReLU}(h_j \cdot W_{y_t})

    where :math:`h` are the language model's tokens after its last norm, :math:`W` the rows of its output layer, and s
    the number that makes the difference smallest in the least-squares sense. The sum runs over the tokens of prompt and
    answer before the word that are other tokens than it: what the picture says of them interferes with the word's own
    map. The map is then smoothed by a rank filter: of each window, sorted, the mean under a Gaussian around the median
    whose width is the window's standard deviation over its mean. A word of several tokens is the sum of their maps. No
    gradient is taken, and the map is never negative.

    Attributes:
        variant: "causal" as above, or "activation" for the logits alone, with nothing subtracted.
        window: side of the rank filter's window in image tokens, an odd number; 1 leaves the map as it is.
    """

    variant: Literal["causal", "activation"] = "causal"
    window: int = 3

    def __post_init__(self) -> None:
        if self.window < 1 or self.window % 2 == 0:
            raise RecipeError(f"got window={self.window}; give an odd number, 1 for no filter")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if not isinstance(model, VisionLanguage):
            raise UnsupportedModel(f"token_activation_map needs a vision-language model; {model.name} is none, use ixg")
        words = [_words(target, len(images)) for target in targets]
        with torch.no_grad(), model.capture("norm") as seen:
            model(images)
        grid = model.grid_of(images)
        maps = [self._maps(model, seen["norm"], of_target, grid) for of_target in words]
        return [Attribution(values[None], grid) for values in maps]

    def _maps(self, model: VisionLanguage, hidden: Tensor, words: Sequence[Word], grid: TokenGrid) -> Tensor:
        """Return the maps of one word per image, (batch, height, width)."""
        rows = []
        for row, word in enumerate(words):
            places = zip(word.places, word.tokens, strict=True)
            tokens = [self._token(model, hidden[row], place, token, grid) for place, token in places]
            rows.append(torch.stack(tokens).sum(dim=0))
        return torch.stack(rows)

    def _token(self, model: VisionLanguage, hidden: Tensor, place: int, token: int, grid: TokenGrid) -> Tensor:
        """Return the map of one token of the answer, (height, width)."""
        before = grid.prefix - model.places + place + 1  # the text tokens that come before it
        context = model.context_tokens(grid.image)[:before].tolist()
        earlier = [j for j, other in enumerate(context) if other not in (token, model.image_token)]
        logits = model.vocabulary_logits(hidden, [token, *(context[j] for j in earlier)]).relu()
        own, others = logits[grid.prefix :, 0], logits[grid.prefix :, 1:]
        if self.variant == "causal" and earlier:
            own = without_interference(own, others, logits[earlier, 0])
        return rank_filtered(own.reshape(grid.height, grid.width), self.window)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1)


def without_interference(own: Tensor, others: Tensor, weights: Tensor) -> Tensor:
    """Subtract the weighted mean of other maps, (cell, map), from one, (cell,), scaled to fit it best."""
    interference = others @ (weights / weights.sum().clamp(min=torch.finfo(own.dtype).tiny))
    size = interference @ interference
    scale = torch.where(size > 0, (own @ interference) / size.clamp(min=torch.finfo(own.dtype).tiny), 0.0)
    return (own - scale * interference).relu()


def rank_filtered(values: Tensor, window: int) -> Tensor:
    """Return a map, (height, width), each cell the Gaussian mean around the median of its window, borders repeated."""
    if window == 1:
        return values
    pad = window // 2
    padded = F.pad(values[None, None], (pad, pad, pad, pad), mode="replicate")[0, 0]
    cells = padded.unfold(0, window, 1).unfold(1, window, 1).flatten(2).sort(dim=-1).values
    mean, deviation = cells.mean(dim=-1, keepdim=True), cells.std(dim=-1, correction=0, keepdim=True)
    width = torch.where(mean > 0, deviation / mean, torch.zeros_like(mean)).clamp(min=1e-3)  # the median itself
    distance = torch.arange(window**2, device=values.device) - window**2 // 2
    weights = (-(distance**2) / (2 * width**2)).softmax(dim=-1)
    return (cells * weights).sum(dim=-1)


def _words(target: Target, count: int) -> list[Word]:
    """Return the word of each image."""
    each = list(target.targets) if isinstance(target, PerImage) else [target] * count
    words = [word for word in each if isinstance(word, Word)]
    if len(words) != len(each):
        raise UnsupportedMethod(
            f"token_activation_map explains a word of the answer; got {type(target).__name__} as a target, give "
            "Word(…), or use ixg"
        )
    return words
