"""Pickles a dataset for worker processes: code by name or by value, files as paths, arrays once for all workers.

Functions of `__main__` and of notebooks, lambdas and closures are pickled by value (cloudpickle), others by name.
Memory-mapped arrays are mapped again by the worker. All other large arrays are apart from the message, so that workers
can map one copy of them. Caches and open files, which cloudpickle refuses, are made again.
"""

import bisect
import contextlib
import functools
import io
import mmap
import operator
import os
import pickle
import sys
import threading
import weakref
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeAlias, final

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from loadax.errors import SourceError
from loadax.files.byte_ranges import SHORTER, changed
from loadax.files.file_map import FileMap
from loadax.files.locations import map_of, mapped_extent
from loadax.work.module_classes import with_fields

_Snapshot: TypeAlias = tuple[bytes, list[Any]]
TakeArray: TypeAlias = Callable[[memoryview], Any]
Instead: TypeAlias = Sequence[tuple[Any, tuple[Any, ...]]]
_Map: TypeAlias = mmap.mmap | FileMap
_registry = threading.RLock()
# the main script of a process that multiprocessing has spawned
_SPAWNED = "__mp_main__"
_MAIN = "__main__", _SPAWNED
_SMALL = 1 << 12  # bytes; smaller arrays are sent within the message
_ADDED = 2  # NumPy's `isbuiltin` of a dtype from another package


def dump(
    value: Any,
    take_array: TakeArray,
    by_value: Sequence[str] = (),
    instead: Instead = (),
) -> bytes:
    """Pickles `value`, with its large arrays apart.

    Args:
        value: Picklable object.
        take_array: Function that is called with the bytes of each large array, of which some exist only meanwhile.
        by_value: Names of modules that the other process can't import; their functions and classes are sent by value.
        instead: Objects within it, and arguments of `restored`, which makes what to send instead of them.

    Raises:
        Exception: Whatever pickling raises, or `take_array`.
    """

    def out_of_band(buffer: Any) -> bool:
        small = bool(buffer.raw().nbytes < _SMALL)
        if not small:
            take_array(buffer.raw())
        return small

    out = io.BytesIO()
    with _by_value(by_value):
        _Pickler(out, out_of_band, instead).dump(value)
    return out.getvalue()


def snapshot(value: Any) -> _Snapshot | None:
    """Pickles `value` as it is now, for a later `pack`. Shares the memory of its arrays. None: it can't be pickled."""
    out = io.BytesIO()
    buffers = list[Any]()
    with suppress(Exception), _by_value():
        _Pickler(out, buffers.append).dump(value)
        return out.getvalue(), [
            np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers
        ]
    return None


def restored(message: bytes, buffers: list[Any], attributes: dict[str, Any]) -> Any:
    """The value of a snapshot, with attributes that have changed since."""
    value = cloudpickle.loads(message, buffers=buffers)
    if attributes:
        vars(value).update(attributes)
    return value


# Code of all functions that `functools.singledispatch` makes.
_DISPATCHER = functools.singledispatch(lambda _: None).__code__  # type: ignore[attr-defined]


@final
class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # pickle's hook is a method to override
    """Pickles like cloudpickle, but memory-mapped arrays and files as their paths, and functions with a cache."""

    def __init__(
        self,
        out: io.BytesIO,
        out_of_band: Callable[[Any], Any],
        instead: Instead = (),
    ):
        super().__init__(out, protocol=5, buffer_callback=out_of_band)
        self._instead = {id(value): arguments for value, arguments in instead}
        self._regions: dict[int, tuple[_Map, _Region | None]] = {}  # by id of the map
        self._files = _MappedFiles()

    def reducer_override(self, obj: Any) -> Any:
        if id(obj) in self._instead:
            return restored, self._instead[id(obj)]
        if type(obj) in REDUCERS:
            return REDUCERS[type(obj)](obj)
        if type(obj) is CodeType:
            # From 3.1.3 on, cloudpickle leaves out the file of code, which tracebacks and messages show.
            return _restore_code, (
                obj.co_filename,
                *self.dispatch_table[CodeType](obj),
            )
        if type(obj) is ContextVar:
            value = {}
            with suppress(LookupError):
                value = {"default": obj.get()}
            # with its present value
            return functools.partial(ContextVar, obj.name, **value), ()
        if (
            type(obj) in (np.ndarray, np.memmap)
            and (reduced := self._array(obj)) is not None
        ):
            return reduced
        reduced = with_fields(obj, super().reducer_override(obj))
        is_dispatcher = type(obj) is FunctionType and obj.__code__ is _DISPATCHER
        if is_dispatcher and reduced is not NotImplemented:
            return _reduced_dispatcher(obj)
        return reduced

    def _array(self, array: NDArray[Any]) -> Any:
        """The reduction of an array; None: that of NumPy."""
        extent = mapped_extent(array)
        if extent is not None:
            extent.check()
        view = self._view(array)
        if view is not None:
            return np.ndarray, view
        own = array.dtype.kind in "mM" or array.dtype.isbuiltin == _ADDED
        large = array.nbytes >= _SMALL
        if large and own and not array.dtype.hasobject:
            # NumPy has no out-of-band buffers for dates and for dtypes of other packages, such as bfloat16.
            return np.ndarray, (
                array.shape,
                array.dtype,
                np.ascontiguousarray(array).reshape(-1).view(np.uint8),
            )
        if type(array) is np.memmap or not (
            array.flags.c_contiguous or array.flags.f_contiguous
        ):
            # out-of-band buffers must be contiguous
            return np.array(array, order="C", subok=False).__reduce_ex__(5)
        return None

    def _view(self, array: NDArray[Any]) -> tuple[Any, ...] | None:
        """The arguments of `np.ndarray` that make a view of the mapped file; None: it is copied."""
        mapped, memory = map_of(array)
        if (
            memory is None
            or array.dtype.hasobject
            or not array.size
            or min(array.strides, default=0) < 0
        ):
            return None
        if id(memory) not in self._regions:
            self._regions[id(memory)] = memory, _region(mapped, memory, self._files)
        _, region = self._regions[id(memory)]
        if region is None:
            return None
        # Computed from the address, because the `offset` of a slice is that of its base array.
        return (
            array.shape,
            array.dtype,
            region,
            array.ctypes.data - _address(memory),
            array.strides,
        )


