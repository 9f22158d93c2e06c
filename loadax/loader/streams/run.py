"""StreamRun: the lanes that one iterator reads, in the order of its steps."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import shown
from loadax.errors import StateError
from loadax.plan.batches import BatchPlan, Remainder
from loadax.plan.stream import StreamOrder, rows_before
from loadax.protocols import Integers, Tree, Visits
from loadax.reader import Reader
from loadax.sources.base import BaseSource
from loadax.sources.stream.lane import BEGIN, Lane, LaneState
from loadax.sources.stream.source import OpenStream, StreamSource, streams_in

_log = logging.getLogger("loadax")

LaneStates = Sequence[Mapping[int, Sequence[LaneState]]]
"""Saved states of each stream's lanes, by lane."""

EndRule = Literal["first", "all", "error"]
"""The first step that is not in the run: the first one that lacks a row, or has none. "error": if these differ."""

_MOST_ITEMS = 128  # rows, or blocks of rows, that are stacked at once
_MOST_LAYOUTS = 64  # pieces of a step, or steps that begin with other lanes, whose rows are sorted once

KEY = "lanes"
"""Key of the states of lanes in the state of an iterator."""


class Progress(NamedTuple):
    """How far a process has read its lanes.

    Args:
        read: Step after the last one that was read.
        lacking: First step that lacks a row of this process. None: not met.
        filled: Step after the last one that has a row of this process.
    """

    read: int
    lacking: int | None
    filled: int


class StreamOptions(NamedTuple):
    """How a run reads its streams.

    Args:
        epochs: Number of times that each lane is read. None: endless.
        remainder: What happens to the rows of longer lanes, see `Dataloader`.
    """

    epochs: int | None
    remainder: Remainder


@final
class StreamRun:
    """Reads the lanes of all streams of a dataset in order, for one iterator.

    One thread at a time may read. Others may ask for states.

    Args:
        plan: Plan of the run.
        source: Source of the dataset.
        options: How streams are read.
        states: Saved states of the lanes. The rows of lanes without one are skipped from the first one on.
    """

    def __init__(self, plan: BatchPlan, source: BaseSource, options: StreamOptions, states: LaneStates):
        self._plan, self._options = plan, options
        streams = list(streams_in(source))
        self._streams = [
            _OpenLanes(first_row, stream, options.epochs, states[index] if index < len(states) else {})
            for index, (first_row, stream) in enumerate(streams)
        ]
        self._mixed = not isinstance(plan.order, StreamOrder)
        self._present = self._missing = False  # whether the present step has rows, and lacks some
        self.consumed = 0
        """Steps that were handed out: no state before them is asked for."""
        self._consumed_rows: tuple[int, list[list[int]]] = -1, []
        self.progress = Progress(0, None, 0)
        """How far the lanes were read."""

    @property
    def end_rule(self) -> EndRule:
        """When the run ends."""
        if self._options.remainder == "error":
            return "error"
        return "all" if self._options.remainder == "pad" and not self._mixed else "first"

    @property
    def ended_lane(self) -> str:
        """Text: which lane of this process was the first to end."""
        return next((stream.ended for stream in self._streams if stream.ended), "a lane of another process has ended")

    @property
    def endless(self) -> bool:
        """Whether lanes never end."""
        return self._options.epochs is None

    def bind(self, reader: Reader) -> Reader:
        """The reader, over the rows that this run has read."""
        opened = iter(self._streams)  # in order, since a mixture may have the same stream twice
        return reader.over(
            lambda source, times: next(opened).opened if isinstance(source, StreamSource) else source  # noqa: ARG005
        )

    def reads(self, step: int, rows_per_step: int) -> "OrderedReads":
        """The reads of a producer whose first step is `step`."""
        self.progress = self.progress._replace(read=max(self.progress.read, step))
        return OrderedReads(self, step, rows_per_step)

    def states(self, step: int) -> list[dict[str, list[Any]]]:
        """States of the lanes before a step, as JSON: for each stream, a `LaneState` by lane."""
        before = self._rows_before(step)
        return [stream.states(rows) for stream, rows in zip(self._streams, before, strict=True)]

    def read(
        self, step: int, last: bool, visits: Visits, out: Sequence[NDArray[Any]] | None = None
    ) -> tuple[Visits, list[Callable[[], None]]]:
        """Reads rows of a step. Rows that lanes lack become padding.

        Args:
            step: Step of the rows.
            last: Whether they are the last ones of the step on this process.
            visits: Visits of the rows.
            out: Arrays for these rows, one for each leaf, if they are all of one stream. None: kept as lanes give them.

        Returns:
            The visits, and functions that release what was read.

        Raises:
            SourceError: If a lane has no rows.
            LeafError: If a row that is written to `out` differs from the spec; names the row.
            Exception: Whatever a lane raises, with a note that names lane and row.
        """
        rows, releases = visits.rows, []
        for index, stream in enumerate(self._streams):
            rows, release = stream.read(rows, partial(self._consumed_of, index), out)
            releases.append(release)
        self._present = self._present or bool((rows >= 0).any())
        self._missing |= rows is not visits.rows
        if last:
            self._finish(step)
        return Visits(rows, visits.epochs), releases

    def close(self) -> None:
        """Drops the iterators of all lanes, once no thread reads them. Others may still ask for states."""
        for stream in self._streams:
            stream.close()

    def _consumed_of(self, stream: int) -> list[int]:
        """Number of rows of each lane of a stream that were handed out."""
        consumed = self.consumed
        if self._consumed_rows[0] != consumed:
            self._consumed_rows = consumed, [rows.tolist() for rows in self._rows_before(consumed)]
        return self._consumed_rows[1][stream]

    def _finish(self, step: int) -> None:
        """Notes that all rows of a step were read."""
        _, lacking, filled = self.progress
        if self._missing and lacking is None:
            # A mixture has rows of other datasets without end: its last batch is the one that lacks a row.
            lacking = step + (self._mixed and self._options.remainder == "pad")
            _log.info("loadax: batches lack rows from step %d on: %s", step, self.ended_lane)
        self.progress = Progress(step + 1, lacking, step + 1 if self._present else filled)
        self._present = self._missing = False

    def _rows_before(self, step: int) -> list[Integers]:
        return rows_before(self._plan.order, *self._plan.position_of_step(step))


