"""Fingerprints of functions, which change when the function, or whatever it uses of the user's code, is edited."""

import argparse
import dataclasses
import enum
import functools
import hashlib
import importlib
import importlib.util
import inspect
import logging
import pathlib
import re
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, final
from uuid import UUID

import numpy as np

from loadax.core.arguments import shown
from loadax.core.formatting import name_of
from loadax.core.former_fingerprint import former_fingerprint
from loadax.core.tokenizers import serialised
from loadax.core.user_code import Import, Names, file_of, is_own, names_in

_DIGITS = 16

_BY_TEXT = (
    *(
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        bytearray,
        range,
        slice,
        type(...),
        type(NotImplemented),
    ),
    *(
        np.dtype,
        np.ufunc,
        re.Pattern,
        pathlib.PurePath,
        types.GenericAlias,
        types.UnionType,
    ),
    *(datetime, date, time, timedelta, timezone, Decimal, Fraction, UUID),
)
_EXACTLY = frozenset({type(None), bool, int, float, complex, str, bytes})
_BARE = frozenset(
    {
        *_EXACTLY,
        tuple,
        list,
        deque,
        set,
        frozenset,
        dict,
        types.MappingProxyType,
        np.ndarray,
    }
)
# Objects that a program works with, and that say nothing about its results: they count by type.
_INERT = (
    "_thread",
    "threading",
    "weakref",
    "_weakref",
    "logging",
    "warnings",
    "dataclasses",
)
# What looks names up that are texts when the code is compiled.
_LOOKUPS = frozenset({"getattr", "attrgetter", "methodcaller", "modules"})
_HIDDEN = frozenset({"globals", "eval", "exec", "import_module", "__import__"})
_EXTENSIONS = (".so", ".pyd", ".dylib")


class Fingerprint(NamedTuple):
    """Fingerprint of a function.

    Args:
        digest: Text that changes with every visible change of the function: the fingerprint that loadax 0.1.0 gave
            it, a `+`, and the present one.
        unknown: First dependency of the function whose changes are invisible, such as an object of a user's class:
            only its type is in the digest. None if there is none.
    """

    digest: str
    unknown: str | None


def fingerprint(function: Callable[..., Any]) -> Fingerprint:
    """The fingerprint of a function, the same in every process.

    It covers the code, closures, defaults, attributes, and the globals that the function names: plain values, arrays
    and, recursively, functions, classes and modules of the user's. Those of installed packages count by name and
    version, and tokenizers by their models.
    """
    walk = _Walk()
    text = walk.whole(function)
    return Fingerprint(f"{former_fingerprint(function)}+{_hash(text)}", walk.unknown)


def unrecognised(functions: Iterable[Callable[..., Any]]) -> str | None:
    """The first of the functions whose changes can be invisible, with the reason, for a message; None: none."""
    for function in functions:
        if unknown := fingerprint(function).unknown:
            return (
                f"changes of {name_of(function)} can't be detected (it depends on "
                f"{unknown})"
            )
    return None


