"""Argument checks, one per kind. Each returns the value in plain form, or raises an `ArgumentError` that names it."""

import inspect
import math
import operator
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from loadax.core.formatting import name_of, type_text
from loadax.errors import ArgumentError

# Largest int64, the dtype of rows, positions, epochs and steps.
LARGEST = (1 << 63) - 1

# Maximum number of positions in all epochs of a run, so that sums of two still fit in int64.
MOST_POSITIONS = 1 << 62

_SHOWN = 120  # characters of a value in a message


def shown(value: Any) -> str:
    """A value as one line of a message, even if it is huge or its `repr` fails."""
    # Python refuses to print more than 4,300 digits
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an int of {value.bit_length()} bits"
    try:
        if getattr(value, "ndim", 0) and not isinstance(value, type):
            return f"an array of shape {list(value.shape)}"
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 - any object can be passed as an argument, and its methods can raise anything
        text = f"{type_text(value)}"
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}…"


def integer(
    name: str,
    value: Any,
    least: int | None = None,
    most: int | None = LARGEST,
    remedy: str | None = None,
) -> int:
    """The value as an int: a Python or NumPy integer, or a 0-dimensional array of NumPy or JAX.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        least: Lower bound.
        most: Upper bound; None for seeds, which can be any int.
        remedy: End of the message, after "pass".

    Raises:
        ArgumentError: When the value is not an int, or outside the bounds.
    """
    if _is_bool(value) or dimensions(value):
        integer_value = None
    else:
        integer_value = _index(value)
    if integer_value is None:
        if least is None:
            wanted = "an int"
        else:
            wanted = f"an int of {least} or more"
        raise ArgumentError(f"{name}={shown(value)}: pass {remedy or wanted}")
    if least is not None and integer_value < least:
        raise ArgumentError(
            f"{name}={shown(integer_value)}: pass {remedy or f'{least} or more'}"
        )
    if most is not None and (integer_value > most or integer_value < -LARGEST):
        if integer_value < 0:
            limit = "more than -2**63"
        elif most == LARGEST:
            limit = "less than 2**63"
        else:
            limit = f"{most} or less"
        raise ArgumentError(f"{name}={shown(integer_value)}: pass {limit}")
    return integer_value


def number(name: str, value: Any, remedy: str) -> float:
    """The value as a finite float: any real number except a bool.

    Raises:
        ArgumentError: Otherwise.
    """
    if (
        hasattr(type(value), "__float__")
        and not _is_bool(value)
        and not dimensions(value)
    ):
        try:
            result = float(value)
        except (TypeError, ValueError, OverflowError):
            result = math.nan
        if math.isfinite(result):
            return result
    raise ArgumentError(f"{name}={shown(value)}: pass {remedy}")


def flag(name: str, value: Any, hint: str = "") -> bool:
    """The value, if it is a bool. A truthy or falsy string or number is most likely a mistake.

    Raises:
        ArgumentError: Otherwise.
    """
    if not isinstance(value, bool | np.bool):
        raise ArgumentError(f"{name}={shown(value)}: pass True or False{hint}")
    return bool(value)


def optional_flag(name: str, value: Any) -> bool | None:
    """Same as `flag`, for an argument whose default is None."""
    if value is None:
        return None
    return flag(name, value, ", or leave it out")


def choice(
    name: str, value: Any, options: Collection[str | None], remedy: str | None = None
) -> Any:
    """The value, if it is one of the options.

    Raises:
        ArgumentError: Otherwise; lists the options, or ends in `remedy`.
    """
    # `in` alone would fail for an array, which compares elementwise.
    if not (value is None or isinstance(value, str)) or value not in options:
        *others, last = map(repr, options)
        if others:
            listed = f"{', '.join(others)} or {last}"
        else:
            listed = last
        raise ArgumentError(f"{name}={shown(value)}: pass {remedy or listed}")
    return value


def entries(name: str, value: Any, noun: str) -> list[Any]:
    """The entries of a list, a tuple or another iterable, but not of a string, a dict or a class.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        noun: Plural noun for the entries, for the message.

    Raises:
        ArgumentError: When the value is not such an iterable.
    """
    single = (
        isinstance(value, str | bytes | Mapping | type)
        or getattr(value, "ndim", None) == 0
    )
    # A loader or dataset may have no end. A loader has a `__next__`, for its error.
    endless = str(type(value).__module__).partition(".")[0] == "loadax"
    if single or endless or not isinstance(value, Collection | Iterator):
        raise ArgumentError(f"{name}={shown(value)}: pass a list of {noun}")
    return list(value)


