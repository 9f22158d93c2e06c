"""Timeline: the last events of a run, and the whole run in bins, recorded in bounded memory."""

import os
import threading
from contextlib import suppress
from copy import copy
from heapq import heappushpop
from pathlib import Path
from struct import Struct
from time import perf_counter
from typing import NamedTuple, final

import numpy as np

from loadax.loader.metrics.stats import Timing

# bars of about 20,000 events: minutes of most runs, and few enough for a browser
_KEPT = 40_000
_STAGES = ("read", "transform", "assemble", "place", "waiting", "training")
# numbers of stages: the first three are of a piece, in this order
_PIECE = range(3)
_PLACE = 3
_WAITING = 4
_TRAINING = 5
_TRAINING_LANE = 0
# As bytes of one array, a sixth of the memory of tuples: a recording that fills over an hour looks like a leak.
# Seconds since the start, seconds, number of the stage, step, rows of a piece or batches left, number of the lane.
_BAR = Struct("=ddBqqI")
# Bins of a history; when a run needs more, two become one.
_BINS = 256
_BIN_SECONDS = 0.25
_SLOWEST = 8


class Bar(NamedTuple):
    """A span of one lane: a stage of a piece, "place", "waiting" or "training"; times in seconds from the run's start.

    Of a piece, it has the rows and the first step.
    """

    began: float
    seconds: float
    stage: str
    step: int
    rows: int


class Piece(NamedTuple):
    """A piece that took long to read.

    Attributes:
        seconds: Time of reading, mapping and assembling it.
        step: First step of the group of steps that the piece belongs to.
        steps: Number of these steps.
        low, high: Range of this host's rows of each of the steps.
    """

    seconds: float
    step: int
    steps: int
    low: int
    high: int


@final
class Bin:
    """What happened in one span of time.

    Attributes:
        steps: Batches handed out.
        waited, trained: Seconds that training waited for data, and seconds between two calls of `next()`.
        ready: Sum over the batches handed out of those that were ready then.
        rows: Rows of the global batches handed out, without padding.
        memory: Largest resident memory of this process when a bin was begun, in bytes; 0 if it is unknown.
    """

    __slots__ = ("memory", "ready", "rows", "steps", "trained", "waited")

    def __init__(self, memory: int = 0) -> None:
        self.steps = 0
        self.waited = 0.0
        self.trained = 0.0
        self.ready = 0
        self.rows = 0
        self.memory = memory

    def count(self, waited: float, trained: float, ready: int, rows: int) -> None:
        """A batch was handed out."""
        self.steps += 1
        self.rows += rows
        self.waited += waited
        self.trained += trained
        self.ready += ready

    def joined(self, later: "Bin") -> "Bin":
        """This and a later bin as one."""
        both = Bin(max(self.memory, later.memory))
        both.steps = self.steps + later.steps
        both.waited = self.waited + later.waited
        both.trained = self.trained + later.trained
        both.ready = self.ready + later.ready
        both.rows = self.rows + later.rows
        return both


