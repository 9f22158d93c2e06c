"""OrderedReads: threads read pieces at the same time, and each lane in the order of the pieces."""

import threading
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter, thread_time
from typing import Any, final

from numpy.typing import NDArray

from loadax.loader.metrics.stats import Timing
from loadax.loader.streams.run import LocatedRows, StreamRun
from loadax.protocols import Visits
from loadax.sources.stream.lane import Lane


class SkippedError(Exception):
    """Rows were not read, since those before them could not be, which is the error to tell of; or the run is closed."""


@final
class OrderedReads:
    """The reads of one producer.

    Pieces are taken in order, by threads that run concurrently. A lane is read by one thread at a time, in the order of
    the pieces: each piece has a turn at each of its lanes.

    Args:
        run: The lanes.
        step: First step.
        rows_per_step: Rows that this process reads per step.
    """

    def __init__(self, run: StreamRun, step: int, rows_per_step: int):
        run.begin(step)
        self._run, self._rows_per_step = run, rows_per_step
        self._next = step, 0  # next piece to get its turns; a process without rows has its steps in order too
        self._pieces = 0  # number of pieces that have them
        self._skipped: int | None = None  # first piece that is not read, since it or one before it failed
        self._finished = step  # next step to finish
        self._steps: dict[int, _Step] = {}  # steps that were read in part, or before an earlier one
        self._changed = threading.Condition()
        self.waiting = 0
        """Number of threads that wait for a lane."""

    def read(
        self, step: int, low: int, visits: Visits, out: Sequence[NDArray[Any]] | None
    ) -> tuple[Visits, list[Callable[[], None]], Timing]:
        """Reads rows of a step, from its `low`-th on this process on; see `StreamRun.read`.

        Returns:
            The visits, functions that release what was read, and the time that reading took.

        Raises:
            SkippedError: If earlier rows could not be read, or the iterator was closed.
        """
        end = low + len(visits.rows)
        with self._changed:
            self._changed.wait_for(lambda: self._skipped is not None or self._next == (step, low))
            if self._skipped is not None:
                raise SkippedError
            piece, self._pieces = self._pieces, self._pieces + 1
        try:
            located, turns = self._run.locate(visits.rows), _Turns(self, piece)
            with self._changed:
                self._next = (step + 1, 0) if end == self._rows_per_step else (step, end)
                self._changed.notify_all()
            began, processor = perf_counter(), thread_time()
            read = self._run.read(located, turns, visits, out)
            timing = Timing(perf_counter() - began - turns.waited, read_cpu=thread_time() - processor)
        except BaseException:
            self._skip(piece)
            raise
        self._finish(step, low, len(visits.rows), bool((read.visits.rows >= 0).any()), read.ended_lane)
        return read.visits, read.releases, timing

    def close(self) -> None:
        """Ends all waiting."""
        self._skip(-1)

    def wait(self, piece: int, lane: Lane, turn: int) -> None:
        """Waits for a turn of a piece.

        Raises:
            SkippedError: If a piece before it has failed.
        """
        with self._changed:
            self.waiting += 1
            try:
                self._changed.wait_for(lambda: self._skips(piece) or lane.turn == turn)
            finally:
                self.waiting -= 1
            if lane.turn != turn:
                raise SkippedError

    def tell(self) -> None:
        """Tells those who wait that a turn is over."""
        with self._changed:
            self._changed.notify_all()

    def _skips(self, piece: int) -> bool:
        return self._skipped is not None and self._skipped <= piece

    def _skip(self, piece: int) -> None:
        """Skips all pieces from this one on that wait, and all that are not taken yet."""
        with self._changed:
            self._skipped = piece if self._skipped is None else min(piece, self._skipped)
            self._changed.notify_all()

    def _finish(self, step: int, low: int, rows: int, present: bool, ended_lane: str) -> None:
        """Notes that a piece was read, and finishes steps whose pieces all were, in order."""
        with self._changed:
            noted = self._steps.setdefault(step, _Step(self._rows_per_step))
            noted.unread -= rows
            noted.present |= present
            if ended_lane:
                noted.ended_lanes[low] = ended_lane
            while (first := self._steps.get(self._finished)) is not None and not first.unread:
                ended_lanes = self._steps.pop(self._finished).ended_lanes
                self._run.finish(self._finished, first.present, ended_lanes[min(ended_lanes)] if ended_lanes else "")
                self._finished += 1


@final
class _Step:
    """What was read of a step.

    Args:
        unread: Number of rows that were not.
    """

    def __init__(self, unread: int):
        self.unread = unread
        self.present = False  # whether it has rows
        self.ended_lanes: dict[int, str] = {}  # texts: which lane has ended, by first row of the piece that lacks rows


@final
class _Turns:
    """Turns of a piece at its lanes.

    Args:
        reads: The reads.
        piece: Number of the piece.
    """

    def __init__(self, reads: OrderedReads, piece: int):
        self._reads, self._piece = reads, piece
        self.waited = 0.0
        """Seconds that it waited for others."""

    def order(self, located: LocatedRows) -> Iterator[int]:
        """Yields the index of each lane at its turn: first those that need no waiting.

        Where two pieces have a lane in common, it is the last of one and the first of the other.
        """
        reads, parts, later = self._reads, located.layout.lanes, []
        for index, turn in enumerate(located.turns):
            lane = parts[index].lane
            if lane.turn != turn:
                later.append(index)
                continue
            yield index
            lane.turn = turn + 1
            if reads.waiting:  # without the lock: a thread that waits from now on sees the line above
                reads.tell()
        for index in later:
            lane, turn, began = parts[index].lane, located.turns[index], perf_counter()
            reads.wait(self._piece, lane, turn)
            self.waited += perf_counter() - began
            yield index
            lane.turn = turn + 1
            reads.tell()
