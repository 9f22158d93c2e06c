"""UserObject: an object or function of the user's, called by one thread at a time if it can't bear more."""

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, TypeVar, final
from weakref import WeakValueDictionary

from loadax.core.formatting import name_of, type_text
from loadax.core.inner_objects import (
    handles,
    inner_objects,
    is_loadax,
    reason_for_turns,
)

_Result = TypeVar("_Result")
# seconds that others wait for the first call, which may itself wait for them
_FIRST = 1.0
# of handles and user objects, by id
_locks: WeakValueDictionary[int, Any] = WeakValueDictionary()
_LONG = 10_000
_registering = threading.Lock()
_TURNS = "threads take turns to call"
_REMEDY = (
    "open one per thread (in a threading.local), or open it on first use and pass "
    "worker_type='process'; from_source(…, thread_safe=True) says that no turns are "
    "needed, thread_safe=False that they are"
)
_SQLITE = (
    "SQLite lets only the thread that opened a connection use it; pass "
    "num_workers=0, open one per thread (in a threading.local), or call "
    "sqlite3.connect(…, check_same_thread=False)"
)


# Exceptions that get a note with their row. KeyboardInterrupt is not one, since it may arrive at any row.
RAISED = (Exception, SystemExit, GeneratorExit)


@final
class UserObject:
    """An object or function of the user's. All calls of it go through `call`.

    If it holds a handle, such as an open file, or its user says so, calls take turns: with each other, and with those
    of all objects that hold the same handle. Handles are looked for now and after calls 1, 2, 4, 8 …, since many
    objects open them on first use. Until the first call is over, others wait, for a second at most.

    Args:
        value: The object.
        thread_safe: Whether several threads may call it at once. None: if it holds no handles.
    """

    def __init__(self, value: Any, thread_safe: bool | None = None):
        self.value = value
        self.thread_safe = thread_safe
        # Name and value of the first handle that it holds; None: none is known.
        self.handle: tuple[str, Any] | None = None
        # What `work.pickling.snapshot` returned before the first read; None: unknown.
        self.unread: Any = None
        if hasattr(value, "__qualname__"):
            self.name = name_of(value)
        else:
            self.name = type(value).__name__
        # Whether the user knows that it gives other values at each call.
        self.told = False
        self.seconds = 0.0  # of all calls together, without what this class does
        self._calls = 0
        self._warns = False
        self._turn: Any = None if thread_safe else _lock_of([value])
        self._look()

    def __reduce__(self) -> Any:
        return UserObject, (self.value, self.thread_safe)

    def call(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Calls a function of the object, in turn."""
        while True:
            turn = self._turn
            decided = self.handle is not None or self.thread_safe is not None
            taken = turn is not None and turn.acquire(
                timeout=-1 if decided else _FIRST
            )
            try:
                if turn is not self._turn:  # a handle was found meanwhile
                    continue
                began = perf_counter()
                try:
                    return function(*arguments)
                except sqlite3.ProgrammingError as error:
                    error.add_note(f"loadax: {_SQLITE}")
                    raise
                finally:
                    self.seconds += perf_counter() - began
                    self._look()
            finally:
                if taken:
                    turn.release()

    def _look(self) -> None:
        calls = self._calls
        self._calls = self._calls + 1
        if self.handle is not None or self.thread_safe or calls & (calls - 1):
            return
        if found := handles(self.value, self.name):
            self.handle, self._turn = (
                found[0],
                _lock_of([*(handle for _, handle in found), self.value]),
            )
            if self._warns:
                self.warn()
        elif calls and self.thread_safe is None:
            self._turn = None

    def warn(self) -> None:
        """Warns, now or when a handle is found, that threads take turns."""
        self._warns = self.handle is None
        if self.handle is None or self.thread_safe is not None:
            return
        if self.of_one_thread:
            turns, remedy = ("num_workers is 0 to call", _SQLITE)
        else:
            turns, remedy = (_TURNS, _REMEDY)
        name, handle = self.handle
        text = (
            f"{name} is {type_text(handle)}, {reason_for_turns(handle)}, so {turns} "
            f"{self.name}: {remedy}"
        )
        from loadax.core.warn import warn_user  # by the few that warn

        warn_user(text)

    @property
    def of_one_thread(self) -> bool:
        """Whether only the thread that opened its handle may use it, as with SQLite by default."""
        handle = None if self.handle is None or self.thread_safe else self.handle[1]
        connection = (
            handle.connection if isinstance(handle, sqlite3.Cursor) else handle
        )
        if not isinstance(connection, sqlite3.Connection):
            return False
        with ThreadPoolExecutor(1) as pool:
            return isinstance(
                pool.submit(connection.cursor).exception(), sqlite3.ProgrammingError
            )


def blame(error: BaseException, what: str, note: str) -> None:
    """Adds a note to an exception of a user's function.

    Raises:
        RuntimeError: In place of an exception that would silently end a loop or the program. A StopIteration looks like
            the end of the data (PEP 479 does the same for generators), and a `sys.exit()` on a worker thread looks like
            that of the training script.
    """
    if not isinstance(error, StopIteration | SystemExit | GeneratorExit):
        error.add_note(note)
        return
    made = RuntimeError(f"{what} raised {error!r}")
    made.add_note(note)
    raise made from error


def user_objects(reader: Any) -> Iterator[UserObject]:
    """The user's objects and functions that a reader, or a source, calls."""
    return (
        part
        for _, part in inner_objects(reader, "", _may_hold, sys.maxsize)
        if isinstance(part, UserObject)
    )


def _may_hold(part: Any) -> bool:
    if isinstance(part, list | tuple | dict):  # long ones may be of a million paths
        return len(part) < _LONG or is_loadax(next(iter(part)))
    return is_loadax(part) and not isinstance(part, UserObject)


def _lock_of(values: Sequence[Any]) -> Any:
    """The lock of the first of these objects that has one, or a new one. The others have it from now on, too."""
    with _registering:
        lock = (
            next((_locks[id(value)] for value in values if id(value) in _locks), None)
            or threading.RLock()
        )
        for value in values:
            _locks.setdefault(id(value), lock)
        return lock
