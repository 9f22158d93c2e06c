"""Timeline: the last events of a run, recorded in bounded memory."""

import threading
from collections import deque
from time import perf_counter
from typing import NamedTuple, final

from loadax.loader.metrics.stats import Timing

# bars of about 20,000 events: minutes of most runs, and few enough for a browser
_KEPT = 40_000
_STAGES = ("read", "transform", "assemble")  # of a piece


class Bar(NamedTuple):
    """A span of one lane: a stage of a piece, "place", "waiting" or "training"; times in seconds from the run's start.

    Of a piece, it has the rows and the first step.
    """

    began: float
    seconds: float
    stage: str
    step: int
    rows: int


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

    def piece(self, timing: Timing, ended: float, step: int) -> None:
        """A piece was read, whose first row is of `step`."""
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
        if self._left is not None:
            self._count += 1
            self._bars.append(
                (
                    "training",
                    (self._left, began - self._left, "training", step - 1, 0),
                )
            )
        self._count += 1
        self._bars.append(("training", (began, waited, "waiting", step, 0)))
        self._left = began + waited
        self._ready.append((self._left, ready))

    def timeline(self) -> Timeline:
        """Timeline of the recorded events."""
        kept = tuple((lane, Bar._make(bar)) for lane, bar in self._bars)
        return Timeline(
            kept,
            tuple(self._ready),
            self._count - len(kept),
            perf_counter() - self._began,
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
