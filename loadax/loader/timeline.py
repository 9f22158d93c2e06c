"""What a run did when: its last events, kept in memory that never grows."""

import struct
import threading
from time import perf_counter
from typing import Literal, NamedTuple, final

from loadax.loader.stats import Timing

_EVENT = struct.Struct("=8d")
_KEPT = 20_000  # events, 64 bytes each: some minutes of a run, and a picture that a browser draws at once
_PIECE, _PLACED, _TAKEN = range(3)
_KINDS: tuple[Literal["piece", "placed", "taken"], ...] = ("piece", "placed", "taken")


class Event(NamedTuple):
    """A piece of work that was read, a batch that was placed, or one that was handed out.

    Attributes:
        kind: which of these.
        lane: the number of the worker that did it, in `Timeline.lanes`.
        began: seconds since the run began.
        parts: of a piece, seconds in read, transform and assemble; of a placed batch, its seconds; of one handed out, the seconds
            that training waited.
        step: the first step that it is of.
        count: rows of a piece; batches that were ready when one was handed out.
    """

    kind: Literal["piece", "placed", "taken"]
    lane: int
    began: float
    parts: tuple[float, float, float]
    step: int
    count: int


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
        self._kept = kept
        self._memory = bytearray(kept * _EVENT.size)
        self._count = 0
        self._lanes: dict[tuple[str, int], int] = {}

    def piece(self, timing: Timing, ended: float, step: int) -> None:
        """A piece was read, whose first row is of `step`."""
        # The work of a process may have waited for it: then it began later than the call.
        began = timing.began or ended - timing.read - timing.transform - timing.assemble
        self._add(_PIECE, self._lane(timing.worker), began, timing.read, timing.transform, timing.assemble, step, timing.rows)

    def placed(self, timing: Timing, step: int) -> None:
        """A batch was placed."""
        self._add(_PLACED, self._lane(0), timing.began, timing.place, 0.0, 0.0, step, 0)

    def taken(self, began: float, waited: float, step: int, ready: int) -> None:
        """A batch was handed out, and `ready` are left."""
        self._add(_TAKEN, 0, began, waited, 0.0, 0.0, step, ready)

    def timeline(self) -> Timeline:
        """What is kept of the run so far."""
        count = self._count
        kept = min(count, self._kept)
        events = []
        for number in range(count - kept, count):
            kind, lane, began, *parts, step, rows = _EVENT.unpack_from(self._memory, number % self._kept * _EVENT.size)
            events.append(
                Event(_KINDS[int(kind)], int(lane), began - self._began, (parts[0], parts[1], parts[2]), int(step), int(rows))
            )
        return Timeline(self._names(), tuple(events), count - kept, perf_counter() - self._began)

    def _add(self, *values: float) -> None:
        _EVENT.pack_into(self._memory, self._count % self._kept * _EVENT.size, *values)
        self._count += 1

    def _lane(self, worker: int) -> int:
        who = ("process", worker) if worker else ("thread", threading.get_ident())
        lane = self._lanes.get(who)
        if lane is None:
            if not worker and not threading.current_thread().name.startswith("loadax"):
                who = ("training", who[1])
            lane = self._lanes.setdefault(who, len(self._lanes))
        return lane

    def _names(self) -> tuple[str, ...]:
        names: list[str] = []
        for kind, _ in self._lanes:
            names.append(kind if kind == "training" else f"{kind} {sum(name.startswith(kind) for name in names)}")
        return tuple(names)
