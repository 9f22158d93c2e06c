"""Fingerprints of functions as loadax 0.1.0 made them, by which its indices and caches are known.

They count the code of the function's own package only, and everything else by name: `loadax.core.fingerprint` has what
replaced them. This file never changes.
"""

import dataclasses
import enum
import functools
import hashlib
import inspect
import logging
import pathlib
import re
import types
from collections.abc import Callable
from typing import Any, final

import numpy as np

from loadax.core.tokenizers import serialised
from loadax.core.user_code import names_in

_BY_TEXT = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type(...)),
    *(np.dtype, np.ufunc, re.Pattern, pathlib.PurePath),
)


def former_fingerprint(function: Callable[..., Any]) -> str:
    """The fingerprint that loadax 0.1.0 gave a function: 16 hexadecimal digits."""
    owner: Any = function
    while isinstance(owner, functools.partial | types.MethodType):
        owner = _bound(owner)[0]
    walk = _FormerWalk(_package(owner))
    try:
        text = repr(walk.text(function, ()))
    except RecursionError:  # it had none for it either
        text = ""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@final
class _FormerWalk:
    """Traversal of the dependencies of a function of a package."""

    def __init__(self, package: str):
        self._package = package
        # Functions and classes by id, kept alive: each is described once, and named by its index from then on.
        self._described: dict[int, tuple[Any, int]] = {}

    def text(self, value: Any, above: tuple[Any, ...]) -> Any:
        """A value as plain tuples and strings. `above`: the values that contain it, to detect cycles."""
        if any(value is outer for outer in above):
            return ("itself",)
        above = (*above, value)
        parts: Any
        match value:
            case np.ndarray() | np.generic() if not value.dtype.hasobject:
                parts = (
                    value.dtype.str,
                    value.shape,
                    hashlib.sha256(value.tobytes()).hexdigest(),
                )
            case tuple() | list() if type(value) is list or isinstance(value, tuple):
                parts = [self.text(entry, above) for entry in value]
            case set() | frozenset():
                parts = sorted(repr(self.text(entry, above)) for entry in value)
            case dict():
                parts = [
                    (self.text(key, above), self.text(entry, above))
                    for key, entry in value.items()
                ]
            case functools.partial() | types.MethodType():
                parts = [self.text(part, above) for part in _bound(value)]
            case types.BuiltinFunctionType() if not isinstance(
                value.__self__, types.ModuleType | None
            ):
                parts = (value.__name__, self.text(value.__self__, above))
            case enum.Enum():
                parts = (value.name, self.text(value.value, above))
            case _ if isinstance(value, _BY_TEXT):
                parts = repr(value)
            case types.ModuleType() | logging.Logger():
                parts = getattr(value, "__name__", None) or value.name
            case _ if hasattr(
                value, "__qualname__"
            ):  # functions, classes and wrappers of them
                parts = self._definition(value, above)
            case _:
                parts = self._object(value, above)
        return (type(value).__qualname__, parts)

    def _definition(self, value: Any, above: tuple[Any, ...]) -> Any:
        """A function or class: by its contents if it is of the package, else by name."""
        # methods of builtins have no module
        name = (getattr(value, "__module__", None), value.__qualname__)
        if _package(value) != self._package:
            return name
        if id(value) in self._described:
            return self._described[id(value)][1]
        self._described[id(value)] = (value, len(self._described))
        if isinstance(value, types.FunctionType):
            return self._function(value, above)
        if isinstance(value, type):
            return (value.__qualname__, self._class(value, above))
        return (*name, self.text(getattr(value, "__wrapped__", None), above))

    def _object(self, value: Any, above: tuple[Any, ...]) -> Any:
        """A dataclass, as Grain's transforms are, by its class and attributes, and a tokenizer by its model.

        Of others only the type counts.
        """
        if (known := serialised(value)) is not None:
            return hashlib.sha256(repr(known).encode()).hexdigest()
        if not dataclasses.is_dataclass(value):
            return None
        attributes = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
        }
        # __post_init__ may have set more
        attributes |= getattr(value, "__dict__", {})
        return (
            value.__module__,
            self._class(type(value), above),
            self.text(attributes, above),
        )

    def _class(self, kind: type, above: tuple[Any, ...]) -> Any:
        """The members of a class and its base classes: methods, properties and class attributes."""
        if issubclass(kind, enum.Enum):
            return [
                (name, self.text(member.value, above))
                for name, member in kind.__members__.items()
            ]
        return [
            (
                base.__qualname__,
                name,
                [self.text(part, above) for part in _parts(member)],
            )
            for base in kind.__mro__
            if base is not object
            for name, member in vars(base).items()
            if _is_own_member(name, member)
        ]

    def _function(self, function: types.FunctionType, above: tuple[Any, ...]) -> Any:
        parts: list[Any] = [function.__defaults__, function.__kwdefaults__]
        for cell in function.__closure__ or ():
            try:
                parts.append(cell.cell_contents)
            except ValueError:  # an empty cell
                parts.append(None)
        known = function.__globals__
        named = {
            name: known[name]
            for name in names_in(function.__code__).globally
            if name in known
        }
        parts += [named, self._members(named, names_in(function.__code__).everywhere)]
        return (
            self._code(function.__code__),
            *(self.text(part, above) for part in parts),
        )

    def _members(
        self, named: dict[str, Any], names: tuple[str, ...]
    ) -> dict[str, Any]:
        """Members with these names of the package's modules, which code reaches as `module.name`."""
        members: dict[str, Any] = {}
        modules = [
            value for value in named.values() if isinstance(value, types.ModuleType)
        ]
        for module in modules:
            if module.__name__.partition(".")[0] == self._package:
                for name in names:
                    if (
                        name in vars(module)
                        and f"{module.__name__}.{name}" not in members
                    ):
                        members[f"{module.__name__}.{name}"] = member = vars(module)[
                            name
                        ]
                        modules += (
                            [member] if isinstance(member, types.ModuleType) else []
                        )
        return members

    def _code(self, code: types.CodeType) -> Any:
        parts = ((isinstance(part, types.CodeType), part) for part in code.co_consts)
        return (
            code.co_code,
            code.co_names,
            [self._code(part) if own else self.text(part, ()) for own, part in parts],
        )


def _bound(call: functools.partial[Any] | types.MethodType) -> tuple[Any, ...]:
    """The function and the bound arguments of a partial or a method."""
    if isinstance(call, types.MethodType):
        function: Any = call.__func__
        # The code of a tokenizer's library does not count, as that of others.
        return function.__name__ if serialised(
            call.__self__
        ) else function, call.__self__
    return call.func, call.args, call.keywords


def _is_own_member(name: str, member: Any) -> bool:
    """Whether a member of a class is written in it, unlike what Python adds."""
    if isinstance(
        member,
        types.FunctionType
        | staticmethod
        | classmethod
        | property
        | functools.cached_property,
    ):
        return True
    return not (
        name.startswith("__")
        or name == "_abc_impl"
        or inspect.isdatadescriptor(member)
    )


def _parts(member: Any) -> tuple[Any, ...]:
    """The functions behind a member of a class."""
    match member:
        case staticmethod() | classmethod():
            return (member.__func__,)
        case property():
            return (member.fget, member.fset)
        case functools.cached_property():
            return (member.func,)
        case _:
            return (member,)


def _package(function: Any) -> str:
    return str(getattr(function, "__module__", None) or "").partition(".")[0]
