"""OrderedReads: threads read pieces at the same time, and each lane in the order of the pieces."""

import threading
from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from typing import NamedTuple, Protocol, TypeVar, final

from loadax.loader.metrics.stats import Timing
from loadax.loader.slots import ReadRows
from loadax.loader.streams.block_steps import StepNote
from loadax.loader.streams.open_lanes import LocatedRows
from loadax.loader.streams.tickets import NO_PIECE, LaneTickets, PieceTickets
from loadax.protocols import Array, Integers, Visits

Result = TypeVar("Result")

# A piece that takes longer than this multiple of its CPU time waits for blocks, not for a core that others use.
_WAITING = 8
_FADING = 0.75  # weight of earlier pieces at each new one
_MOST_STEPS = 16


class PieceOfStreams(NamedTuple):
    """Rows that were read for a piece.

    Args:
        visits: The visits of its rows, -1 for rows that lanes lack.
        present: Whether lanes have some of its rows. One that is quarantined counts: no lane is asked for it.
        ended_lane: Text: which lane has ended, if there are such rows.
        releases: Functions that release what was read.
        in_place: Whether all rows are in the arrays that were given for them.
    """

    visits: Visits
    present: bool
    ended_lane: str
    releases: list[Callable[[], None]]
    in_place: bool = False


class LaneReader(Protocol):
    """Reads the lanes of pieces: a `StreamRun`."""

    def begin(self, step: int) -> None:
        """Reads from this step on. All earlier ones were read."""

    def locate(self, rows: Integers) -> list[LocatedRows]:
        """Finds the lanes of a piece's rows, and takes tickets for them."""

    def read(
        self,
        located: Sequence[LocatedRows],
        tickets: PieceTickets,
        visits: Visits,
        out: Sequence[Array] | None = None,
    ) -> PieceOfStreams:
        """Reads the rows of a piece."""

    @property
    def block_rows(self) -> int:
        """Rows of the block that was read last."""

    @property
    def rows_at_hand(self) -> int:
        """Rows that each lane has in its present block."""

    def read_steps(
        self,
        located: Sequence[LocatedRows],
        tickets: PieceTickets,
        out: Sequence[Array],
        steps: int,
        note: StepNote,
    ) -> None:
        """Reads the rows of several steps."""

    def finish(self, step: int, present: bool, ended_lane: str) -> None:
        """Notes that all rows of a step were read, and those of all earlier ones."""


