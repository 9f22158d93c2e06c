"""UserObject: an object or function of the user's, called by one thread at a time if it can't bear more."""

import sqlite3
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import FunctionType
from typing import Any, Protocol, TypeVar, final
from weakref import WeakValueDictionary

from loadax.core.formatting import name_of, type_text
from loadax.core.held import handles, held, is_loadax

_Result = TypeVar("_Result")
_FREE: AbstractContextManager[Any] = nullcontext()
_locks: WeakValueDictionary[int, Any] = WeakValueDictionary()  # of handles and user objects, by id
_registering = threading.Lock()
_SQLITE = (
    "SQLite lets only the thread that opened a connection use it; pass num_workers=0, open one per thread (in a "
    "threading.local), or call sqlite3.connect(…, check_same_thread=False)"
)


class Copied(Protocol):
    """A copy that is made when it is needed."""

    def make(self) -> Any: ...


@final
class UserObject:
    """An object or function of the user's. All calls of it go through `call`.

    If it holds a handle, such as an open file, or its user says so, calls take turns: with each other, and with those
    of all objects that hold the same handle. Handles are looked for now and after calls 1, 2, 4, 8 …, since many
    objects open them on first use. Until the first call is over, others wait.

    Args:
        value: The object.
        thread_safe: Whether several threads may call it at once. None: if it holds no handles.
    """

    def __init__(self, value: Any, thread_safe: bool | None = None):
        self.value = value
        self.thread_safe = thread_safe
        self.handle: tuple[str, Any] | None = None
        """Name and value of the first handle that it holds; None: none is known."""
        self._calls, self._warned, self._on_threads = 0, False, False
        self._turn = _FREE if thread_safe else _lock_of([value])
        self._unread: Copied | None = None
        self._look()

    def __reduce__(self) -> Any:
        return UserObject, (self.value, self.thread_safe)

    def call(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Calls a function of the object, in turn."""
        while True:
            turn = self._turn
            with turn:
                if turn is not self._turn:  # a handle was found meanwhile
                    continue
                try:
                    return function(*arguments)
                except sqlite3.ProgrammingError as error:
                    error.add_note(f"loadax: {_SQLITE}")
                    raise
                finally:
                    self._look()

    def _look(self) -> None:
        calls, self._calls = self._calls, self._calls + 1
        if self.handle is not None or self.thread_safe or calls & (calls - 1):
            return
        found = handles(self.value, _name(self.value))
        if found:
            self.handle = found[0]
            self._turn = _lock_of([*(handle for _, handle in found), self.value])
            if self._on_threads:
                self.warn()
        elif calls and self.thread_safe is None:
            self._turn = _FREE

    def remember(self, copy: Callable[[Any], Copied]) -> None:
        """Makes a copy of the object as it is now, if it can be copied and none was made before."""
        if self._unread is None:
            with suppress(Exception):  # an object that can't be pickled may raise anything
                self._unread = copy(self.value)

    def unread(self, picklable: Callable[[Any], bool]) -> Any:
        """The object, with what of it can't be pickled as it was when `remember` was called."""
        if self._unread is None or picklable(self.value):
            return self.value
        made = self._unread.make()
        if not isinstance(made, FunctionType) and hasattr(made, "__dict__"):
            vars(made).update({name: part for name, part in vars(self.value).items() if picklable(part)})
        return made

    def warn(self) -> None:
        """Warns, now or when a handle is found, that threads take turns."""
        self._on_threads = True
        if self.handle is None or self._warned or self.thread_safe is not None:
            return
        self._warned = True
        name, handle = self.handle
        remedy = _SQLITE if self.of_one_thread else (
            "open one per thread (in a threading.local), or open it on first use and pass worker_type='process'; "
            "from_source(…, thread_safe=True) says that no turns are needed, thread_safe=False that they are"
        )
        turns = "only the thread that opened it may call" if self.of_one_thread else "threads take turns to call"
        warnings.warn(
            f"{name} is {type_text(handle)}, which threads can't use at the same time, so {turns} "
            f"{_name(self.value)}: {remedy}",
            UserWarning,
            stacklevel=4,
        )

    @property
    def of_one_thread(self) -> bool:
        """Whether only the thread that opened its handle may use it, as with SQLite by default."""
        handle = None if self.handle is None or self.thread_safe else self.handle[1]
        connection = handle.connection if isinstance(handle, sqlite3.Cursor) else handle
        raised = []

        def use() -> None:
            try:
                connection.cursor()
            except sqlite3.ProgrammingError as error:
                raised.append(error)

        if isinstance(connection, sqlite3.Connection):
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()
        return bool(raised)


def user_objects(reader: Any) -> Iterator[UserObject]:
    """The user's objects and functions that a reader, or a source, calls."""
    for _, part in held(reader, "", _may_hold, sys.maxsize):
        if isinstance(part, UserObject):
            yield part


def _may_hold(part: Any) -> bool:
    return isinstance(part, list | tuple | dict) or (is_loadax(part) and not isinstance(part, UserObject))


def _lock_of(values: Sequence[Any]) -> Any:
    """The lock of the first of these objects that has one, or a new one. The others have it from now on, too."""
    with _registering:
        lock = next((_locks[id(value)] for value in values if id(value) in _locks), None) or threading.RLock()
        for value in values:
            _locks.setdefault(id(value), lock)
        return lock


def _name(value: Any) -> str:
    return name_of(value) if hasattr(value, "__qualname__") else type(value).__name__
