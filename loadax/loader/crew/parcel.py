"""How a dataset travels to another process: its code by name or by value, its files as paths, its arrays once for all of them.

Functions of `__main__`, of notebooks, lambdas and closures go by value (cloudpickle); others by the name of their module. What is mapped from
a file is mapped again over there. All other arrays, wherever they hang, are copied once into a file without a name, which every worker maps: so
they are there once, not once a process.
"""

import io
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, final

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from loadax.buffers import align
from loadax.loader.crew.arena import nameless_file

_SMALL = 1 << 12  # bytes: what is smaller travels within the message


class Parcel(NamedTuple):
    """An object on its way: a message, and a file with its arrays, `(first byte, bytes)` each."""

    message: bytes
    descriptor: int
    arrays: tuple[tuple[int, int], ...]


def pack(value: Any, by_value: Sequence[str] = ()) -> Parcel:
    """Wraps `value` up.

    Args:
        value: anything that pickles.
        by_value: names of modules that the other process can't import: their functions and classes go by value.

    Raises:
        Exception: what pickling raises.
    """
    buffers: list[Any] = []

    def aside(buffer: Any) -> bool:
        small = buffer.raw().nbytes < _SMALL
        if not small:
            buffers.append(buffer.raw())
        return small

    modules = [sys.modules[name] for name in by_value if name in sys.modules]
    out = io.BytesIO()
    with _ByValue(modules):
        _Pickler(out, aside).dump(value)
    places, end = [], 0
    for each in buffers:
        places.append((end, each.nbytes))
        end = align(end + each.nbytes)
    descriptor = nameless_file()
    try:
        os.ftruncate(descriptor, max(end, 1))
        with mmap.mmap(descriptor, max(end, 1)) as memory:
            for each, (first, size) in zip(buffers, places, strict=True):
                memory[first : first + size] = each
    except BaseException:
        os.close(descriptor)
        raise
    return Parcel(out.getvalue(), descriptor, tuple(places))


def unpack(parcel: Parcel) -> Any:
    """What was wrapped up. Its arrays lie in the file of the parcel; writing to one changes this process's copy alone.

    Raises:
        Exception: what unpickling raises, a `ModuleNotFoundError` among others.
    """
    size = max((first + length for first, length in parcel.arrays), default=0)
    memory = memoryview(mmap.mmap(parcel.descriptor, max(size, 1), access=mmap.ACCESS_COPY))
    arrays = [memory[first : first + length] for first, length in parcel.arrays]
    return cloudpickle.loads(parcel.message, buffers=arrays)


@final
class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # the hook that pickle offers is a method to override
    """cloudpickle, but arrays that are mapped from a file go as that file's name."""

    def __init__(self, out: io.BytesIO, aside: Callable[[Any], bool]):
        super().__init__(out, protocol=5, buffer_callback=aside)

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) in (np.ndarray, np.memmap):
            mapped = _mapped(obj)
            if mapped is not None:
                return _map_again, mapped
            if type(obj) is np.memmap:
                return np.array(obj).__reduce_ex__(5)
        return super().reducer_override(obj)


@final
class _ByValue:
    """While it is entered, functions and classes of these modules are pickled by value."""

    def __init__(self, modules: Sequence[ModuleType]):
        known = cloudpickle.list_registry_pickle_by_value()
        self._modules = [module for module in modules if module.__name__ not in known]

    def __enter__(self) -> None:
        for module in self._modules:
            cloudpickle.register_pickle_by_value(module)

    def __exit__(self, *_: object) -> None:
        for module in self._modules:
            cloudpickle.unregister_pickle_by_value(module)


def _mapped(array: NDArray[Any]) -> tuple[str, int, tuple[int, ...], tuple[int, ...], str] | None:
    """Where in which file an array lies: the file, its first byte, shape, strides, dtype; None when it must be copied."""
    found = base = array
    while isinstance(base, np.ndarray):
        found = base if isinstance(base, np.memmap) else found
        base = base.base  # type: ignore[assignment]
    if not (isinstance(found, np.memmap) and isinstance(base, mmap.mmap)) or found.filename is None:
        return None
    copied = array.dtype.hasobject or not array.size or min(array.strides, default=0) < 0
    if copied or found.mode == "c" or not _is_still(str(found.filename), found):
        return None  # what was written to a copy-on-write map, or a file that another one has replaced, is in no file
    # By address: of a slice `offset` is still that of the array it was cut from. Maps begin at a whole page.
    begin = int(found.offset) - int(found.offset) % mmap.ALLOCATIONGRANULARITY
    first = begin + array.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    return str(found.filename), first, array.shape, array.strides, array.dtype.str


def _is_still(name: str, array: NDArray[Any]) -> bool:
    """Whether a file is the very one that an array was mapped from, as far as the system tells."""
    try:
        there = Path(name).stat()
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return Path(name).exists()
    for line in maps.splitlines():
        span, _, _, _, inode, *_ = line.split(maxsplit=5)
        low, high = (int(each, 16) for each in span.split("-"))
        if low <= array.ctypes.data < high:
            return int(inode) == there.st_ino
    return False


def _map_again(name: str, first: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> NDArray[Any]:
    kind = np.dtype(dtype)
    size = kind.itemsize + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    whole = np.memmap(name, np.uint8, mode="r", offset=first, shape=(size,))
    return np.ndarray(shape, kind, whole.view(np.ndarray), 0, strides)
