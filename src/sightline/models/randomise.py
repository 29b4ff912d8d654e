"""Cascading randomisation: the layers of a copied model are re-initialised one by one, from output to input.

A map that explains a model must change when the model does :cite:p:`adebayo2018`. The copy is the library's own; the
user's model, its random numbers and its buffers stay as they are.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from sightline.errors import InputError, RecipeError, SightlineError, UnsupportedModel
from sightline.models.adapter import Adapter
from sightline.models.inputs import adapt
from sightline.models.vit.zero_shot import ZeroShot

Order = Literal["execution", "quantus"]
Statistics = Literal["keep", "reset"]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Parameters that are re-initialised together: those that one module holds itself, or one of them.

    Attributes:
        name: of the module or the parameter, as the model calls it.
        module: the module, of the copy.
        tensors: names of its parameters, and of its running statistics where they are reset.
    """

    name: str
    module: nn.Module
    tensors: tuple[str, ...]


class Cascade:
    """A copy of a model whose layers are re-initialised cumulatively, the last to run first.

    A layer is a module with parameters of its own. It is drawn anew by its own ``reset_parameters``, torch's default
    for its type; what no reset reaches, such as class tokens and position embeddings, is shuffled, which keeps its
    distribution and nothing else. All draws come from one generator in single precision on the CPU, so
    they are the same on every device and in every precision.

    The order is that of the last use in a forward pass. Layers whose use cannot be seen are randomised with the last.

    Attributes:
        model: the adapter of the copy; it changes as the cascade goes on.
        layers: in the order in which they are randomised.
        done: how many of them are random by now.
    """

    def __init__(
        self,
        model: Adapter,
        images: Tensor,
        *,
        seed: int = 0,
        order: Order = "execution",
        statistics: Statistics = "keep",
    ) -> None:
        """Copy the model.

        Args:
            model: what is copied.
            images: one of them runs through the copy, to see in which order its layers are used.
            seed: of all draws.
            order: ``execution``; or ``quantus``, the modules with ``reset_parameters`` in the reverse order of their
                declaration, the generator set to seed + 1 before each, and statistics reset with the rest: what
                Quantus' MPRT does, with seed 42 by default.
            statistics: what happens to the running mean and variance of batch norms when their layer is randomised.
        """
        check_cascade(order, statistics)
        self.model = copied(model)
        self._seed, self._order = seed, order
        self._generator = torch.Generator().manual_seed(seed)
        self.layers, self._hidden = (
            (_declared(self.model.model), ())
            if order == "quantus"
            else _executed(self.model, images, statistics == "reset")
        )
        self.done = 0
        if not self.layers:
            raise UnsupportedModel(f"{model.name} has no parameters to randomise; it cannot be checked this way")

    def __len__(self) -> int:
        return len(self.layers)

    def upto(self, count: int) -> Adapter:
        """Randomise further layers until `count` are random; return the adapter of the copy."""
        if not self.done <= count <= len(self.layers):
            raise InputError(
                f"got {count} layers of {len(self.layers)} with {self.done} random already; a cascade only goes on"
            )
        for layer in self.layers[self.done : count]:
            self._randomise(layer)
        if self.done < count == len(self.layers):
            for layer in self._hidden:
                self._randomise(layer)
        self.done = count
        return self.model

    def _randomise(self, layer: Layer) -> None:
        if self._order == "quantus":
            self._generator.manual_seed(self._seed + 1)
        fresh = _reset(layer, self._generator)
        with torch.no_grad():
            for name in layer.tensors:
                kept: Tensor = getattr(layer.module, name)
                new = fresh[name].to(kept) if name in fresh else kept
                if self._order == "execution" and torch.equal(new, kept):  # there was no reset, or it passed this by
                    new = _shuffled(kept, self._generator)
                kept.copy_(new)


def check_cascade(order: str, statistics: str) -> None:
    """Refuse an unknown order, or an unknown treatment of statistics."""
    if order not in get_args(Order):
        raise RecipeError(f"got the order {order!r}; choose from {', '.join(get_args(Order))}")
    if statistics not in get_args(Statistics):
        raise RecipeError(f"got statistics={statistics!r}; choose from {', '.join(get_args(Statistics))}")


def counts(stages: int | tuple[float, ...] | None, layers: int) -> list[int]:
    """Return how many of the layers are random at each stage.

    `stages` is a number of even stages, the shares of the layers themselves, or None for every single layer. Stages
    that would randomise nothing new are left out.

    >>> counts(4, 10), counts((0.05, 1.0), 10), counts(None, 3)
    ([2, 5, 8, 10], [1, 10], [1, 2, 3])
    """
    if stages is None:
        return list(range(1, layers + 1))
    shares = [(stage + 1) / stages for stage in range(stages)] if isinstance(stages, int) else stages
    return sorted({max(1, round(share * layers)) for share in shares})


def check_stages(stages: int | tuple[float, ...] | None) -> None:
    """Refuse stages that are no stages."""
    wrong = stages < 1 if isinstance(stages, int) else stages is not None and not _rising(stages)
    if wrong:
        raise RecipeError(
            f"got stages={stages}; give how many, or the shares of the layers in rising order, such as (0.5, 1.0), "
            "or None for every layer"
        )


def _rising(shares: tuple[float, ...]) -> bool:
    return bool(shares) and all(a < b for a, b in zip((0.0, *shares), shares, strict=False)) and shares[-1] <= 1


