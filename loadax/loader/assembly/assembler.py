"""Assembler: reads each row of a piece once, applies the maps, and writes the rows to batch buffers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from loadax import seeds
from loadax.core.casting import check_cast
from loadax.core.spec import flatten_spec
from loadax.core.tree import flatten
from loadax.loader.assembly.buffer_layout import (
    BatchBuffers,
    BufferLayout,
    ColumnTile,
)
from loadax.loader.batch_spec import MASK
from loadax.loader.metrics.stages import Mark, StageClock, unmarked
from loadax.loader.metrics.stats import Failure, Timing, total
from loadax.protocols import Columns, Integers, LeafArrays, Visits
from loadax.reader import Reader
from loadax.redaction import redact

# with its index among the tiles of the layout
_IndexedTile: TypeAlias = tuple[int, ColumnTile]


class FillOptions(NamedTuple):
    """How buffers are filled, on any worker.

    Args:
        layout: Buffer layout of one step.
        key_seed: Seed of the random keys, if there are any.
        masking: Whether rows that can't be read become padding.
    """

    layout: BufferLayout
    key_seed: int | None = None
    masking: bool = False


class Piece(NamedTuple):
    """A read task: consecutive rows of a step, the same ones of each step of some buffers.

    Args:
        visits: Visits of these rows, step by step; a row of -1 is padding.
        low: First row in a step.
        buffers: Destination of the rows.
        first: First step. Its rows are needed first.
        filled: Told the number of full steps, each time that another one is full before the others are.
        in_place: Whether the rows of the dataset are in the buffers already, so that only generated leaves are filled.
    """

    visits: Visits
    low: int
    buffers: BatchBuffers
    first: int = 0
    filled: Callable[[int], object] = int
    in_place: bool = False

    @property
    def high(self) -> int:
        """Row in a step after the last one."""
        return self.low + len(self.visits.rows) // self.buffers.count

    def by_step(self) -> "list[Piece]":
        """The pieces of its steps."""
        count = self.buffers.count
        size = self.high - self.low
        rows, epochs = (numbers.reshape(count, size) for numbers in self.visits)
        steps = zip(rows, epochs, map(self.buffers.step, range(count)), strict=True)
        pieces = [
            Piece(Visits(rows, epochs), self.low, buffers)
            for rows, epochs, buffers in steps
        ]
        return [
            piece._replace(first=first)
            for first, piece in enumerate(pieces, self.first)
        ]

    def cut(self, size: int) -> "list[Piece]":
        """Pieces of at most `size` of its rows, of a single step."""
        starts = range(0, max(1, len(self.visits.rows)), size)
        return [
            self._replace(
                visits=Visits(
                    *(numbers[start : start + size] for numbers in self.visits)
                ),
                low=self.low + start,
            )
            for start in starts
        ]


@final
class _PieceView:
    """Maps the rows of a piece to the rows of each tile."""

    def __init__(self, piece: Piece):
        self.piece = piece
        self.visits = piece.visits
        # mask of rows that are not padding; None: all
        self.present: NDArray[np.bool_] | None = None
        if len(piece.visits.rows) and piece.visits.rows.min() < 0:
            self.present = piece.visits.rows >= 0
            self.visits = Visits(
                piece.visits.rows[self.present], piece.visits.epochs[self.present]
            )
        self._wanted: dict[int, Integers] = {}

    def wanted(self, tile: ColumnTile) -> Integers | None:
        """Indices of the piece's rows that the tile needs; None: all."""
        if tile.select is None:
            return None
        key = id(tile.select)
        if key not in self._wanted:
            self._wanted[key] = _selected_rows(
                tile.select, self.piece.low, self.piece.high, self.piece.buffers.count
            )
        return self._wanted[key]

    def real(self, tile: ColumnTile) -> Integers | None:
        """Like `wanted`, as indices into the piece's rows without padding."""
        wanted = self.wanted(tile)
        if wanted is None or self.present is None:
            return wanted
        # index of each row among the rows without padding
        compact = np.cumsum(self.present) - 1
        return compact[wanted[self.present[wanted]]]

    def deliver(self, index: int, tile: ColumnTile, values: NDArray[Any]) -> None:
        """Writes the tile's rows to the buffers, and padding."""
        if self.present is not None and tile.leaf.source is not None:
            wanted = self.wanted(tile)
            if wanted is None:
                present = self.present
            else:
                present = self.present[wanted]
            if tile.leaf.dtype.hasobject:
                kept = tile.leaf.dtype
            else:
                kept = values.dtype
            full = tile.leaf.padding(len(present), values.shape[1:], kept)
            full[present] = values
            values = full
        self.piece.buffers.write(
            index, *tile_span(tile, self.piece.low, self.piece.high), values
        )

    def destination(self, index: int, tile: ColumnTile) -> NDArray[Any] | None:
        """Buffer that a source can read the tile's rows into directly; None if they must be copied afterwards."""
        if self.present is not None or tile.leaf.dtype != tile.leaf.spec.dtype:
            return None
        rows = self.piece.buffers.rows(index)
        steps = self.piece.buffers.count
        low, high = tile_span(tile, self.piece.low, self.piece.high)
        if rows is None or (steps > 1 and high - low < tile.rows):
            return None
        return rows[low : low + steps * (high - low)]