class _LaneRows(NamedTuple):
    """Rows of a piece that are of one lane.

    Args:
        lane: The lane.
        first: Index of the first one among the piece's rows, sorted by lane.
        end: Index after the last one.
        turns: Rows of the lane, ascending, int64[n].
        begin: The first of them.
        span: Number of rows of the lane from the first to the last of them.
    """

    lane: Lane
    first: int
    end: int
    turns: Integers
    begin: int
    span: int


class _Layout(NamedTuple):
    """Rows of a piece by lane.

    Args:
        rows: Rows of the piece, counted from the first turn, int64[n].
        order: The rows sorted by lane; None: they are.
        lanes: Rows of each lane, in that order.
    """

    rows: Integers
    order: Integers | None
    lanes: list[_LaneRows]


@final
class _OpenLanes:
    """The lanes of one stream that a run has opened.

    Args:
        first_row: Number of the stream's first row among the rows of the dataset's source.
        source: The stream.
        epochs: Number of times that each lane is read.
        saved: Saved states, by lane.
    """

    def __init__(
        self, first_row: int, source: StreamSource, epochs: int | None, saved: Mapping[int, Sequence[LaneState]]
    ):
        self.source, self.opened = source, OpenStream(source)
        for number in saved:
            if not 0 <= number < source.lanes:
                raise StateError(
                    f"the state has lane {number}, but the stream has the lanes 0 to {source.lanes - 1}; pass a state "
                    "of get_state()"
                )
        self._first_row, self._epochs, self._saved = first_row, epochs, saved
        self._lanes: dict[int, Lane] = {}
        self.ended = ""
        """Text: which lane has ended first, if one has."""
        self._layouts: dict[tuple[int, int], _Layout] = {}

    def states(self, before: Integers) -> dict[str, list[Any]]:
        """State of each lane that is open or has a saved one, before as many of its rows."""
        states = {}
        for number in sorted({*self._saved, *list(self._lanes)}):
            row = int(before[number])
            lane = self._lanes.get(number)
            state = self._saved_state(number, row) if lane is None else lane.state_at(row)
            states[str(number)] = list(state)
        return states

    def close(self) -> None:
        """See `StreamRun.close`."""
        for lane in list(self._lanes.values()):
            lane.close()

    def read(
        self, rows: Integers, consumed: Callable[[], list[int]], out: Sequence[NDArray[Any]] | None
    ) -> tuple[Integers, Callable[[], None]]:
        """Reads those of `rows` that are of this stream; see `StreamRun.read`.

        Args:
            rows: Rows of the dataset's source, -1 for padding.
            consumed: Returns the number of rows of each lane that were handed out.
            out: Arrays for the rows, one for each leaf. None: they are kept as the lanes give them.
        """
        wanted, chosen = rows, None
        if not len(rows):
            return rows, _nothing
        if self._first_row or rows.min() < 0 or rows.max() >= len(self.source):
            chosen = np.flatnonzero((rows >= self._first_row) & (rows < self._first_row + len(self.source)))
            wanted = rows[chosen] - self._first_row
            if not len(wanted):
                return rows, _nothing
        layout, shift = self._by_lane(wanted)
        order = layout.order
        read = wanted if order is None else wanted[order]
        if order is not None or chosen is not None:
            out = None
        if out is None and self.source.batched:
            out = self.opened.empty(len(read))
        items, lost = self._read_lanes(layout.lanes, shift, read, consumed, out)
        if len(lost):
            rows, read = rows.copy(), read.copy()
            read[lost] = -1
            lost = lost if order is None else order[lost]
            rows[lost if chosen is None else chosen[lost]] = -1
        if out is not None:
            piece = self.opened.keep(read, None, out)
        elif items:
            piece = self.opened.keep(read[read >= 0], items)
        else:
            return rows, _nothing
        return rows, lambda: self.opened.release(piece)

    def _read_lanes(
        self,
        parts: Sequence[_LaneRows],
        shift: int,
        rows: Integers,
        consumed: Callable[[], list[int]],
        out: Sequence[NDArray[Any]] | None,
    ) -> tuple[list[Tree], Integers]:
        """Reads the rows of a piece, lane by lane: examples that are not written to `out`, and which rows are lost."""
        items: list[Tree] = []
        lost: list[Integers] = []
        joined = 0  # rows that are in `out`
        rows_at_once = self.opened.rows_at_once
        for lane, first, end, turns, relative, span in parts:
            begin, before = relative + shift, len(items)
            lane.read(begin, span, items)
            if not lane.stateless:
                lane.take_state(consumed()[lane.number])
            there = end
            if span != end - first or lane.row != begin + span:
                there = first + self._select(lane, begin, items, before, turns + shift)
                lost.append(np.arange(there, end))
            if out is None:
                continue
            # Some rows at a time, while they are in the CPU caches.
            if len(items) >= _MOST_ITEMS or end - joined >= rows_at_once or there < end:
                self._join(items, rows, joined, there, out)
                items, joined = [], end
        if out is not None:
            self._join(items, rows, joined, len(rows), out)
        return items, np.concatenate(lost) if lost else np.zeros(0, np.int64)

    def _join(self, items: list[Tree], rows: Integers, begin: int, end: int, out: Sequence[NDArray[Any]]) -> None:
        """Writes items to the rows from `begin` to `end` of `out`."""
        if items:
            self.opened.join(items, rows[begin:end], [leaf[begin:end] for leaf in out])

    def _select(self, lane: Lane, row: int, items: list[Tree], begin: int, turns: Integers) -> int:
        """Keeps those of the items from `begin` on that are wanted, and returns the number of their rows.

        Another process has the others. If the lane has ended, the last ones are missing.
        """
        count = len(turns)
        if lane.row <= turns[-1]:
            self.ended = self.ended or f"lane {lane.number} ended after {lane.row} rows"
            count = int(np.searchsorted(turns, lane.row))
        items[begin:] = self._choose(lane.number, row, items[begin:], turns[:count] - row)
        return count

    def _choose(self, number: int, row: int, got: list[Tree], places: Integers) -> list[Tree]:
        """Some of the rows that a lane gave: another process has the others, or the lane has ended.

        Args:
            number: Number of the lane.
            row: Row of the lane that the first one is.
            got: What it gave.
            places: Indices of the rows to choose, ascending, int64[n].
        """
        blocks = self.source.blocks
        if blocks is None:
            return [got[place] for place in places.tolist()]
        chosen, begin = [], 0
        for block in got:
            leaves = blocks.leaves(block, f"lane {number}, block at row {row + begin}")
            end = begin + len(leaves[0])
            inside = places[(places >= begin) & (places < end)] - begin
            if len(inside):
                chosen.append(blocks.cut(leaves, inside))
            begin = end
        return chosen

    def _by_lane(self, wanted: Integers) -> tuple[_Layout, int]:
        """Sorts rows by lane, and opens their lanes; also returns what to add to the turns of the layout.

        Most steps differ from an earlier one only by the number of rows before them.
        """
        lanes = self.source.lanes
        shift = int(wanted[0]) // lanes
        relative = wanted - shift * lanes
        key = len(relative), int(relative[0])
        layout = self._layouts.get(key)
        if layout is None or not np.array_equal(layout.rows, relative):
            if len(self._layouts) == _MOST_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = self._layout(relative, shift)
        return layout, shift

    def _layout(self, rows: Integers, shift: int) -> _Layout:
        turns, numbers = np.divmod(rows, self.source.lanes)
        bounds = np.flatnonzero(np.diff(numbers)) + 1
        order: Integers | None = None
        if len(np.unique(numbers[np.concatenate([[0], bounds])])) <= len(bounds):  # a lane's rows are not together
            order = np.argsort(numbers, kind="stable")
            turns, numbers = turns[order], numbers[order]
            bounds = np.flatnonzero(np.diff(numbers)) + 1
        firsts, ends = [0, *bounds.tolist()], [*bounds.tolist(), len(rows)]
        begins, lasts = turns[firsts].tolist(), turns[[end - 1 for end in ends]].tolist()
        chosen = numbers[firsts].tolist()
        self._open(chosen, [begin + shift for begin in begins])
        parts = [
            _LaneRows(self._lanes[number], first, end, turns[first:end], begin, last - begin + 1)
            for number, first, end, begin, last in zip(chosen, firsts, ends, begins, lasts, strict=True)
        ]
        return _Layout(rows, order, parts)

    def _open(self, lanes: Sequence[int], rows: Sequence[int]) -> None:
        """Opens the lanes that are not open yet, to be read from these rows on."""
        skipped, stateless = [], 0
        for number, row in zip(lanes, rows, strict=True):
            if number in self._lanes:
                continue
            state = self._saved_state(number, row)
            self._lanes[number] = self.source.lane(number, self._epochs, state)
            if row > state.row:
                skipped.append(row - state.row)
                stateless += state.state is None
        if skipped:
            _log.info(
                "loadax: reading %d rows of %d lanes to skip them; %d of these lanes have no saved state",
                sum(skipped),
                len(skipped),
                stateless,
            )

    def _saved_state(self, number: int, row: int) -> LaneState:
        """The latest saved state of a lane before a row."""
        known = [state for state in self._saved.get(number, ()) if state.row <= row]
        return max(known, key=lambda state: state.row, default=BEGIN)


