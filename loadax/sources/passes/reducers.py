"""How objects are pickled for worker processes that pickle and cloudpickle refuse: caches, dispatchers, open files."""

import contextlib
import functools
import io
import operator
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import cloudpickle


def reduced_cache(function: Any) -> Any:
    """A function of `functools.cache` or `lru_cache`: by its name, or to be made again, with an empty cache."""
    with contextlib.suppress(AttributeError, KeyError):
        found = operator.attrgetter(function.__qualname__)(sys.modules[function.__module__])
        by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
        if found is function and function.__module__ not in by_value:
            return NotImplemented
    return _cached, (function.__wrapped__, *function.cache_parameters().values())


def reduced_function(function: Any, reduced: Any) -> Any:
    """What pickles a function: for one of `functools.singledispatch` that is sent by value, it is made again."""
    if reduced is NotImplemented or not isinstance(getattr(function, "registry", None), MappingProxyType):
        return reduced
    # The functions that are registered may refer to it.
    return functools.singledispatch, (function.__wrapped__,), dict(function.registry), None, None, _register


def reduced_file(file: Any) -> Any:
    """A file that is read: to be opened again at its path, if that is still the same file."""
    with contextlib.suppress(OSError, TypeError, ValueError):
        path = os.path.realpath(file.name)
        if not file.writable() and os.path.samestat(os.fstat(file.fileno()), Path(path).stat()):
            text = (file.encoding, file.errors) if isinstance(file, io.TextIOWrapper) else ()
            return _opened, (path, "r" if text else "rb", 0 if isinstance(file, io.FileIO) else -1, file.tell(), *text)
    return NotImplemented


def _cached(function: Callable[..., Any], most: int | None, typed: bool) -> Callable[..., Any]:
    return functools.lru_cache(most, typed)(function)


def _register(function: Any, registered: dict[type, Callable[..., Any]]) -> None:
    for kind, implementation in registered.items():
        function.register(kind, implementation)


def _opened(path: str, mode: str, buffering: int, position: int, *text: Any) -> Any:
    file = open(path, mode, buffering, *text)  # noqa: PTH123, SIM115
    file.seek(position)
    return file


# By the type of an object.
REDUCERS: dict[type, Callable[[Any], Any]] = {
    type(functools.cache(abs)): reduced_cache,
    functools.cached_property: lambda cached: (type(cached), (cached.func,), {"attrname": cached.attrname}),  # no lock
    **dict.fromkeys((io.FileIO, io.BufferedReader, io.TextIOWrapper), reduced_file),
    zipfile.ZipFile: lambda file: (zipfile.ZipFile, (file.fp,)) if file.mode == "r" else NotImplemented,
}
