"""RemoteFiller: what the tasks of remote workers call; it fills pieces, whose rows it keeps for other jobs."""

import functools
import hashlib
import os
import pickle
from itertools import count
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.buffers import BufferPool
from loadax.core.memory import keep_freed_memory
from loadax.loader.assembly.assembler import (
    Assembler,
    FillOptions,
    Piece,
    fill_all,
    piece_layout,
)
from loadax.loader.assembly.buffer_layout import BatchBuffers, lease_buffers
from loadax.loader.metrics.stats import Timing
from loadax.loader.remote.row_cache import RowCache
from loadax.protocols import Visits
from loadax.reader import Reader
from loadax.work.pickling import pickle_answer

_NUMBERS = count()  # of fillers, for the rows that this process keeps
_MOST_JOBS = 32  # of a payload, such as buckets
_MOST_LAYOUTS = 64
# bytes that are filled at a time, with what maps make in between in the caches of a core
_PART = 2 << 20


class Filled(NamedTuple):
    """Answer: the rows of a piece.

    Args:
        timing: Fields of its `Timing`.
        memory: uint8: buffers of its `piece_layout`.
        objects: Pickled rows of the tiles of Python objects; empty if there are none.
        worker: Id of the worker's process.
    """

    timing: tuple[Any, ...]
    memory: NDArray[np.uint8]
    objects: bytes
    worker: int


@final
class RemoteFiller:
    """What a task calls: fills pieces by readers of a dataset. Thread-safe. It is pickled as its arguments.

    Args:
        readers: Readers of the dataset.
    """

    def __init__(self, readers: tuple[Reader, ...]):
        self._readers = readers
        self._number = next(_NUMBERS)
        self._job = functools.lru_cache(_MOST_JOBS)(self._make_job)

    def __reduce__(self) -> Any:
        return _opened, (self._readers,)

    def __call__(
        self,
        reader: int,
        options: bytes,
        rows: bytes,
        epochs: bytes,
        low: int,
        steps: int,
    ) -> Filled:
        """Fills a piece.

        Args:
            reader: Index of the reader.
            options: Pickled `FillOptions`.
            rows: Rows of the visits of the piece, int64, as bytes.
            epochs: Epochs of the visits, int64, as bytes.
            low: First row of each step in the training process.
            steps: Number of steps there.
        """
        visits = Visits(
            np.frombuffer(rows, np.int64), np.frombuffer(epochs, np.int64)
        )
        return self._job(reader, options).fill(visits, low, steps)

    def _make_job(self, reader: int, options: bytes) -> "_Job":
        digest = f"{self._number} {reader} {hashlib.sha256(options).hexdigest()}"
        return _Job(digest, self._readers[reader], pickle.loads(options))  # noqa: S301 - tasks are pickles anyway


def _opened(readers: tuple[Reader, ...]) -> RemoteFiller:
    """The filler of readers, in a worker."""
    keep_freed_memory()
    return RemoteFiller(readers)


@final
class _Job:
    """A reader, and how it fills pieces. Thread-safe."""

    def __init__(self, digest: str, reader: Reader, options: FillOptions):
        self._digest = digest
        self._reader = reader
        self._options = options
        self._assembler = functools.lru_cache(_MOST_LAYOUTS)(self._make_assembler)
        self._lease = BufferPool(64 << 20).lease  # idle bytes
        # Rows are cached if each has all tiles, without objects of unknown size, and errors end a run.
        self._caches_rows = not options.masking and all(
            tile.select is None and not tile.leaf.dtype.hasobject
            for tile in options.layout.tiles
        )

    def fill(self, visits: Visits, low: int, steps: int) -> Filled:
        """Fills a piece."""
        if self._caches_rows:
            timing, buffers = self._fill_missing(visits)
        else:
            timing, buffers = self._fill(visits, low, steps)
        objects = buffers.objects(0, len(visits.rows))
        if objects:
            pickled = pickle_answer(objects)
        else:
            pickled = b""
        return Filled(tuple(timing), buffers.memory, pickled, os.getpid())

    def _fill(
        self, visits: Visits, low: int = 0, steps: int = 1
    ) -> tuple[Timing, BatchBuffers]:
        assembler = self._assembler(low, low + len(visits.rows) // steps, steps)
        layout = assembler.layout
        buffers = lease_buffers(layout, self._lease, 1)
        size = max(1, _PART * layout.rows // max(1, layout.bytes_per_step))
        return fill_all(assembler.fill, Piece(visits, 0, buffers).cut(size)), buffers

    def _fill_missing(self, visits: Visits) -> tuple[Timing, BatchBuffers]:
        """Fills the rows that are not cached, and copies those that are."""
        keys = list(
            zip(
                [self._digest] * len(visits.rows),
                visits.epochs.tolist(),
                visits.rows.tolist(),
                strict=True,
            )
        )
        cached = _rows.find(keys)
        missing = [index for index, found in enumerate(cached) if found is None]
        if len(missing) == len(keys):
            timing, buffers = self._fill(visits)
            _rows.add(keys, buffers)
            return timing, buffers
        timing = Timing()
        buffers = lease_buffers(
            self._assembler(0, len(keys), 1).layout, self._lease, 1
        )
        if missing:
            timing, part = self._fill(
                Visits(visits.rows[missing], visits.epochs[missing])
            )
            _rows.add([keys[index] for index in missing], part)
            for row, index in enumerate(missing):
                cached[index] = part, row
        for index, found in enumerate(cached):
            assert found is not None  # it was cached, or was missing
            buffers.copy_row(index, *found)
        return timing._replace(
            rows=int((visits.rows >= 0).sum()), cached=len(keys) - len(missing)
        ), buffers

    def _make_assembler(self, low: int, high: int, steps: int) -> Assembler:
        layout = piece_layout(self._options.layout, low, high, steps)
        return Assembler(self._reader, self._options._replace(layout=layout))


_rows = RowCache(256 << 20)  # bytes, for other jobs
