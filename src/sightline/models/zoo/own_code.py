"""Load a model from the user's own code: ``py:package.module:function``, the one model id that runs code."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from torch import nn

from sightline.errors import SightlineError, UnsupportedModel, warn
from sightline.models.adapter import Adapter
from sightline.models.inputs import adapt

PREFIX = "py:"


def python_model(model_id: str, options: dict[str, Any]) -> Adapter:
    """Import a module, call the function it names, and adapt what that returns: a module, an adapter or a function.

    Modules are looked for where Python looks for them, then in the current folder. `options` are handed to the
    function. A module in place of the function is taken as it is.
    """
    module_name, colon, name = model_id.removeprefix(PREFIX).partition(":")
    if not colon or not module_name or not name:
        raise UnsupportedModel(
            f"got {model_id!r}; write py:package.module:function, where the function returns the model"
        )
    warn(f"{model_id} runs the code of {module_name}; use it for code you trust", stacklevel=4)
    found = getattr(_imported(model_id, module_name), name, None)
    if found is None:
        raise UnsupportedModel(f"{module_name} has nothing called {name!r}; write py:package.module:function")
    made = found if isinstance(found, nn.Module | Adapter) else _called(model_id, found, options)
    if isinstance(made, nn.Module):
        made.eval()
    return adapt(made, **{} if isinstance(made, Adapter) else {"name": model_id})


def _imported(model_id: str, name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: a file here does not hide an installed package
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UnsupportedModel(
                f"there is no module {name!r} here; write {model_id.split(':')[0]}:package.module:function, and run "
                "this in the folder that holds it"
            ) from error
        raise UnsupportedModel(f"importing {name} failed: {error}; install what it needs") from error
    except Exception as error:  # the user's code
        raise UnsupportedModel(f"importing {name} failed: {type(error).__name__}: {error}") from error


def _called(model_id: str, function: Any, options: dict[str, Any]) -> Any:
    if not callable(function):
        raise UnsupportedModel(f"{model_id} is a {type(function).__name__}; a function that returns a model is needed")
    try:
        return function(**options)
    except SightlineError:
        raise
    except Exception as error:  # the user's code
        raise UnsupportedModel(f"{model_id} failed: {type(error).__name__}: {error}") from error
