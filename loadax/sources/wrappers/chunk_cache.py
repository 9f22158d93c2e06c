"""ChunkCache: keeps each decoded chunk until all of its rows are served, for a block shuffle."""

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from loadax.core.buffers import BufferPool
from loadax.core.spec import flatten_spec, normalise_spec, split_rows
from loadax.protocols import (
    Array,
    ArraySpec,
    Boxes,
    Columns,
    Integers,
    Outputs,
    Tree,
    Visits,
)
from loadax.sources.base import BaseSource, WrapperSource, scatter_into
from loadax.sources.checks import check_rows, chunk_starts, read_columns
from loadax.sources.wrappers.row_arena import RowArena, row_layouts

_PAST = np.iinfo(np.int64).min  # marks a chunk without a slot
_IDLE_BYTES = 64 << 20  # idle memory of the buffers for arriving chunks


@final
@dataclass(eq=False)
class _Chunk:
    """A chunk with a slot.

    Args:
        slot: Index of its rows in the arenas.
        left: Number of its elements that were not served yet.
        state: "loading", "ready", or "failed" (already removed from the cache).
        users: Number of reads that copy from it, load it, or wait for it.
    """

    slot: int
    left: float
    state: str = "loading"
    users: int = 1


@final
class ChunkCache(WrapperSource):
    """Reads a source by whole chunks and serves single rows.

    A chunk is kept until all of its rows were served, which a shuffled epoch does once. When the cache is full, the
    least recently used chunk is evicted; when all chunks are in use, rows are read directly from the source. So the
    size of the cache affects speed, never results. Only requested columns are read and kept. Thread-safe.

    Args:
        source: Source with `chunks`.
        spec: Spec of one row.
        slots: Number of chunks to keep.
        times: Number of requests for each row.
        boxes: Columns that will be requested of each leaf (None: none), as far as they are known.
        spare: Number of served chunks to keep, for rows that are requested once more.
        together: Whether several chunks are read in one call, for sources that join requests. Otherwise each is read
            into its place, without a copy.
    """

    spec: Tree = None
    chunks: Integers | range = range(0)

    def __init__(
        self,
        source: BaseSource,
        spec: Tree,
        slots: int,
        times: float = 1.0,
        boxes: Boxes | None = None,
        spare: int = 0,
        together: bool = True,
    ):
        super().__init__(source)
        self.traits = source.traits._replace(owns_memory=True, reads_columns=True)
        self.spec = spec
        self._slots = slots
        self._times = times
        self._spare = spare
        self._together = together
        starts = chunk_starts(source)
        assert starts is not None, "a source without chunks needs no cache"
        self.chunks = starts
        self._lock = threading.Lock()
        specs = flatten_spec(spec)[0]
        self._make = partial(
            _CachedColumns, source, starts, specs, slots, times, spare, together
        )
        self._open = self._make(boxes if boxes is not None else [None] * len(specs))
        # rows fetched by earlier `_CachedColumns`s, with fewer columns
        self._before = 0

    def __repr__(self) -> str:
        return f"{self._source!r}, open chunks: {self._slots}"

    def __reduce__(self) -> tuple[Any, ...]:
        # An empty cache of the same size in another process.
        return ChunkCache, self._arguments(self._source)

    def _over(self, source: BaseSource) -> "ChunkCache":
        return ChunkCache(*self._arguments(source))

    def _arguments(self, source: BaseSource) -> tuple[Any, ...]:
        return (
            source,
            self.spec,
            self._slots,
            self._times,
            self._open.boxes,
            self._spare,
            self._together,
        )

    def lacks(self, indices: Integers) -> list[int]:
        """Those of some chunks that are neither in memory nor being loaded."""
        return self._open.lacks(indices)

    @property
    def rows_fetched(self) -> int:
        """Number of rows read from the source so far: in whole chunks, and past the cache."""
        return self._before + self._open.rows_fetched

    read = read_columns

    def read_visits(self, visits: Visits) -> Tree:
        if self.traits.random:
            return self._source.read_visits(visits)
        return self.read(visits.rows)

    def read_examples(self, visits: Visits) -> list[Tree]:
        """Reads past the cache where shapes may differ, since cached rows have one shape."""
        if self.traits.reads_examples or self.traits.random:
            return self._source.read_examples(visits)
        return split_rows(self.read(visits.rows), len(visits.rows))

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        rows = check_rows(rows, len(self._source))
        if len(rows):
            self._covering(boxes).serve(rows, boxes, out)

    def _covering(self, boxes: Boxes) -> "_CachedColumns":
        """Returns the open chunks; replaces them with empty ones if requested columns are missing."""
        with self._lock:
            covering = [
                hull(one, other)
                for one, other in zip(self._open.boxes, boxes, strict=True)
            ]
            if covering != self._open.boxes:
                self._before += self._open.rows_fetched
                self._open = self._make(covering)
            return self._open


