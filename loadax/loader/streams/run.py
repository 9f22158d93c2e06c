"""StreamRun: the lanes that one iterator reads, in the order of its steps."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Literal, NamedTuple, final

import numpy as np

from loadax.core.arguments import shown
from loadax.errors import ClosedError, StateError
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
        self._consumed_rows: tuple[int, list[Integers]] = -1, []
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

    def read(self, step: int, last: bool, visits: Visits) -> tuple[Visits, list[Callable[[], None]]]:
        """Reads rows of a step. Rows that lanes lack become padding.

        Args:
            step: Step of the rows.
            last: Whether they are the last ones of the step on this process.
            visits: Visits of the rows.

        Returns:
            The visits, and functions that release what was read.

        Raises:
            SourceError: If a lane has no rows.
            Exception: Whatever a lane raises, with a note that names lane and row.
        """
        if self._consumed_rows[0] != self.consumed:
            consumed = self.consumed
            self._consumed_rows = consumed, self._rows_before(consumed)
        rows, releases = visits.rows, []
        for stream, before in zip(self._streams, self._consumed_rows[1], strict=True):
            rows, release = stream.read(rows, before)
            releases.append(release)
        self._present |= bool((rows >= 0).any())
        self._missing |= rows is not visits.rows
        if last:
            self._finish(step)
        return Visits(rows, visits.epochs), releases

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
        lane: Number of the lane.
        first: Index of the first one among the piece's rows, sorted by lane.
        turns: Rows of the lane, ascending, int64[n].
        begin: The first of them.
        span: Number of rows of the lane from the first to the last of them.
        whole: Whether these are all rows from the first to the last.
    """

    lane: int
    first: int
    turns: Integers
    begin: int
    span: int
    whole: bool


def _lane_rows(lane: int, first: int, turns: Integers) -> _LaneRows:
    span = int(turns[-1] - turns[0]) + 1
    return _LaneRows(lane, first, turns, int(turns[0]), span, span == len(turns))


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
        self._first_row, self._epochs, self._saved = first_row, epochs, saved
        self._lanes: dict[int, Lane] = {}
        self.ended = ""
        """Text: which lane has ended first, if one has."""
        self._layout: tuple[Integers, Integers | None, list[_LaneRows]] | None = None

    def states(self, before: Integers) -> dict[str, list[Any]]:
        """State of each lane that is open or has a saved one, before as many of its rows."""
        states = {}
        for number in sorted({*self._saved, *list(self._lanes)}):
            row = int(before[number])
            lane = self._lanes.get(number)
            state = self._saved_state(number, row) if lane is None else lane.state_at(row)
            states[str(number)] = list(state)
        return states

    def read(self, rows: Integers, consumed: Integers) -> tuple[Integers, Callable[[], None]]:
        """Reads those of `rows` that are of this stream; see `StreamRun.read`.

        Args:
            rows: Rows of the dataset's source, -1 for padding.
            consumed: Number of rows of each lane that were handed out.
        """
        own = (rows >= self._first_row) & (rows < self._first_row + len(self.source))
        chosen = None if own.all() else np.flatnonzero(own)
        wanted = (rows if chosen is None else rows[chosen]) - self._first_row
        if not len(wanted):
            return rows, _nothing
        order, lanes, shift = self._by_lane(wanted)
        self._open(lanes, shift)
        oldest = consumed.tolist()
        items: list[Tree] = []
        lost: list[Integers] = []
        for number, first, turns, relative, span, whole in lanes:
            lane = self._lanes[number]
            begin = relative + shift
            got = lane.read(begin, span)
            if whole and lane.row == begin + span:
                items += got
                lane.take_state(oldest[number])
                continue
            if lane.row < begin + span:
                self.ended = self.ended or f"lane {number} ended after {lane.row} rows"
                missing = np.flatnonzero(turns + shift >= lane.row)
                lost.append(first + missing)
                turns = turns[: len(turns) - len(missing)]  # noqa: PLW2901
            items.extend(got if len(turns) == span else self._choose(got, turns - turns[:1]))
            lane.take_state(oldest[number])
        read = wanted if order is None else wanted[order]
        if lost:
            gone = np.concatenate(lost)
            read = np.delete(read, gone)
            gone = gone if order is None else order[gone]
            rows = rows.copy()
            rows[gone if chosen is None else chosen[gone]] = -1
        if not len(read):
            return rows, _nothing
        piece = self.opened.keep(read, items)
        return rows, lambda: self.opened.release(piece)

    def _choose(self, got: list[Tree], places: Integers) -> list[Tree]:
        """Some of the rows that a lane gave: another process has the others, or the lane has ended."""
        if not self.source.batched:
            return [got[place] for place in places.tolist()]
        chosen, begin = [], 0
        for block in got:
            end = begin + len(block[0])
            inside = places[(places >= begin) & (places < end)] - begin
            if len(inside):
                chosen.append([leaf[inside] for leaf in block])
            begin = end
        return chosen

    def _by_lane(self, wanted: Integers) -> tuple[Integers | None, list[_LaneRows], int]:
        """Sorts rows by lane: their order (None: as they are), the rows of each lane, and what to add to their turns.

        Most steps differ from the last one only by the number of rows before them.
        """
        shift = int(wanted[0]) // self.source.lanes
        relative = wanted - shift * self.source.lanes
        if self._layout is None or not np.array_equal(self._layout[0], relative):
            turns, lanes = np.divmod(relative, self.source.lanes)
            order: Integers | None = np.argsort(lanes, kind="stable")
            bounds = np.flatnonzero(np.diff(lanes)) + 1
            firsts = np.concatenate([[0], bounds])
            if len(np.unique(lanes[firsts])) == len(firsts):  # every lane's rows are together already
                order = None
            else:
                turns, lanes = turns[order], lanes[order]
                firsts = np.concatenate([[0], np.flatnonzero(np.diff(lanes)) + 1])
            ends = [*firsts[1:].tolist(), len(lanes)]
            parts = [
                _lane_rows(int(lanes[first]), first, turns[first:end])
                for first, end in zip(firsts.tolist(), ends, strict=True)
            ]
            self._layout = relative, order, parts
        return self._layout[1], self._layout[2], shift

    def _open(self, lanes: Sequence[_LaneRows], shift: int) -> None:
        """Opens the lanes that are not open yet."""
        skipped, stateless = [], 0
        for part in lanes:
            if part.lane in self._lanes:
                continue
            row = part.begin + shift
            state = self._saved_state(part.lane, row)
            self._lanes[part.lane] = self.source.lane(part.lane, self._epochs, state)
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
        self._next = step * rows_per_step
        self._over = False
        self._turn = threading.Condition()

    def read(self, step: int, low: int, visits: Visits) -> tuple[Visits, list[Callable[[], None]], float]:
        """Reads rows of a step, from its `low`-th on this process on; see `StreamRun.read`. Adds the seconds it took.

        Raises:
            ClosedError: If earlier rows could not be read, or the iterator was closed.
        """
        begin = step * self._rows_per_step + low
        end = low + len(visits.rows)
        with self._turn:
            self._turn.wait_for(lambda: self._over or self._next == begin)
            if self._over:
                raise ClosedError("the rows before these could not be read, or the iterator was closed")
        began = perf_counter()
        try:
            read, releases = self._run.read(step, end == self._rows_per_step, visits)
        except BaseException:
            self.close()
            raise
        with self._turn:
            self._next += len(visits.rows)
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
    if not 0 <= first <= row or epoch < 0:
        raise ValueError(values)
    return LaneState(row, epoch, first, values[3])