@final
class _Walk:
    """Traversal of the dependencies of a function."""

    def __init__(self) -> None:
        # Functions and classes by id, kept alive: each is described once, and named by its index everywhere.
        self._described: dict[int, tuple[Any, int]] = {}
        # of them, those whose contents are still to be described
        self._waiting: deque[Any] = deque()
        # Names that the code of the present function or class has, for members of modules; None: all members count.
        self._names: Iterable[str] | None = None
        self.unknown: str | None = None

    def whole(self, value: Any) -> str:
        """A value and all that it depends on, as text."""
        try:
            texts = [self.text(value, ())]
            while self._waiting:
                texts.append(self._contents(self._waiting.popleft()))
        except RecursionError:
            self.unknown = self.unknown or "values that are nested too deeply"
            return ""
        return repr(texts)

    def text(self, value: Any, above: tuple[Any, ...]) -> Any:
        """A value as plain tuples and strings. `above`: the values that contain it, to detect cycles."""
        kind = type(value)
        if kind in _EXACTLY:
            return (kind.__qualname__, repr(value))
        if any(value is outer for outer in above):
            return ("itself",)
        return (kind.__qualname__, self._compound(value, (*above, value)))

    def _compound(self, value: Any, above: tuple[Any, ...]) -> Any:
        """The parts of a value that has several."""
        parts: Any
        match value:
            case np.ndarray() | np.generic() if not value.dtype.hasobject:
                digest = hashlib.sha256(value.tobytes()).hexdigest()
                parts = (
                    repr(value.dtype),
                    value.shape,
                    digest,
                    self._additions(value, above),
                )
            case tuple() | list() | deque():
                parts = (
                    [self.text(entry, above) for entry in value],
                    self._additions(value, above),
                )
            case set() | frozenset():
                entries = [
                    repr(self.text(entry, above))
                    for entry in sorted(value, key=_place)
                ]
                parts = (sorted(entries), self._additions(value, above))
            case dict() | types.MappingProxyType():
                pairs = [
                    (self.text(key, above), self.text(entry, above))
                    for key, entry in value.items()
                ]
                parts = (pairs, self._additions(value, above))
            case functools.partial() | types.MethodType():
                parts = [
                    self.text(part, above)
                    for part in (*_bound(value), vars(value) or None)
                ]
            case types.BuiltinFunctionType() if not isinstance(
                value.__self__, types.ModuleType | None
            ):
                parts = (value.__name__, self.text(value.__self__, above))
            case types.SimpleNamespace() | argparse.Namespace():
                parts = self.text(vars(value), above)
            case _:
                parts = self._single(value, above)
        return parts

    def _single(self, value: Any, above: tuple[Any, ...]) -> Any:
        """A value that is no collection of others."""
        parts: Any
        match value:
            case enum.Enum():
                parts = (
                    value.name,
                    self.text(value.value, above),
                    self.text(type(value), above),
                )
            case np.ufunc() if "(vectorized)" in value.__name__:
                self._give_up(f"{value.__name__}, which numpy.frompyfunc has made")
                parts = None
            case _ if isinstance(value, _BY_TEXT):
                parts = (_plain_text(value), self._additions(value, above))
            case types.ModuleType():
                parts = self._module(value, above)
            case logging.Logger():
                parts = value.name
            case _ if hasattr(
                value, "__qualname__"
            ):  # functions, classes and wrappers of them
                parts = self._definition(value)
            case _:
                parts = self._object(value, above)
        return parts

    def _additions(self, value: Any, above: tuple[Any, ...]) -> Any:
        """Parts that a subclass of a plain type adds to a value: its class and attributes."""
        kind = type(value)
        if kind in _BARE:
            return None
        attributes = getattr(value, "__dict__", {})
        if attributes is value or isinstance(value, np.memmap):
            attributes = {}
        else:
            attributes = dict(attributes)
        if isinstance(value, dict) and hasattr(value, "default_factory"):
            attributes["default_factory"] = value.default_factory
        if not _is_followed(kind.__module__):
            if attributes:
                return self.text(attributes, above)
            return None
        slots = [
            name
            for base in kind.__mro__
            for name in _slots(base)
            if hasattr(value, name)
        ]
        attributes |= {name: getattr(value, name) for name in slots}
        return (self.text(kind, above), self.text(attributes, above))

    def _definition(self, value: Any) -> Any:
        """A function or class of the user's by its number among them, another one by its name and version."""
        module = getattr(value, "__module__", None)  # methods of builtins have none
        # made by exec()
        is_nameless = isinstance(value, types.FunctionType) and module in (
            None,
            "builtins",
        )
        if not is_nameless and not _is_followed(module):
            return (
                module,
                value.__qualname__,
                _version_of((module or "").partition(".")[0]),
            )
        if id(value) not in self._described:
            self._described[id(value)] = (value, len(self._described))
            self._waiting.append(value)
        return self._described[id(value)][1]

    def _contents(self, value: Any) -> Any:
        """The contents of a function or class."""
        if _is_dispatcher(value):
            return (self.text(value.__wrapped__, ()), self.text(value.registry, ()))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            members = [
                part for member in vars(value).values() for part in _parts(member)
            ]
            codes = [
                part.__code__
                for part in members
                if isinstance(part, types.FunctionType)
            ]
            self._names = sorted(
                {name for code in codes for name in names_in(code).everywhere}
            )
            return (value.__qualname__, self._class(value, ()))
        self._names = None
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is None:
            return (value.__qualname__, self._compiled(value))
        return (value.__qualname__, self.text(wrapped, ()))

    def _compiled(self, value: Any) -> Any:
        """The library that a function of the user's without Python code is in."""
        module = sys.modules.get(value.__module__)
        file = str(getattr(module, "__file__", None) or "")
        with suppress(OSError):
            if file.endswith(_EXTENSIONS):
                return _hash_of_file(file, Path(file).stat().st_mtime_ns)
        self._give_up(f"{shown(value)}, of type {type(value).__qualname__}")
        return None

    def _give_up(self, what: str) -> None:
        self.unknown = self.unknown or what

    def _object(self, value: Any, above: tuple[Any, ...]) -> Any:
        """A dataclass, as Grain's transforms are, by its class and attributes, and a tokenizer by its model.

        Of others only the type counts.
        """
        if (known := serialised(value)) is not None:
            return _hash(repr(known))
        kind = type(value)
        if kind.__module__ == "typing":
            return repr(value)
        if isinstance(value, ContextVar | weakref.ref):
            return self.text(
                value.get(None) if isinstance(value, ContextVar) else value(), above
            )
        if kind.__module__.partition(".")[0] in _INERT:
            return None
        if not dataclasses.is_dataclass(value):
            self._give_up(f"{shown(value)}, of type {kind.__qualname__}")
            return None
        attributes = {
            field.name: getattr(value, field.name, None)
            for field in dataclasses.fields(value)
        }
        # __post_init__ may have set more
        attributes |= getattr(value, "__dict__", {})
        return (self.text(kind, above), self.text(attributes, above))

    def _class(self, kind: type, above: tuple[Any, ...]) -> Any:
        """The members of a class and its base classes: methods, properties and class attributes."""
        known: list[Any] = [self.text(type(kind), above)]
        if issubclass(kind, enum.Enum):
            known += [
                (name, self.text(member.value, above))
                for name, member in kind.__members__.items()
            ]
        for base in kind.__mro__:
            if base is object:
                continue
            if not _is_followed(base.__module__):
                known.append(self._definition(base))
                continue
            for name, member in vars(base).items():
                if _is_own_member(name, member) and not (
                    isinstance(member, enum.Enum) or name in _ENUM_MEMBERS
                ):
                    known.append(
                        (
                            base.__qualname__,
                            name,
                            [self.text(part, above) for part in _parts(member)],
                        )
                    )
        return known

    def _function(self, function: types.FunctionType) -> Any:
        code = function.__code__
        known = function.__globals__
        names = names_in(code)
        inner = [function.__defaults__, function.__kwdefaults__]
        for cell in function.__closure__ or ():
            try:
                inner.append(cell.cell_contents)
            except ValueError:  # an empty cell
                inner.append(None)
        named = {name: known[name] for name in names.globally if name in known}
        named |= self._looked_up(names, [*inner, *named.values()], known)
        is_looked_up = _LOOKUPS & {*names.everywhere}
        if is_looked_up:
            self._names = sorted({*names.everywhere, *names.texts})
        else:
            self._names = names.everywhere
        imported = self._imports(names.imports, known)
        attributes = {
            name: value
            for name, value in vars(function).items()
            if name != "__wrapped__"
        }
        texts = [self.text(part, ()) for part in (*inner, attributes or None)]
        return (
            _code_of(code),
            texts,
            [(name, self.text(part, ())) for name, part in named.items()],
            imported,
        )

    def _looked_up(
        self, names: Names, values: list[Any], known: dict[str, Any]
    ) -> dict[str, Any]:
        """Globals and modules that code looks up by texts, which are constants of it or among these values."""
        hidden = _HIDDEN & (
            {*names.globally} - {*known} | {*names.everywhere} & {"import_module"}
        )
        texts = [*names.texts, *(value for value in values if isinstance(value, str))]
        found = {text: known[text] for text in texts if hidden and text in known}
        if hidden & {"import_module", "__import__"}:
            modules = ((text, _module_named(text)) for text in texts)
            found |= {text: module for text, module in modules if module is not None}
        if hidden and not found:
            self._give_up(f"what it looks up with {min(hidden)}()")
        if "modules" in names.everywhere:  # of sys
            found |= {
                text: sys.modules[text]
                for text in texts
                if text in sys.modules and _is_followed(text)
            }
        return found

    def _imports(self, imports: Iterable[Import], known: dict[str, Any]) -> Any:
        """Modules that a function imports when called, imported now, so that the result is the same before a call."""
        names = [
            _absolute(one, str(known.get("__package__") or "")) for one in imports
        ]
        for name, one in zip(names, imports, strict=True):
            module = _module_named(name)
            for submodule in one.names:
                if module is not None and submodule not in vars(module):
                    _module_named(f"{name}.{submodule}")
        tops = [name.partition(".")[0] for name in names]
        return [
            self.text([_module_named(name), _module_named(top)], ())
            if _is_followed(name)
            else (name, _version_of(top, loaded=False))
            for name, top in zip(names, tops, strict=True)
        ]

    def _module(self, module: types.ModuleType, above: tuple[Any, ...]) -> Any:
        """A module of the user's by the members that the present function may name, another one by its version."""
        if not _is_followed(module.__name__):
            return (module.__name__, _version_of(module.__name__.partition(".")[0]))
        names = self._names
        if names is None:
            names = sorted(name for name in vars(module) if not name.startswith("__"))
        members = {name: vars(module)[name] for name in names if name in vars(module)}
        if "__getattr__" in vars(module):
            for name in names:
                with suppress(Exception):  # of the user's function
                    members.setdefault(name, getattr(module, name))
        return {name: self.text(member, above) for name, member in members.items()}