@contextmanager
def _by_value(names: Sequence[str] = ()) -> Iterator[None]:
    """Pickles code of these modules by value, in one thread at a time: cloudpickle has one registry.

    And that of the main script, which is called `__mp_main__` in a process that multiprocessing has spawned.
    """
    with _registry:
        known = cloudpickle.list_registry_pickle_by_value()
        wanted = [
            sys.modules[name] for name in (*names, _SPAWNED) if name in sys.modules
        ]
        # Elsewhere that name is another one of `__main__`, which cloudpickle sends by value.
        modules = [
            module for module in wanted if module.__name__ not in (*known, "__main__")
        ]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


@final
class _Region:
    """A memory-mapped part of a file, unpickled as its bytes. The other process maps it once for all arrays in it."""

    def __init__(self, name: str, begin: int, size: int):
        self._extent = name, begin, size

    def __reduce__(self) -> Any:
        return _map_region, self._extent


def _map_region(name: str, begin: int, size: int) -> NDArray[np.uint8]:
    try:
        size_now = Path(name).stat().st_size
    except OSError as error:
        raise SourceError(
            f"{name}: a worker process can't open this file ({error.strerror}), "
            "which is mapped in the training process; restore the file, or open the "
            "dataset by a path that all workers have"
        ) from error
    if size_now < begin + size:
        raise changed(name, SHORTER)
    return FileMap(name).bytes[begin : begin + size]


def _restore_code(
    filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]
) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


def _region(
    array: np.memmap[Any, Any] | None, memory: _Map, files: "_MappedFiles"
) -> _Region | None:
    """The file region of a map; None if the file may have other contents than the map."""
    if isinstance(memory, FileMap):
        if memory.in_place:
            return _Region(str(memory.path), 0, memory.length)
        return None
    # Writes to a copy-on-write map are not in the file. A replaced file has the same name, but other contents.
    if array is None or array.filename is None or array.mode == "c":
        return None
    # Maps start at a page boundary.
    begin = int(array.offset) - int(array.offset) % mmap.ALLOCATIONGRANULARITY
    name = str(array.filename)
    if _same_file(name, begin, memory, files):
        return _Region(name, begin, len(memory))
    return None


def _address(memory: _Map) -> int:
    view: Any
    if isinstance(memory, FileMap):
        view = memory.bytes
    else:
        view = np.frombuffer(memory, np.uint8)
    return int(view.ctypes.data)


def _same_file(
    name: str, begin: int, memory: mmap.mmap, files: "_MappedFiles"
) -> bool:
    """Whether the file with this name is the mapped one, as far as the kernel tells."""
    try:
        with Path(name).open("rb") as file:
            status = os.fstat(file.fileno())
            mapped = files.at(_address(memory))
            if status.st_size < begin + len(memory):
                return False  # it was truncated
            if mapped is None or mapped == (
                os.major(status.st_dev),
                os.minor(status.st_dev),
                status.st_ino,
            ):
                return True
            # On layered file systems, a map has another inode than its file. So map the file again and compare the
            # two maps.
            with mmap.mmap(
                file.fileno(), len(memory), access=mmap.ACCESS_READ, offset=begin
            ) as again:
                return _MappedFiles().at(_address(again)) == mapped
    except FileNotFoundError:
        return False


@final
class _MappedFiles:
    """Files that this process has mapped, from `/proc/self/maps`, read once for many lookups."""

    def __init__(self) -> None:
        # Ascending: start address, end address and identity of the file.
        self._spans: list[tuple[int, int, tuple[int, int, int]]] = []

    def at(self, address: int) -> tuple[int, int, int] | None:
        """The file that is mapped at an address, as `(major, minor, inode)`; None if unknown."""
        for known in (True, False):  # it may have been mapped since the last look
            if not known:
                self._spans = _spans()
            index = (
                bisect.bisect_right(self._spans, address, key=operator.itemgetter(0))
                - 1
            )
            if index >= 0 and address < self._spans[index][1]:
                return self._spans[index][2]
        return None