def _nothing() -> None:
    pass


class SkippedError(Exception):
    """Rows were not read, since those before them could not be, which is the error to tell of; or the run is closed."""


@final
class OrderedReads:
    """The reads of one producer, in the order of its pieces.

    Pieces are taken in order, by threads that run concurrently: each waits until the rows before its own were read.

    Args:
        run: The lanes.
        step: First step.
        rows_per_step: Rows that this process reads per step.
    """

    def __init__(self, run: StreamRun, step: int, rows_per_step: int):
        self._run, self._rows_per_step = run, rows_per_step
        self._next = step, 0  # a process without rows has its steps in order too
        self._over = False
        self._turn = threading.Condition()

    def read(
        self, step: int, low: int, visits: Visits, out: Sequence[NDArray[Any]] | None
    ) -> tuple[Visits, list[Callable[[], None]], float]:
        """Reads rows of a step, from its `low`-th on this process on; see `StreamRun.read`. Adds the seconds it took.

        Raises:
            SkippedError: If earlier rows could not be read, or the iterator was closed.
        """
        end = low + len(visits.rows)
        last = end == self._rows_per_step
        with self._turn:
            self._turn.wait_for(lambda: self._over or self._next == (step, low))
            if self._over:
                raise SkippedError
        began = perf_counter()
        try:
            read, releases = self._run.read(step, last, visits, out)
        except BaseException:
            self.close()
            raise
        with self._turn:
            self._next = (step + 1, 0) if last else (step, end)
            self._turn.notify_all()
        return read, releases, perf_counter() - began

    def close(self) -> None:
        """Ends all waiting."""
        with self._turn:
            self._over = True
            self._turn.notify_all()


def lane_states(start: object) -> LaneStates:
    """The states of lanes in a state, or in a list of the states of several processes.

    Raises:
        StateError: If they are not states of lanes.
    """
    states = start if isinstance(start, list | tuple) else [start]
    merged: list[dict[int, list[LaneState]]] = []
    for state in states:
        if not isinstance(state, Mapping) or KEY not in state:
            continue
        try:
            for index, lanes in enumerate(state[KEY]):
                if index == len(merged):
                    merged.append({})
                for number, values in lanes.items():
                    merged[index].setdefault(int(number), []).append(_lane_state(values))
        except (TypeError, ValueError, OverflowError, IndexError, AttributeError) as error:
            raise StateError(
                f"the state's {KEY!r} is {shown(state[KEY])}, which is not a list of states by lane; pass a state of "
                "get_state()"
            ) from error
    return merged


def _lane_state(values: Sequence[Any]) -> LaneState:
    row, epoch, first = (int(value) for value in values[:3])
    if not 0 <= first <= row or epoch < 0 or (values[3] is None and row != first):
        raise ValueError(values)
    return LaneState(row, epoch, first, values[3])
