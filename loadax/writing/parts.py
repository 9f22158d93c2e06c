"""Parts: reads the parts of a store in threads, writes each while the next is read, and verifies existing ones."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import tensorstore as ts
from numpy.typing import NDArray

from loadax.core.context import Caller
from loadax.core.spec import check_batch
from loadax.core.threads import thread_pool
from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.sources.io.kvstore import brief, wait
from loadax.sources.io.object_stores import PATIENCE
from loadax.writing.layout import Layout
from loadax.writing.rows import Rows

_UNDER_WAY = 2  # parts in memory: one is read while the previous one is compressed and written
_READ_BYTES = 8 << 20  # bytes per read: large against the fixed cost of a call, small enough to keep all threads busy
_DAMAGE = ("NOT_FOUND", "DATA_LOSS", "FAILED_PRECONDITION", "OUT_OF_RANGE", "INVALID_ARGUMENT")

Buffers = list[NDArray[Any]]


@final
@dataclass(frozen=True)
class Parts:
    """Writer of the parts of one store.

    Args:
        rows: Rows to write.
        layout: Layout of the store.
        arrays: Open arrays of the store, in leaf order.
        names: Names of the arrays in messages.
    """

    rows: Rows
    layout: Layout
    arrays: Sequence[ts.TensorStore]
    names: Sequence[str]

    def missing(self, parts: Iterable[int], done: Callable[[int], object]) -> Iterator[int]:
        """Yields the parts that are missing or damaged; calls `done` with the number of rows of each intact part.

        Reads all data of every part, two parts at a time.
        """
        reading: deque[tuple[int, list[Any]]] = deque()
        try:
            for part in parts:
                while len(reading) >= _UNDER_WAY:
                    yield from self._checked(*reading.popleft(), done)
                region = ts.d[0][slice(*self.layout.part(part))]
                reading.append((part, [array[region].read() for array in self.arrays]))
            while reading:
                yield from self._checked(*reading.popleft(), done)
        finally:
            for _, futures in reading:
                for future in futures:
                    future.cancel()

    def write(self, parts: Iterable[int], workers: int, done: Callable[[int], object]) -> int:
        """Writes parts, each shard in one request, and returns their number.

        Args:
            parts: Numbers of the parts.
            workers: Number of threads that read rows.
            done: Callback for each stored part, given its number of rows.
        """
        count = 0
        writing: deque[tuple[int, list[Any]]] = deque()
        with thread_pool(workers, "loadax-write") as pool:
            try:
                for part in parts:
                    buffers = self._read(part, pool, workers)
                    while len(writing) >= _UNDER_WAY - 1:
                        self._stored(*writing.popleft(), done)
                    writing.append((part, self._begin(part, buffers)))
                    count += 1
                    # TensorStore keeps its own references, so that only parts in progress are in memory
                    del buffers
                while writing:
                    self._stored(*writing.popleft(), done)
            except BaseException as error:
                # Writes can't be cancelled, and none may continue after this function ends. A Ctrl-C waits a second.
                patience = 1.0 if isinstance(error, KeyboardInterrupt) else PATIENCE
                for part, futures in writing:
                    with suppress(SourceError):
                        self._stored(part, futures, done, patience)
                raise
        return count

    def _checked(self, part: int, futures: list[Any], done: Callable[[int], object]) -> Iterator[int]:
        errors = []
        for future, name in zip(futures, self.names, strict=True):
            try:
                wait(future, name)
            except SourceError as error:
                if not is_damage(error):
                    raise
                errors.append(error)
        if errors:
            yield part
        else:
            start, stop = self.layout.part(part)
            done(stop - start)

    def _read(self, part: int, pool: ThreadPoolExecutor, workers: int) -> Buffers:
        """Reads the rows of a part with all threads."""
        start, stop = self.layout.part(part)
        caller = Caller()
        # As large as the part's positions: the last part is shorter, and TensorStore pads its last chunk.
        buffers = [np.empty((stop - start, *array.spec.shape), array.spec.dtype) for array in self.layout.arrays]
        step = max(1, min(_READ_BYTES // max(1, self.layout.row_bytes), -(-(stop - start) // workers)))
        reads: list[Future[None]] = [
            pool.submit(caller.run, self._fill, buffers, start, low, min(low + step, stop))
            for low in range(start, stop, step)
        ]
        for read in reads:
            read.result()
        return buffers

    def _fill(self, buffers: Buffers, start: int, low: int, high: int) -> None:
        batch = self.rows.read(np.arange(low, high, dtype=np.int64))
        checked = check_batch(batch, high - low, self.rows.spec, f"the dataset's read of positions {low} to {high - 1}")
        for buffer, leaf in zip(buffers, flatten(checked)[0], strict=True):
            buffer[low - start : high - start] = leaf

    def _begin(self, part: int, buffers: Buffers) -> list[Any]:
        region = ts.d[0][slice(*self.layout.part(part))]
        return [
            array[region].write(buffer, can_reference_source_data_indefinitely=True)
            for array, buffer in zip(self.arrays, buffers, strict=True)
        ]

    def _stored(self, part: int, futures: list[Any], done: Callable[[int], object], patience: float = PATIENCE) -> None:
        for future, name in zip(futures, self.names, strict=True):
            wait(future, name, patience)
        start, stop = self.layout.part(part)
        done(stop - start)


def is_damage(error: SourceError) -> bool:
    """Whether a read failed because of missing or damaged data, not because of the server or permissions."""
    return reason(error).startswith(_DAMAGE)


def reason(error: SourceError) -> str:
    """TensorStore's message, without location and remedy."""
    cause = error.__cause__
    return brief(cause) if isinstance(cause, Exception) else str(error)