def fill_all(fill: Callable[[Piece], Timing], pieces: Sequence[Piece]) -> Timing:
    """Fills consecutive pieces, one after the other, as if they were one."""
    timings: list[Timing] = []
    failures: list[Failure] = []
    before = 0
    for piece in pieces:
        timings.append(fill(piece))
        failures += [
            failure._replace(row=before + failure.row)
            for failure in timings[-1].failures
        ]
        before += len(piece.visits.rows)
    return total(timings)._replace(failures=tuple(failures))


def tile_span(tile: ColumnTile, low: int, high: int) -> tuple[int, int]:
    """Range of a tile's rows that rows `low` to `high` of a step fill."""
    if tile.select is None:
        return low, high
    first, last = np.searchsorted(tile.select, [low, high]).tolist()
    return first, last


def _selected_rows(select: Integers, low: int, high: int, steps: int) -> Integers:
    """Indices of the rows that a tile with `select` has, among rows `low` to `high` of each of some steps."""
    inner = select[slice(*np.searchsorted(select, [low, high]))] - low
    return np.add.outer(np.arange(steps) * (high - low), inner).ravel()


def piece_layout(
    layout: BufferLayout, low: int, high: int, steps: int
) -> BufferLayout:
    """Layout of rows `low` to `high` of each of some steps alone, as one step with one box for each tile."""
    tiles = []
    for tile in layout.tiles:
        first, last = tile_span(tile, low, high)
        if tile.select is None:
            select = None
        else:
            select = _selected_rows(tile.select, low, high, steps)
        tiles.append(
            replace(tile, boxes=1, height=steps * (last - first), select=select)
        )
    return BufferLayout(tuple(tiles), ())


def generate_leaf(name: str, visits: Visits, key_seed: int | None) -> NDArray[Any]:
    """Generates the mask, bool[n], or the random keys, uint32[n, 2], of these visits.

    A key has the format of JAX's default generator (Threefry). It depends on seed, epoch and row only; zeros for
    padding.
    """
    real = visits.rows >= 0
    if name == MASK:
        return real
    keys = np.asarray(
        seeds.derive(key_seed, "key", visits.epochs, np.maximum(visits.rows, 0)),
        np.uint64,
    )
    halves = np.stack(
        [keys >> np.uint64(32), keys & np.uint64(0xFFFFFFFF)], axis=1
    ).astype(np.uint32)
    return np.where(real[:, None], halves, np.uint32(0))


def failure_text(error: BaseException) -> str:
    """An error as one line of text, without secrets of URLs."""
    return redact(" ".join(f"{type(error).__name__}: {error}".split()))


