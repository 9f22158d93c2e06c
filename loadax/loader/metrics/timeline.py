"""Timeline: the last events of a run, and the whole run in bins, recorded in bounded memory."""

import os
import threading
from collections import deque
from contextlib import suppress
from copy import copy
from heapq import heappushpop
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, final

from loadax.loader.metrics.stats import Timing

# bars of about 20,000 events: minutes of most runs, and few enough for a browser
_KEPT = 40_000
_STAGES = ("read", "transform", "assemble")  # of a piece
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
        rows: Rows that this process read.
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

    def count(self, waited: float, trained: float, ready: int) -> None:
        """A batch was handed out."""
        self.steps += 1
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
        kept: Values of bars, each with its lane: "thread 0", "process 1", or "training", the thread that takes batches.
        ready: Time of each batch handed out, in seconds, and number of batches that were ready then.
        forgotten: Number of earlier bars that were dropped.
        until: Seconds since the run started.
        history: The whole run.
        slowest: Pieces of the whole run that took longest, the slowest first.
    """

    kept: tuple[tuple[str, tuple[float, float, str, int, int]], ...]
    ready: tuple[tuple[float, int], ...]
    forgotten: int
    until: float
    history: History
    slowest: tuple[Piece, ...]

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
            bars[lane].append(Bar._make(bar))
        return {name: sorted(lane) for name, lane in bars.items()}


@final
class Recorder:
    """Records the last events. Not thread-safe.

    Args:
        kept: Number of bars to keep.
    """

    def __init__(self, kept: int = _KEPT):
        self._began = perf_counter()
        # Lanes and bars, as plain tuples: they are made at every step, and most are never looked at.
        self._bars: deque[tuple[str, tuple[float, float, str, int, int]]] = deque(
            maxlen=kept
        )
        self._ready: deque[tuple[float, int]] = deque(maxlen=kept)
        self._count = 0
        # by thread identifier or negative process id
        self._lanes: dict[int, str] = {}
        self._left: float | None = None  # when the consumer got its last batch
        self._history = History()
        # a heap, the fastest of them first
        self._slowest = [Piece(0.0, 0, 0, 0, 0)] * _SLOWEST

    def piece(self, timing: Timing, ended: float, piece: Piece) -> None:
        """A piece was read."""
        step = piece.step
        self._history.at(ended - self._began).rows += timing.rows
        if piece.seconds > self._slowest[0].seconds:
            heappushpop(self._slowest, piece)
        # A piece may have been queued in a worker process, so it began later than the call.
        lane = self._lane(timing.worker)
        began = (timing.began or ended - timing.seconds) - self._began
        for stage, seconds in zip(_STAGES, timing[:3], strict=True):
            if seconds:
                self._count += 1
                self._bars.append((lane, (began, seconds, stage, step, timing.rows)))
            began += seconds

    def placed(self, timing: Timing, step: int) -> None:
        """A batch was placed."""
        self._count += 1
        self._bars.append(
            (
                self._lane(0),
                (timing.began - self._began, timing.place, "place", step, 0),
            )
        )

    def taken(self, began: float, waited: float, step: int, ready: int) -> None:
        """A batch was handed out, and `ready` are left."""
        began -= self._began
        trained = 0.0
        if self._left is not None:
            trained = began - self._left
            self._count += 1
            self._bars.append(
                (
                    "training",
                    (self._left, trained, "training", step - 1, 0),
                )
            )
        self._count += 1
        self._bars.append(("training", (began, waited, "waiting", step, 0)))
        self._left = began + waited
        self._history.at(self._left).count(waited, trained, ready)
        self._ready.append((self._left, ready))

    def timeline(self) -> Timeline:
        """Timeline of the recorded events."""
        kept = tuple(self._bars)
        return Timeline(
            kept,
            tuple(self._ready),
            self._count - len(kept),
            perf_counter() - self._began,
            self._history.copy(),
            tuple(
                sorted(
                    (piece for piece in self._slowest if piece.steps), reverse=True
                )
            ),
        )

    def _lane(self, worker: int) -> str:
        """The lane of a worker process, or of this thread for worker 0."""
        who = -worker or threading.get_ident()
        if who not in self._lanes:
            if worker:
                kind = "process"
            else:
                kind = "thread"
            ours = worker or threading.current_thread().name.startswith("loadax")
            number = sum(name.startswith(kind) for name in self._lanes.values())
            if ours:
                self._lanes[who] = f"{kind} {number}"
            else:
                self._lanes[who] = "training"
        return self._lanes[who]
