"""StreamRun: the lanes that one iterator reads, each in the order of its steps."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, final

import numpy as np

from loadax.core.arguments import shown
from loadax.core.log import log
from loadax.core.spec import flatten_spec
from loadax.errors import SourceError, StateError
from loadax.loader.options import StreamOptions
from loadax.loader.slots import EndRule, LaneProgress, OrderedRows
from loadax.loader.streams.block_steps import StepNote
from loadax.loader.streams.open_lanes import LocatedRows, OpenLanes
from loadax.loader.streams.ordered_reads import OrderedReads, PieceOfStreams
from loadax.loader.streams.tickets import PieceTickets
from loadax.plan.batches import BatchPlan
from loadax.plan.stream import StreamOrder, rows_before
from loadax.protocols import Array, ArraySpec, Integers, Visits
from loadax.reader import Reader
from loadax.sources.base import BaseSource
from loadax.sources.stream.lane import LaneState
from loadax.sources.stream.source import OpenStream, StreamSource, streams_in

# Saved states of each stream's lanes, by lane.
LaneStates = Sequence[Mapping[int, Sequence[LaneState]]]

# Key of the states of lanes in the state of an iterator.
KEY = "lanes"


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

    def __init__(
        self,
        plan: BatchPlan,
        source: BaseSource,
        options: StreamOptions,
        states: LaneStates,
    ):
        self._plan = plan
        self._options = options
        self._streams = [
            OpenLanes(first_row, stream, options.epochs, saved)
            for (first_row, stream), saved in zip(
                streams_in(source), chain(states, repeat({})), strict=False
            )
        ]
        self._mixed = not isinstance(plan.order, StreamOrder)
        # Text: which lane of this process was the first to end.
        self.ended_lane = "a lane of another process has ended"
        # Whether lanes never end.
        self.endless = options.epochs is None
        # Steps that were handed out: no state before them is asked for.
        self.consumed = 0
        self._consumed_rows: tuple[int, list[list[int]]] = -1, []
        # How far the lanes were read.
        self.progress = LaneProgress(0, None, 0)

    @property
    def end_rule(self) -> EndRule:
        """When the run ends."""
        if self._options.remainder == "error":
            return "error"
        if self._options.remainder == "pad" and not self._mixed:
            return "all"
        return "first"

    def bind(self, reader: Reader) -> Reader:
        """The reader, over the rows that this run has read."""
        # in order, since a mixture may have the same stream twice
        opened = iter(self._streams)
        return reader.over(
            lambda source, times: (  # noqa: ARG005
                next(opened).opened if isinstance(source, StreamSource) else source
            )
        )

    def stacked(self, reader: Reader) -> list[ArraySpec] | None:
        """The spec of rows that go from their lane into buffers, without a map in between. None: they don't."""
        if reader.maps or not isinstance(reader.source, OpenStream):
            return None
        return flatten_spec(reader.spec)[0]

    def ordered(self, step: int, rows_per_step: int) -> OrderedRows:
        """The reads of one producer from a step on."""
        return OrderedReads(self, step, rows_per_step)

    def goes_on(self, step: int) -> bool:
        """Whether a step that was read is part of the run, by the lanes of this process alone."""
        return bool(goes_on(self.end_rule, step, [self.progress], self.ended_lane))

    def state(self, step: int) -> dict[str, Any]:
        """The field of a state before a step that has the states of the lanes."""
        return {KEY: self.states(step)}

    def states(self, step: int) -> list[dict[str, list[Any]]]:
        """States of the lanes before a step, as JSON: for each stream, a `LaneState` by lane."""
        return [
            stream.states(rows)
            for stream, rows in zip(
                self._streams, self._rows_before(step), strict=True
            )
        ]

    def begin(self, step: int) -> None:
        """Reads from this step on. All earlier ones were read."""
        self.progress = self.progress._replace(read=max(self.progress.read, step))

    def locate(self, rows: Integers) -> list[LocatedRows]:
        """Finds the lanes of a piece's rows, and takes tickets for them. Not thread-safe; called in order of pieces."""
        located = (
            stream.locate(index, rows) for index, stream in enumerate(self._streams)
        )
        return [found for found in located if found is not None]

    def read(
        self,
        located: Sequence[LocatedRows],
        tickets: PieceTickets,
        visits: Visits,
        out: Sequence[Array] | None = None,
    ) -> PieceOfStreams:
        """Reads the rows of a piece. Rows that lanes lack become padding.

        Args:
            located: Lanes of the rows.
            tickets: Tickets of the piece.
            visits: Visits of the rows.
            out: Arrays for these rows, one for each leaf, if they are all of one stream. None: kept as lanes give them.

        Raises:
            SourceError: If a lane has no rows.
            LeafError: If a row that is written to `out` differs from the spec; names the row.
            Exception: Whatever a lane raises, with a note that names lane and row.
        """
        rows = visits.rows
        releases = []
        ended = ""
        lacking = 0
        in_place = False
        for found in located:
            lost, ended_lane, release = found.stream.read(
                found, tickets, partial(self._consumed_of, found.number), out
            )
            if release is None:  # it is the only one
                in_place = True
            else:
                releases.append(release)
            if len(lost):
                if rows is visits.rows:
                    rows = rows.copy()
                rows[lost] = -1
                ended = ended or ended_lane
                lacking = lacking + len(lost)
        return PieceOfStreams(
            Visits(rows, visits.epochs),
            lacking < len(rows),
            ended,
            releases,
            in_place,
        )

    def rows_per_lane(self, positions: Integers, batch_size: int) -> int:
        """Rows of each lane in every step, if these positions of a batch are all rows of some lanes. 0: no."""
        if not isinstance(self._plan.order, StreamOrder):
            return 0
        rows, rest = divmod(batch_size, self._plan.order.lanes)
        if rest or not len(positions) or len(positions) % rows:
            return 0
        firsts = positions[::rows]
        lanes = np.add.outer(firsts, np.arange(rows)).ravel()
        if (firsts % rows).any() or not np.array_equal(positions, lanes):
            return 0
        return rows

    @property
    def block_rows(self) -> int:
        """Rows of the block that was read last. 0: lanes yield rows."""
        return self._streams[0].block_rows

    @property
    def rows_at_hand(self) -> int:
        """Rows that each open lane has in its present block, while none is read."""
        return self._streams[0].rows_at_hand

    def read_steps(
        self,
        located: Sequence[LocatedRows],
        tickets: PieceTickets,
        out: Sequence[Array],
        steps: int,
        note: StepNote,
    ) -> None:
        """Reads the rows of several steps, of which each lane has equally many in each step.

        Args:
            located: Lanes of the rows of the first step.
            tickets: Tickets of the piece.
            out: Arrays for the rows of all steps, one for each leaf.
            steps: Number of steps.
            note: Called after each step.

        Raises:
            Exception: As `read`.
        """
        for found in located:
            consumed = partial(self._consumed_of, found.number)
            found.stream.read_steps(found, tickets, consumed, out, steps, note)

    def finish(self, step: int, present: bool, ended_lane: str) -> None:
        """Notes that all rows of a step were read, and those of all earlier ones.

        Args:
            step: The step.
            present: Whether lanes have some of its rows.
            ended_lane: Text: which lane has ended, if it lacks rows.
        """
        _, lacking, filled = self.progress
        if ended_lane and lacking is None:
            self.ended_lane = ended_lane
            # A mixture has rows of other datasets without end: its last batch is the one that lacks a row.
            lacking = step + (self._mixed and self._options.remainder == "pad")
            log.info(
                "loadax: batches lack rows from step %d on: %s", step, ended_lane
            )
        self.progress = LaneProgress(
            step + 1, lacking, step + 1 if present else filled
        )

    def close(self) -> None:
        """Drops the iterators of all lanes, once no thread reads them. Others may still ask for states."""
        for stream in self._streams:
            stream.close()

    def _consumed_of(self, stream: int) -> list[int]:
        """Number of rows of each lane of a stream that were handed out."""
        consumed = self.consumed
        if self._consumed_rows[0] != consumed:
            self._consumed_rows = (
                consumed,
                [rows.tolist() for rows in self._rows_before(consumed)],
            )
        return self._consumed_rows[1][stream]

    def _rows_before(self, step: int) -> list[Integers]:
        return rows_before(self._plan.order, *self._plan.position_of_step(step))


