"""SharedMemoryPool: one anonymous shared segment for all leaves, which no crash leaves behind.

A block of it is used again only when no array lives on it, as with any other memory of the loader (`buffers`). The
segment is a file without a name: it goes when the last process that has it open is gone, however that ended, and no
limit of `/dev/shm` holds for it.
"""

import contextlib
import mmap
import os
import tempfile
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.buffers import BufferPool

_BLOCKS_AT_FIRST = 16  # that the first region has room for


def nameless_file() -> int:
    """A descriptor of an empty file in memory that has no name.

    Where the system has none, of a temporary file that is deleted already.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("loadax")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Block(NamedTuple):
    """Where in the segment a lease lies.

    A region, by its first byte and its size, and the byte of it with which the lease begins.
    """

    region: int
    size: int
    first: int


@final
class SharedMemoryPool:
    """The segment, seen by the process that hands out its blocks.

    It grows by regions, each as large as all before it together: a map, and the descriptor that comes with it, is there
    for many blocks.

    Args:
        keep: idle bytes that are kept for the next lease; those beyond it go back to the system.
    """

    def __init__(self, keep: int):
        self.descriptor = nameless_file()
        self._allocator = _Allocator(self.descriptor)
        self._pool = BufferPool(keep, make=self._allocator.make, drop=self._allocator.drop)

    def lease(self, size: int) -> NDArray[np.uint8]:
        """uint8[size] on a 64-byte boundary, contents undefined; it is yours until the last view of it is gone."""
        return self._pool.lease(size)

    def block(self, lease: NDArray[np.uint8]) -> Block:
        """Where a lease lies."""
        return self._allocator.blocks[lease.ctypes.data]

    def close(self) -> None:
        """Closes the descriptor; leases stay good. Idempotent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@final
class _Allocator:
    """Which parts of the segment are in use.

    Knows nothing of the pool that it serves: else only the garbage collector would end the two.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._maps: dict[int, mmap.mmap] = {}  # of the regions, by their first byte
        self._newest = Block(0, 0, 0)  # the region that blocks are cut from, and where the next one begins
        self.blocks: dict[int, Block] = {}
        """Where a lease lies, by its address."""
        self._holes: dict[int, list[Block]] = {}  # places that nobody uses, by size

    def make(self, capacity: int) -> NDArray[np.uint8]:
        """uint8[capacity] of the segment."""
        size = _whole_pages(capacity)
        holes = self._holes.get(size)
        block = holes.pop() if holes else self._cut(size)
        memory = np.frombuffer(self._maps[block.region], np.uint8, capacity, block.first)
        self.blocks[memory.ctypes.data] = block
        return memory

    def drop(self, memory: NDArray[np.uint8]) -> None:
        """Gives memory that `make` gave back to the system."""
        block, size = self.blocks.pop(memory.ctypes.data), _whole_pages(len(memory))
        # Without it the pages live as long as the segment does.
        with contextlib.suppress(AttributeError, OSError):
            self._maps[block.region].madvise(mmap.MADV_REMOVE, block.first, size)
        self._holes.setdefault(size, []).append(block)

    def _cut(self, size: int) -> Block:
        region, length, first = self._newest
        if first + size > length:
            region, length, first = region + length, max(_BLOCKS_AT_FIRST * size, region + length), 0
            # A file of zeros takes no memory before somebody writes to it.
            os.ftruncate(self._descriptor, region + length)
            self._maps[region] = mmap.mmap(self._descriptor, length, offset=region)
        self._newest = Block(region, length, first + size)
        return Block(region, length, first)


@final
class SharedMemoryView:
    """The segment, seen by a worker process.

    Args:
        descriptor: of the segment; closed by this object.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._maps: dict[int, mmap.mmap] = {}

    def memory(self, block: Block, size: int) -> NDArray[np.uint8]:
        """uint8[size]: what lies in a block."""
        if block.region not in self._maps:
            self._maps[block.region] = mmap.mmap(self._descriptor, block.size, offset=block.region)
        return np.frombuffer(self._maps[block.region], np.uint8, size, block.first)

    def close(self) -> None:
        """Forgets the segment."""
        self._maps.clear()
        os.close(self._descriptor)


def _whole_pages(size: int) -> int:
    return -(-max(size, 1) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
