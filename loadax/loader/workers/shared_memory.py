"""SharedMemoryPool: one anonymous shared memory segment for all leaves, which never outlives its processes.

A block is reused only when no array refers to it, like other memory of the loader (`core/buffers.py`). The segment is
an anonymous file: the kernel frees it when the last process that has it open ends, even by a crash. The size limit of
`/dev/shm` does not apply.
"""

import contextlib
import mmap
import os
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.buffers import BufferPool
from loadax.work.payload import nameless_file

_INITIAL_BLOCKS = 16  # capacity of the first region


class Block(NamedTuple):
    """Location of a lease in the segment.

    Args:
        region: First byte of the region in the segment.
        size: Bytes of the region.
        first: First byte of the lease in the region.
    """

    region: int
    size: int
    first: int


@final
class SharedMemoryPool:
    """The segment in the process that allocates its blocks.

    It grows by regions, each as large as all earlier ones together, so that a few maps serve many blocks.

    Args:
        most_idle: Bytes of idle memory to keep for reuse; the kernel gets the rest back.
    """

    def __init__(self, most_idle: int):
        self.descriptor = nameless_file()
        self._allocator = _Allocator(self.descriptor)
        self._pool = BufferPool(
            most_idle, make=self._allocator.make, drop=self._allocator.drop
        )

    def lease(self, size: int) -> NDArray[np.uint8]:
        """uint8[size] on a 64-byte boundary, uninitialised; reused when its last view is gone."""
        return self._pool.lease(size)

    def block(self, lease: NDArray[np.uint8]) -> Block:
        """Location of a lease."""
        return self._allocator.blocks[lease.ctypes.data]

    def close(self) -> None:
        """Closes the descriptor; leases stay valid. Idempotent."""
        descriptor = self.descriptor
        self.descriptor = -1
        if descriptor >= 0:
            os.close(descriptor)


@final
class _Allocator:
    """Allocates blocks of the segment. Does not reference its pool: a cycle would need the garbage collector."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._maps: dict[int, mmap.mmap] = {}  # by first byte of the region
        self._region = Block(0, 0, 0)  # newest region, and the first free byte in it
        # Location of every lease, by its address.
        self.blocks: dict[int, Block] = {}
        self._free_blocks: dict[int, list[Block]] = {}  # by size

    def make(self, capacity: int) -> NDArray[np.uint8]:
        """uint8[capacity] of the segment."""
        size = _whole_pages(capacity)
        holes = self._free_blocks.get(size)
        if holes:
            block = holes.pop()
        else:
            block = self._cut(size)
        memory = np.frombuffer(
            self._maps[block.region], np.uint8, capacity, block.first
        )
        self.blocks[memory.ctypes.data] = block
        return memory

    def drop(self, memory: NDArray[np.uint8]) -> None:
        """Frees memory of `make`."""
        block = self.blocks.pop(memory.ctypes.data)
        size = _whole_pages(len(memory))
        # Returns the pages to the kernel, which would else keep them until the segment is gone.
        with contextlib.suppress(AttributeError, OSError):
            self._maps[block.region].madvise(mmap.MADV_REMOVE, block.first, size)
        self._free_blocks.setdefault(size, []).append(block)

    def _cut(self, size: int) -> Block:
        region, length, first = self._region
        if first + size > length:
            region, length, first = (
                region + length,
                max(_INITIAL_BLOCKS * size, region + length),
                0,
            )
            # A sparse file takes no memory until it is written to.
            os.ftruncate(self._descriptor, region + length)
            self._maps[region] = mmap.mmap(self._descriptor, length, offset=region)
        self._region = Block(region, length, first + size)
        return Block(region, length, first)


@final
class SharedMemoryView:
    """The segment in a worker process.

    Args:
        descriptor: Descriptor of the segment; closed by this object.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._maps: dict[int, mmap.mmap] = {}

    def memory(self, block: Block, size: int) -> NDArray[np.uint8]:
        """uint8[size]: the memory of a block."""
        if block.region not in self._maps:
            self._maps[block.region] = mmap.mmap(
                self._descriptor, block.size, offset=block.region
            )
        return np.frombuffer(self._maps[block.region], np.uint8, size, block.first)

    def close(self) -> None:
        """Closes the descriptor; the memory stays mapped while an array refers to it."""
        self._maps.clear()
        os.close(self._descriptor)


def _whole_pages(size: int) -> int:
    return -(-max(size, 1) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
