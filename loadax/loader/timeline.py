"""What a run did when: its last events, kept in memory that never grows."""

import threading
from collections import deque
from time import perf_counter
from typing import Literal, NamedTuple, final

from loadax.loader.stats import Timing

_KEPT = 20_000  # events, some 200 bytes each: minutes of most runs, and a picture that a browser draws at once
_CONSUMER = 0  # who took a batch: whoever calls `next`


class Event(NamedTuple):
    """A piece of work that was read, a batch that was placed, or one that was handed out.

    Attributes:
        kind: which of these.
        lane: the number of the worker that did it, in `Timeline.lanes`.
        began: seconds since the run began.
        parts: of a piece, seconds in read, transform and assemble; of a placed batch, its seconds; of one handed out, the seconds
            that training waited.
        step: the first step that it is of.
        amount: rows of a piece; batches that were ready when one was handed out.
    """

    kind: Literal["piece", "placed", "taken"]
    lane: int
    began: float
    parts: tuple[float, float, float]
    step: int
    amount: int


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


@final
class Recorder:
    """Takes in events, and keeps the last ones. Not thread-safe: whoever calls holds the lock of the window.

    Args:
        kept: how many events.
    """

    def __init__(self, kept: int = _KEPT):
        self._began = perf_counter()
        # Who, when, and the rest of an event, as plain tuples: what is dearer is left to the day that somebody looks.
        self._events: deque[tuple[Literal["piece", "placed", "taken"], int, float, float, float, float, int, int]] = deque(
            maxlen=kept
        )
        self._count = 0
        self._names: dict[int, str] = {}  # of workers: threads by their identity, processes by their negative one

    def piece(self, timing: Timing, ended: float, step: int) -> None:
        """A piece was read, whose first row is of `step`."""
        # The work of a process may have waited for it: then it began later than the call.
        began = timing.began or ended - timing.read - timing.transform - timing.assemble
        who = self._who(timing.worker)
        self._events.append(("piece", who, began, timing.read, timing.transform, timing.assemble, step, timing.rows))
        self._count += 1

    def placed(self, timing: Timing, step: int) -> None:
        """A batch was placed."""
        self._events.append(("placed", self._who(0), timing.began, timing.place, 0.0, 0.0, step, 0))
        self._count += 1

    def taken(self, began: float, waited: float, step: int, ready: int) -> None:
        """A batch was handed out, and `ready` are left."""
        self._events.append(("taken", _CONSUMER, began, waited, 0.0, 0.0, step, ready))
        self._count += 1

    def timeline(self) -> Timeline:
        """What is kept of the run so far."""
        lanes, names = _lanes(self._names)
        events = tuple(
            Event(kind, lanes.get(who, 0), began - self._began, (first, second, third), step, amount)
            for kind, who, began, first, second, third, step, amount in self._events
        )
        return Timeline(names, events, self._count - len(events), perf_counter() - self._began)

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
