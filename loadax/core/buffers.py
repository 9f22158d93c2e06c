"""Aligned host buffers that are reused once no array refers to them.

On the CPU, JAX makes an array of 64-byte-aligned NumPy memory without a copy. So such memory may be written again only
after every array on it is gone, and the one thing that knows is Python's own reference count: the lease below is the
object that each view, and so each `jax.Array`, keeps alive.
"""

import contextlib
import mmap
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_OWN_MAP = 1 << 18  # bytes from which memory is mapped by itself
_LARGE_PAGE = 2 << 20  # bytes; what of a map is not used takes no memory

ALIGNMENT = 64
"""Bytes. What XLA's CPU client asks of memory that it takes over without a copy."""


def align(size: int) -> int:
    """`size` in bytes, rounded up to the next multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """A fresh uint8[size] that begins on a 64-byte boundary; its contents are undefined."""
    if size >= _OWN_MAP:
        # Not from the heap, whose holes would stay with the process when buffers of many sizes have come and gone.
        memory_map = mmap.mmap(-1, size + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = -np.frombuffer(memory_map, np.uint8).ctypes.data % _LARGE_PAGE
        # In large pages, as NumPy asks for its own large arrays: else rows that come from everywhere wait for page
        # tables. Not the last part of one, which would take all of it.
        with contextlib.suppress(AttributeError, OSError):
            memory_map.madvise(mmap.MADV_HUGEPAGE, start, size // _LARGE_PAGE * _LARGE_PAGE)
        return np.frombuffer(memory_map, np.uint8, size, start)
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """A fresh C-contiguous array that begins on a 64-byte boundary; its contents are undefined."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return aligned_bytes(size).view(dtype).reshape(shape)


class BufferPool:
    """Buffers that are handed out, and come back by themselves when nothing refers to them any more.

    Args:
        keep: how many idle bytes are kept for the next lease; what comes back beyond that goes to the system.
        make: gives new memory, uint8 of so many bytes on a 64-byte boundary; called under this pool's lock.
        drop: is told of memory that goes to the system; called under this pool's lock.

    Examples:
        >>> pool = BufferPool(keep=1 << 20)
        >>> lease = pool.lease(1000)
        >>> lease.nbytes, pool.idle_bytes
        (1000, 0)
        >>> del lease
        >>> pool.idle_bytes
        1024
    """

    def __init__(
        self,
        keep: int,
        make: Callable[[int], NDArray[np.uint8]] = aligned_bytes,
        drop: Callable[[NDArray[np.uint8]], None] = lambda _: None,
    ):
        self._keep = keep
        self._make, self._drop = make, drop
        self._idle: OrderedDict[int, list[NDArray[np.uint8]]] = OrderedDict()  # by capacity, the longest unused first
        self._idle_bytes = 0
        self._returned: deque[NDArray[np.uint8]] = deque()  # what came back and is not sorted in yet
        self._lock = threading.Lock()

    @property
    def idle_bytes(self) -> int:
        """Bytes that are kept for the next lease."""
        with self._lock:
            self._sort_in()
            return self._idle_bytes

    def lease(self, size: int) -> NDArray[np.uint8]:
        """uint8[size] on a 64-byte boundary, contents undefined; it is yours until the last view of it is gone."""
        capacity = align(max(size, 1))
        with self._lock:
            self._sort_in()
            memory = self._take(capacity)
            if memory is None:
                # Where sizes change, the new ones take the place of the old ones, so that memory does not grow with
                # every change.
                self._shrink_to(self._idle_bytes - capacity)
                memory = self._make(capacity)
        # Through a memoryview, so that `lease` is not a view of `memory` in NumPy's eyes: every array made from
        # `lease`, and every jax.Array on one of those, then refers to `lease` itself, whose end `finalize` sees.
        lease = np.frombuffer(memory.data, np.uint8, count=size)
        weakref.finalize(lease, self._give_back, memory).atexit = False
        return lease

    def _take(self, capacity: int) -> NDArray[np.uint8] | None:
        stack = self._idle.get(capacity)
        if not stack:
            return None
        self._idle.move_to_end(capacity)  # this size is in use
        self._idle_bytes -= capacity
        return stack.pop()

    def _give_back(self, memory: NDArray[np.uint8]) -> None:
        # Without the lock: this runs wherever garbage is collected, under whatever other locks.
        self._returned.append(memory)

    def _sort_in(self) -> None:
        while self._returned:
            memory = self._returned.popleft()
            self._idle.setdefault(memory.nbytes, []).append(memory)
            self._idle.move_to_end(memory.nbytes)
            self._idle_bytes += memory.nbytes
        self._shrink_to(self._keep)

    def _shrink_to(self, most: int) -> None:
        while self._idle_bytes > most and self._idle:
            capacity, stack = next(iter(self._idle.items()))
            if stack:
                self._drop(stack.pop())
                self._idle_bytes -= capacity
            if not stack:
                del self._idle[capacity]
