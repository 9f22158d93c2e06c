"""Timeline: the last events of a run, recorded in constant memory."""

import struct
import threading
from time import perf_counter
from typing import Final, Literal, NamedTuple, final

from loadax.loader.metrics.stats import Timing

_KEPT = 20_000  # events: minutes of most runs, and few enough for a browser
_EVENT = struct.Struct("<bqddddqq")  # kind, worker, time, and the other fields of an event
_KINDS: Final[tuple[Literal["piece", "placed", "taken"], ...]] = ("piece", "placed", "taken")
_STAGES = ("read", "transform", "assemble")  # of a piece
_CONSUMER = 0  # key of the thread that calls `next`


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
    """Records the last events in preallocated memory without Python objects. Not thread-safe.

    Args:
        kept: Number of events to keep.
    """

    def __init__(self, kept: int = _KEPT):
        self._began = perf_counter()
        self._kept = kept
        self._events = bytearray(kept * _EVENT.size)
        self._count = 0
        self._names: dict[int, str] = {}  # names of workers, by thread identifier or negative process id

    def piece(self, timing: Timing, ended: float, step: int) -> None:
        """A piece was read, whose first row is of `step`."""
        # A piece may have been queued in a worker process, so it began later than the call.
        began = timing.began or ended - timing.read - timing.transform - timing.assemble
        self._keep(
            0, self._who(timing.worker), began, timing.read, timing.transform, timing.assemble, step, timing.rows
        )

    def placed(self, timing: Timing, step: int) -> None:
        """A batch was placed."""
        self._keep(1, self._who(0), timing.began, timing.place, 0.0, 0.0, step, 0)

    def taken(self, began: float, waited: float, step: int, ready: int) -> None:
        """A batch was handed out, and `ready` are left."""
        self._keep(2, _CONSUMER, began, waited, 0.0, 0.0, step, ready)

    def timeline(self) -> Timeline:
        """Timeline of the recorded events."""
        lanes, names = _lanes(self._names)
        kept = min(self._count, self._kept)
        events = []
        for index in range(self._count - kept, self._count):
            kind, worker, began, first, second, third, step, amount = _EVENT.unpack_from(
                self._events, index % self._kept * _EVENT.size
            )
            events.append(
                Event(_KINDS[kind], lanes.get(worker, 0), began - self._began, (first, second, third), step, amount)
            )
        return Timeline(names, tuple(events), self._count - kept, perf_counter() - self._began)

    def _keep(self, *event: float) -> None:
        _EVENT.pack_into(self._events, self._count % self._kept * _EVENT.size, *event)
        self._count += 1

    def _who(self, worker: int) -> int:
        who = -worker or threading.get_ident()
        if who not in self._names:
            ours = threading.current_thread().name.startswith("loadax")
            self._names[who] = "process" if worker else "thread" if ours else "training"
        return who


def _lanes(kinds: dict[int, str]) -> tuple[dict[int, int], tuple[str, ...]]:
    """Index of each worker's lane, and the names of the lanes."""
    names: list[str] = []
    for kind in kinds.values():
        names.append(kind if kind == "training" else f"{kind} {sum(name.startswith(kind) for name in names)}")
    return {worker: index for index, worker in enumerate(kinds)}, tuple(names)