def path(name: str, value: Any, wanted: str = "a path") -> str:
    """The value as a str, if it is a path: a str or a `pathlib.Path`. A leading `~` is the home folder, as in shells.

    Raises:
        ArgumentError: When it is something else, or invalid in every file system.
    """
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
    else:
        text = None
    if not isinstance(text, str):
        problem = f"is {type_text(value)}: pass {wanted}, as a str or a pathlib.Path"
        raise ArgumentError(f"{name}={shown(value)} {problem}")
    if not text or "\0" in text:
        if text:
            problem = "has a NUL character in it"
        else:
            problem = "is empty"
        raise ArgumentError(f"{name}={shown(value)} {problem}: pass {wanted}")
    return os.path.expanduser(text) if text == "~" or text.startswith("~/") else text  # noqa: PTH111 - may be a URL


def text(name: str, value: Any, remedy: str) -> str:
    """The value, if it is a str.

    Raises:
        ArgumentError: Otherwise; ends in `remedy`.
    """
    if not isinstance(value, str):
        raise ArgumentError(f"{name}={shown(value)}: pass {remedy}")
    return value


def index_key(value: Any, index: Any, changes: str) -> None:
    """Checks `key=`, which stands for functions in the index at `index=`.

    Args:
        value: Value of the argument.
        index: Value of `index=`.
        changes: When the user changes the key: "fn changes".

    Raises:
        ArgumentError: When it is not a str, or there is no index.
    """
    if value is None:
        return
    text("key", value, f"a str that you change when {changes}")
    if index is None:
        raise ArgumentError(
            f"key={value!r} is for an index; pass index=, a folder, as well, or "
            "leave key out"
        )


def refuse_given(why: str, **arguments: Any) -> None:
    """Refuses arguments that would have no effect.

    Args:
        why: What the arguments are for, and why that does not apply.
        arguments: Values by name; None if left out.

    Raises:
        ArgumentError: When one is given.
    """
    for name, value in arguments.items():
        if value is not None:
            raise ArgumentError(f"{name}={shown(value)} is for {why}; leave it out")


def function(
    name: str, value: Any, remedy: str, *arguments: str
) -> Callable[..., Any]:
    """The value, if it can be called with these arguments.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        remedy: End of the message, after "pass".
        arguments: Names of what it is called with; none: not checked.

    Raises:
        ArgumentError: Otherwise; shows its signature and the call.
    """
    if not callable(value):
        raise ArgumentError(f"{name}={shown(value)} can't be called; pass {remedy}")
    if arguments and takes(value, len(arguments)) is False:
        raise ArgumentError(
            f"{name}={name_of(value)} has the arguments {inspect.signature(value)}, "
            f"but is called as {name}({', '.join(arguments)}); pass {remedy}"
        )
    return value


def takes(function: Callable[..., Any], count: int) -> bool | None:
    """Whether a function accepts `count` positional arguments; None if its signature is unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a C function without a signature
        return None
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def dtype(name: str, value: Any) -> np.dtype[Any]:
    """The value as a NumPy dtype.

    Raises:
        ArgumentError: When it is not a dtype.
    """
    try:
        if value is None or dimensions(value):
            result = None
        else:
            result = np.dtype(value)
    except Exception:  # noqa: BLE001 - NumPy calls methods of the object, which can raise anything
        result = None
    if result is None:
        raise ArgumentError(
            f"{name}={shown(value)} is not a dtype; pass for example 'uint16'"
        )
    return result


def _is_bool(value: Any) -> bool:
    return (
        isinstance(value, bool | np.bool) or getattr(value, "dtype", None) == np.bool
    )


def dimensions(value: Any) -> Any:
    """Number of dimensions of an array; 0 for anything else."""
    if isinstance(value, type):
        return 0
    return getattr(value, "ndim", 0)


def _index(value: Any) -> int | None:
    try:
        return operator.index(value)
    except TypeError:
        return None
