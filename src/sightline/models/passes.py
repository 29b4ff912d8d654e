"""Run a model: in batches that fit into memory, counted, shared, changed for a call and given back as it was.

Threads that explain the same model take turns (`exclusive`), because its mode, its flags and its hooks are shared by
all of them; threads with different models do not wait for one another.

Hooks, modes and flags are undone where they are set, in a ``finally``. A ``KeyboardInterrupt`` can arrive at any
moment, in that ``finally`` as well, and leave the rest of it out. So every change is noted too, and when an error
leaves the outermost `undone_on_error`, what is still noted is undone again, the last one first; twice does no harm.
"""

from __future__ import annotations

import inspect
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from itertools import groupby
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import _pop_mode

from sightline.errors import warn
from sightline.types import Passes

if TYPE_CHECKING:
    from sightline.models.adapter import Adapter

T = TypeVar("T")
M = TypeVar("M", bound="Adapter")
P = ParamSpec("P")
Undo = Callable[[], object]

# ---- batches, counts and precision ----------------------------------------------------------------------------------

HALF = (torch.float16, torch.bfloat16)
_open: ContextVar[tuple[Meter, ...]] = ContextVar("open_meters", default=())


class Meter:
    """A counter of the model passes spent while it is open."""

    def __init__(self) -> None:
        self.passes = Passes()


@contextmanager
def counting() -> Iterator[Meter]:
    """Open a meter; whatever adapters spend inside is added to it, and to every meter around it."""
    meter = Meter()
    token = _open.set((*_open.get(), meter))
    try:
        yield meter
    finally:
        _open.reset(token)


def spend(forward: float = 0.0, backward: float = 0.0) -> None:
    """Add to every open meter."""
    for meter in _open.get():
        meter.passes += Passes(forward, backward)


