"""Objects inside an object: attributes, entries, closures, globals that its code names, and what these hold in turn."""

import gc
import io
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

from loadax.core.user_code import is_own, names_in

_MOST = 2000  # objects to look at
_KINDS = 256  # classes that are remembered
_NEVER = (ModuleType, CodeType, FrameType, threading.local, logging.Logger)
_PLAIN = (np.ndarray, np.generic, str, bytes, int, float)
_OF_PYTHON = (FunctionType, classmethod, staticmethod, type)  # members of classes
# Members of classes whose objects have a position or a conversation, which calls from several threads mix up.
#
# These are files, sockets, connections of databases, transactions of LMDB, videos of OpenCV, iterators.
_HANDLE_MEMBERS = (
    ("seek",),
    ("fileno",),
    ("commit", "cursor"),
    ("fetchone",),
    ("grab", "retrieve"),
    ("__next__",),
)
# Modules whose objects are handles, or are not although they have these members: h5py has a lock.
_HANDLES = ("netCDF4", "torchcodec", "zstandard")
_NO_HANDLES = ("PIL", "itertools", "weakref", "h5py")
# What C code has to close or holds by a pointer; few C libraries allow several threads to use one such object.
_CLOSING = ("close", "Close", "release")
_POINTERS = ("SwigPyObject", "c_void_p", "_Pointer")
# Modules whose objects of this kind threads can share.
_SHARED = (
    "numpy",
    "scipy",
    "jax",
    "jaxlib",
    "torch",
    "lmdb",
    "grpc",
    "faiss",
    "sentencepiece",
    "openslide",
    "xgboost",
)


def inner_objects(
    value: Any, name: str, enter: Callable[[Any], bool], most: int = _MOST
) -> Iterator[tuple[str, Any]]:
    """Iterates over an object and what it holds, breadth first, each with a name such as `File.f`.

    Args:
        value: Any object.
        name: Its name.
        enter: Whether to look into an object.
        most: Most objects to look at.
    """
    waiting = deque([(name, value)])
    seen: dict[int, Any] = {
        id(standard): standard for standard in (sys.stdin, sys.stdout, sys.stderr)
    }
    while waiting and len(seen) < most:
        name, value = waiting.popleft()
        kind = type(value)  # objects may raise when asked for their class
        foreign = issubclass(kind, type) and not is_own(_module(value))
        if foreign or issubclass(kind, _NEVER + _PLAIN) or id(value) in seen:
            continue
        seen[id(value)] = value  # alive, so that no other object gets its id
        yield name, value
        if enter(value):
            with suppress(Exception):  # or raise anything
                waiting.extend(islice(_parts(name, value), most))


def handles(value: Any, name: str) -> list[tuple[str, Any]]:
    """Open files, connections, cursors and iterators that an object holds, with their names."""
    found = inner_objects(
        value,
        name,
        lambda part: (
            not (is_loadax(part) or _is_handle(part) or _holds_pointer(part))
        ),
    )
    return [(name, part) for name, part in found if _is_handle(part)]


def reason_for_turns(handle: Any) -> str:
    """Why threads take turns to use a handle, as a clause of a message."""
    if _is_known_handle(handle):
        return "which threads can't use at the same time"
    return (
        "an object of a C library that may not allow several threads to use it at "
        "the same time"
    )


def is_loadax(value: Any) -> bool:
    """Whether it is an object of this package, which looks after its own handles."""
    return _package(type(value)) == "loadax"


def _is_handle(value: Any) -> bool:
    return _is_known_handle(value) or _is_c_resource(value)


def _is_known_handle(value: Any) -> bool:
    kind: type = type(value)
    if issubclass(kind, io.IOBase):
        with suppress(Exception):  # a class of the user's
            return not value.closed and value.readable()
    # the position of an int, a descriptor
    if kind is FunctionType and "lseek" in value.__code__.co_names:
        return is_own(value.__module__)
    return _is_kind_of_handles(kind)


