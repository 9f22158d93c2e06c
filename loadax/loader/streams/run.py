"""StreamRun: the lanes that one iterator reads, each in the order of its steps."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple, Protocol, final

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


class Turns(Protocol):
    """Turns of a piece at its lanes: another thread may be reading the rows before its own."""

    def order(self, located: "LocatedRows") -> Iterator[int]:
        """Yields the index of every lane, at its turn: until the next one, no other thread reads the lane."""
        ...


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
    """Reads the lanes of all streams of a dataset, for one iterator.

    Threads may read at the same time, each lane one at a time and in order. Others may ask for states.

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
        self._ended_lane = ""
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
        return self._ended_lane or "a lane of another process has ended"

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

    def states(self, step: int) -> list[dict[str, list[Any]]]:
        """States of the lanes before a step, as JSON: for each stream, a `LaneState` by lane."""
        before = self._rows_before(step)
        return [stream.states(rows) for stream, rows in zip(self._streams, before, strict=True)]

    def begin(self, step: int) -> None:
        """Begins to read from this step on, once no thread reads earlier ones."""
        for stream in self._streams:
            stream.begin()
        self.progress = self.progress._replace(read=max(self.progress.read, step))

    def locate(self, rows: Integers) -> "list[LocatedRows]":
        """Where the rows of a piece are, for `read`, and its turns. By one thread at a time, in the order of pieces."""
        located = (stream.locate(index, rows) for index, stream in enumerate(self._streams))
        return [found for found in located if found is not None]

    def read(
        self,
        located: "Sequence[LocatedRows]",
        turns: Turns,
        visits: Visits,
        out: Sequence[NDArray[Any]] | None = None,
    ) -> "PieceOfLanes":
        """Reads the rows of a piece. Rows that lanes lack become padding.

        Args:
            located: Where they are.
            turns: Turns at their lanes.
            visits: Visits of the rows.
            out: Arrays for these rows, one for each leaf, if they are all of one stream. None: kept as lanes give them.

        Raises:
            SourceError: If a lane has no rows.
            LeafError: If a row that is written to `out` differs from the spec; names the row.
            Exception: Whatever a lane raises, with a note that names lane and row.
        """
        rows, releases, ended = visits.rows, [], ""
        for found in located:
            lost, ended_lane, release = found.stream.read(found, turns, partial(self._consumed_of, found.number), out)
            releases.append(release)
            if len(lost):
                rows = rows.copy() if rows is visits.rows else rows
                rows[lost] = -1
                ended = ended or ended_lane
        return PieceOfLanes(Visits(rows, visits.epochs), ended, releases)

    def finish(self, step: int, present: bool, ended_lane: str) -> None:
        """Notes that all rows of a step were read, and those of all earlier ones.

        Args:
            step: The step.
            present: Whether it has rows.
            ended_lane: Text: which lane has ended, if it lacks rows.
        """
        _, lacking, filled = self.progress
        if ended_lane and lacking is None:
            self._ended_lane = ended_lane
            # A mixture has rows of other datasets without end: its last batch is the one that lacks a row.
            lacking = step + (self._mixed and self._options.remainder == "pad")
            _log.info("loadax: batches lack rows from step %d on: %s", step, ended_lane)
        self.progress = Progress(step + 1, lacking, step + 1 if present else filled)

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


class LocatedRows(NamedTuple):
    """Rows of a piece that are of one stream.

    Args:
        stream: The stream.
        number: Its index among the streams of the run.
        rows: The rows, as rows of the stream, int64[n].
        chosen: Indices of them among the rows of the piece. None: all.
        layout: The rows by lane.
        shift: What to add to the turns of the layout.
        turns: Turn of the piece at each lane of the layout.
    """

    stream: "_OpenLanes"
    number: int
    rows: Integers
    chosen: Integers | None
    layout: _Layout
    shift: int
    turns: list[int]