@final
class _CachedColumns:
    """Cached chunks for a fixed set of columns, in arenas of rows, so that serving rows is one indexed copy."""

    def __init__(
        self,
        source: BaseSource,
        starts: Integers | range,
        specs: Sequence[ArraySpec],
        slots: int,
        times: float,
        spare: int,
        together: bool,
        boxes: Boxes,
    ):
        self._source = source
        self._starts = starts
        self.boxes = list(boxes)
        self._layouts = row_layouts(specs, boxes)
        self._length = len(source)
        self._height = largest_chunk(starts, self._length)
        self._slots = max(1, min(slots, len(starts)))
        self._served_when = times * area(boxes)  # elements of a row
        self._arenas: list[RowArena] | None = None  # allocated on the first read
        self._in_transit = BufferPool(_IDLE_BYTES)
        self._free = list(range(self._slots))[::-1]
        # by index, least recently used first
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()
        # those of them that were served and have no user, in the order in which that came
        self._served: OrderedDict[int, _Chunk] = OrderedDict()
        self._spare = spare
        self._together = together
        self._changed = threading.Condition()
        self.rows_fetched = 0

    def lacks(self, indices: Integers) -> list[int]:
        """Those of some chunks that are neither in memory nor being loaded."""
        with self._changed:
            return [index for index in indices.tolist() if index not in self._chunks]

    def serve(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        """Copies rows, only these columns, into `out`."""
        chunk_of_row = chunk_of(self._starts, rows)
        first = int(chunk_of_row.min())
        counts = np.bincount(chunk_of_row - first)
        numbers = np.flatnonzero(counts)
        which = (np.cumsum(counts > 0) - 1)[chunk_of_row - first]
        asked = dict(
            zip((numbers + first).tolist(), counts[numbers].tolist(), strict=True)
        )
        chunks = self._hold(asked)
        try:
            begins = np.array(
                [
                    self._starts[index] - chunks[index].slot * self._height
                    if index in chunks
                    else _PAST
                    for index in asked
                ]
            )
            places = rows - begins[which]
            targets = None
            if len(chunks) < len(asked):
                cached = begins[which] != _PAST
                misses = np.flatnonzero(~cached)
                scatter_into(self._source, rows[misses], boxes, out, misses)
                with self._changed:
                    self.rows_fetched += len(misses)
                places = places[cached]
                targets = np.flatnonzero(cached)
            for arena in self._arenas or ():
                arena.gather(places, boxes, out, targets, self._in_transit.lease)
        except BaseException:
            self._release(chunks, {})
            raise
        row_area = area(boxes)
        self._release(
            chunks, {index: count * row_area for index, count in asked.items()}
        )

    def _rows_of(self, index: int) -> tuple[int, int]:
        if index + 1 < len(self._starts):
            end = self._starts[index + 1]
        else:
            end = self._length
        return int(self._starts[index]), int(end)

    def _hold(self, indices: Iterable[int]) -> dict[int, _Chunk]:
        """Loads and pins the chunks with these indices, except those that must be read past the cache."""
        chunks: dict[int, _Chunk] = {}
        loading: dict[int, _Chunk] = {}
        with self._changed:
            if self._arenas is None:
                # Memory that is never written costs nothing: the kernel allocates pages on first use.
                self._arenas = [
                    RowArena(layout, self._slots * self._height)
                    for layout in self._layouts
                ]
            for index in indices:
                chunk = self._chunks.get(index)
                if chunk is not None:
                    chunk.users += 1
                    self._chunks.move_to_end(index)
                    self._served.pop(index, None)
                elif (slot := self._slot()) is not None:
                    low, high = self._rows_of(index)
                    chunk = loading[index] = self._chunks[index] = _Chunk(
                        slot, (high - low) * self._served_when
                    )
                if chunk is not None:
                    chunks[index] = chunk
        try:
            # Loads its own chunks before it waits for other threads' chunks, so that no two threads deadlock.
            if loading:
                self._load(loading)
            with self._changed:
                self._changed.wait_for(
                    lambda: all(chunk.state != "loading" for chunk in chunks.values())
                )
        except BaseException:
            self._fail(loading)
            self._release(chunks, {})
            raise
        failed = {
            index: chunk for index, chunk in chunks.items() if chunk.state == "failed"
        }
        self._release(failed, {})
        return {
            index: chunk for index, chunk in chunks.items() if index not in failed
        }

    def _release(self, chunks: dict[int, _Chunk], served: dict[int, int]) -> None:
        with self._changed:
            for index, chunk in chunks.items():
                chunk.users -= 1
                chunk.left -= served.get(index, 0)
                if chunk.users:
                    continue
                if chunk.state == "failed":
                    self._free.append(chunk.slot)
                elif chunk.left <= 0:
                    self._served[index] = chunk
            while len(self._served) > self._spare:
                index, chunk = self._served.popitem(last=False)
                self._free.append(chunk.slot)
                del self._chunks[index]

    def _fail(self, chunks: dict[int, _Chunk]) -> None:
        with self._changed:
            for index, chunk in chunks.items():
                if chunk.state == "loading":
                    chunk.state = "failed"
                    del self._chunks[index]
            self._changed.notify_all()

    def _load(self, chunks: dict[int, _Chunk]) -> None:
        """Reads chunks into their slots, in one call of the source."""
        bounds = {index: self._rows_of(index) for index in chunks}
        rows = np.concatenate([np.arange(low, high) for low, high in bounds.values()])
        slots = [chunk.slot for chunk in chunks.values()]
        heights = [high - low for low, high in bounds.values()]
        first = slots[0] * self._height
        arenas = self._arenas or []
        if not self._together:
            for slot, (low, high) in zip(slots, bounds.values(), strict=True):
                self._fetch(np.arange(low, high), arenas, slot * self._height)
        elif slots == list(range(slots[0], slots[0] + len(slots))) and set(
            heights[:-1]
        ) <= {self._height}:
            self._fetch(rows, arenas, first)
        else:
            arrived = [
                RowArena(layout, len(rows), self._in_transit.lease)
                for layout in self._layouts
            ]
            self._fetch(rows, arrived, 0)
            for arena, values in zip(arenas, arrived, strict=True):
                start = 0
                for slot, height in zip(slots, heights, strict=True):
                    arena.rows[slot * self._height : slot * self._height + height] = (
                        values.rows[start : start + height]
                    )
                    start += height
        with self._changed:
            for chunk in chunks.values():
                chunk.state = "ready"
            self._changed.notify_all()

    def _fetch(self, rows: Integers, arenas: Sequence[RowArena], first: int) -> None:
        """Reads rows from the source into the rows from `first` on of arenas."""
        out: list[Array | None] = [None] * len(self.boxes)
        for arena in arenas:
            for leaf, field in zip(arena.layout.leaves, arena.fields, strict=True):
                out[leaf] = field[first : first + len(rows)]
        self._source.read_into(rows, self.boxes, out)
        with self._changed:
            self.rows_fetched += len(rows)

    def _slot(self) -> int | None:
        """Takes a free slot, or evicts the least recently used idle chunk; None if all are in use."""
        if self._free:
            return self._free.pop()
        for index, chunk in self._chunks.items():
            if chunk.users == 0:
                del self._chunks[index]
                self._served.pop(index, None)
                return chunk.slot
        return None


def hull(one: Columns | None, other: Columns | None) -> Columns | None:
    """Smallest box that contains both."""
    if one is None or other is None:
        if other is None:
            return one
        return other
    return tuple(
        (min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(one, other, strict=True)
    )


def area(boxes: Boxes) -> int:
    """Number of elements of a row in the boxes."""
    return sum(
        math.prod(stop - start for start, stop in box)
        for box in boxes
        if box is not None
    )


def chunk_of(starts: Integers | range, rows: Integers) -> Integers:
    """Indices of the chunks that these rows are in."""
    if isinstance(starts, range):
        return rows // starts.step
    return np.searchsorted(starts, rows, side="right") - 1


def chunk_sizes(starts: Integers | range, chunks: Integers, length: int) -> Integers:
    """Rows of these chunks."""
    if isinstance(starts, range):
        return np.minimum(starts.step, length - chunks * starts.step)
    return np.diff(starts, append=length)[chunks]


def largest_chunk(starts: Integers | range, length: int) -> int:
    """Rows of the largest chunk."""
    if isinstance(starts, range):
        return min(starts.step, length)
    return int(np.diff(starts, append=length).max())


def with_chunks(
    source: BaseSource, count: int, times: float, boxes: Boxes | None = None
) -> BaseSource:
    """A source with memory for `count` decoded chunks; itself if it has no chunks, or its rows no spec or objects.

    Args:
        source: Any source.
        count: Number of chunks.
        times: Number of requests for each row.
        boxes: As for `ChunkCache`.
    """
    if chunk_starts(source) is None:
        return source
    own = source.cache_chunks(count)
    if own is not None or source.spec is None:
        return own or source
    spec = normalise_spec(source.spec)
    # the cache copies bytes
    if any(leaf.dtype.hasobject for leaf in flatten_spec(spec)[0]):
        return source
    return ChunkCache(source, spec, count, times, boxes)