@lru_cache(maxsize=_KINDS)
def _is_kind_of_handles(kind: type) -> bool:
    """Whether objects of a class are handles by its module or its methods."""
    module = _package(kind)
    members = () if module in (*_NO_HANDLES, "loadax") else _HANDLE_MEMBERS
    return module in _HANDLES or any(
        all(hasattr(kind, member) for member in each) for each in members
    )


def _is_c_resource(value: Any) -> bool:
    """Whether it may be a resource of a C library, which is guessed from its class and attributes."""
    kind: type = type(value)
    if _package(kind) in (*_NO_HANDLES, *_SHARED, "loadax"):
        return False
    return _is_closed_by_c(kind) or _is_pointer(value) or _holds_pointer(value)


@lru_cache(maxsize=_KINDS)
def _is_closed_by_c(kind: type) -> bool:
    """Whether a class, or a base, has a method of C code that closes; those of Python itself don't count."""
    bases = [
        base for base in kind.__mro__ if _package(base) not in sys.stdlib_module_names
    ]
    members = [
        vars(base)[member]
        for base in bases
        for member in _CLOSING
        if member in vars(base)
    ]
    return any(
        callable(member) and not isinstance(member, _OF_PYTHON) for member in members
    )


def _is_pointer(value: Any) -> bool:
    """Whether it is a bare pointer of SWIG, ctypes or cffi."""
    kind: type = type(value)
    if kind.__module__ == "_cffi_backend":
        typeof = getattr(sys.modules["_cffi_backend"], "typeof", None)
        return (
            typeof is not None
            and "CData" in kind.__name__
            and bool(typeof(value).kind == "pointer")
        )
    return any(base.__name__ in _POINTERS for base in kind.__mro__)


def _holds_pointer(value: Any) -> bool:
    """Whether it is an object of a library, an attribute of which is a pointer."""
    kind: type = type(value)
    if issubclass(kind, type | FunctionType) or (
        is_own(_module(kind)) and _package(kind) not in _SHARED
    ):
        return False
    with suppress(Exception):  # objects may raise when asked for their attributes
        return any(map(_is_pointer, vars(value).values()))
    return False


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, FunctionType):
        yield from (
            (f"{value.__name__}.{variable}", part)
            for variable, part in _variables(value).items()
        )
        yield from (
            (name, part)
            for part in (value.__defaults__, value.__kwdefaults__, vars(value))
        )
        return
    kind: type = type(value)
    if isinstance(value, type):
        owner = value.__name__
    elif kind.__module__ == "builtins":
        owner = name
    else:
        owner = kind.__name__
    slots = [
        slot for base in kind.__mro__ for slot in vars(base).get("__slots__", ())
    ]
    attributes = {
        **getattr(value, "__dict__", {}),
        **{slot: getattr(value, slot, None) for slot in slots},
    }
    yield from ((f"{owner}.{key}", part) for key, part in attributes.items())
    yield from ((owner, part) for part in gc.get_referents(value))


def _variables(function: FunctionType) -> dict[str, Any]:
    """The variables of a closure, and the globals and members of modules of the user's that code names."""
    code = function.__code__
    found: dict[str, Any] = dict(
        zip(code.co_freevars, function.__closure__ or (), strict=True)
    )
    if is_own(function.__module__):
        known = function.__globals__
        names = names_in(code)
        found |= {name: known[name] for name in names.globally if name in known}
        modules = [
            module
            for module in found.values()
            if isinstance(module, ModuleType) and is_own(module.__name__)
        ]
        found |= {
            name: vars(module)[name]
            for module in modules
            for name in names.everywhere
            if name in vars(module)
        }
    return found


def _module(kind: type) -> str:
    """The module of a class; empty if the class has another kind of `__module__`."""
    module: Any = kind.__module__
    if isinstance(module, str):
        return module
    return ""


def _package(kind: type) -> str:
    return _module(kind).partition(".")[0]