def in_batches(work: Callable[[slice], T], count: int, size: int) -> list[T]:
    """Call `work` on consecutive slices of `range(count)`, at most `size` long, halved whenever memory runs out.

    What `work` checks with `require_true` is looked at once, after the last slice.
    """
    done: list[T] = []
    start = 0
    with _checked_at_the_end():
        while start < count:
            try:
                done.append(work(slice(start, min(start + size, count))))
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if size == 1 or not _is_out_of_memory(error):
                    raise
                size = max(1, size // 2)
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                continue
            start = min(start + size, count)
    return done


_unchecked: ContextVar[list[tuple[Tensor, Exception]] | None] = ContextVar("unchecked", default=None)


def require_true(condition: Tensor, error: Exception) -> None:
    """Raise an error unless a condition, a tensor of one truth value, holds; inside `in_batches` at its end.

    Reading the value makes Python wait for the device, which need not happen for every batch.
    """
    pending = _unchecked.get()
    if pending is not None:
        pending.append((condition, error))
    elif not condition:
        raise error


@contextmanager
def _checked_at_the_end() -> Iterator[None]:
    """Collect what `require_true` is given, and raise the first error whose condition does not hold."""
    if _unchecked.get() is not None:  # those around it will look
        yield
        return
    pending: list[tuple[Tensor, Exception]] = []
    token = _unchecked.set(pending)
    try:
        yield
    finally:
        _unchecked.reset(token)
    for held, (_, error) in zip(torch.stack([c for c, _ in pending]).tolist() if pending else (), pending, strict=True):
        if not held:
            raise error


def take_rows(values: Tensor, rows: Sequence[int]) -> Tensor:
    """Return these rows, each as often as it is named, without sending an index to the device."""
    parts = [values[row].expand(len(list(same)), *values.shape[1:]) for row, same in groupby(rows)]
    return torch.cat(parts) if parts else values[:0]


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def full_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for a half-precision type, and any other type as it is."""
    return torch.float32 if dtype in HALF else dtype


def full_precision(values: Tensor) -> Tensor:
    """Return half-precision values in float32, and any others as they are."""
    return values.float() if values.dtype in HALF else values


def all_finite(values: Tensor) -> bool:
    """Tell whether no value is NaN or infinite: their sum is not, or else, since a sum may overflow, each is asked."""
    return math.isfinite(values.detach().sum().item()) or bool(torch.isfinite(values).all())


# ---- passes that methods share --------------------------------------------------------------------------------------
#
# Many methods begin alike: the attention of every block, its gradients, the activations before the head. A function
# that computes such a part is marked by `shared`; inside ``with sharing(images, passes):`` what it returns is
# remembered and given to the next method that asks for the same. Outside of it, and while anything in the model is
# captured, edited or replaced, the function runs as if it were not marked. What is remembered must not be changed in
# place.
#
# A method that takes what another has computed counts its passes and seconds as its own, so that costs do not depend on
# who came first; `SharedPasses.saved` says what was not run again.

LIMIT = 2**30  # bytes of tensors that are remembered; the oldest go first


@dataclass(frozen=True, slots=True)
class _Known:
    """What a function returned, and what that took."""

    value: Any
    passes: Passes
    seconds: float
    size: int


class SharedPasses:
    """What methods have computed of some images.

    Attributes:
        saved: passes that were not run again, counted in images.
        seconds: that these took when they were run.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.saved = Passes()
        self.seconds = 0.0
        self._limit = limit
        self._known: dict[Hashable, _Known] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` gives, computed on the first call with this key."""
        known = self._known.get(key)
        if known is None:
            started = time.perf_counter()
            before = self.seconds
            with counting() as meter:
                value = make()
            seconds = time.perf_counter() - started + self.seconds - before
            self._remember(key, _Known(value, meter.passes, seconds, _bytes(value)))
            return value
        spend(known.passes.forward, known.passes.backward)
        self.saved += known.passes
        self.seconds += known.seconds
        return cast(T, known.value)

    def _remember(self, key: Hashable, known: _Known) -> None:
        self._known[key] = known
        while self._known and sum(each.size for each in self._known.values()) > self._limit:
            del self._known[next(iter(self._known))]


_sharing: ContextVar[tuple[Tensor, SharedPasses] | None] = ContextVar("shared_passes", default=None)


@contextmanager
def sharing(images: Tensor, passes: SharedPasses) -> Iterator[None]:
    """Remember what methods compute of these images; they must stay as they are for as long as `passes` is used."""
    token = _sharing.set((images, passes))
    try:
        yield
    finally:
        _sharing.reset(token)


def shared(function: Callable[Concatenate[M, Tensor, P], T]) -> Callable[Concatenate[M, Tensor, P], T]:
    """Mark a function of a model, images and hashable options whose result methods may share."""

    signature = inspect.signature(function)

    @wraps(function)
    def run(model: M, images: Tensor, *args: P.args, **options: P.kwargs) -> T:
        opened = _sharing.get()
        if opened is None or is_changed() or not _is_part(images, opened[0]):
            return function(model, images, *args, **options)
        bound = signature.bind(model, images, *args, **options)
        bound.apply_defaults()
        key = _key(function, model, images, bound.args[2:])
        if key is None:
            return function(model, images, *args, **options)
        return opened[1].once(key, lambda: function(model, images, *args, **options))

    return cast(Callable[Concatenate[M, Tensor, P], T], run)


def _is_part(images: Tensor, of: Tensor) -> bool:
    """Tell whether these are some of the images themselves, and not made of them."""
    return not images.requires_grad and images.untyped_storage().data_ptr() == of.untyped_storage().data_ptr()


def _key(function: Any, model: Adapter, images: Tensor, options: tuple[Any, ...]) -> Hashable | None:
    """Return what the result depends on; None where an option cannot be compared."""
    place = (images.storage_offset(), images.shape, images.stride(), images.dtype, images._version)
    try:
        given = _frozen(options)
        hash(given)
    except TypeError:
        return None
    return function, model, place, torch.is_grad_enabled(), given


def _frozen(value: Any) -> Any:
    """Return lists as tuples, deep down; a tensor is nothing to compare by."""
    if isinstance(value, Tensor):
        raise TypeError("a tensor is no key")
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _bytes(value: Any) -> int:
    """Return how many bytes the tensors inside a value hold, about."""
    if isinstance(value, Tensor):
        return value.untyped_storage().nbytes()
    if isinstance(value, Mapping):
        return sum(map(_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(_bytes(getattr(value, field.name)) for field in fields(value) if field.name != "block")
    return 0


# ---- walking through a model ----------------------------------------------------------------------------------------


def modules_of(model: Any) -> list[nn.Module]:
    """Return what `model.modules()` returns, in half its time: every call of `explain` walks through the model.

    A function has none.
    """
    found: dict[nn.Module, None] = {}
    waiting: list[nn.Module | None] = [model] if isinstance(model, nn.Module) else []
    while waiting:
        module = waiting.pop()
        if module is not None and module not in found:
            found[module] = None
            if module._modules:
                waiting += reversed(module._modules.values())
    return list(found)


# ---- changes that are undone ----------------------------------------------------------------------------------------

_locks: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # of re-entrant locks, never written onto the model
_adding = threading.Lock()


@contextmanager
def exclusive(model: Any) -> Iterator[None]:
    """Keep other threads from changing a model; a thread that has it may ask again. A plain function needs no turn."""
    if not isinstance(model, nn.Module):
        yield
        return
    with _adding:
        lock = _locks.setdefault(model, threading.RLock())
    with lock:
        yield


@contextmanager
def without_autocast(device: torch.device) -> Iterator[None]:
    """Switch `torch.autocast` off, on the processor and on a device: values then have the model's own precision."""
    with ExitStack() as stack:
        for kind in {"cpu", device.type}:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class _State(threading.local):
    """Per thread: what undoes the changes made so far, by context; None outside `undone_on_error`.

    `frozen` are the weights that want no gradient for the time being, by context.
    """

    def __init__(self) -> None:
        self.noted: dict[object, tuple[Undo, ...]] | None = None
        self.frozen: dict[object, list[nn.Parameter]] = {}


_state = _State()


@contextmanager
def undone_on_error() -> Iterator[None]:
    """Undo all changes noted inside when an error leaves the outermost of these, and restore torch's modes."""
    if _state.noted is not None:
        yield
        return
    gradient, modes = torch.is_grad_enabled(), _open_modes()
    noted: dict[object, tuple[Undo, ...]] = {}
    try:
        _state.noted = noted
        yield
    except BaseException as error:
        _end_contexts(error)
        for undos in reversed([*noted.values()]):
            for undo in reversed(undos):
                undo()
        while _open_modes() > modes:
            _pop_mode()
        torch.set_grad_enabled(gradient)
        raise
    finally:
        _state.noted, _state.frozen = None, {}


def _end_contexts(error: BaseException | None) -> None:
    """End the contexts that an interrupt kept from ending: they would do so when its traceback is let go, too late."""
    while error is not None:
        if not isinstance(error, Exception):
            clear_frames(error.__traceback__)
        error = error.__context__


def is_guarded() -> bool:
    """Tell whether this thread is inside `undone_on_error`, as all work of `explain` and `evaluate` is."""
    return _state.noted is not None


def is_changed() -> bool:
    """Tell whether anything in a model is watched, edited or set in this thread now; True outside `undone_on_error`."""
    if _state.noted is None or _open_modes() > 0:
        return True
    return any(undos for context, undos in _state.noted.items() if context not in _state.frozen)


def _open_modes() -> int:
    """Return how many modes intercept the calls of this thread."""
    return torch._C._len_torch_function_stack()


@contextmanager
def undoing(*undos: Undo, context: object = None) -> Iterator[None]:
    """Undo changes at the end, the last one first; until then they are noted. Each may be undone twice."""
    noted = {} if _state.noted is None else _state.noted
    context = context or object()
    try:
        noted[context] = undos
        yield
    finally:
        for undo in reversed(undos):
            undo()
        noted.pop(context, None)


@contextmanager
def setting(name: str, value: object, holders: Sequence[object]) -> Iterator[None]:
    """Set an attribute of several objects to one value, and give each its own back."""
    with undoing(*(partial(setattr, holder, name, getattr(holder, name)) for holder in reversed(holders))):
        for holder in holders:
            setattr(holder, name, value)
        yield


@contextmanager
def evaluating(model: Any) -> Iterator[list[nn.Module]]:
    """Hold every module in eval mode while other threads wait, then give each its own; yields those in training."""
    with exclusive(model), _evaluating(modules_of(model)) as training:
        yield training


@contextmanager
def _evaluating(modules: Sequence[nn.Module]) -> Iterator[list[nn.Module]]:
    training = [module for module in modules if module.training]
    with setting("training", False, training):
        yield training


# ---- weights that want no gradient ----------------------------------------------------------------------------------
#
# Where a weight wants a gradient, autograd builds a graph from that weight on and keeps the input of its layer, also
# where only the gradient of an activation near the output is asked for. No method here asks for those of weights.


def weights_to_freeze(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Return the weights of a model's modules that want a gradient, and may be told not to.

    None where a hook of somebody else is on a module, who may count on a graph being there.
    """
    weights = []
    for module in modules:
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
            return []
        weights += [weight for weight in module._parameters.values() if weight is not None and _can_freeze(weight)]
    return weights


def _can_freeze(weight: nn.Parameter) -> bool:
    return weight.requires_grad and weight.is_leaf and not weight.is_inference()


@contextmanager
def frozen(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Let the weights of a model's modules want no gradient, then as before: a graph starts at what is asked for.

    Other threads have to wait meanwhile: call it inside `exclusive`.
    """
    weights, context = weights_to_freeze(modules), object()
    _state.frozen[context] = weights
    try:
        with undoing(partial(_want_gradients, weights, True), context=context):
            _want_gradients(weights, False)
            yield
    finally:
        _state.frozen.pop(context, None)


@contextmanager
def thawed() -> Iterator[None]:
    """Give the weights back what they want, inside `frozen`: for code that may ask for their gradients."""
    weights = [weight for each in _state.frozen.values() for weight in each]
    try:
        _want_gradients(weights, True)
        yield
    finally:
        _want_gradients(weights, False)


def _want_gradients(weights: Sequence[nn.Parameter], wanted: bool) -> None:
    for weight in weights:
        weight.requires_grad = wanted


@contextmanager
def ready(model: Adapter) -> Iterator[None]:
    """Hold the model in eval mode and its own precision with no graph being built; say so when it was training.

    Its weights want no gradient meanwhile.
    """
    from sightline.allocator import keep_some_freed_memory  # importing the package loads nothing of the allocator's

    keep_some_freed_memory()
    with (
        undone_on_error(),
        torch.inference_mode(False),
        torch.no_grad(),
        without_autocast(model.device),
        exclusive(model.model),
        _evaluating(modules := modules_of(model.model)) as training,
        frozen(modules),
    ):
        if training:
            warn(
                f"{model.name} is in train mode; it is explained in eval mode and given its own mode back",
                stacklevel=4,
            )
        yield
