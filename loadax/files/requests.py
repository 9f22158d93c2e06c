"""Requests: the requests of a process to object stores and web servers, on threads of their own.

obstore is called by its blocking functions, which let go of the GIL. A request then takes 170 us of CPU; in an event
loop it takes 460, since obstore's threads wake the loop's thread twice for each answer.
"""

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, final

from loadax.errors import StorageError

# concurrent requests: a step of 64 scattered rows then takes about one round trip
_MOST = 64
_IDLE = 10.0  # seconds without a request, after which a thread ends
_LIMIT = 2.0  # seconds for requests to be answered when Python ends
# These threads last as long as the process may send requests.
THREAD = "loadax-storage"


class Request(NamedTuple):
    """A request that is to be sent.

    Args:
        send: Sends it, and returns the answer.
        urgent: Whether a reader waits for it already.
    """

    send: Callable[[], Any]
    urgent: bool


@final
class Requests:
    """The requests of this process: at most 64 at once, urgent ones before the others. Thread-safe.

    Each request has a future. Whoever cancels it before the request was sent takes it out of the queue.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._urgent: deque[_Entry] = deque()
        self._ahead: deque[_Entry] = deque()
        self._sent: SimpleQueue[_Entry] = SimpleQueue()
        self._in_flight = 0
        self._threads = 0
        self._idle = threading.Condition(self._lock)
        self._closed = False

    def begin(self, requests: Sequence[Request]) -> list["Future[Any]"]:
        """Sends requests as soon as the budget allows it; does not wait.

        Raises:
            CancelledError: When Python has begun to end.
        """
        entries = [_Entry(request, Future()) for request in requests]
        with self._lock:
            if self._closed:
                raise CancelledError
            for entry in entries:
                if entry.request.urgent:
                    self._urgent.append(entry)
                else:
                    self._ahead.append(entry)
            self._start()
        return [entry.future for entry in entries]

    def hurry(self, futures: "Iterable[Future[Any]]") -> None:
        """Sends requests that were begun ahead, and are not sent yet, before all others."""
        wanted = {*futures}
        with self._lock:
            moved = [each for each in self._ahead if each.future in wanted]
            if moved:
                self._ahead = deque(
                    each for each in self._ahead if each.future not in wanted
                )
                self._urgent.extend(moved)

    def close(self) -> None:
        """Cancels what was not sent, and waits up to two seconds for the answers to the rest."""
        with self._lock:
            self._closed = True
            for entry in (*self._urgent, *self._ahead):
                entry.future.cancel()
            self._urgent.clear()
            self._ahead.clear()
            self._idle.wait_for(lambda: not self._in_flight, _LIMIT)

    def _next(self) -> "_Entry | None":
        """Takes the next request out of the queues, if the budget has room."""
        while self._in_flight < _MOST and (self._urgent or self._ahead):
            queue = self._urgent or self._ahead
            entry = queue.popleft()
            if not entry.future.cancelled():
                self._in_flight += 1
                return entry
        return None

    def _start(self) -> None:
        """Hands as many requests to threads as the budget has room for."""
        while entry := self._next():
            self._sent.put(entry)
            if self._in_flight > self._threads:
                self._threads += 1
                threading.Thread(target=self._work, name=THREAD, daemon=True).start()

    def _work(self) -> None:
        entry: _Entry | None = None
        while True:
            if entry is None:
                try:
                    entry = self._sent.get(timeout=_IDLE)
                except Empty:
                    with self._lock:
                        if self._in_flight < self._threads:
                            self._threads -= 1
                            return
                    continue
            entry.answer()
            with self._lock:
                self._in_flight -= 1
                entry = self._next()
                self._start()
                if not self._in_flight:
                    self._idle.notify_all()


class _Entry(NamedTuple):
    request: Request
    future: "Future[Any]"

    def answer(self) -> None:
        """Sends the request and gives the answer to whoever waits, unless nobody does any more."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            answer = self.request.send()
        except BaseException as error:  # noqa: BLE001 - it is the waiting thread's
            self.future.set_exception(error)
        else:
            self.future.set_result(answer)


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


def _end(process: int, requests: Requests) -> None:
    if os.getpid() == process:
        requests.close()
