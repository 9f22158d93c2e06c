"""Timeline: the last events of a run, recorded in bounded memory."""

import threading
from collections import deque
from time import perf_counter
from typing import Literal, NamedTuple, final

from loadax.loader.metrics.stats import Timing

_KEPT = 20_000  # events: minutes of most runs, and few enough for a browser
_STAGES = ("read", "transform", "assemble")  # of a piece


class Event(NamedTuple):
    """A piece that was read, a batch that was placed, or a batch that was handed out.

    Attributes:
        kind: Kind of the event.
        lane: Index of the worker in `Timeline.lanes`.
        began: Seconds since the run started.
        parts: Seconds of the event: read, transform and assemble of a piece; placing; or the wait of training.
        step: First step of the event.
        amount: Rows of a piece; batches that were ready when one was handed out.
    """

    kind: Literal["piece", "placed", "taken"]
    lane: int
    began: float
    parts: tuple[float, float, float]
    step: int
    amount: int


class Bar(NamedTuple):
    """A span of one lane: a stage of a piece, "place", "waiting" or "training"; times in seconds."""

    began: float
    seconds: float
    stage: str
    step: int
    rows: int


class Timeline(NamedTuple):
    """The last events of a run, the oldest first.

    Attributes:
        lanes: Names of the workers, such as "thread 0" or "process 1"; "training" for the thread that takes batches.
        events: Events of all lanes.
        forgotten: Number of earlier events that were dropped.
        until: Seconds since the run started.
    """

    lanes: tuple[str, ...]
    events: tuple[Event, ...]
    forgotten: int
    until: float

    def bars(self) -> dict[str, list[Bar]]:
        """Bars by lane, in order of time; training comes first, then the workers."""
        bars: dict[str, list[Bar]] = {"training": []}
        # Threads before processes, each in numeric order.
        for name in sorted(self.lanes, key=lambda name: (name.startswith("process"), len(name), name)):
            bars.setdefault(name, [])
        trained_from: float | None = None
        for event in self.events:
            if event.kind == "taken":
                if trained_from is not None:
                    trained = event.began - trained_from
                    bars["training"].append(Bar(trained_from, trained, "training", event.step - 1, 0))
                bars["training"].append(Bar(event.began, event.parts[0], "waiting", event.step, 0))
                trained_from = event.began + event.parts[0]
            elif event.kind == "placed":
                bars[self.lanes[event.lane]].append(Bar(event.began, event.parts[0], "place", event.step, 0))
            else:
                began = event.began
                for stage, seconds in zip(_STAGES, event.parts, strict=True):
                    if seconds:
                        bars[self.lanes[event.lane]].append(Bar(began, seconds, stage, event.step, event.amount))
                    began += seconds
        return {name: sorted(lane) for name, lane in bars.items()}

    def ready(self) -> list[tuple[float, int]]:
        """Time of each batch handed out, in seconds, and number of batches that were ready then."""
        return [(event.began + event.parts[0], event.amount) for event in self.events if event.kind == "taken"]


@final
class Recorder:
    """Records the last events. Not thread-safe.

    Args:
        kept: Number of events to keep.
    """

    def __init__(self, kept: int = _KEPT):
        self._began = perf_counter()
        self._events: deque[Event] = deque(maxlen=kept)
        self._count = 0
        self._lanes: dict[int, int] = {}  # by thread identifier or negative process id
        self._names: list[str] = []  # of the lanes

    def piece(self, timing: Timing, ended: float, step: int) -> None:
        """A piece was read, whose first row is of `step`."""
        # A piece may have been queued in a worker process, so it began later than the call.
        began = timing.began or ended - timing.seconds
        parts = timing.read, timing.transform, timing.assemble
        self._keep(Event("piece", self._lane(timing.worker), began - self._began, parts, step, timing.rows))

    def placed(self, timing: Timing, step: int) -> None:
        """A batch was placed."""
        self._keep(Event("placed", self._lane(0), timing.began - self._began, (timing.place, 0.0, 0.0), step, 0))

    def taken(self, began: float, waited: float, step: int, ready: int) -> None:
        """A batch was handed out, and `ready` are left."""
        self._keep(Event("taken", 0, began - self._began, (waited, 0.0, 0.0), step, ready))

    def timeline(self) -> Timeline:
        """Timeline of the recorded events."""
        forgotten = self._count - len(self._events)
        return Timeline(tuple(self._names), tuple(self._events), forgotten, perf_counter() - self._began)

    def _keep(self, event: Event) -> None:
        self._events.append(event)
        self._count += 1

    def _lane(self, worker: int) -> int:
        """The lane of a worker process, or of this thread for worker 0."""
        who = -worker or threading.get_ident()
        if who not in self._lanes:
            self._lanes[who] = len(self._names)
            kind = "process" if worker else "thread"
            ours = worker or threading.current_thread().name.startswith("loadax")
            self._names.append(f"{kind} {sum(name.startswith(kind) for name in self._names)}" if ours else "training")
        return self._lanes[who]