@final
class Assembler:
    """Fills buffers of one layout with rows of one dataset. Thread-safe: pieces may be filled concurrently.

    Args:
        reader: Reader of the rows.
        options: How to fill them.
        mark: Marks stages for a profiler.
    """

    def __init__(self, reader: Reader, options: FillOptions, mark: Mark = unmarked):
        self._reader = reader
        self._mark = mark
        self.layout, self._key_seed, self._masking = options
        tiles = list(enumerate(self.layout.tiles))
        self._data = [entry for entry in tiles if entry[1].leaf.source is not None]
        self._generated = [entry for entry in tiles if entry[1].leaf.source is None]
        self._source_specs = flatten_spec(reader.specs[0])[0]
        if reader.maps_columns:
            self._origins = reader.origins
        else:
            self._origins = []
        self._rounds = list(_rounds(self._data))
        # With masking, every process must meet the errors of all columns of a row, to mask the same rows.
        whole_rows = len({_source(tile) for _, tile in self._data}) == len(
            self._source_specs
        ) and all(tile.whole and tile.select is None for _, tile in self._data)
        # Tells which errors are those of a row. None: all end the run.
        self._maskable: Callable[[BaseException], bool] | None = None
        if self._masking:
            from loadax.loader.assembly.maskable import maskable

            self._maskable = maskable
        self._by_columns = reader.maps_columns and (
            not self._masking or (not reader.maps and whole_rows)
        )

    def fill(self, piece: Piece) -> Timing:
        """Reads a piece into its buffers.

        Raises:
            Exception: Whatever the source or a map raises, with a note; a LeafError if a value does not fit its leaf.
                With masking, errors that do not come from rows alone.
        """
        try:
            return self.fill_together(piece)
        except Exception as error:
            maskable = self._maskable
            if maskable is None or not maskable(error):
                raise
        return self._fill_row_by_row(piece, maskable)

    def _fill_row_by_row(
        self, piece: Piece, maskable: Callable[[BaseException], bool]
    ) -> Timing:
        """Reads each row by itself, so that one that can't be read takes no other with it."""
        timings = []
        failures = []
        for index in range(len(piece.visits.rows)):
            visits = Visits(
                piece.visits.rows[index : index + 1],
                piece.visits.epochs[index : index + 1],
            )
            step, place = divmod(index, piece.high - piece.low)
            row = Piece(visits, piece.low + place, piece.buffers.step(step))
            try:
                timings.append(self.fill_together(row))
            except Exception as error:
                if not maskable(error):
                    raise
                failures.append(Failure(index, failure_text(error)))
                timings.append(
                    self.fill_together(
                        row._replace(
                            visits=Visits(np.full(1, -1, np.int64), visits.epochs)
                        )
                    )
                )
        return total(timings)._replace(failures=tuple(failures))

    def fill_together(self, piece: Piece) -> Timing:
        """Reads a piece into its buffers; raises if one of its rows fails, with masking too."""
        view = _PieceView(piece)
        clock = StageClock(self._mark)
        if piece.in_place:
            pass
        elif not len(view.visits.rows):
            for index, tile in self._data:
                view.deliver(
                    index, tile, np.zeros((0, *tile.extents), tile.leaf.spec.dtype)
                )
        elif not self._by_columns:
            self._by_rows(view, clock)
        elif any(transform.kind != "select" for transform in self._reader.maps):
            self._mapped_columns(view, clock)
        else:
            self._plain_columns(view, clock)
        for index, tile in self._generated:
            with clock("assemble"):
                values = generate_leaf(
                    tile.leaf.generated, piece.visits, self._key_seed
                )
                wanted = view.wanted(tile)
                cut: Any = (
                    slice(None) if wanted is None else wanted,
                    *(slice(*column) for column in tile.columns),
                )
                view.deliver(index, tile, values[cut])
        return clock.timing()._replace(rows=len(view.visits.rows))

    def _by_rows(self, view: _PieceView, clock: StageClock) -> None:
        """Reads whole rows, applies all maps, and splits the result into tiles."""
        with clock("read"):
            batch = self._reader.read_source(view.visits)
        if self._reader.maps:
            with clock("transform"):
                batch = self._reader.apply(batch, view.visits)
        with clock("assemble"):
            leaves = flatten(batch)[0]
            if self._masking:
                for source, leaf in {
                    _source(tile): tile.leaf for _, tile in self._data
                }.items():
                    check_cast(leaves[source], leaf.dtype, leaf.path)
            for index, tile in self._data:
                values = leaves[_source(tile)]
                real = view.real(tile)
                if real is not None:
                    values = values[real]
                view.deliver(
                    index,
                    tile,
                    values
                    if tile.whole
                    else values[(slice(None), *(slice(*c) for c in tile.columns))],
                )

    def _plain_columns(self, view: _PieceView, clock: StageClock) -> None:
        """Reads only the columns of this host, directly into the buffers if these have no gaps."""
        for tiles in self._rounds:
            with clock("read"):
                targets = [view.destination(index, tile) for index, tile in tiles]
                values = self._read(view, tiles, targets)
            missed = [
                entry
                for entry in zip(tiles, targets, values, strict=True)
                if entry[1] is None
            ]
            if missed:
                with clock("assemble"):
                    for (index, tile), _, value in missed:
                        view.deliver(index, tile, value)

    def _mapped_columns(self, view: _PieceView, clock: StageClock) -> None:
        """Reads only the columns of this host, and applies elementwise maps to them."""
        groups: list[list[_IndexedTile]] = [[] for _ in self._origins]
        # A leaf that a later selection drops is not read: its map gets no rows of it.
        pieces = [
            [np.empty((0, *spec.shape), spec.dtype)] for spec in self._source_specs
        ]
        with clock("read"):
            for tiles in self._rounds:
                for entry, value in zip(
                    tiles, self._read(view, tiles, [None] * len(tiles)), strict=True
                ):
                    groups[_source(entry[1])].append(entry)
                    pieces[self._origins[_source(entry[1])]].append(value)
        for turn in range(1, max(map(len, pieces))):
            # A leaf with fewer tiles than others is passed again, and its second result ignored.
            chosen = [values[min(turn, len(values) - 1)] for values in pieces]
            with clock("transform"):
                results = self._reader.apply_elementwise(chosen, view.visits)
            with clock("assemble"):
                for entries, value in zip(groups, results, strict=True):
                    if turn <= len(entries):
                        view.deliver(*entries[turn - 1], value)

    def _read(
        self, view: _PieceView, tiles: list[_IndexedTile], targets: LeafArrays
    ) -> list[NDArray[Any]]:
        """Calls `read_into` once, for tiles of different leaves that need the same rows."""
        real = view.real(tiles[0][1])
        if real is None:
            rows = view.visits.rows
        else:
            rows = view.visits.rows[real]
        boxes: list[Columns | None] = [None] * len(self._source_specs)
        out: LeafArrays = [None] * len(self._source_specs)
        values = []
        for (_, tile), target in zip(tiles, targets, strict=True):
            source = self._origins[_source(tile)]
            dtype = self._source_specs[source].dtype
            if target is None:
                value = np.empty((len(rows), *tile.extents), dtype)
            else:
                value = target
            boxes[source], out[source] = tile.columns, value
            values.append(value)
        self._reader.read_columns(rows, boxes, out)
        return values


def _source(tile: ColumnTile) -> int:
    assert tile.leaf.source is not None
    return tile.leaf.source


def _rounds(tiles: list[_IndexedTile]) -> Iterator[list[_IndexedTile]]:
    """Groups tiles into rounds of one `read_into` call: distinct leaves that need the same rows."""
    waiting = list(tiles)
    while waiting:
        first = waiting[0][1].select
        chosen: dict[int, _IndexedTile] = {}
        for entry in waiting:
            select = entry[1].select
            same = select is first or (
                select is not None
                and first is not None
                and np.array_equal(select, first)
            )
            if same and _source(entry[1]) not in chosen:
                chosen[_source(entry[1])] = entry
        waiting = [
            entry for entry in waiting if chosen.get(_source(entry[1])) is not entry
        ]
        yield list(chosen.values())