@final
class OrderedReads:
    """The reads of one producer. Pieces take tickets for their lanes in order, and are then read concurrently.

    Args:
        run: The lanes.
        step: First step.
        rows_per_step: Rows that this process reads per step.
    """

    def __init__(self, run: LaneReader, step: int, rows_per_step: int):
        run.begin(step)
        self._run = run
        self._rows_per_step = rows_per_step
        self._tickets = LaneTickets()
        # next piece to take tickets; a process without rows has its steps in order too
        self._next = step, 0
        self._pieces = 0  # number of pieces that have tickets
        self._finished = step  # next step to finish
        # of reading recent pieces
        self._seconds = self._processor_seconds = 0.0
        # steps that were read in part, or before an earlier one
        self._steps: dict[int, _Step] = {}
        # Reentrant: garbage collection under the lock may close the iterator.
        self._lock = threading.RLock()

    def read(
        self, step: int, low: int, visits: Visits, out: Sequence[Array] | None
    ) -> ReadRows:
        """Reads rows of a step, from its `low`-th on this process on; see `StreamRun.read`.

        Raises:
            SkippedError: If earlier rows could not be read, or the iterator was closed.
        """
        end = low + len(visits.rows)
        if end == self._rows_per_step:
            following = (step + 1, 0)
        else:
            following = (step, end)
        read, timing = self._in_turn(
            (step, low),
            following,
            visits.rows,
            lambda located, tickets: self._run.read(located, tickets, visits, out),
        )
        self._finish(step, low, len(visits.rows), read.present, read.ended_lane)
        return ReadRows(read.visits, read.releases, timing, read.in_place)

    def read_steps(
        self,
        step: int,
        steps: int,
        visits: Visits,
        out: Sequence[Array],
        filled: Callable[[int], object],
    ) -> Timing:
        """Reads all rows of several steps of blocks, from a step on; see `StreamRun.read_steps`.

        Args:
            step: First step.
            steps: Number of steps.
            visits: Visits of the rows of all steps.
            out: Arrays for them, one for each leaf.
            filled: Called after each step with the number of full ones.

        Raises:
            SkippedError: As `read`.
        """
        rows = self._rows_per_step

        def note(index: int, present: bool, ended_lane: str) -> None:
            self._finish(step + index, 0, rows, present, ended_lane)
            filled(index + 1)

        return self._in_turn(
            (step, 0),
            (step + steps, 0),
            visits.rows[:rows],
            lambda located, tickets: self._run.read_steps(
                located, tickets, out, steps, note
            ),
        )[1]

    def most_steps(self, rows_per_lane: int, threads: int) -> int:
        """Most steps of blocks to read together.

        A consumer that reads must not wait for blocks of later steps, so it reads those at hand. A thread keeps a lane
        until it has read all steps: where blocks are waited for, others should read the next ones meanwhile, so it then
        reads the steps of one block.
        """
        if not threads:
            return max(1, self._run.rows_at_hand // rows_per_lane)
        in_block = self._run.block_rows // rows_per_lane
        if not in_block:
            return 1
        if self._seconds > _WAITING * self._processor_seconds:
            return in_block
        return _MOST_STEPS

    def _in_turn(
        self,
        place: tuple[int, int],
        following: tuple[int, int],
        rows: Integers,
        read: Callable[[Sequence[LocatedRows], PieceTickets], Result],
    ) -> tuple[Result, Timing]:
        """Reads a piece once those before it have tickets; also returns the time of reading, without waiting.

        Args:
            place: Step of the piece, and its first row in that.
            following: Those of the next piece.
            rows: Its rows.
            read: Reads it.
        """
        self._tickets.wait(NO_PIECE, place, lambda: self._next == place)
        piece = self._pieces
        self._pieces = self._pieces + 1
        try:
            located = self._run.locate(rows)
            tickets = PieceTickets(self._tickets, piece)
            self._next = following
            self._tickets.begin(following)
            began = perf_counter()
            processor = thread_time()
            result = read(located, tickets)
            timing = Timing(
                perf_counter() - began - tickets.waited,
                read_cpu=thread_time() - processor,
                began=began,
            )
        except BaseException:
            self._tickets.skip(piece)
            raise
        self._seconds = _FADING * self._seconds + timing.read
        self._processor_seconds = _FADING * self._processor_seconds + timing.read_cpu
        return result, timing

    def close(self) -> None:
        """Ends all waiting."""
        self._tickets.skip(-1)

    def _finish(
        self, step: int, low: int, rows: int, present: bool, ended_lane: str
    ) -> None:
        """Notes that a piece was read, and finishes steps whose pieces all were, in order."""
        with self._lock:
            noted = self._steps.setdefault(step, _Step(self._rows_per_step))
            noted.unread -= rows
            noted.present |= present
            if ended_lane:
                noted.ended_lanes[low] = ended_lane
            while (
                first := self._steps.get(self._finished)
            ) is not None and not first.unread:
                ended_lanes = self._steps.pop(self._finished).ended_lanes
                self._run.finish(
                    self._finished,
                    first.present,
                    ended_lanes[min(ended_lanes)] if ended_lanes else "",
                )
                self._finished += 1


@final
class _Step:
    """Pieces of a step that were read.

    Args:
        unread: Number of rows that were not.
    """

    def __init__(self, unread: int):
        self.unread = unread
        self.present = False  # whether it has rows
        # texts: which lane has ended, by first row of the piece that lacks rows
        self.ended_lanes: dict[int, str] = {}