class PieceOfLanes(NamedTuple):
    """What was read for a piece.

    Args:
        visits: The visits of its rows, -1 for rows that lanes lack.
        ended_lane: Text: which lane has ended, if there are such rows.
        releases: Functions that release what was read.
    """

    visits: Visits
    ended_lane: str
    releases: list[Callable[[], None]]


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

    def begin(self) -> None:
        """See `StreamRun.begin`."""
        for lane in self._lanes.values():
            lane.turns = lane.turn = 0  # those of an iterator that was interrupted may not have ended

    def close(self) -> None:
        """See `StreamRun.close`."""
        for lane in list(self._lanes.values()):
            lane.close()

    def locate(self, number: int, rows: Integers) -> LocatedRows | None:
        """Where those of `rows` are that are of this stream, the `number`-th one. None: there are none.

        Args:
            number: Index of this stream among those of the run.
            rows: Rows of the dataset's source, -1 for padding.
        """
        wanted, chosen = rows, None
        if not len(rows):
            return None
        if self._first_row or rows.min() < 0 or rows.max() >= len(self.source):
            chosen = np.flatnonzero((rows >= self._first_row) & (rows < self._first_row + len(self.source)))
            wanted = rows[chosen] - self._first_row
            if not len(wanted):
                return None
        layout, shift = self._by_lane(wanted)
        return LocatedRows(
            self, number, wanted, chosen, layout, shift, [part.lane.take_turn() for part in layout.lanes]
        )

    def read(
        self,
        located: LocatedRows,
        turns: Turns,
        consumed: Callable[[], list[int]],
        out: Sequence[NDArray[Any]] | None,
    ) -> tuple[Integers, str, Callable[[], None]]:
        """Reads rows of this stream; see `StreamRun.read`.

        Args:
            located: The rows.
            turns: Turns at their lanes.
            consumed: Returns the number of rows of each lane that were handed out.
            out: Arrays for the rows, one for each leaf. None: they are kept as the lanes give them.

        Returns:
            Indices of the rows of the piece that lanes lack, a text that says which lane has ended (empty: none), and
            the release.
        """
        wanted, chosen, order = located.rows, located.chosen, located.layout.order
        read = wanted if order is None else wanted[order]
        if order is not None or chosen is not None:
            out = None
        if out is None and self.source.batched:
            out = self.opened.empty(len(read))
        items, lost, ended = self._read_lanes(located, turns, read, consumed, out)
        if len(lost):
            read = read.copy()
            read[lost] = -1
            lost = lost if order is None else order[lost]
            lost = lost if chosen is None else chosen[lost]
        if out is not None:
            piece = self.opened.keep(read, None, out)
        elif items:
            piece = self.opened.keep(read[read >= 0], items)
        else:
            return lost, ended, _nothing
        return lost, ended, lambda: self.opened.release(piece)

    def _read_lanes(
        self,
        located: LocatedRows,
        turns: Turns,
        rows: Integers,
        consumed: Callable[[], list[int]],
        out: Sequence[NDArray[Any]] | None,
    ) -> tuple[list[Tree], Integers, str]:
        """Reads the rows of a piece, lane by lane.

        Returns:
            Examples that are not written to `out`, which rows are lost, and which lane has ended.
        """
        parts, shift, rows_at_once = located.layout.lanes, located.shift, self.opened.rows_at_once
        kept: list[list[Tree]] = [[]] * len(parts)
        ends: dict[int, tuple[Integers, str]] = {}  # of lanes that have ended, by index
        items: list[Tree] = []
        joined = reached = 0  # rows before `joined` are in `out`, those up to `reached` in `items`
        for index in turns.order(located):
            lane, first, end, rows_of_lane, relative, span = parts[index]
            if first != reached:
                self._join(items, rows, joined, reached, out)
                items, joined = [], first
            begin, before, there = relative + shift, len(items), end
            lane.read(begin, span, items)
            if not lane.stateless:
                lane.take_state(consumed()[lane.number])
            if span != end - first or lane.row != begin + span:
                there = first + self._select(lane, begin, items, before, rows_of_lane + shift)
                if there < end:
                    ends[index] = np.arange(there, end), f"lane {lane.number} ended after {lane.row} rows"
            reached = end
            if out is None:
                kept[index], items = items, []
            # Some rows at a time, while they are in the CPU caches.
            elif len(items) >= _MOST_ITEMS or end - joined >= rows_at_once or there < end:
                self._join(items, rows, joined, there, out)
                items, joined = [], end
        self._join(items, rows, joined, reached, out)
        lost, texts = zip(*(ends[index] for index in sorted(ends)), strict=True) if ends else ([], [""])
        return list(chain.from_iterable(kept)), np.concatenate([np.zeros(0, np.int64), *lost]), texts[0]

    def _join(
        self, items: list[Tree], rows: Integers, begin: int, end: int, out: Sequence[NDArray[Any]] | None
    ) -> None:
        """Writes items to the rows from `begin` to `end` of `out`."""
        if items and out is not None:
            self.opened.join(items, rows[begin:end], [leaf[begin:end] for leaf in out])

    def _select(self, lane: Lane, row: int, items: list[Tree], begin: int, turns: Integers) -> int:
        """Keeps those of the items from `begin` on that are wanted, and returns the number of their rows.

        Another process has the others. If the lane has ended, the last ones are missing.
        """
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