# ---- the copy ------------------------------------------------------------------------------------------------------


def copied(model: Adapter) -> Adapter:
    """Return an adapter of a copy of the model in eval mode; the two share no parameter and no buffer."""
    if not isinstance(model.model, nn.Module):
        raise UnsupportedModel(
            f"{model.name} is a function, whose weights cannot be seen; give the nn.Module to randomise its layers"
        )
    memo: dict[int, Any] = {}
    for module in model.model.modules():
        for value in vars(module).values():  # what a weight norm made is no leaf, and torch would refuse to copy it
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        module = copy.deepcopy(model.model, memo)
    except (RuntimeError, TypeError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise UnsupportedModel(
            f"{model.name} cannot be copied, so its layers cannot be randomised: {reason}"
        ) from error
    return _readapted(model, module.eval())


def _readapted(model: Adapter, module: nn.Module) -> Adapter:
    """Return the same kind of adapter for another module; closures of the old one would run the old module."""
    if isinstance(model, ZeroShot):
        inner: Any = _readapted(model.inner, module)
        tower = ZeroShot(inner, model.labels, model.embeddings)
        return tower.with_facts(**model.facts)
    again = adapt(module, **model.facts)
    if type(again) is type(model):
        return again
    try:
        return type(model)(module, **model.facts)
    except TypeError as error:
        raise UnsupportedModel(
            f"{type(model).__name__} cannot be made for a copy of {model.name}; "
            "enter the adapter with register_family, so that adapt() finds it"
        ) from error


# ---- the order -----------------------------------------------------------------------------------------------------


def _declared(model: nn.Module) -> tuple[Layer, ...]:
    """Return the modules that can reset themselves, the last declared first, with everything they hold."""
    layers = []
    for name, module in model.named_modules():
        if hasattr(module, "reset_parameters"):
            held = [*module._parameters.items(), *module._buffers.items()]
            layers.append(Layer(name, module, tuple(own for own, tensor in held if tensor is not None)))
    return tuple(reversed(layers))


def _executed(model: Adapter, images: Tensor, statistics: bool) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """Return the layers by their last use, the latest first, and those whose use was not seen."""
    layers = list(_layers(model.model, statistics))
    owners = {id(getattr(layer.module, name)): index for index, layer in enumerate(layers) for name in layer.tensors}
    uses = _Uses(owners)
    with torch.inference_mode(False), torch.no_grad(), uses:
        model.forward(images[:1])
    if not uses.last:  # a scripted module shows nothing; the declaration is the best guess
        return tuple(reversed(layers)), ()
    latest_first = sorted(uses.last, key=lambda index: (-uses.last[index], -index))
    unseen = tuple(layer for index, layer in enumerate(layers) if index not in uses.last)
    return tuple(layers[index] for index in latest_first), unseen


def _layers(model: nn.Module, statistics: bool) -> Iterator[Layer]:
    """Split a model into layers; a tensor that two modules share belongs to the first."""
    taken: set[int] = set()
    for path, module in model.named_modules():
        own = [name for name, tensor in module._parameters.items() if tensor is not None and id(tensor) not in taken]
        taken |= {id(getattr(module, name)) for name in own}
        if statistics and isinstance(module, _NormBase) and module.running_mean is not None:
            own += ["running_mean", "running_var"]
        if not own:
            continue
        if _resetter(module) is not None:
            yield Layer(path or type(module).__name__, module, tuple(own))
        else:  # each by itself: they may be used at different depths
            yield from (Layer(f"{path}.{name}".lstrip("."), module, (name,)) for name in own)


class _Uses(TorchFunctionMode):
    """Record the last call that uses each layer; `owners` maps the id of a tensor to its layer's index."""

    def __init__(self, owners: dict[int, int]) -> None:
        super().__init__()
        self.last: dict[int, int] = {}
        self._owners = owners
        self._clock = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(True for _ in _tensors(result)):  # asking for a shape or a type is no use
            self._clock += 1
            for tensor in _tensors([*args, *(kwargs or {}).values()]):
                if (index := self._owners.get(id(tensor))) is not None:
                    self.last[index] = self._clock
        return result


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


# ---- the draw ------------------------------------------------------------------------------------------------------


def _resetter(module: nn.Module) -> Callable[[], None] | None:
    """Return the module's own reset, if it has one that needs no arguments."""
    name = "_reset_parameters" if isinstance(module, nn.MultiheadAttention) else "reset_parameters"
    reset = getattr(module, name, None)
    if not callable(reset):
        return None
    parameters = inspect.signature(reset).parameters.values()
    needed = any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return None if needed else reset


def _reset(layer: Layer, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the layer's tensors as its module initialises them, on a copy; nothing where it cannot."""
    if _resetter(layer.module) is None:
        return {}
    initialised = copy.deepcopy(layer.module).to("cpu", torch.float32)
    reset = _resetter(initialised)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.set_rng_state(generator.get_state())
        try:
            reset and reset()
        except (SightlineError, TypeError, AttributeError, NotImplementedError):
            return {}
        generator.set_state(torch.get_rng_state())
    return {name: getattr(initialised, name) for name in layer.tensors}


def _shuffled(values: Tensor, generator: torch.Generator) -> Tensor:
    """Return a tensor with its values in another order."""
    order = torch.randperm(values.numel(), generator=generator).to(values.device)
    return values.flatten()[order].view_as(values)
