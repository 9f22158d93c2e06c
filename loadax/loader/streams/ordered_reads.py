"""OrderedReads: threads read pieces at the same time, and each lane in the order of the pieces."""

import threading
from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from typing import NamedTuple, Protocol, final

from loadax.loader.metrics.stats import Timing
from loadax.loader.slots import ReadRows
from loadax.loader.streams.open_lanes import LocatedRows
from loadax.loader.streams.tickets import NO_PIECE, LaneTickets, PieceTickets
from loadax.protocols import Array, Integers, Visits


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
        self._tickets.wait(NO_PIECE, (step, low), lambda: self._next == (step, low))
        piece = self._pieces
        self._pieces = self._pieces + 1
        try:
            located = self._run.locate(visits.rows)
            tickets = PieceTickets(self._tickets, piece)
            if end == self._rows_per_step:
                self._next = (step + 1, 0)
            else:
                self._next = (step, end)
            self._tickets.begin(self._next)
            began = perf_counter()
            processor = thread_time()
            read = self._run.read(located, tickets, visits, out)
            timing = Timing(
                perf_counter() - began - tickets.waited,
                read_cpu=thread_time() - processor,
                began=began,
            )
        except BaseException:
            self._tickets.skip(piece)
            raise
        self._finish(step, low, len(visits.rows), read.present, read.ended_lane)
        return ReadRows(read.visits, read.releases, timing, read.in_place)

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
