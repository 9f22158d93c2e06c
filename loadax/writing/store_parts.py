"""StoreParts: reads the parts of a store in threads, writes each while the next is read, and verifies existing ones."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait as wait_for_futures
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, TypeVar, final

import numpy as np
import tensorstore as ts
from numpy.typing import NDArray

from loadax.core.context import Caller
from loadax.core.spec import check_batch
from loadax.core.threads import thread_pool
from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.files.kvstore import brief, wait
from loadax.files.object_stores import PATIENCE
from loadax.kept.parts import Done
from loadax.writing.chunk_layout import Layout
from loadax.writing.ragged_rows import RaggedRows
from loadax.writing.written_rows import Rows

# seconds between two looks at whether a part is written, while the next one is read
_POLL = 0.05
_UNDER_WAY = 2  # parts that are read back concurrently
# bytes per read: large against the fixed cost of a call, small enough to keep all threads busy
_READ_BYTES = 8 << 20
_READ_ROWS = 512  # ragged rows per read
_DAMAGE = (
    "NOT_FOUND",
    "DATA_LOSS",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
    "INVALID_ARGUMENT",
)

Boxes = list[tuple[Any, NDArray[Any]]]
_Item = TypeVar("_Item")
_Begun = TypeVar("_Begun")


@final
@dataclass(frozen=True)
class StoreParts:
    """Writer of the parts of one store.

    Args:
        rows: Rows to write.
        layout: Layout of the store.
        arrays: Open arrays of the store, in leaf order.
        names: Names of the arrays in messages.
        label: Name of the pass, for messages; see `loadax.kept.pass_work.Work`.
        workers: Number of threads that read rows.
    """

    rows: Rows | RaggedRows
    layout: Layout
    arrays: Sequence[ts.TensorStore]
    names: Sequence[str]
    label: str
    workers: int
    unit: str = "row"

    @property
    def sizes(self) -> list[int]:
        return [self.rows_of(part) for part in range(self.layout.parts)]

    def rows_of(self, part: int) -> int:
        """Number of rows of a part."""
        start, stop = self.layout.part(part)
        return stop - start

    def compute(self, part: int, _over: Event) -> dict[str, NDArray[Any]]:
        """Writes a part, in a worker of an executor."""
        self.write([part])
        return {}

    def missing(
        self, parts: Iterable[int], done: Callable[[int], object]
    ) -> Iterator[int]:
        """Yields the parts that are missing or damaged; calls `done` with the number of each intact part.

        Reads all data of every part, two parts at a time.
        """
        for part, futures in ahead(
            parts, self._begin_read, lambda begun: len(begun) >= _UNDER_WAY
        ):
            if any(
                [  # noqa: C419 - all
                    damage_of(future, name)
                    for future, name in zip(futures, self.names, strict=True)
                ]
            ):
                yield part
            else:
                done(part)

    def _begin_read(self, part: int) -> list[Any]:
        """Begins to read all arrays of a part; if the lengths of ragged rows are damaged, only these."""
        region = ts.d[0][slice(*self.layout.part(part))]
        if not isinstance(self.rows, RaggedRows):
            return [array[region].read() for array in self.arrays]
        lengths = self.arrays[-1][region].read()
        if damage_of(lengths, self.names[-1]) is not None:
            return [lengths] * len(self.arrays)
        regions = self.rows.regions(part, lengths.result())
        return [
            *(
                array[box].read()
                for array, box in zip(self.arrays[:-1], regions, strict=True)
            ),
            lengths,
        ]

    def write(self, parts: Iterable[int], done: Done | None = None) -> None:
        """Writes parts, each shard in one request.

        Args:
            parts: Numbers of the parts.
            done: Callback for each stored part, given its number. None: nobody asks.
        """
        # at most one: it is compressed and written while the next is read
        writing: list[tuple[int, list[Any]]] = []
        with thread_pool(self.workers, "loadax-write") as pool:
            try:
                for part in parts:
                    boxes = self._read(
                        part, pool, partial(self._stored_if_written, writing, done)
                    )
                    self._stored(writing, done)
                    begun = [
                        array[region].write(
                            buffer, can_reference_source_data_indefinitely=True
                        )
                        for array, (region, buffer) in zip(
                            self.arrays, boxes, strict=True
                        )
                    ]
                    writing.append((part, begun))
                    # TensorStore keeps its own references, so that only parts in progress are in memory
                    del boxes
                self._stored(writing, done)
            except BaseException as error:
                # Writes can't be cancelled, and none may continue after this function ends. A Ctrl-C waits a second.
                with suppress(SourceError):
                    self._stored(
                        writing,
                        done,
                        1.0 if isinstance(error, KeyboardInterrupt) else PATIENCE,
                    )
                raise

    def _read(
        self, part: int, pool: ThreadPoolExecutor, poll: Callable[[], object]
    ) -> Boxes:
        """Reads the rows of a part with all threads: the region of each array that it fills, and its values.

        Args:
            part: Number of the part.
            pool: The threads.
            poll: Function that is called now and then meanwhile.
        """
        start, stop = self.layout.part(part)
        caller = Caller()
        if isinstance(self.rows, RaggedRows):
            step = max(1, min(_READ_ROWS, -(-(stop - start) // self.workers)))
            ranges = [
                np.arange(low, min(low + step, stop), dtype=np.int64)
                for low in range(start, stop, step)
            ]
            ragged = [
                pool.submit(caller.run, self.rows.read, positions)
                for positions in ranges
            ]
            _wait_for(ragged, poll)
            return self.rows.boxes(
                part, [row for read in ragged for row in read.result()]
            )
        # As large as the part's positions: the last part is shorter, and TensorStore pads its last chunk.
        buffers = [
            np.empty((stop - start, *array.spec.shape), array.spec.dtype)
            for array in self.layout.arrays
        ]
        step = rows_per_read(self.layout, stop - start, self.workers)
        reads: list[Future[None]] = [
            pool.submit(
                caller.run, self._fill, buffers, start, low, min(low + step, stop)
            )
            for low in range(start, stop, step)
        ]
        _wait_for(reads, poll)
        for read in reads:
            read.result()
        return [(slice(start, stop), buffer) for buffer in buffers]

    def _fill(
        self, buffers: list[NDArray[Any]], start: int, low: int, high: int
    ) -> None:
        assert not isinstance(self.rows, RaggedRows)
        batch = self.rows.read(np.arange(low, high, dtype=np.int64))
        checked = check_batch(
            batch,
            high - low,
            self.rows.spec,
            f"the dataset's read of positions {low} to {high - 1}",
        )
        for buffer, leaf in zip(buffers, flatten(checked)[0], strict=True):
            buffer[low - start : high - start] = leaf

    def _stored_if_written(
        self, writing: list[tuple[int, list[Any]]], done: Done | None
    ) -> None:
        """Notes a part as soon as it is written: else a kill while the next one is read would lose both."""
        if all(future.done() for _, futures in writing for future in futures):
            self._stored(writing, done)

    def _stored(
        self,
        writing: list[tuple[int, list[Any]]],
        done: Done | None,
        patience: float = PATIENCE,
    ) -> None:
        """Waits for the part that is written, if any."""
        while writing:
            part, futures = writing.pop()
            for future, name in zip(futures, self.names, strict=True):
                wait(future, name, patience)
            if done is not None:
                done(part)


def _wait_for(reads: Sequence[Future[Any]], poll: Callable[[], object]) -> None:
    running: set[Future[Any]] = set(reads)
    while running:
        running = wait_for_futures(running, _POLL).not_done
        poll()


def rows_per_read(layout: Layout, part_rows: int, workers: int) -> int:
    """Number of rows of a part that a thread reads at once."""
    return max(
        1, min(_READ_BYTES // max(1, layout.row_bytes), -(-part_rows // workers))
    )


def ahead(
    items: Iterable[_Item],
    begin: Callable[[_Item], _Begun],
    full: Callable[[Sequence[_Item]], bool],
) -> Iterator[tuple[_Item, _Begun]]:
    """Yields items in order with what `begin` returned, which begins the next ones until `full` is true of them."""
    begun: deque[tuple[_Item, _Begun]] = deque()
    for item in items:
        while begun and full([item for item, _ in begun]):
            yield begun.popleft()
        begun.append((item, begin(item)))
    while begun:
        yield begun.popleft()


def damage_of(future: Any, label: str) -> str | None:
    """Waits for a read and returns the error if data is missing or damaged; raises errors of the server."""
    try:
        wait(future, label)
    except SourceError as error:
        if not (why := reason(error)).startswith(_DAMAGE):
            raise
        return why
    return None


def reason(error: SourceError) -> str:
    """TensorStore's message, without location and remedy."""
    cause = error.__cause__
    if isinstance(cause, Exception):
        return brief(cause)
    return str(error)
