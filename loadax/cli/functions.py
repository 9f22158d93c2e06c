"""Functions of users, which the command line names `module:function`: imports them, and says where they failed."""

import argparse
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from loadax.errors import ArgumentError

_FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)')
_PACKAGES = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
# Beginnings of the names of files that no user writes.
LIBRARIES = ("<", f"{Path(__file__).parents[1]}/", *_PACKAGES)


def import_function(name: str, option: str) -> Callable[..., Any]:
    """Imports a function by name, including from modules in the current folder.

    Raises:
        ArgumentError: When the name has another form, or there is no such function.
    """
    value = import_object(name, option)
    if not callable(value):
        raise ArgumentError(
            f"{option} {name} is {value!r:.80}, which is not callable; pass the name "
            "of a function"
        )
    function: Callable[..., Any] = value
    return function


def import_object(name: str, option: str) -> Any:
    """Imports an object by name, including from modules in the current folder.

    Raises:
        ArgumentError: When the name has another form, or there is no such object.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ArgumentError(
            f"{option} {name}: pass MODULE:FUNCTION, such as quality:is_good for the "
            "function is_good in quality.py"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        value: Any = import_module(module)
    except ImportError as error:
        raise ArgumentError(
            f"{option} {name}: module {module} can't be imported: {error}; check "
            "that it is in this folder or installed"
        ) from error
    for part in attribute.split("."):
        value = getattr(value, part, None)
    if value is None:
        raise ArgumentError(
            f"{option} {name}: module {module} has no such function; check the name"
        )
    return value


def place_of(error: BaseException, options: argparse.Namespace) -> str | None:
    """Where a user's function failed: `FILE:LINE, in FUNCTION: `. None for an error inside loadax.

    Args:
        error: Exception that a command raised.
        options: Options of the command, which name modules.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    named = {
        value.partition(":")[0]
        for value in vars(options).values()
        if isinstance(value, str) and ":" in value
    }
    modules = {getattr(sys.modules.get(name), "__file__", None) for name in named}
    frames = traceback.extract_tb(error.__traceback__)
    if error.__cause__ is not None:
        frames += traceback.extract_tb(error.__cause__.__traceback__)
    # of a worker process
    for file, line, function in _FRAME.findall(
        "\n".join(getattr(error, "__notes__", ()))
    ):
        frames.append(
            traceback.FrameSummary(file, int(line), function, lookup_line=False)
        )
    own = [
        frame
        for frame in frames
        if frame.filename in modules or not frame.filename.startswith(LIBRARIES)
    ]
    if own:
        return f"{own[-1].filename}:{own[-1].lineno}, in {own[-1].name}: "
    if getattr(error, "__notes__", ()):
        return ""
    return None
