"""Fingerprints of functions: tell a function from another one, or from itself before an edit."""

import dataclasses
import dis
import functools
import hashlib
import logging
import pathlib
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np

_BY_TEXT = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type(...)),
    *(np.dtype, re.Pattern, pathlib.PurePath),
)


class UnrecognisedError(Exception):
    """Something that a function depends on has no text that would show its changes; the message names it."""


def recognise(function: Callable[..., Any]) -> str:
    """A short text that is another one after every change that can be seen.

    It follows from the code, from what the function closes over or has as defaults, and from the globals that it names:
    plain values, arrays, and, within the package or script that it belongs to, functions in turn. Classes, and
    functions of other packages, count by name.

    Raises:
        UnrecognisedError: when there is something else among them, such as an object of a user's class.
    """
    return hashlib.sha256(repr(_text(function, _package(function), ())).encode()).hexdigest()[:16]


def _text(value: Any, package: str, above: tuple[Any, ...]) -> Any:
    """A value as plain tuples and texts that are the same in every process.

    `above`: what it stands in, which may stand in it.
    """
    if any(value is each for each in above):
        return ("itself",)
    above = (*above, value)
    parts: Any
    match value:
        case np.ndarray() | np.generic() if not value.dtype.hasobject:
            parts = (value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest())
        case tuple() | list():
            parts = [_text(each, package, above) for each in value]
        case set() | frozenset():
            parts = sorted(repr(_text(each, package, above)) for each in value)
        case dict():
            parts = [(_text(name, package, above), _text(each, package, above)) for name, each in value.items()]
        case functools.partial() | types.MethodType():
            held = (
                (value.__func__, value.__self__)
                if isinstance(value, types.MethodType)
                else (value.func, value.args, value.keywords)
            )
            parts = [_text(each, package, above) for each in held]
        case types.BuiltinFunctionType() if value.__self__ is not None and not isinstance(
            value.__self__, types.ModuleType
        ):
            parts = (value.__name__, _text(value.__self__, package, above))
        case types.FunctionType() if _package(value) == package:
            parts = _function(value, package, above)
        case _ if isinstance(value, _BY_TEXT):
            parts = repr(value)
        case types.ModuleType() | logging.Logger():
            parts = getattr(value, "__name__", None) or value.name
        case _ if hasattr(value, "__qualname__"):  # of an object only when it stands for a function or a class
            inner = getattr(value, "__wrapped__", None) if _package(value) == package else None
            parts = (value.__module__, value.__qualname__, None if inner is None else _text(inner, package, above))
        case _:
            parts = _object(value, package, above)
    return (type(value).__qualname__, parts)


def _object(value: Any, package: str, above: tuple[Any, ...]) -> Any:
    """A dataclass, as Grain's transforms are: its methods and its fields."""
    if not dataclasses.is_dataclass(value):
        raise UnrecognisedError(f"it depends on {value!r:.60}, of type {type(value).__qualname__}")
    methods = [each for each in vars(type(value)).values() if isinstance(each, types.FunctionType)]
    held = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return (value.__module__, [_text(each, package, above) for each in (*methods, *held)])


def _function(function: types.FunctionType, package: str, above: tuple[Any, ...]) -> Any:
    held: list[Any] = [function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # it is filled later, if ever
            held.append(None)
    named = {name: function.__globals__[name] for name in _globals(function.__code__) if name in function.__globals__}
    return (_code(function.__code__), *(_text(each, package, above) for each in (*held, named)))


def _code(code: types.CodeType) -> Any:
    constants = [_code(each) if isinstance(each, types.CodeType) else _text(each, "", ()) for each in code.co_consts]
    return (code.co_code, code.co_names, constants)


def _globals(code: types.CodeType) -> list[str]:
    """The globals and builtins that code names, also within the functions that it makes; sorted."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            names.update(_globals(each))
    return sorted(names)


def _package(function: Any) -> str:
    return str(getattr(function, "__module__", None) or "").partition(".")[0]
