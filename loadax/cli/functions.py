"""Imports functions that are named on the command line: `module:function`."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from loadax.errors import ArgumentError


def import_function(name: str, option: str) -> Callable[..., Any]:
    """Imports a function by name, including from modules in the current folder.

    Raises:
        ArgumentError: When the name has another form, or there is no such function.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ArgumentError(
            f"{option} {name}: pass MODULE:FUNCTION, such as quality:is_good for the function is_good in quality.py"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        value: Any = import_module(module)
    except ImportError as error:
        raise ArgumentError(
            f"{option} {name}: module {module} can't be imported: {error}; check that it is in this folder or installed"
        ) from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ArgumentError(f"{option} {name}: module {module} has no {attribute}; check the name")
        value = getattr(value, part)
    if not callable(value):
        raise ArgumentError(f"{option} {name} is {value!r:.80}, which is not callable; pass the name of a function")
    return value