@final
class History:
    """The whole run in at most 256 bins of equal time. Not thread-safe.

    Attributes:
        seconds: Time of a bin, which doubles when the run needs more of them.
        bins: Bins in order of time, without gaps.
    """

    def __init__(self, seconds: float = _BIN_SECONDS):
        self.seconds = seconds
        self.bins: list[Bin] = []

    def at(self, seconds: float) -> Bin:
        """The bin of a time since the start of the run."""
        index = int(seconds / self.seconds)
        if not 0 <= index < len(self.bins):
            # what began before a warm-up ended counts from then on
            index = self._extend(max(0.0, seconds))
        return self.bins[index]

    def _extend(self, seconds: float) -> int:
        while seconds >= _BINS * self.seconds:
            self._halve()
        index = int(seconds / self.seconds)
        while len(self.bins) <= index:
            self.bins.append(Bin(resident_bytes()))
        return index

    def copy(self) -> "History":
        """A copy, which later events don't change."""
        same = History(self.seconds)
        same.bins = [copy(span) for span in self.bins]
        return same

    def _halve(self) -> None:
        self.seconds *= 2
        firsts = self.bins[::2]
        seconds = self.bins[1::2]
        if len(seconds) < len(firsts):
            seconds.append(Bin())
        self.bins = [
            first.joined(second)
            for first, second in zip(firsts, seconds, strict=True)
        ]


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the kernel has no /proc."""
    with suppress(OSError):
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0


class Timeline(NamedTuple):
    """The last events of a run, the oldest first.

    Attributes:
        kept: Bars, each with its lane: "thread 0", "process 1", or "training", the thread that takes batches.
        ready: Time of each batch handed out, in seconds, and number of batches that were ready then.
        forgotten: Number of earlier bars that were dropped.
        until: Seconds since the run started.
    """

    kept: tuple[tuple[str, Bar], ...]
    ready: tuple[tuple[float, int], ...]
    forgotten: int
    until: float

    def bars(self) -> dict[str, list[Bar]]:
        """Bars by lane, in order of time; training comes first, then the workers."""
        bars: dict[str, list[Bar]] = {"training": []}
        # Threads before processes, each in numeric order.
        lanes = {lane for lane, _ in self.kept}
        for name in sorted(
            lanes, key=lambda name: (name.startswith("process"), len(name), name)
        ):
            bars.setdefault(name, [])
        for lane, bar in self.kept:
            bars[lane].append(bar)
        return {name: sorted(lane) for name, lane in bars.items()}


class Recording(NamedTuple):
    """What a recorder holds at one time; bars are read from their bytes only when they are asked for.

    Attributes:
        records: Bytes of the last bars, the oldest first.
        lanes: Names of the lanes, by number.
        forgotten: Number of earlier bars that were dropped.
        until: Seconds since the run started.
        history: The whole run.
        slowest: Pieces of the whole run that took longest, the slowest first.
    """

    records: bytes
    lanes: tuple[str, ...]
    forgotten: int
    until: float
    history: History
    slowest: tuple[Piece, ...]

    def timeline(self) -> Timeline:
        """Timeline of the bars."""
        kept: list[tuple[str, Bar]] = []
        ready: list[tuple[float, int]] = []
        for record in _BAR.iter_unpack(self.records):
            began, seconds, stage, step, count, lane = record
            if stage == _WAITING:
                ready.append((began + seconds, count))
                count = 0
            bar = Bar(began, seconds, _STAGES[stage], step, count)
            kept.append((self.lanes[lane], bar))
        return Timeline(tuple(kept), tuple(ready), self.forgotten, self.until)


@final
class Recorder:
    """Records the last events. Not thread-safe.

    Args:
        kept: Number of bars to keep.
    """

    def __init__(self, kept: int = _KEPT):
        self._began = perf_counter()
        # The newest bar takes the place of the oldest. Pages of zeros take no memory before they are written.
        self._bars = np.zeros(kept * _BAR.size, np.uint8).data
        self._kept = kept
        self._count = 0
        # names, and their numbers by thread identifier or negative process id
        self._lanes = ["training"]
        self._lane_numbers: dict[int, int] = {}
        self._left: float | None = None  # when the consumer got its last batch
        self._history = History()
        # a heap, the fastest of them first
        self._slowest = [Piece(0.0, 0, 0, 0, 0)] * _SLOWEST

    def piece(self, timing: Timing, ended: float, piece: Piece) -> None:
        """A piece was read."""
        if piece.seconds > self._slowest[0].seconds:
            heappushpop(self._slowest, piece)
        # A piece may have been queued in a worker process, so it began later than the call.
        lane = self._lane(timing.worker)
        began = (timing.began or ended - timing.seconds) - self._began
        for stage, seconds in zip(_PIECE, timing[:3], strict=True):
            if seconds:
                self._record(began, seconds, stage, piece.step, timing.rows, lane)
            began += seconds

    def placed(self, timing: Timing, step: int) -> None:
        """A batch was placed."""
        lane = self._lane(0)
        began = timing.began - self._began
        self._record(began, timing.place, _PLACE, step, 0, lane)

    def taken(
        self, began: float, waited: float, step: int, ready: int, rows: int
    ) -> None:
        """A batch of `rows` was handed out, and `ready` are left."""
        began -= self._began
        trained = 0.0
        lane = _TRAINING_LANE
        if self._left is not None:
            trained = began - self._left
            self._record(self._left, trained, _TRAINING, step - 1, 0, lane)
        self._record(began, waited, _WAITING, step, ready, lane)
        self._left = began + waited
        self._history.at(self._left).count(waited, trained, ready, rows)

    def recording(self) -> Recording:
        """What is recorded now."""
        slowest = [piece for piece in self._slowest if piece.steps]
        forgotten = max(0, self._count - self._kept)
        oldest = forgotten % self._kept * _BAR.size
        end = self._count * _BAR.size
        return Recording(
            self._bars[oldest:end].tobytes() + self._bars[:oldest].tobytes(),
            tuple(self._lanes),
            forgotten,
            perf_counter() - self._began,
            self._history.copy(),
            tuple(sorted(slowest, reverse=True)),
        )

    def timeline(self) -> Timeline:
        """Timeline of the recorded events."""
        return self.recording().timeline()

    def _record(
        self,
        began: float,
        seconds: float,
        stage: int,
        step: int,
        rows: int,
        lane: int,
    ) -> None:
        start = self._count % self._kept * _BAR.size
        _BAR.pack_into(self._bars, start, began, seconds, stage, step, rows, lane)
        self._count += 1

    def _lane(self, worker: int) -> int:
        """Number of the lane of a worker process, or of this thread for worker 0."""
        who = -worker or threading.get_ident()
        if who not in self._lane_numbers:
            self._lane_numbers[who] = self._new_lane(worker)
        return self._lane_numbers[who]

    def _new_lane(self, worker: int) -> int:
        if worker:
            kind = "process"
        else:
            kind = "thread"
        ours = worker or threading.current_thread().name.startswith("loadax")
        if not ours:
            return _TRAINING_LANE
        number = sum(name.startswith(kind) for name in self._lanes)
        self._lanes.append(f"{kind} {number}")
        return len(self._lanes) - 1
