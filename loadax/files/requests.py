"""Requests: the requests of a process to object stores and web servers, on threads of their own.

obstore is called by its blocking functions, which let go of the GIL. A request then takes 170 us of CPU; in an event
loop it takes 460, since obstore's threads wake the loop's thread twice for each answer.
"""

import atexit
import os
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from heapq import heappop, heappush
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple, final

from loadax.errors import StorageError
from loadax.files.attempts import Attempts, NoSuchFile, has_timed_out
from loadax.files.budget import Budget
from loadax.files.delays import Delays
from loadax.files.object_stores import is_limited
from loadax.files.pace import Pace

_IDLE = 10.0  # seconds without a request, after which a thread ends
_TICK = 0.02  # seconds between two looks at what is due and what is late
_LIMIT = 2.0  # seconds for requests to be answered when Python ends
# The threads are the process's: they end when no request has come for a while.
_NAME = "loadax-storage"


class Request(NamedTuple):
    """A request that is to be sent.

    Args:
        send: Sends it by obstore, from what is requested, and returns the answer.
        item: What is requested; its text begins an error message.
        server: URL of the bucket or server.
        size: Bytes of the answer.
        urgent: Whether a reader waits for it already.
        is_known: Whether the file exists for all that is known, so that a 404 is worth a second request.
    """

    send: Callable[[Any], Any]
    item: object
    server: str
    size: int
    urgent: bool
    is_known: bool


@final
class Pending:
    """A request that was begun, and its outcome. `Requests.wait` waits for many: a lock in each would be slow.

    Args:
        request: The request.
    """

    __slots__ = ("attempts", "copies", "is_repeated", "outcome", "request", "waits")

    def __init__(self, request: Request):
        self.request = request
        # the answer and None, or None and the error
        self.outcome: tuple[Any, BaseException | None] | None = None
        self.waits: tuple[_Wait, ...] = ()
        self.attempts: Attempts | None = None
        self.copies = 0  # that are in flight
        self.is_repeated = False

    def done(self) -> bool:
        """Whether it was answered, has failed, or was cancelled."""
        return self.outcome is not None

    def exception(self) -> BaseException | None:
        """The error, or None; also if it is not done."""
        return None if self.outcome is None else self.outcome[1]

    def result(self) -> Any:
        """The answer of one that is done.

        Raises:
            Exception: The error of the last attempt.
            CancelledError: When it was cancelled.
        """
        assert self.outcome is not None
        answer, error = self.outcome
        if error is not None:
            raise error
        return answer

    def cancel(self) -> None:
        """Takes a request out of the queue that is not sent; what was sent already is answered for nobody."""
        # Without the lock of `Requests`: garbage collection may close an iterator while this thread has it.
        if self.outcome is None:
            self.outcome = (None, CancelledError())
            for wait in self.waits:
                wait.end()


