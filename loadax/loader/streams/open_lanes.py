"""OpenLanes: reads the rows of a piece from the lanes of one stream."""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.formatting import count_text
from loadax.core.log import log
from loadax.errors import StateError
from loadax.loader.streams.block_steps import BlockSteps, StepNote
from loadax.loader.streams.tickets import PieceTickets
from loadax.protocols import Array, Integers, Tree
from loadax.sources.stream.blocks import choose_rows
from loadax.sources.stream.lane import BEGIN, Lane, LaneState
from loadax.sources.stream.source import OpenStream, StreamSource

# rows of a lane, a day at a million a second: the state is damaged, or of another run
_MOST_SKIPPED = 1 << 36
_FEW_SKIPPED = 64  # rows of a lane, which are read within moments: no reason to warn
_MOST_ITEMS = 128  # rows, or parts of blocks, that are stacked at once
# pieces of a step, or steps that begin with other lanes, whose rows are sorted once
_MOST_LAYOUTS = 64


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
        number: Index of the stream among those of the run.
        rows: The rows, as rows of the stream, int64[n].
        chosen: Indices of them among the rows of the piece. None: all.
        layout: The rows by lane.
        shift: What to add to the turns of the layout.
        tickets: Ticket of the piece for each lane of the layout.
    """

    stream: "OpenLanes"
    number: int
    rows: Integers
    chosen: Integers | None
    layout: _Layout
    shift: int
    tickets: list[int]


@final
class OpenLanes:
    """The lanes of one stream that a run has opened, and the rows that were read from them.

    Args:
        first_row: Number of the stream's first row among the rows of the dataset's source.
        source: The stream.
        epochs: Number of times that each lane is read.
        saved: Saved states, by lane.
    """

    def __init__(
        self,
        first_row: int,
        source: StreamSource,
        epochs: int | None,
        saved: Mapping[int, Sequence[LaneState]],
    ):
        self.source = source
        self.opened = OpenStream(source)
        for number in saved:
            if not 0 <= number < source.lanes:
                what = (
                    f"the state has lane {number}, but the stream has the lanes 0 to "
                    f"{source.lanes - 1}"
                )
                raise StateError(f"{what}; pass a state of get_state()")
        inexact = source.origin.inexact
        if inexact:
            saved = {
                number: list(map(_epoch_begin, states))
                for number, states in saved.items()
            }
            what = (
                "a resumed run reads and skips the rows of its epoch before the step"
            )
            log.log(
                logging.WARNING if saved else logging.INFO,
                "loadax: %s: %s",
                inexact,
                what,
            )
        self._first_row = first_row
        self._epochs = epochs
        self._saved = saved
        self._lanes: dict[int, Lane] = {}
        self._layouts: dict[tuple[int, int], _Layout] = {}
        # Rows of the block that was read last; 0: none was, or lanes yield rows.
        self.block_rows = 0

    def states(self, before: Integers) -> dict[str, list[Any]]:
        """State of each lane that is open or has a saved one, before as many of its rows."""
        rows = before.tolist()
        lanes = self._lanes.copy()
        states = {
            number: lane.state_at(rows[number]) for number, lane in lanes.items()
        }
        states |= {
            number: self._saved_state(number, rows[number])
            for number in self._saved.keys() - lanes.keys()
        }
        return {str(number): list(states[number]) for number in sorted(states)}

    @property
    def rows_at_hand(self) -> int:
        """Rows that each open lane has in its present block, while none is read."""
        return min((lane.rows_at_hand for lane in self._lanes.values()), default=0)

    def close(self) -> None:
        """See `StreamRun.close`."""
        for lane in list(self._lanes.values()):
            lane.close()

    def locate(self, number: int, rows: Integers) -> LocatedRows | None:
        """Finds the lanes of those rows that are of this stream, and takes tickets for them. None: there are none.

        Args:
            number: Index of this stream among those of the run.
            rows: Rows of the dataset's source, -1 for padding.
        """
        wanted = rows
        chosen = None
        if (
            self._first_row
            or rows.min(initial=0) < 0
            or rows.max(initial=0) >= len(self.source)
        ):
            chosen = np.flatnonzero(
                (rows >= self._first_row)
                & (rows < self._first_row + len(self.source))
            )
            wanted = rows[chosen] - self._first_row
        if not len(wanted):
            return None
        layout, shift = self._by_lane(wanted)
        tickets = [each.lane.take_ticket() for each in layout.lanes]
        return LocatedRows(self, number, wanted, chosen, layout, shift, tickets)

    def read(
        self,
        located: LocatedRows,
        tickets: PieceTickets,
        consumed: Callable[[], list[int]],
        out: Sequence[Array] | None,
    ) -> tuple[Integers, str, Callable[[], None] | None]:
        """Reads rows of this stream; see `StreamRun.read`.

        Args:
            located: The rows.
            tickets: Tickets of the piece.
            consumed: Returns the number of rows of each lane that were handed out.
            out: Arrays for the rows, one for each leaf. None: they are kept as the lanes give them.

        Returns:
            Indices of the rows of the piece that lanes lack, a text that says which lane has ended (empty: none), and
            the release. No release: all rows are in `out`.
        """
        wanted = located.rows
        chosen = located.chosen
        order = located.layout.order
        if order is None:
            read = wanted
        else:
            read = wanted[order]
        if order is not None or chosen is not None:
            out = None
        in_place = out is not None
        if out is None and not self.source.traits.reads_examples:
            out = self.opened.empty(len(read))
        items, lost, ended = self._read_lanes(located, tickets, read, consumed, out)
        if in_place and not len(lost):
            return lost, ended, None
        if len(lost):
            read = read.copy()
            read[lost] = -1
            if order is not None:
                lost = order[lost]
            if chosen is not None:
                lost = chosen[lost]
        if out is not None:
            piece = self.opened.add(read, None, out)
        elif items:
            piece = self.opened.add(read[read >= 0], items)
        else:
            return lost, ended, lambda: None
        return lost, ended, lambda: self.opened.release(piece)

    def read_steps(
        self,
        located: LocatedRows,
        tickets: PieceTickets,
        consumed: Callable[[], list[int]],
        out: Sequence[Array],
        steps: int,
        note: StepNote,
    ) -> None:
        """Reads rows of several steps; see `StreamRun.read_steps`."""
        by_lane = located.layout.lanes

        def leave(lane: Lane) -> None:
            self.block_rows = lane.block_rows
            if not lane.stateless:
                lane.take_state(consumed()[lane.number])

        BlockSteps(
            [each.lane for each in by_lane],
            [each.begin + located.shift for each in by_lane],
            steps,
            out,
        ).read(tickets, located.tickets, leave, note)

    def _read_lanes(
        self,
        located: LocatedRows,
        tickets: PieceTickets,
        rows: Integers,
        consumed: Callable[[], list[int]],
        out: Sequence[Array] | None,
    ) -> tuple[list[Tree], Integers, str]:
        """Reads the rows of a piece, lane by lane.

        Returns:
            Examples that are not written to `out`, which rows are lost, and which lane has ended.
        """
        by_lane = located.layout.lanes
        shift = located.shift
        rows_at_once = self.opened.rows_at_once
        batched = self.source.batched
        kept: list[list[Tree]] = [[]] * len(by_lane)
        # of lanes that have ended, by index
        ends: dict[int, tuple[Integers, str]] = {}
        items: list[Tree] = []
        # rows before `joined` are in `out`, those up to `reached` in `items`
        joined = reached = 0
        for index in tickets.in_turn(
            [each.lane for each in by_lane], located.tickets
        ):
            lane, first, end, turns, relative, span = by_lane[index]
            if first != reached:
                self._join(items, rows, joined, reached, out)
                items = []
                joined = first
            begin = relative + shift
            before = len(items)
            there = end
            part = None
            if batched and span == end - first:
                part = lane.next_part(begin, span)
            if part is None:
                lane.read(begin, span, items)
            else:
                items.append(part)
            if not lane.stateless:
                lane.take_state(consumed()[lane.number])
            if part is None and (span != end - first or lane.row != begin + span):
                # Another process has the other rows. If the lane has ended, the last ones are missing.
                wanted = turns[: np.searchsorted(turns, lane.row - shift)] - relative
                if self.source.batched:
                    items[before:] = choose_rows(items[before:], wanted)
                else:
                    items[before:] = [
                        items[before + place] for place in wanted.tolist()
                    ]
                there = first + len(wanted)
                if there < end:
                    reads = count_text(lane.row, "row")
                    ends[index] = (
                        np.arange(there, end),
                        f"lane {lane.number} ended after {reads}",
                    )
            reached = end
            if out is None:
                kept[index], items = items, []
            # Some rows at a time, while they are in the CPU caches.
            elif (
                len(items) >= _MOST_ITEMS
                or end - joined >= rows_at_once
                or there < end
            ):
                self._join(items, rows, joined, there, out)
                items = []
                joined = end
        self._join(items, rows, joined, reached, out)
        self.block_rows = by_lane[-1].lane.block_rows
        lost, texts = (
            zip(*(ends[index] for index in sorted(ends)), strict=True)
            if ends
            else ([], [""])
        )
        return (
            list(chain.from_iterable(kept)),
            np.concatenate([np.zeros(0, np.int64), *lost]),
            texts[0],
        )

    def _join(
        self,
        items: list[Tree],
        rows: Integers,
        begin: int,
        end: int,
        out: Sequence[Array] | None,
    ) -> None:
        """Writes items to the rows from `begin` to `end` of `out`."""
        if items and out is not None:
            self.opened.join(
                items, rows[begin:end], [leaf[begin:end] for leaf in out]
            )

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
        # a lane's rows are not together
        if len(np.unique(numbers[np.concatenate([[0], bounds])])) <= len(bounds):
            order = np.argsort(numbers, kind="stable")
            turns = turns[order]
            numbers = numbers[order]
            bounds = np.flatnonzero(np.diff(numbers)) + 1
        firsts = [0, *bounds.tolist()]
        ends = [*bounds.tolist(), len(rows)]
        begins = turns[firsts].tolist()
        lasts = turns[[end - 1 for end in ends]].tolist()
        chosen = numbers[firsts].tolist()
        self._open(chosen, [begin + shift for begin in begins])
        by_lane = [
            _LaneRows(
                self._lanes[number],
                first,
                end,
                turns[first:end],
                begin,
                last - begin + 1,
            )
            for number, first, end, begin, last in zip(
                chosen, firsts, ends, begins, lasts, strict=True
            )
        ]
        return _Layout(rows, order, by_lane)

    def _open(self, lanes: Sequence[int], rows: Sequence[int]) -> None:
        """Opens the lanes that are not open yet, to be read from these rows on."""
        # rows to skip of lanes that have any left
        skipped = []
        stateless = 0
        for number, row in zip(lanes, rows, strict=True):
            if number in self._lanes:
                continue
            state = self._saved_state(number, row)
            self._lanes[number] = self.source.lane(number, self._epochs, state)
            if row - state.row > _MOST_SKIPPED:
                what = (
                    f"lane {number} would have to read "
                    f"{count_text(row - state.row, 'row')} to skip them, which "
                    "takes days"
                )
                raise StateError(
                    f"{what}; pass a state of get_state() of this run, or an earlier "
                    "step"
                )
            if row > state.row and not self._lanes[number].ended:
                skipped.append(row - state.row)
                stateless += state.state is None
        if skipped:
            text = (
                "loadax: reading and skipping %s of %s, to reach the step; lanes "
                "without a saved state: %d"
            )
            if max(skipped) > _FEW_SKIPPED:
                level = logging.WARNING
            else:
                level = logging.INFO
            facts = (
                count_text(sum(skipped), "row"),
                count_text(len(skipped), "lane"),
                stateless,
            )
            log.log(level, text, *facts)

    def _saved_state(self, number: int, row: int) -> LaneState:
        """The latest saved state of a lane before a row."""
        saved = self._saved.get(number, ())
        known = [state for state in saved if state.row <= row]
        if saved and not known:
            what = (
                f"the state of lane {number} is at its row {saved[0].row}, but the "
                f"step begins at row {row}"
            )
            raise StateError(f"{what}; pass a state of get_state()")
        return max(known, key=lambda state: state.row, default=BEGIN)


def _epoch_begin(state: LaneState) -> LaneState:
    """The state at the beginning of the epoch of a state."""
    return LaneState(state.first, state.epoch, state.first)
