"""Everything sightline raises on purpose.

::

    SightlineError
    ├── InputError            images, paths, folders or masks that cannot be used
    │   └── ImageError        one image file that cannot be read
    ├── TargetError           a class out of range, a list of the wrong length, a target nobody understands
    ├── ShapeError            a tensor of another shape than the one needed
    ├── RecipeError           text that is not a recipe, an unknown name, a wrong option
    ├── RegistryError         a name registered twice, a faulty registration
    ├── UnsupportedModel      a model nobody knows how to read, or one that lacks what a method needs
    │   └── PromptNeeded      a vision-language model that was not told what to ask
    ├── UnsupportedMethod     an operator over a method where it has no meaning
    ├── SiteError             a site that does not exist, or that ran twice in one capture
    ├── NumericalError        NaN or infinity where a number was needed
    ├── MissingExtra          an optional package that is not installed; the message is its pip line
    ├── WeightsError          weights that cannot be found, read or fitted to the model
    └── OutputError           a folder or file that cannot be written

Each message is one sentence or two: what came, what was needed, what to do.
"""

from __future__ import annotations

import warnings
from contextvars import ContextVar


class SightlineError(Exception):
    """The root: catch this to catch everything sightline raises on purpose."""


class InputError(SightlineError, ValueError):
    """Images, paths, folders or masks that cannot be used."""


class ImageError(InputError):
    """One image file that cannot be read."""


class TargetError(SightlineError, ValueError):
    """A class out of range, a list of the wrong length, a target nobody understands."""


class ShapeError(SightlineError, ValueError):
    """A tensor of another shape than the one needed."""


class RecipeError(SightlineError, ValueError):
    """Text that is not a recipe, an unknown name, a wrong option."""


class RegistryError(SightlineError):
    """A name registered twice, or a faulty registration."""


class UnsupportedModel(SightlineError, TypeError):
    """A model nobody knows how to read, or one that lacks what a method needs."""


class PromptNeeded(UnsupportedModel):
    """A vision-language model that was not told what to ask."""


class UnsupportedMethod(SightlineError, TypeError):
    """An operator over a method where it has no meaning."""


class SiteError(SightlineError, LookupError):
    """A site that does not exist, or that ran twice in one capture."""


class NumericalError(SightlineError, ArithmeticError):
    """NaN or infinity where a number was needed."""


class MissingExtra(SightlineError, ImportError):
    """An optional package that is not installed."""


class WeightsError(SightlineError):
    """Weights that cannot be found, read or fitted to the model."""


class OutputError(SightlineError, OSError):
    """A folder or file that cannot be written."""


# What a user can put right by asking differently.
USAGE_ERRORS = (RecipeError, TargetError, UnsupportedModel, UnsupportedMethod)


class SightlineWarning(UserWarning):
    """Something that a user should know and may ignore: a constant map, a compiled model, train mode."""


# Whether `warn` says nothing, in this thread alone: filters of the warnings module are shared by all threads.
HELD_BACK: ContextVar[bool] = ContextVar("held_back", default=False)


def warn(message: str, stacklevel: int = 1) -> None:
    """Issue a `SightlineWarning`, unless it is held back; `stacklevel` is counted as in `warnings.warn`."""
    if not HELD_BACK.get():
        warnings.warn(message, SightlineWarning, stacklevel=stacklevel + 1)
