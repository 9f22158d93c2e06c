"""Counts the requests with which this process has opened data, by the addresses of the data."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, final

PAGE = 1000  # entries of an answer to a list


@final
@dataclass(eq=False)
class Opening:
    """Requests of one opening of data. Thread-safe.

    Args:
        requests: Requests to storage; those that are sent a second time count once.
        nbytes: Bytes of contents that were answered; not of lists.
        again: Requests of another process that shares the index folder. None: there is no index.
        checks: Those of `again` that are not sent by `Metadata.compare`.
    """

    requests: int = 0
    nbytes: int = 0
    again: int | None = None
    checks: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def sent(self, requests: int) -> None:
        """Counts requests."""
        with self._lock:
            self.requests += requests

    def answered(self, nbytes: int) -> None:
        """Counts bytes of an answer."""
        with self._lock:
            self.nbytes += nbytes


_current: ContextVar[Opening | None] = ContextVar("loadax_opening", default=None)
# by number of addresses, the first and the last one
_opened: dict[Any, Opening] = {}


@contextmanager
def counted() -> Iterator[Opening]:
    """A block whose requests are counted, also those of threads with its context variables (`thread_pool`)."""
    opening = Opening()
    token = _current.set(opening)
    try:
        yield opening
    finally:
        _current.reset(token)


def current_opening() -> Opening | None:
    """The opening that this thread works for; None: none."""
    return _current.get()


def count_requests(requests: int, nbytes: int = 0) -> None:
    """Counts requests, and bytes of their answers, if this thread opens data."""
    opening = _current.get()
    if opening is not None:
        opening.sent(requests)
        opening.answered(nbytes)


def count_checks(requests: int) -> None:
    """Counts requests that each process sends to open data, though it has the index."""
    opening = _current.get()
    if opening is not None:
        opening.checks += requests


def note_opening(addresses: Sequence[str], opening: Opening) -> None:
    """Keeps the latest opening of data with these addresses."""
    _opened[_key(addresses)] = opening


def opening_of(addresses: Sequence[str]) -> Opening | None:
    """The latest opening of data with these addresses; None: this process has not opened it, or it is local."""
    return _opened.get(_key(addresses))


def _key(addresses: Sequence[str]) -> Any:
    if not addresses:
        return None
    return len(addresses), addresses[0], addresses[-1]