def _bound(call: functools.partial[Any] | types.MethodType) -> tuple[Any, ...]:
    """The function and the bound arguments of a partial or a method."""
    if isinstance(call, types.MethodType):
        function: Any = call.__func__
        # The code of a tokenizer's library does not count, as that of others.
        return function.__name__ if serialised(
            call.__self__
        ) else function, call.__self__
    return call.func, call.args, call.keywords


# Members that Python makes of those of an enum.
_ENUM_MEMBERS = frozenset({*vars(enum.Enum("_Sample", ["ONE"])), "_inverted_"}) - {
    "_generate_next_value_"
}


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
    if inspect.isdatadescriptor(member) and not _is_followed(type(member).__module__):
        return False
    if name.startswith("__"):
        return (
            callable(member)
            and not isinstance(member, type)
            and hasattr(member, "__wrapped__")
        )
    return name != "_abc_impl"


def _parts(member: Any) -> tuple[Any, ...]:
    """The functions behind a member of a class."""
    match member:
        case staticmethod() | classmethod():
            return (member.__func__,)
        case property():
            return (member.fget, member.fset)
        case functools.cached_property():
            return (member.func,)
        case functools.partialmethod():
            return (member.func, member.args, member.keywords)
        case functools.singledispatchmethod():
            return (member.dispatcher,)
        case _:
            return (member,)