@final
class Requests:
    """The requests of this process, urgent ones before the others. Thread-safe.

    They share one budget (`Budget`), and each server has a pace (`Pace`).
    A request that fails is sent again (`Attempts`). One that takes longer than 99 % of its kind is sent a second time,
    and the first answer wins. The answer of a missing file is None.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._urgent: deque[Pending] = deque()
        self._ahead: OrderedDict[Pending, None] = OrderedDict()
        self._paused: list[tuple[float, int, Pending]] = []  # a heap
        self._pauses = 0
        # When each request was sent that was not answered yet, in this order.
        self._open: dict[Pending, float] = {}
        self._handed: SimpleQueue[_Flight] = SimpleQueue()
        self._budget = Budget(perf_counter())
        # of each server
        self._paces: defaultdict[str, Pace] = defaultdict(
            lambda: Pace(perf_counter())
        )
        self._delays: defaultdict[str, Delays] = defaultdict(Delays)
        # arguments of `Delays.answered`, by server, that were not told yet
        self._measured: deque[tuple[str, tuple[float, float, float, int]]] = deque()
        self._threads = 0
        self._is_watched = False
        self._is_closed = False
        self._nothing_open = threading.Condition(self._lock)
        # Requests that servers have refused since there were too many.
        self.refused = 0

    @property
    def in_flight(self) -> int:
        """Number of requests that are sent and not answered."""
        return self._budget.in_flight

    def begin(self, requests: Sequence[Request]) -> list[Pending]:
        """Sends requests as soon as the budget allows it; does not wait.

        Raises:
            CancelledError: When Python has begun to end.
        """
        entries = list(map(Pending, requests))
        with self._lock:
            if self._is_closed:
                raise CancelledError
            for entry in entries:
                if entry.request.urgent:
                    self._urgent.append(entry)
                else:
                    self._ahead[entry] = None
            self._hand_out(perf_counter())
            if not self._is_watched:
                self._is_watched = True
                threading.Thread(target=self._watch, name=_NAME, daemon=True).start()
        return entries

    def wait(self, entries: Sequence[Pending], seconds: float) -> bool:
        """Waits until all are done or one has failed; sends those that are not sent yet before the others.

        Returns:
            False if it took longer than some seconds.
        """
        with self._lock:
            waiting = [entry for entry in entries if entry.outcome is None]
            wait = _Wait(len(waiting))
            for entry in waiting:
                entry.waits = (*entry.waits, wait)
                if entry in self._ahead:
                    del self._ahead[entry]
                    self._urgent.append(entry)
        # or cancelled meanwhile, without the lock
        if any(entry.exception() is not None for entry in entries):
            return True
        return not waiting or wait.wait(seconds)

    def measured(
        self, server: str, latency: float, seconds: float, size: int
    ) -> None:
        """Notes the delays of an answer, see `Delays.answered`; takes no lock, which many threads wait for."""
        self._measured.append((server, (perf_counter(), latency, seconds, size)))

    def gap(self, server: str) -> int:
        """Gap in bytes between two ranges of a file of this server up to which one request for both is faster."""
        with self._lock:
            return self._delays[server].gap(self._budget.width)

    def close(self) -> None:
        """Cancels what was not sent, and waits up to two seconds for the answers to the rest."""
        with self._lock:
            self._is_closed = True
            waiting = [*self._urgent, *self._ahead]
            waiting += [entry for _, _, entry in self._paused]
            self._urgent.clear()
            self._ahead.clear()
            self._paused.clear()
        for entry in waiting:
            entry.cancel()
        with self._lock:
            self._nothing_open.wait_for(lambda: not self._budget.in_flight, _LIMIT)

    def _next(self, now: float) -> "_Flight | None":
        """Takes the next request out of the queues, if the budget allows it."""
        while self._urgent or self._ahead:
            if self._urgent:
                entry = self._urgent[0]
            else:
                entry = next(iter(self._ahead))
            gone = entry.done()
            size = entry.request.size
            pace = self._paces[entry.request.server]
            if not gone and not (self._budget.allows(size) and pace.allows(now)):
                return None
            if self._urgent:
                self._urgent.popleft()
            else:
                del self._ahead[entry]
            if not gone:
                self._budget.sent(size)
                pace.sent()
                entry.copies += 1
                self._open.setdefault(entry, now)
                return _Flight(entry, now)
        return None

    def _hand_out(self, now: float) -> None:
        """Hands to threads what the budget allows to be sent."""
        while flight := self._next(now):
            self._handed.put(flight)
            if self._budget.in_flight > self._threads:
                self._threads += 1
                threading.Thread(target=self._work, name=_NAME, daemon=True).start()

    def _work(self) -> None:
        flight: _Flight | None = None
        while True:
            if flight is None:
                try:
                    flight = self._handed.get(timeout=_IDLE)
                except Empty:
                    with self._lock:
                        if self._budget.in_flight < self._threads:
                            self._threads -= 1
                            return
                    continue
            flight = self._send(flight)

    def _send(self, flight: "_Flight") -> "_Flight | None":
        """Sends a request, tells the answer, and returns the request to send next."""
        entry = flight.entry
        request = entry.request
        try:
            answer = request.send(request.item)
        except BaseException as error:  # noqa: BLE001 - it is the waiting thread's
            self._failed(flight, error)
            with self._lock:
                return self._following(perf_counter())
        with self._lock:
            now = perf_counter()
            while self._measured:
                server, delays = self._measured.popleft()
                self._delays[server].answered(*delays)
            self._end(flight)
            self._budget.answered(now, flight.sent, request.size)
            self._paces[request.server].answered(now, flight.sent)
            self._finish(entry, answer, None)
            return self._following(now)

    def _failed(self, flight: "_Flight", error: BaseException) -> None:
        """Sends a request again after a pause, or fails it."""
        entry = flight.entry
        text = str(error)
        with self._lock:
            now = perf_counter()
            pace = self._paces[entry.request.server]
            if is_limited(text):
                self.refused += 1
                pace.refused(now, flight.sent, self._budget.in_flight)
            elif has_timed_out(text):
                self._budget.timed_out(now, flight.sent)
            self._end(flight)
            if entry.copies or entry.done():
                return
            is_paced = not pace.is_free
        if entry.attempts is None:
            entry.attempts = Attempts(entry.request.item, entry.request.is_known)
        pause = 0.0
        failure: BaseException | None = None
        try:
            pause = entry.attempts.pause(error, is_paced)
        except NoSuchFile:
            pass
        except BaseException as last:  # noqa: BLE001 - it is the waiting thread's
            failure = last
        with self._lock:
            if pause:
                self._pauses += 1
                heappush(self._paused, (now + pause, self._pauses, entry))
            else:
                self._finish(entry, None, failure)

    def _finish(
        self, entry: Pending, answer: Any, error: BaseException | None
    ) -> None:
        """Tells the outcome to the threads that wait, unless it was cancelled, or answered by the other copy."""
        if entry.outcome is None:
            entry.outcome = (answer, error)
            for wait in entry.waits:
                wait.left -= 1
                if error is not None or not wait.left:
                    wait.end()

    def _end(self, flight: "_Flight") -> None:
        entry = flight.entry
        entry.copies -= 1
        self._open.pop(entry, None)
        self._budget.ended(entry.request.size)

    def _following(self, now: float) -> "_Flight | None":
        following = self._next(now)
        if following is not None:
            self._hand_out(now)
        elif not self._budget.in_flight:
            self._nothing_open.notify_all()
        return following

    def _watch(self) -> None:
        """Sends what is due after a pause, and what is late a second time, as long as there are requests."""
        last = perf_counter()
        ticks = threading.Condition(self._lock)
        with self._lock:
            while not self._is_closed:
                now = perf_counter()
                if self._open or self._paused or self._urgent or self._ahead:
                    last = now
                elif now - last > _IDLE:
                    break
                while self._paused and self._paused[0][0] <= now:
                    self._urgent.appendleft(heappop(self._paused)[2])
                self._repeat_late(now)
                self._hand_out(now)
                ticks.wait(_TICK)
            self._is_watched = False

    def _repeat_late(self, now: float) -> None:
        for entry, sent in list(self._open.items()):
            delays = self._delays[entry.request.server]
            if not delays.is_late(now - sent, 0):
                return  # the others were sent later
            if (
                not entry.is_repeated
                and delays.is_late(now - sent, entry.request.size)
                and self._paces[entry.request.server].is_free
                and delays.may_repeat()
            ):
                entry.is_repeated = True
                self._urgent.appendleft(entry)


@final
class _Wait:
    """A thread's wait for some requests, which is over when none of them is left.

    Args:
        left: Their number.
    """

    __slots__ = ("_lock", "left")

    def __init__(self, left: int):
        self.left = left
        self._lock = threading.Lock()
        self._lock.acquire()

    def end(self) -> None:
        """Wakes the thread. Idempotent."""
        with suppress(RuntimeError):
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=seconds)


class _Flight(NamedTuple):
    entry: Pending
    sent: float


# One for each process, by its number: a fork has neither the threads of its parent, nor obstore's.
_by_process: dict[int, Requests] = {}


def process_requests() -> Requests:
    """Returns the requests of this process.

    Raises:
        StorageError: When this process was forked from one that has sent requests.
    """
    process = os.getpid()
    found = _by_process.get(process)
    if found is not None:
        return found
    if _by_process:
        raise StorageError(
            "remote files can't be read in a process that was forked from one that has "
            "read some: start it with the method 'spawn' or 'forkserver'"
        )
    created = Requests()
    found = _by_process.setdefault(process, created)
    if found is created:
        atexit.register(_end, process, created)
    return found


def request_counts() -> tuple[int, int]:
    """Requests of this process that are in flight, and those that servers have refused so far."""
    found = _by_process.get(os.getpid())
    if found is None:
        return 0, 0
    return found.in_flight, found.refused


def _end(process: int, requests: Requests) -> None:
    if os.getpid() == process:
        requests.close()