def goes_on(
    rule: EndRule, step: int, known: Collection[LaneProgress], ended_lane: str
) -> bool | None:
    """Whether a step is part of the run, if earlier ones are. None: not known yet.

    Args:
        rule: When the run ends.
        step: The step.
        known: LaneProgress of all processes.
        ended_lane: Text: which lane has ended first.

    Raises:
        SourceError: If the rule is "error", and some rows of the step are missing.
    """
    read = all(progress.read > step for progress in known)
    lacking = any(
        progress.lacking is not None and progress.lacking <= step
        for progress in known
    )
    filled = any(progress.filled > step for progress in known)
    if rule == "first":
        if lacking:
            return False
        if read:
            return True
        return None
    if rule == "all":
        if filled:
            return True
        if read:
            return False
        return None
    if read and lacking and filled:
        raise SourceError(
            f"remainder='error': {ended_lane}, and the batch of step {step} has only "
            "some of its rows; pass remainder='drop' or 'pad', or lanes of equal "
            "lengths that fill whole batches"
        )
    if read:
        return not lacking
    return None


def lane_states(start: object) -> LaneStates:
    """The states of lanes in a state, or in a list of the states of several processes.

    Raises:
        StateError: If they are not states of lanes.
    """
    if isinstance(start, list | tuple):
        states = start
    else:
        states = [start]
    merged: list[dict[int, list[LaneState]]] = []
    for state in states:
        if not isinstance(state, Mapping) or KEY not in state:
            continue
        try:
            for index, lanes in enumerate(state[KEY]):
                if index == len(merged):
                    merged.append({})
                for number, values in lanes.items():
                    merged[index].setdefault(int(number), []).append(
                        _lane_state(values)
                    )
        except (
            TypeError,
            ValueError,
            OverflowError,
            IndexError,
            AttributeError,
        ) as error:
            what = (
                f"the state's {KEY!r} is {shown(state[KEY])}, which is not a list of "
                "states by lane"
            )
            raise StateError(f"{what}; pass a state of get_state()") from error
    return merged


def _lane_state(values: Sequence[Any]) -> LaneState:
    row, epoch, first = (int(value) for value in values[:3])
    # Each epoch before has a row at least.
    if not 0 <= epoch <= first <= row or (values[3] is None and row != first):
        raise ValueError(values)
    return LaneState(row, epoch, first, values[3])