def _is_dispatcher(value: Any) -> bool:
    """Whether it is a function of `functools.singledispatch`, whose closure has a cache."""
    return isinstance(value, types.FunctionType) and isinstance(
        getattr(value, "registry", None), types.MappingProxyType
    )


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    if isinstance(slots, str):
        return (slots,)
    return tuple(slots)


def _place(value: Any) -> tuple[str, str]:
    """Key that sorts entries of a set in the same way in every process, as far as they differ."""
    name = getattr(value, "__qualname__", None)
    return (
        type(value).__qualname__,
        name or (repr(value) if isinstance(value, _BY_TEXT) else ""),
    )


def _absolute(one: Import, package: str) -> str:
    """Name of an imported module. `package`: of the function that imports it."""
    with suppress(ImportError):  # beyond the top of a package
        return importlib.util.resolve_name("." * one.level + one.module, package)
    return one.module


def _plain_text(value: Any) -> str:
    """The value of a plain object, whatever a subclass of the user's says."""
    if not _is_followed(type(value).__module__):
        return repr(value)
    kind: Any = next(kind for kind in _BY_TEXT if isinstance(value, kind))
    return str(kind.__repr__(value))


@functools.cache
def _is_followed(module: str | None) -> bool:
    """Whether code of a module counts by its contents."""
    return is_own(module) or _is_from_folder((module or "").partition(".")[0])


def _module_named(name: str) -> types.ModuleType | None:
    """A module of the user's, which is imported if needed; None: there is none, or it can't be imported."""
    if name in sys.modules or not is_own(name):
        if is_own(name):
            return sys.modules.get(name)
        return None
    with suppress(Exception):  # of the user's module
        main = sys.modules["__main__"]
        file = file_of(name)
        script = getattr(main, "__file__", None)  # a notebook has none
        if file and script and Path(file).samefile(script):
            return main  # the script never runs a second time
    with suppress(Exception):
        return importlib.import_module(name)
    return None


@functools.lru_cache(1 << 14)
def _code_of(code: types.CodeType) -> str:
    """Hash of code: instructions, names and constants, without the lines that it is on."""
    return _hash(
        repr(
            (
                code.co_code,
                code.co_names,
                [_constant(value) for value in code.co_consts],
            )
        )
    )


def _constant(value: Any) -> Any:
    """A constant of code, in a form whose `repr` is the same in every process."""
    match value:
        case types.CodeType():
            return _code_of(value)
        case tuple():
            return ("tuple", [_constant(entry) for entry in value])
        case frozenset():
            return ("frozenset", sorted(repr(_constant(entry)) for entry in value))
        case _:
            return repr(value)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]


@functools.lru_cache(256)
def _hash_of_file(path: str, _changed: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]


@functools.cache
def _version_of(package: str, *, loaded: bool = True) -> str | None:
    """Version of an installed package; None if it is part of Python or of loadax, or unknown.

    Args:
        package: Name of its module.
        loaded: Whether it is imported already, by which it may tell its version.
    """
    if package in ("", "loadax") or package in sys.stdlib_module_names:
        return None
    with suppress(Exception):  # other packages' files
        return metadata.version(package)
    if loaded:
        version = getattr(sys.modules.get(package), "__version__", None)
    else:
        version = None
    if isinstance(version, str):
        return version
    return None


@functools.cache
def _is_from_folder(package: str) -> bool:
    """Whether a package is the user's, although it was installed: from a folder, as by `pip install .`."""
    if package in ("", "loadax") or package in sys.stdlib_module_names:
        return False
    with suppress(Exception):  # other packages' files
        return '"dir_info"' in (
            metadata.distribution(package).read_text("direct_url.json") or ""
        )
    return False
