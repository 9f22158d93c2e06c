"""Cache of decoded chunks for a block shuffle: each is fetched once and kept until its rows are served."""

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.buffers import BufferPool, aligned_empty
from loadax.core.spec import flatten_spec, split_rows
from loadax.protocols import ArraySpec, Columns, Integers, Tree, Visits
from loadax.sources.base import BaseSource, WrapperSource
from loadax.sources.checks import check_rows, chunk_starts

_PAST = np.iinfo(np.int64).min  # stands for the begin of a chunk that has no slot
_IDLE_BYTES = 64 << 20  # of memory for chunks on their way in, kept for the next ones


@final
@dataclass(eq=False)
class _Chunk:
    """A chunk that has a slot.

    Args:
        slot: where in the arenas its rows stand.
        left: how many of its elements were not served yet.
        state: "loading", "ready", or "failed": then it is in nobody's way any more.
        users: how many reads copy from it, load it, or wait for it.
    """

    slot: int
    left: float
    state: str = "loading"
    users: int = 1


@final
class ChunkCache(WrapperSource):
    """A source over another one whose `chunks` are decoded whole: reads by chunk, serves by row.

    A chunk is kept until every row of it was served, which a shuffled epoch does once. When there is no room, the chunk
    that was asked for longest ago gives way; and when all are in use at this moment, rows are read past the cache. So
    results never depend on its size, only speed does. Only columns that somebody asks for are read and kept.
    Thread-safe.

    Args:
        source: with `chunks`.
        spec: of one row.
        slots: how many chunks are kept.
        times: how often each row is asked for.
        boxes: for every leaf the columns that will be asked for (None: none), as far as that is known.
    """

    owns_memory = True
    reads_columns = True
    spec: Tree = None
    chunks: Integers | range = range(0)

    def __init__(
        self,
        source: BaseSource,
        spec: Tree,
        slots: int,
        times: float = 1.0,
        boxes: Sequence[Columns | None] | None = None,
    ):
        super().__init__(source)
        self.spec = spec
        self._specs, self._structure = flatten_spec(spec)
        self._slots, self._times = slots, times
        starts = chunk_starts(source)
        assert starts is not None, "a source without chunks needs no cache"
        self.chunks = starts
        self._lock = threading.Lock()
        self._open = _Open(
            source, starts, self._specs, slots, times, boxes if boxes is not None else [None] * len(self._specs)
        )
        self._before = 0  # rows that were fetched before more columns were asked for

    def __repr__(self) -> str:
        return f"{self._source!r}, {self._slots} chunks open"

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process: as large, and empty.
        return ChunkCache, (self._source, self.spec, self._slots, self._times, self._open.boxes)

    def _over(self, source: BaseSource) -> "ChunkCache":
        return ChunkCache(source, self.spec, self._slots, self._times, self._open.boxes)

    @property
    def rows_fetched(self) -> int:
        """Rows that were read from the source so far: those of whole chunks, and those past the cache."""
        return self._before + self._open.rows_fetched

    def read(self, rows: Integers) -> Tree:
        """The examples at `rows`, copied out."""
        boxes: list[Columns | None] = [tuple((0, extent) for extent in spec.shape) for spec in self._specs]
        out: list[NDArray[Any] | None] = [np.empty((len(rows), *spec.shape), spec.dtype) for spec in self._specs]
        self.read_into(rows, boxes, out)
        return self._structure.build(out)

    def read_visits(self, visits: Visits) -> Tree:
        return self._source.read_visits(visits) if self.random else self.read(visits.rows)

    def read_examples(self, visits: Visits) -> list[Tree]:
        """Past the cache, which holds rows that are alike, where the source's need not be."""
        if self.reads_examples or self.random:
            return self._source.read_examples(visits)
        return split_rows(self.read(visits.rows), len(visits.rows))

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        """Copies the rows at `rows`, only the columns of `boxes`, into `out`; see `Source`."""
        rows = check_rows(rows, len(self._source))
        if len(rows):
            self._covering(boxes).serve(rows, boxes, out)

    def _covering(self, boxes: Sequence[Columns | None]) -> "_Open":
        """The open chunks; begun anew when they lack columns that are asked for now."""
        with self._lock:
            covering = [hull(one, other) for one, other in zip(self._open.boxes, boxes, strict=True)]
            if covering != self._open.boxes:
                self._before += self._open.rows_fetched
                self._open = _Open(self._source, self.chunks, self._specs, self._slots, self._times, covering)
            return self._open


