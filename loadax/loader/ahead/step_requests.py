"""StepRequests: requests what the next steps read of remote files, since their rows are known."""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, final

from loadax.core.log import log
from loadax.core.spec import all_columns, flatten_spec
from loadax.files.ahead import Ahead
from loadax.files.remote_ranges import RemoteRanges, Wanted
from loadax.loader.assembly.chunk_budget import shard_columns
from loadax.loader.assembly.host_shard import HostShard
from loadax.protocols import Visits
from loadax.reader import Reader
from loadax.sources.base import BaseSource, walk

# Bytes that are requested ahead at first. They double whenever a step had to wait for some, up to a part of
# `prefetch_bytes`.
_FIRST_WINDOW = 4 << 20
PART_OF_PREFETCH = 4
# Requests without an answer, above which no more are sent ahead. When half of them are left, more are: these are twice
# what servers are asked at once, so that there is no gap while a step is read.
MOST_REQUESTS = 1024
_MOST_IDLE = 64  # steps without requests that are looked at in one call


@final
class StepRequests:
    """Requests the ranges of steps in the order of the steps, as many as there is room for. Thread-safe.

    Args:
        source: Source of the rows.
        visits: Function of a step: the visits that this process reads.
        rows_per_step: Rows that this process reads per step.
        first: First step.
        end: Step after the last one. None: infinite.
        budget: Bytes to hold at most, requested and not read yet; a single step may be larger.
    """

    def __init__(
        self,
        source: BaseSource,
        visits: Callable[[int], Visits],
        rows_per_step: int,
        first: int,
        end: int | None,
        budget: int,
    ):
        self._source = source
        self._visits = visits
        self._rows_per_step = rows_per_step
        self._next = first
        self._end = sys.maxsize if end is None else end
        self._budget = budget
        self._window = min(_FIRST_WINDOW, budget)
        self._waits = 0
        self._aheads: dict[RemoteRanges, Ahead] = {}
        # rows of the requested steps that are not read yet
        self._unread: dict[int, int] = {}
        self._lock = threading.Lock()
        self._closed = False

    def reach(self, stop: int) -> None:
        """Requests the steps before `stop`, which are read now, and following ones if there is room for many."""
        if not self._lock.acquire(blocking=self._next < stop):
            return
        try:
            if self._closed:
                return
            at_hand = self._bytes_at_hand()
            if self._next < stop:
                self._request(stop, stop, self._budget - at_hand, MOST_REQUESTS)
                at_hand = self._bytes_at_hand()
            waits = sum(ahead.waits for ahead in self._aheads.values())
            if waits > self._waits:
                self._waits = waits
                self._window = min(2 * self._window, self._budget)
            # Many steps together, whose ranges can be joined.
            if at_hand < self._window / 2:
                unanswered = sum(ahead.unanswered for ahead in self._aheads.values())
                if unanswered < MOST_REQUESTS / 2:
                    room = self._window - at_hand
                    # Steps whose bytes are at hand request nothing, and an endless run has no end of them.
                    end = stop + MOST_REQUESTS
                    self._request(stop, end, room, MOST_REQUESTS - unanswered)
        finally:
            self._lock.release()

    def done(self, first: int, count: int, rows: int) -> None:
        """Frees what the steps from `first` on have read, once all of their rows were read; `rows` of each were."""
        for step in range(first, first + count):
            with self._lock:
                left = self._unread.get(step, 0) - rows
                if left > 0:
                    self._unread[step] = left
                    continue
                self._unread.pop(step, None)
                aheads = list(self._aheads.values())
            for ahead in aheads:
                ahead.finish(step)

    def close(self) -> None:
        """Frees all, and cancels what is under way. Idempotent."""
        with self._lock:
            self._closed = True
            for ranges, ahead in self._aheads.items():
                ranges.close_ahead(ahead)
            self._aheads.clear()

    # The methods below are called with the lock held.

    def _bytes_at_hand(self) -> int:
        return sum(ahead.bytes_at_hand for ahead in self._aheads.values())

    def _request(self, now: int, stop: int, room: int, most: int) -> None:
        """Requests steps before `stop`, of at most `room` bytes and about `most` ranges.

        A step that is too large for the budget is requested if it is alone. If not, it waits, or is left to those who
        read it, if it is before `now`.
        """
        for ahead in self._aheads.values():
            ahead.mark()
        by_reader: dict[tuple[RemoteRanges, bool], list[tuple[int, Any]]] = {}
        step = self._next
        idle = 0
        while step < min(stop, self._end):
            if step >= now and (most <= 0 or idle >= _MOST_IDLE):
                break
            wanted = self._wanted(step)
            if not wanted:
                idle += 1
            size = sum(
                part.stop - part.start for each in wanted for part in each.ranges
            )
            if size > room:
                is_alone = not by_reader and not self._bytes_at_hand()
                if not is_alone and step >= now:
                    break
                if not is_alone or size > PART_OF_PREFETCH * self._budget:
                    wanted = []
                    size = 0
            for each in wanted:
                by_reader.setdefault((each.reader, each.once), []).append(
                    (step, each.ranges)
                )
                most -= len(each.ranges)
            room -= size
            self._unread[step] = self._rows_per_step
            step += 1
        for (reader, once), steps in by_reader.items():
            if reader not in self._aheads:
                self._aheads[reader] = reader.open_ahead()
            self._aheads[reader].start(steps, once, self._window)
        # Only now: whoever reads these steps may look for their bytes.
        self._next = step

    def _wanted(self, step: int) -> Sequence[Wanted]:
        try:
            found = self._source.wanted(self._visits(step))
        except Exception as error:  # noqa: BLE001 - whoever reads the step will hear of it
            log.debug("the requests of step %d are not known: %s", step, error)
            return []
        return [each for each in found if each.ranges]


def open_step_requests(
    reader: Reader,
    shard: HostShard,
    visits: Callable[[int], Visits],
    first: int,
    end: int | None,
    prefetch_bytes: int,
) -> StepRequests | None:
    """The requests of a run; None if its rows are in no remote file, or this process reads parts of them.

    Args:
        reader: Reader of the rows.
        shard: This process's shard of a batch.
        visits: Function of a step: the visits that this process reads.
        first: First step.
        end: Step after the last one. None: infinite.
        prefetch_bytes: Option of the loader.
    """
    specs = flatten_spec(reader.specs[0])[0]
    whole = [all_columns(spec.shape) for spec in specs]
    if not len(shard.positions) or shard_columns(reader, shard) != whole:
        return None
    if not any(
        type(source).wanted is not BaseSource.wanted for source in walk(reader.source)
    ):
        return None
    return StepRequests(
        reader.source,
        visits,
        len(shard.positions),
        first,
        end,
        prefetch_bytes // PART_OF_PREFETCH,
    )
