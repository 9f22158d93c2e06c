"""What an object holds: attributes, entries, closures, the globals that its code names, and what these hold in turn."""

import functools
import io
import logging
import re
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from loadax.core.fingerprint import functions_of, names_in

_MOST = 2000  # objects to look at, and entries of each of them
_PLAIN = {type(None), bool, int, float, complex, str, bytes, np.ndarray, np.dtype, types.ModuleType, types.CodeType}
_OWN_PER_THREAD = (threading.local, logging.Logger, np.generic)
_INSTALLED = re.compile(r"\b(site|dist)-packages\b")
_SLOT = types.MemberDescriptorType
_HANDLE_MEMBERS = (
    ("seek",),  # files, also those of other libraries
    ("fileno",),  # sockets, pipes
    ("commit", "cursor"),  # connections of DB-API, transactions of LMDB
    ("fetchone",),
    ("grab", "retrieve"),  # OpenCV's videos
    ("__next__",),  # iterators, generators
)
"""Members of classes whose objects have a position or a conversation, which calls from several threads mix up."""
_HANDLES, _NO_HANDLES = ("netCDF4",), ("PIL", "itertools", "h5py")
"""Modules whose objects are handles, or are not although they have these members: h5py has a lock."""


def held(value: Any, name: str, enter: Callable[[Any], bool], most: int = _MOST) -> Iterator[tuple[str, Any]]:
    """Iterates over an object and what it holds, breadth first, each with a name such as `File.f`.

    Args:
        value: Any object.
        name: Its name.
        enter: Whether to look into an object.
        most: Most objects to look at.
    """
    waiting, seen = deque([(name, value)]), dict[int, Any]()
    while waiting and len(seen) < most:
        name, value = waiting.popleft()
        if type(value) in _PLAIN or issubclass(type(value), _OWN_PER_THREAD) or id(value) in seen:
            continue
        seen[id(value)] = value  # alive, so that no other object gets its id
        yield name, value
        if enter(value):
            with suppress(Exception):  # objects may raise anything when looked at
                waiting.extend(islice(_parts(name, value), most))


def handles(value: Any, name: str) -> list[tuple[str, Any]]:
    """Open files, connections, cursors and iterators that an object holds, with their names."""
    found = held(value, name, lambda part: not is_loadax(part) and not _is_handle(part))
    return [(name, part) for name, part in found if not is_loadax(part) and _is_handle(part)]


def is_loadax(value: Any) -> bool:
    """Whether it is an object of this package, which looks after its own handles."""
    return type(value).__module__.partition(".")[0] == "loadax"


def _is_handle(value: Any) -> bool:
    kind = type(value)
    if issubclass(kind, io.IOBase):  # objects may raise when asked for their class
        try:
            return not value.closed and value.readable() and value not in (sys.stdin, sys.__stdin__)
        except Exception:  # noqa: BLE001 - a class of the user's
            return True
    module = kind.__module__.partition(".")[0]
    if module in _HANDLES or module in _NO_HANDLES:
        return module in _HANDLES
    return any(all(hasattr(kind, member) for member in members) for members in _HANDLE_MEMBERS)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    owner = name if isinstance(value, type | types.FunctionType) else type(value).__name__
    match value:
        case dict():
            entries = list(islice(value.items(), _MOST))  # at once: another thread may add some
            yield from ((f"{name}[{key!r}]" if type(key) in _PLAIN else name, entry) for key, entry in entries)
        case list() | tuple() | set() | frozenset() | deque():
            yield from ((f"{name}[{index}]", entry) for index, entry in enumerate(list(islice(value, _MOST))))
        case functools.partial() | types.MethodType() | types.BuiltinMethodType():
            bound = (getattr(value, part, None) for part in ("func", "args", "keywords", "__func__", "__self__"))
            yield from ((name, part) for part in bound)
        case types.FunctionType():
            yield from _variables(value)
        case type():
            yield from _members(value)
            return
    yield from [(f"{owner}.{key}", part) for key, part in list(getattr(value, "__dict__", {}).items())]
    for kind in type(value).__mro__:
        slots = [] if "__slots__" not in vars(kind) else list(vars(kind).items())
        yield from (
            (f"{owner}.{key}", getattr(value, key, None)) for key, slot in slots if isinstance(slot, _SLOT)
        )
        yield from _members(kind)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Attributes of a class of the user's, and the functions behind them."""
    if _is_own(kind.__module__):
        for key, member in list(vars(kind).items()):
            yield from ((f"{kind.__name__}.{key}", part) for part in functions_of(member))


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables of a closure, the defaults of arguments, and globals and members of modules that code names."""
    code, name = function.__code__, function.__name__
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # else it is empty
            yield f"{name}.{variable}", cell.cell_contents
    yield from ((name, default) for default in (function.__defaults__, function.__kwdefaults__))
    if _is_own(function.__module__):
        members = names_in(code, globally=False)
        for variable in names_in(code, globally=True):
            part = function.__globals__.get(variable)
            yield f"{name}.{variable}", part
            if isinstance(part, types.ModuleType) and _is_own(part.__name__):
                yield from ((f"{variable}.{key}", vars(part).get(key)) for key in members)


@functools.cache
def _is_own(module: str | None) -> bool:
    """Whether a module is the user's: of neither Python, an installed package, nor this one."""
    top = (module or "builtins").partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return top != "loadax" and top not in sys.stdlib_module_names and not _INSTALLED.search(file)
