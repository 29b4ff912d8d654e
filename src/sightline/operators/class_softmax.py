"""A softmax over the maps of several classes, pixel by pixel: the arithmetic of VAR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Mode = Literal["divide", "multiply"]
Preset = Literal["text", "table", "recommended", "released"]
Variant = Literal["weight", "minus_all", "minus_rivals"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of the softmax over classes.

    Attributes:
        temperatures: the softmax is averaged over these.
        mode: maps are divided by a temperature, or multiplied by it.
        magnitude: the softmax is over absolute values instead of signed ones.
        threshold: by how much the probability of the target's class must exceed 1/K.
        joint: maps are first divided by their joint largest magnitude, so that their scale does not matter.
    """

    temperatures: tuple[float, ...] = (1, 5, 100)
    mode: Mode = "divide"
    magnitude: bool = False
    threshold: float = 0.0
    joint: bool = False


PRESETS: dict[Preset, Rules] = {
    "text": Rules(),
    "table": Rules(mode="multiply", magnitude=True, threshold=0.01),
    "recommended": Rules(mode="multiply", joint=True),
    "released": Rules(temperatures=(10,), mode="multiply", magnitude=True, threshold=0.01),
}


def class_distribution(maps: Tensor, rules: Rules, present: Tensor | None = None) -> Tensor:
    """Return q, the softmax over K maps, shape (K, …), averaged over the temperatures; in float64, summing to one.

    Where `present` is false, of a shape that fits the maps', a map takes no part.
    """
    values = maps.double().abs() if rules.magnitude else maps.double()
    softmaxes = []
    for temperature in rules.temperatures:
        scaled = _scaled(values, temperature, rules.mode)
        softmaxes.append((scaled if present is None else scaled.masked_fill(~present, -torch.inf)).softmax(dim=0))
    return torch.stack(softmaxes).mean(dim=0)


def share_and_excess(maps: Tensor, rules: Rules, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the probability of the first map's class at each pixel, and its excess over 1/K, both in float64.

    The excess is computed from differences of the maps, so equal maps give exactly zero and maps much smaller than a
    temperature are still told apart. Where `present` is false a map takes no part, and K is smaller.
    """
    values = maps.double().abs() if rules.magnitude else maps.double()
    share, excess = torch.zeros_like(values[0]), torch.zeros_like(values[0])
    differences = values[1:] - values[0]
    competing = len(maps) if present is None else present.sum(dim=0)
    for temperature in rules.temperatures:
        leads = torch.expm1(_scaled(differences, temperature, rules.mode))
        lead = (leads if present is None else leads.where(present[1:], 0.0)).sum(dim=0)  # sum of exp(z_k - z_0) - 1
        total = competing + lead  # sum of exp(z_k - z_0), so q_0 is 1/total and q_0 - 1/K is -lead / (K total)
        share += total.reciprocal()
        excess -= torch.where(lead.isinf(), 1.0, lead / total)
    return share / len(rules.temperatures), excess / (competing * len(rules.temperatures))


def _scaled(values: Tensor, temperature: float, mode: Mode) -> Tensor:
    return values / temperature if mode == "divide" else values * temperature


def contrasted(maps: Tensor, rules: Rules, present: Tensor | None = None, variant: Variant = "weight") -> Tensor:
    """Contrast the first of K maps, shape (K, layer, batch, height, width), with the others.

    Args:
        maps: the target's first.
        rules: of the softmax.
        present: (K, 1, batch, 1, 1), false where an image has fewer than K classes; a map without rivals stays.
        variant: see `Var`.
    """
    scaled = jointly_scaled(maps, rules)
    if variant != "weight":
        q = class_distribution(scaled, rules, present)
        first = 0 if variant == "minus_all" else 1
        return (maps[0].double() - (q[first:] * maps[first:].double()).sum(dim=0)).to(maps.dtype)
    share, excess = share_and_excess(scaled, rules, present)
    kept = excess > rules.threshold
    if present is not None:
        kept = kept | (present.sum(dim=0) == 1)
    return torch.where(kept, maps[0].double() * share, 0.0).to(maps.dtype)


def jointly_scaled(maps: Tensor, rules: Rules) -> Tensor:
    """Divide the maps of each image by their joint largest magnitude, if the rules say so."""
    if not rules.joint:
        return maps
    largest = maps.abs().amax(dim=(0, 1, 3, 4), keepdim=True)
    return maps / torch.where(largest > 0, largest, 1.0)
