"""Timeline: the last events of a run, in memory that does not grow."""

import struct
import threading
from time import perf_counter
from typing import Final, Literal, NamedTuple, final

from loadax.loader.metrics.stats import Timing

_KEPT = 20_000  # events: minutes of most runs, and a picture that a browser draws at once
_EVENT = struct.Struct("<bqddddqq")  # kind, who, when, and the rest of an event
_KINDS: Final[tuple[Literal["piece", "placed", "taken"], ...]] = ("piece", "placed", "taken")
_STAGES = ("read", "transform", "assemble")  # of a piece
_CONSUMER = 0  # who took a batch: whoever calls `next`


class Event(NamedTuple):
    """A piece of work that was read, a batch that was placed, or one that was handed out.

    Attributes:
        kind: which of these.
        lane: the number of the worker that did it, in `Timeline.lanes`.
        began: seconds since the run began.
        parts: of a piece, seconds in read, transform and assemble; of a placed batch, its seconds; of one handed out,
            the seconds that training waited.
        step: the first step that it is of.
        amount: rows of a piece; batches that were ready when one was handed out.
    """

    kind: Literal["piece", "placed", "taken"]
    lane: int
    began: float
    parts: tuple[float, float, float]
    step: int
    amount: int


class Bar(NamedTuple):
    """What one lane did for a while: a stage of a piece, "place", "waiting" or "training"; times in seconds."""

    began: float
    seconds: float
    stage: str
    step: int
    rows: int


class Timeline(NamedTuple):
    """The last events of a run, the oldest first.

    Attributes:
        lanes: who did the work: "thread 0", "process 1", or "training" for the thread that took the batches.
        events: what they did.
        forgotten: how many earlier events are not there any more.
        until: seconds since the run began.
    """

    lanes: tuple[str, ...]
    events: tuple[Event, ...]
    forgotten: int
    until: float

    def bars(self) -> dict[str, list[Bar]]:
        """The bars of each lane from left to right: training's first, then the workers'."""
        bars: dict[str, list[Bar]] = {"training": []}
        # Workers in the order of their numbers, threads before processes.
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
        """When each batch was handed out, in seconds, and how many were ready then."""
        return [(event.began + event.parts[0], event.amount) for event in self.events if event.kind == "taken"]


@final
class Recorder:
    """Takes in events, and keeps the last ones. Not thread-safe: the caller holds the lock of the monitor.

    Their memory is there from the beginning, and nothing that a garbage collector would have to look through.

    Args:
        kept: how many events.
    """

    def __init__(self, kept: int = _KEPT):
        self._began = perf_counter()
        self._kept = kept
        self._events = bytearray(kept * _EVENT.size)
        self._count = 0
        self._names: dict[int, str] = {}  # of workers: threads by their identity, processes by their negative one

    def piece(self, timing: Timing, ended: float, step: int) -> None:
        """A piece was read, whose first row is of `step`."""
        # The work of a process may have waited for it: then it began later than the call.
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
        """What is kept of the run so far."""
        lanes, names = _lanes(self._names)
        kept = min(self._count, self._kept)
        events = []
        for number in range(self._count - kept, self._count):
            kind, who, began, first, second, third, step, amount = _EVENT.unpack_from(
                self._events, number % self._kept * _EVENT.size
            )
            events.append(
                Event(_KINDS[kind], lanes.get(who, 0), began - self._began, (first, second, third), step, amount)
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
    """The number of each worker's lane, and the lanes' names."""
    names: list[str] = []
    for kind in kinds.values():
        names.append(kind if kind == "training" else f"{kind} {sum(name.startswith(kind) for name in names)}")
    return {who: number for number, who in enumerate(kinds)}, tuple(names)