@final
class _Open:
    """Chunks of which some columns are kept, in one arena a leaf: so serving rows is one indexed copy."""

    def __init__(
        self,
        source: BaseSource,
        starts: Integers | range,
        specs: Sequence[ArraySpec],
        slots: int,
        times: float,
        boxes: Sequence[Columns | None],
    ):
        self._source = source
        self._starts = starts
        self._specs = specs
        self.boxes = list(boxes)
        self._length = len(source)
        self._height = largest_chunk(starts, self._length)
        self._slots = max(1, min(slots, len(starts)))
        self._served_when = times * area(boxes)  # elements of a row
        self._arenas: list[NDArray[Any] | None] = []  # made when the first row is asked for
        self._on_its_way = BufferPool(_IDLE_BYTES)
        self._free = list(range(self._slots))[::-1]
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()  # by number; the one asked for longest ago first
        self._changed = threading.Condition()
        self.rows_fetched = 0

    def serve(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        """Copies rows, only these columns, into `out`."""
        numbers, which, counts = np.unique(self._chunk_of(rows), return_inverse=True, return_counts=True)
        asked = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        chunks = self._hold(asked)
        try:
            begins = np.array(
                [
                    self._starts[index] - chunks[index].slot * self._height if index in chunks else _PAST
                    for index in asked
                ]
            )
            places = rows - begins[which]
            if len(chunks) == len(asked):
                self._copy(places, boxes, out, None)
            else:
                cached = begins[which] != _PAST
                self._past(np.flatnonzero(~cached), rows, boxes, out)
                self._copy(places[cached], boxes, out, np.flatnonzero(cached))
        except BaseException:
            self._release(chunks, {})
            raise
        row_area = area(boxes)
        self._release(chunks, {index: count * row_area for index, count in asked.items()})

    def _chunk_of(self, rows: Integers) -> Integers:
        if isinstance(self._starts, range):
            return rows // self._starts.step
        return np.searchsorted(self._starts, rows, side="right") - 1

    def _rows_of(self, index: int) -> tuple[int, int]:
        end = self._starts[index + 1] if index + 1 < len(self._starts) else self._length
        return int(self._starts[index]), int(end)

    def _hold(self, indices: Iterable[int]) -> dict[int, _Chunk]:
        """The chunks of these numbers, ready, and kept from giving way.

        Without those that have to be read past the cache.
        """
        chunks: dict[int, _Chunk] = {}
        loading: dict[int, _Chunk] = {}
        with self._changed:
            if not self._arenas:
                self._arenas = self._new_arenas()
            for index in indices:
                chunk = self._chunks.get(index)
                if chunk is not None:
                    chunk.users += 1
                    self._chunks.move_to_end(index)
                elif (slot := self._slot()) is not None:
                    low, high = self._rows_of(index)
                    chunk = loading[index] = self._chunks[index] = _Chunk(slot, (high - low) * self._served_when)
                if chunk is not None:
                    chunks[index] = chunk
        try:
            # One's own first, then those that others load: so nobody waits for somebody who waits.
            if loading:
                self._load(loading)
            with self._changed:
                self._changed.wait_for(lambda: all(chunk.state != "loading" for chunk in chunks.values()))
        except BaseException:
            self._fail(loading)
            self._release(chunks, {})
            raise
        failed = {index: chunk for index, chunk in chunks.items() if chunk.state == "failed"}
        self._release(failed, {})
        return {index: chunk for index, chunk in chunks.items() if index not in failed}

    def _release(self, chunks: dict[int, _Chunk], served: dict[int, int]) -> None:
        with self._changed:
            for index, chunk in chunks.items():
                chunk.users -= 1
                chunk.left -= served.get(index, 0)
                if chunk.users == 0 and (chunk.left <= 0 or chunk.state == "failed"):
                    self._free.append(chunk.slot)
                    if self._chunks.get(index) is chunk:
                        del self._chunks[index]

    def _fail(self, chunks: dict[int, _Chunk]) -> None:
        with self._changed:
            for index, chunk in chunks.items():
                if chunk.state == "loading":
                    chunk.state = "failed"
                    del self._chunks[index]
            self._changed.notify_all()

    def _load(self, chunks: dict[int, _Chunk]) -> None:
        """Reads chunks to their slots, all in one call of the source."""
        bounds = {index: self._rows_of(index) for index in chunks}
        rows = np.concatenate([np.arange(low, high) for low, high in bounds.values()])
        slots = [chunk.slot for chunk in chunks.values()]
        heights = [high - low for low, high in bounds.values()]
        first = slots[0] * self._height
        if slots == list(range(slots[0], slots[0] + len(slots))) and set(heights[:-1]) <= {self._height}:
            self._fetch(rows, [None if arena is None else arena[first : first + len(rows)] for arena in self._arenas])
        else:
            arrived = [None if arena is None else self._leased(len(rows), arena) for arena in self._arenas]
            self._fetch(rows, arrived)
            for arena, values in zip(self._arenas, arrived, strict=True):
                if arena is not None and values is not None:
                    start = 0
                    for slot, height in zip(slots, heights, strict=True):
                        arena[slot * self._height : slot * self._height + height] = values[start : start + height]
                        start += height
        with self._changed:
            for chunk in chunks.values():
                chunk.state = "ready"
            self._changed.notify_all()

    def _fetch(self, rows: Integers, out: list[NDArray[Any] | None]) -> None:
        self._source.read_into(rows, self.boxes, out)
        with self._changed:
            self.rows_fetched += len(rows)

    def _past(
        self, misses: Integers, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]
    ) -> None:
        """Reads some of the rows straight from the source."""
        values = [
            None if destination is None else np.empty((len(misses), *destination.shape[1:]), destination.dtype)
            for destination in out
        ]
        self._source.read_into(rows[misses], boxes, values)
        for destination, value in zip(out, values, strict=True):
            if destination is not None:
                destination[misses] = value
        with self._changed:
            self.rows_fetched += len(misses)

    def _copy(
        self,
        places: Integers,
        boxes: Sequence[Columns | None],
        out: Sequence[NDArray[Any] | None],
        targets: Integers | None,
    ) -> None:
        """Copies rows from the arenas: those at `places`, to the rows `mine` of `out` (None: all)."""
        for arena, kept, columns, destination in zip(self._arenas, self.boxes, boxes, out, strict=True):
            if columns is None or destination is None:
                continue
            assert arena is not None, "this leaf is not kept"
            assert kept is not None
            if (
                columns == kept
                and targets is None
                and destination.flags.c_contiguous
                and destination.dtype == arena.dtype
            ):
                np.take(arena, places, axis=0, out=destination, mode="clip")
                continue
            cuts = (slice(start - first, stop - first) for (start, stop), (first, _) in zip(columns, kept, strict=True))
            index: Any = (places, *cuts)
            destination[slice(None) if targets is None else targets] = arena[index]

    def _new_arenas(self) -> list[NDArray[Any] | None]:
        # Memory that is not written to costs nothing: the system gives it page by page.
        rows = self._slots * self._height
        return [
            None if box is None else aligned_empty((rows, *(stop - start for start, stop in box)), spec.dtype)
            for box, spec in zip(self.boxes, self._specs, strict=True)
        ]

    def _leased(self, rows: int, arena: NDArray[Any]) -> NDArray[Any]:
        shape = (rows, *arena.shape[1:])
        return self._on_its_way.lease(math.prod(shape) * arena.itemsize).view(arena.dtype).reshape(shape)

    def _slot(self) -> int | None:
        """A free slot; of the chunk asked for longest ago and not in use, when there is no other."""
        if self._free:
            return self._free.pop()
        for index, chunk in self._chunks.items():
            if chunk.users == 0:
                del self._chunks[index]
                return chunk.slot
        return None


def hull(one: Columns | None, other: Columns | None) -> Columns | None:
    """The smallest box that holds both."""
    if one is None or other is None:
        return one if other is None else other
    return tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(one, other, strict=True))


def area(boxes: Sequence[Columns | None]) -> int:
    """Elements of a row that the boxes hold."""
    return sum(math.prod(stop - start for start, stop in box) for box in boxes if box is not None)


def largest_chunk(starts: Integers | range, length: int) -> int:
    """Rows of the largest chunk."""
    if isinstance(starts, range):
        return min(starts.step, length)
    return int(np.diff(starts, append=length).max())
