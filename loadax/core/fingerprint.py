"""Fingerprints of functions, which change when the function is edited."""

import dataclasses
import dis
import functools
import hashlib
import logging
import pathlib
import re
import types
from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.arguments import shown

_BY_TEXT = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type(...)),
    *(np.dtype, np.ufunc, re.Pattern, pathlib.PurePath),
)


class Fingerprint(NamedTuple):
    """Fingerprint of a function.

    Args:
        digest: Text that changes with every visible change of the function.
        unknown: First dependency of the function whose changes are invisible, such as an object of a user's class:
            only its type is in the digest. None if there is none.
    """

    digest: str
    unknown: str | None


def fingerprint(function: Callable[..., Any]) -> Fingerprint:
    """The fingerprint of a function, the same in every process.

    It covers the code, closures, defaults, and the globals that the function names: plain values, arrays and,
    recursively, functions of its own package or script. Classes, and functions of other packages, count by name.
    """
    walk = _Walk(_package(function))
    text = repr(walk.text(function, ()))
    return Fingerprint(hashlib.sha256(text.encode()).hexdigest()[:16], walk.unknown)


@final
class _Walk:
    """Traversal of the dependencies of a function of a package."""

    def __init__(self, package: str):
        self._package = package
        self.unknown: str | None = None

    def text(self, value: Any, above: tuple[Any, ...]) -> Any:
        """A value as plain tuples and strings. `above`: the values that contain it, to detect cycles."""
        if any(value is outer for outer in above):
            return ("itself",)
        above = (*above, value)
        parts: Any
        match value:
            case np.ndarray() | np.generic() if not value.dtype.hasobject:
                parts = (value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest())
            case tuple() | list() if type(value) is list or isinstance(value, tuple):
                parts = [self.text(entry, above) for entry in value]
            case set() | frozenset():
                parts = sorted(repr(self.text(entry, above)) for entry in value)
            case dict():
                parts = [(self.text(key, above), self.text(entry, above)) for key, entry in value.items()]
            case functools.partial() | types.MethodType():
                parts = [self.text(part, above) for part in _bound(value)]
            case types.BuiltinFunctionType() if not isinstance(value.__self__, types.ModuleType | None):
                parts = (value.__name__, self.text(value.__self__, above))
            case types.FunctionType() if _package(value) == self._package:
                parts = self._function(value, above)
            case _ if isinstance(value, _BY_TEXT):
                parts = repr(value)
            case types.ModuleType() | logging.Logger():
                parts = getattr(value, "__name__", None) or value.name
            case _ if hasattr(value, "__qualname__"):  # functions, classes and wrappers of them
                inner = getattr(value, "__wrapped__", None) if _package(value) == self._package else None
                parts = (value.__module__, value.__qualname__, None if inner is None else self.text(inner, above))
            case _:
                parts = self._object(value, above)
        return (type(value).__qualname__, parts)

    def _object(self, value: Any, above: tuple[Any, ...]) -> Any:
        """A dataclass, as Grain's transforms are, by its methods and fields; of anything else only the type counts."""
        if not dataclasses.is_dataclass(value):
            kind = type(value).__qualname__
            self.unknown = self.unknown or f"{shown(value)}, of type {kind}"
            return None
        methods = [part for part in vars(type(value)).values() if isinstance(part, types.FunctionType)]
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return (value.__module__, [self.text(part, above) for part in (*methods, *fields)])

    def _function(self, function: types.FunctionType, above: tuple[Any, ...]) -> Any:
        parts: list[Any] = [function.__defaults__, function.__kwdefaults__]
        for cell in function.__closure__ or ():
            try:
                parts.append(cell.cell_contents)
            except ValueError:  # an empty cell
                parts.append(None)
        known = function.__globals__
        parts.append({name: known[name] for name in _globals(function.__code__) if name in known})
        return (self._code(function.__code__), *(self.text(part, above) for part in parts))

    def _code(self, code: types.CodeType) -> Any:
        constants = [
            self._code(constant) if isinstance(constant, types.CodeType) else self.text(constant, ())
            for constant in code.co_consts
        ]
        return (code.co_code, code.co_names, constants)


def _bound(call: functools.partial[Any] | types.MethodType) -> tuple[Any, ...]:
    """The function and the bound arguments of a partial or a method."""
    return (
        (call.__func__, call.__self__) if isinstance(call, types.MethodType) else (call.func, call.args, call.keywords)
    )


def _globals(code: types.CodeType) -> list[str]:
    """Sorted globals and builtins that code names, including in nested functions."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(_globals(constant))
    return sorted(names)


def _package(function: Any) -> str:
    return str(getattr(function, "__module__", None) or "").partition(".")[0]
