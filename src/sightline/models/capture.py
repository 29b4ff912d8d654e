"""Capture the activations at named sites of a model while it runs.

A *site* is a named place: the tokens that enter or leave a block, a norm's or an MLP's output, the queries, keys,
values, scores and probabilities of an attention, the output of any module of a CNN. Module sites are read with
forward hooks. Attention is read by intercepting the attention call itself (`torch.overrides.TorchFunctionMode`), only
inside the ``with``: the fused kernel is replaced by its explicit form, whichever library made the call, and no flag is
set on any module. Both work in the thread that opened the ``with``: another that runs the model meanwhile gets what it
always gets. Everything is undone on every path.

This file and `edit.py` are the only two that register hooks.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sightline.errors import SiteError
from sightline.models.passes import undoing
from sightline.models.vision_language.token_order import inverse, rearranged
from sightline.models.vit.multi_head import multi_head

Change = Callable[[Tensor], Tensor]
Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]
ATTENTION_PLACES = ("q", "k", "v", "scores", "probabilities", "context")
PAIRS = ("scores", "probabilities", "mask")  # places that hold a number for every pair of tokens
INSIDE_ATTENTION = (*ATTENTION_PLACES, "mask")  # a mask can be changed where there is one, not captured


@dataclass(frozen=True, eq=False)
class Site:
    """A place in a model: the input or output of a module, or a place inside an attention.

    Attributes:
        module: the module whose call is watched.
        place: input, output, or one of q, k, v, scores, probabilities, context (the heads' outputs); or mask, what the
            attention adds to its scores.
        order: returns the order in which its tokens are shown, (1 or batch, token) of their numbers in the model; None
            for the model's own.
    """

    module: nn.Module
    place: str = "output"
    order: Callable[[], Tensor] | None = None


@contextmanager
def capture(sites: Mapping[str, Site], *, gradient: bool = False) -> Iterator[Mapping[str, Tensor]]:
    """Record each site's tensor, by name, while the model runs once.

    With `gradient` the pass builds an autograd graph in which every recorded tensor has a gradient, whether or not the
    model's parameters or the images ask for one; without it recorded tensors are detached copies.
    """
    seen: dict[str, Tensor] = {}

    def recorder(name: str) -> Change:
        def record(value: Tensor) -> Tensor:
            if name in seen:
                raise SiteError(f"the site {name!r} ran twice in one capture; open one capture per forward pass")
            if gradient and not value.requires_grad:
                value = value.detach().requires_grad_()
            seen[name] = value if gradient else value.detach().clone()
            # the next call may write in place (a ReLU after a batch norm): it gets a copy, the original is kept;
            # probabilities are large, and multiplied with the values next
            return value.clone() if gradient and sites[name].place != "probabilities" else value

        return record

    with ExitStack() as stack:
        if gradient:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
        stack.enter_context(watch(sites, {name: recorder(name) for name in sites}))
        yield MappingProxyType(seen)


@contextmanager
def watch(sites: Mapping[str, Site], changes: Mapping[str, Change]) -> Iterator[None]:
    """Pass each site's tensor through its change while the model runs; changes at one site run in order of opening."""
    with ExitStack() as stack:
        for name, change in changes.items():
            stack.enter_context(_watch_site(sites[name], change))
        if any(sites[name].place in INSIDE_ATTENTION for name in changes):
            stack.enter_context(_AttentionMode())
        yield


@contextmanager
def attend(changes: Mapping[nn.Module, Attend]) -> Iterator[None]:
    """Replace the attention of each module by a function: (queries, keys, values, scale) -> the heads' outputs.

    All are (batch, head, token, channel). The queries may attend to whatever the function likes; the projections around
    the attention stay the module's own. Of several replacements the one opened last applies.
    """
    with ExitStack() as stack:
        for module, function in changes.items():
            stack.enter_context(_intercept(module, "attend", function))
        stack.enter_context(_AttentionMode())
        yield


@contextmanager
def _watch_site(site: Site, change: Change) -> Iterator[None]:
    if site.order is not None:
        change = _in_order(change, site.order, (-2, -1) if site.place in PAIRS else (-2,))
    if site.place in INSIDE_ATTENTION:
        with _intercept(site.module, site.place, change):
            yield
        return
    hook = _here_only(_on_input(change) if site.place == "input" else _on_output(change))
    with undoing(partial(_unhook, site.module, hook)):
        if site.place == "input":
            site.module.register_forward_pre_hook(hook, with_kwargs=True)
        else:
            site.module.register_forward_hook(hook)
        yield


def _in_order(change: Change, order: Callable[[], Tensor], axes: tuple[int, ...]) -> Change:
    """Let a change see tokens in another order than the model's."""

    def changed(value: Tensor) -> Tensor:
        shown = order()
        for axis in axes:
            value = rearranged(value, shown, axis)
        value = change(value)
        for axis in axes:
            value = rearranged(value, inverse(shown), axis)
        return value

    return changed


@contextmanager
def recorded_call(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Record the named arguments that a module is called with, the last time it runs."""
    called: dict[str, Any] = {}
    hook = _here_only(lambda _module, _args, named: called.update(named))
    with undoing(partial(_unhook, module, hook)):
        module.register_forward_pre_hook(hook, with_kwargs=True)
        yield called


def _unhook(module: nn.Module, hook: Callable[..., Any]) -> None:
    """Take a hook off a module, if it is still there; unlike torch's handle, it is known before the hook is."""
    tables = ((module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
              (module._forward_hooks, module._forward_hooks_with_kwargs))  # fmt: skip
    for hooks, with_kwargs in tables:
        for key in [key for key, other in hooks.items() if other is hook]:
            del hooks[key]
            with_kwargs.pop(key, None)


def _here_only(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Let a hook run in this thread alone."""
    thread = threading.get_ident()
    return lambda *call: hook(*call) if threading.get_ident() == thread else None


def _on_input(change: Change) -> Callable[..., Any]:
    def hook(
        _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        key = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
        return args, {**kwargs, key: change(kwargs[key])}

    return hook


def _on_output(change: Change) -> Callable[..., Any]:
    def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    return hook


class _State(threading.local):
    """Per thread: the attention modules now running, outermost first, and what is to be done in each."""

    def __init__(self) -> None:
        self.running: list[nn.Module | None] = []
        self.interceptors: WeakKeyDictionary[nn.Module, _Interceptors] = WeakKeyDictionary()


_Interceptors = list[tuple[str, Callable[..., Tensor]]]
_state = _State()


@contextmanager
def _intercept(module: nn.Module, place: str, change: Callable[..., Tensor]) -> Iterator[None]:
    """Add a change to the interceptors of one attention module, and track when that module runs."""
    entry = (place, change)
    entering = _here_only(lambda running, _args: _state.running.append(running))
    leaving = _here_only(lambda *_: _state.running.pop() and None)
    with undoing(
        partial(_forget, module, entry),
        partial(_state.running.__delitem__, slice(len(_state.running), None)),
        partial(_unhook, module, entering),
        partial(_unhook, module, leaving),
    ):
        _state.interceptors.setdefault(module, []).append(entry)
        module.register_forward_pre_hook(entering)
        module.register_forward_hook(leaving)
        yield


def _forget(module: nn.Module, entry: tuple[str, Callable[..., Tensor]]) -> None:
    """Take a change out of the interceptors of a module, if it is still among them."""
    left = [other for other in _state.interceptors.pop(module, []) if other is not entry]
    if left:
        _state.interceptors[module] = left


class _AttentionMode(TorchFunctionMode):
    """Compute attention explicitly where it is intercepted; leave every other call as it is.

    Only the innermost of several open modes gets a call, and it applies the interceptors of all of them.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        running = _state.running[-1] if _state.running else None
        interceptors = _state.interceptors.get(running) if running is not None else None
        if not interceptors:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            with _not_intercepted():
                return _explicit_attention(interceptors, *args, **kwargs)
        if func is F.multi_head_attention_forward:
            with _not_intercepted():
                return _multi_head(interceptors, args, kwargs)
        if func in _SOFTMAX and args and args[0].ndim == 4:
            with _not_intercepted():
                return _softmax(interceptors, func, args, kwargs)
        return func(*args, **kwargs)


@contextmanager
def _not_intercepted() -> Iterator[None]:
    """Hide the explicit softmax from the modes around this one."""
    depth = len(_state.running)
    _state.running.append(None)
    try:
        yield
    finally:
        del _state.running[depth:]


_SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax)


def _apply(interceptors: _Interceptors, place: str, value: Tensor) -> Tensor:
    for where, change in interceptors:
        if where == place:
            value = change(value)
    return value


def _replacement(interceptors: _Interceptors) -> Attend:
    return [function for place, function in interceptors if place == "attend"][-1]


def _explicit_attention(
    interceptors: _Interceptors,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute scaled dot-product attention step by step, each step through its interceptors."""
    query, key, value = (_apply(interceptors, place, x) for place, x in zip("qkv", (query, key, value), strict=True))
    if attn_mask is not None:
        attn_mask = _apply(interceptors, "mask", attn_mask)
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3) for x in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    places = {place for place, _ in interceptors}
    if "attend" in places:
        if attn_mask is not None or is_causal:
            raise SiteError(
                "this attention adds a mask or position bias of its own, which a replacement would lose; "
                "use a method that replaces no attention, such as ixg, rollout or rise"
            )
        return _apply(interceptors, "context", _replacement(interceptors)(query, key, value, scale))
    if not places & {"scores", "probabilities"}:  # nothing inside is intercepted: the fused kernel will do
        context = F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
        return _apply(interceptors, "context", context)
    scores = (query * scale) @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    probabilities = _apply(interceptors, "scores", scores).softmax(dim=-1)
    if dropout_p:
        probabilities = F.dropout(probabilities, dropout_p)
    return _apply(interceptors, "context", _apply(interceptors, "probabilities", probabilities) @ value)


def _multi_head(interceptors: _Interceptors, args: tuple[Any, ...], kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """Compute what `nn.MultiheadAttention` computes, with each head's tensors intercepted."""

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, wanted: bool) -> tuple[Tensor, Tensor | None]:
        seen: list[Tensor] = []
        intercepted = [*interceptors, ("probabilities", lambda p: seen.append(p) or p)] if wanted else interceptors  # type: ignore[func-returns-value]
        context = _explicit_attention(intercepted, q, k, v, attn_mask=mask)
        return context, seen[0] if seen else None

    return multi_head(attend, args, kwargs)


def _softmax(interceptors: _Interceptors, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Tensor:
    """Intercept the scores and probabilities of an attention that calls softmax itself."""
    if missing := {place for place, _ in interceptors} - {"scores", "probabilities"}:
        raise SiteError(
            f"this attention calls softmax itself, so its {', '.join(sorted(missing))} cannot be captured; "
            "only scores and probabilities can, unless it calls scaled_dot_product_attention"
        )
    scores = _apply(interceptors, "scores", args[0])
    probabilities = _apply(interceptors, "probabilities", func(scores, *args[1:], **kwargs))
    return probabilities.clone() if probabilities.requires_grad else probabilities  # what comes next may write in place
