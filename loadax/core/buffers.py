"""Aligned host buffers that are reused once no array references them.

On the CPU, JAX aliases 64-byte-aligned NumPy memory without a copy. So such memory may be overwritten only after every
array on it is gone, and only Python's reference count tells that: the lease below is the object that each view, and so
each `jax.Array`, keeps alive.
"""

import contextlib
import math
import mmap
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from loadax.protocols import ArraySpec

_OWN_MAP = 1 << 18  # bytes from which a buffer gets its own mmap
_LARGE_PAGE = 2 << 20  # bytes; unused parts of a map take no memory

# Allocates a 64-byte-aligned uint8[size].
Allocate: TypeAlias = Callable[[int], NDArray[np.uint8]]

# Alignment in bytes of memory that XLA's CPU client can alias without a copy.
ALIGNMENT = 64


def align(size: int) -> int:
    """`size` in bytes, rounded up to the next multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """Allocates a 64-byte-aligned uint8[size]; its contents are undefined."""
    if size >= _OWN_MAP:
        # Not from the heap, which buffers of many sizes would fragment.
        memory_map = mmap.mmap(
            -1, size + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        start = -np.frombuffer(memory_map, np.uint8).ctypes.data % _LARGE_PAGE
        # Huge pages, as NumPy requests for its large arrays: otherwise scattered rows cause TLB misses. Not for the
        # last partial page, which would take a whole one.
        with contextlib.suppress(AttributeError, OSError):
            memory_map.madvise(
                mmap.MADV_HUGEPAGE, start, size // _LARGE_PAGE * _LARGE_PAGE
            )
        return np.frombuffer(memory_map, np.uint8, size, start)
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Allocates a 64-byte-aligned, C-contiguous array; its contents are undefined."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return aligned_bytes(size).view(dtype).reshape(shape)


def aligned_columns(
    specs: Sequence[ArraySpec], rows: int, allocate: Allocate
) -> list[NDArray[Any]]:
    """Allocates an array for `rows` rows of each spec, all in one aligned block; their contents are undefined."""
    shapes = [(rows, *spec.shape) for spec in specs]
    sizes = [
        math.prod(shape) * spec.dtype.itemsize
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    starts = [0, *accumulate(map(align, sizes))]
    block = allocate(starts[-1])
    return [
        np.ndarray(*each)
        for each in zip(shapes, [spec.dtype for spec in specs], repeat(block), starts)
    ]


class BufferPool:
    """Pool of leased buffers, which return to it when nothing references them.

    Args:
        most_idle: Maximum number of idle bytes to keep; further buffers are freed.
        make: Function that allocates 64-byte-aligned uint8[n]; called under the pool's lock.
        drop: Function that is called with memory that is freed; called under the pool's lock.

    Examples:
        >>> from loadax.core.buffers import BufferPool
        >>> pool = BufferPool(most_idle=1 << 20)
        >>> lease = pool.lease(1000)
        >>> address = lease.ctypes.data
        >>> del lease
        >>> pool.lease(1000).ctypes.data == address  # the same memory
        True
    """

    def __init__(
        self,
        most_idle: int,
        make: Allocate = aligned_bytes,
        drop: Callable[[NDArray[np.uint8]], None] = lambda _: None,
    ):
        self._most_idle = most_idle
        self._make = make
        self._drop = drop
        # by capacity, least recently used first
        self._idle: OrderedDict[int, list[NDArray[np.uint8]]] = OrderedDict()
        self._idle_bytes = 0
        self._returned: deque[NDArray[np.uint8]] = deque()  # not in `_idle` yet
        self._lock = threading.Lock()

    def lease(self, size: int) -> NDArray[np.uint8]:
        """Leases a 64-byte-aligned uint8[size] until its last view is gone; its contents are undefined."""
        capacity = align(max(size, 1))
        with self._lock:
            self._sort_in()
            if stack := self._idle.get(capacity):
                self._idle.move_to_end(capacity)  # this size is in use
                self._idle_bytes -= capacity
                memory = stack.pop()
            else:
                # New sizes replace old ones, so that memory does not grow with every change of size.
                self._shrink_to(self._idle_bytes - capacity)
                memory = self._make(capacity)
        # Through a memoryview, so that NumPy does not treat `lease` as a view of `memory`: every array made from
        # `lease`, and every jax.Array on one of those, then references `lease` itself, which `finalize` watches.
        lease = np.frombuffer(memory.data, np.uint8, count=size)
        # Without the lock: garbage collection may call this at any point, with any lock held.
        weakref.finalize(lease, self._returned.append, memory).atexit = False
        return lease

    @property
    def idle_bytes(self) -> int:
        """Bytes of memory that is not leased."""
        with self._lock:
            self._sort_in()
            return self._idle_bytes

    def _sort_in(self) -> None:
        while self._returned:
            memory = self._returned.popleft()
            self._idle.setdefault(memory.nbytes, []).append(memory)
            self._idle.move_to_end(memory.nbytes)
            self._idle_bytes += memory.nbytes
        self._shrink_to(self._most_idle)

    def _shrink_to(self, most: int) -> None:
        while self._idle_bytes > most and self._idle:
            capacity, stack = next(iter(self._idle.items()))
            if stack:
                self._drop(stack.pop())
                self._idle_bytes -= capacity
            if not stack:
                del self._idle[capacity]