def _spans() -> list[tuple[int, int, tuple[int, int, int]]]:
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    spans = []
    # not `splitlines`: names of files may have other characters that end lines for it
    for line in filter(None, text.split("\n")):
        span, _, _, device, inode, *_ = line.split(maxsplit=5)
        low, high = (int(part, 16) for part in span.split("-"))
        major, minor = (int(part, 16) for part in device.split(":"))
        spans.append((low, high, (major, minor, int(inode))))
    return spans


def pickle_answer(value: Any) -> bytes:
    """Pickles what a worker process returns.

    Raises:
        Exception: Whatever pickling raises.
    """
    out = io.BytesIO()
    _AnswerPickler(out, protocol=5).dump(value)
    return out.getvalue()


def unpickle_answer(pickled: bytes) -> Any:
    """Restores the value in the training process.

    Raises:
        Exception: Whatever unpickling raises.
    """
    return _AnswerUnpickler(io.BytesIO(pickled)).load()


@final
class _AnswerPickler(pickle.Pickler):
    """Pickles classes that were sent here by value by their names: the training process has them."""

    def persistent_id(self, obj: Any) -> Any:
        by_value = isinstance(obj, type) and (
            obj.__module__ in _MAIN or obj.__module__ not in sys.modules
        )
        if by_value:
            return (obj.__module__, obj.__qualname__)
        return None


@final
class _AnswerUnpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        module, name = pid
        return functools.reduce(getattr, name.split("."), sys.modules[module])


def reduced_cache(function: Any) -> Any:
    """A function of `functools.cache` or `lru_cache`: by its name, or to be made again, with an empty cache."""
    with contextlib.suppress(AttributeError, KeyError):
        found = operator.attrgetter(function.__qualname__)(
            sys.modules[function.__module__]
        )
        by_value = {*_MAIN, *cloudpickle.list_registry_pickle_by_value()}
        if found is function and function.__module__ not in by_value:
            return NotImplemented
    return _cached, (function.__wrapped__, *function.cache_parameters().values())


def _reduced_dispatcher(function: Any) -> Any:
    """A function of `functools.singledispatch`, whose cache can't be pickled: to be made again.

    Its functions may refer to it, so they come as its state.
    """
    default = function.registry[object]
    others = [
        (kind, other)
        for kind, other in function.registry.items()
        if kind is not object
    ]
    return _dispatcher, (), (default, others), None, None, _register


def _dispatcher() -> Any:
    return functools.singledispatch(_no_function)


def _no_function(*_: Any) -> Any:
    raise NotImplementedError


def _register(function: Any, state: tuple[Any, Any]) -> None:
    default, others = state
    function.register(object, default)
    for kind, other in others:
        function.register(kind, other)
    functools.update_wrapper(function, default)


def reduced_reference(reference: Any) -> Any:
    """A weak reference, such as decorators keep to their function: to what comes along, or to nothing."""
    target = reference()
    if target is None:
        return (_no_reference, ())
    return (weakref.ref, (target,))


def reduced_file(file: Any) -> Any:
    """A file that is read: to be opened again at its path, if that is still the same file."""
    with contextlib.suppress(OSError, TypeError, ValueError):
        path = os.path.realpath(file.name)
        if not file.writable() and os.path.samestat(
            os.fstat(file.fileno()), Path(path).stat()
        ):
            text = (
                (file.encoding, file.errors)
                if isinstance(file, io.TextIOWrapper)
                else ()
            )
            return _opened, (
                path,
                "r" if text else "rb",
                0 if isinstance(file, io.FileIO) else -1,
                file.tell(),
                *text,
            )
    return NotImplemented


def _cached(
    function: Callable[..., Any], most: int | None, typed: bool
) -> Callable[..., Any]:
    return functools.lru_cache(most, typed)(function)


def _no_reference() -> Any:
    return weakref.ref(set())


def _opened(path: str, mode: str, buffering: int, position: int, *text: Any) -> Any:
    file = open(path, mode, buffering, *text)  # noqa: PTH123, SIM115
    file.seek(position)
    return file


# By the type of an object.
REDUCERS: dict[type, Callable[[Any], Any]] = {
    type(functools.cache(abs)): reduced_cache,
    weakref.ref: reduced_reference,
    # no lock
    functools.cached_property: lambda cached: (
        type(cached),
        (cached.func,),
        {"attrname": cached.attrname},
    ),
    **dict.fromkeys((io.FileIO, io.BufferedReader, io.TextIOWrapper), reduced_file),
    zipfile.ZipFile: lambda file: (
        (zipfile.ZipFile, (file.fp,)) if file.mode == "r" else NotImplemented
    ),
}
