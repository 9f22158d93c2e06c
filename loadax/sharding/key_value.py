"""KeyValueStore: small texts that the processes of a JAX run share through its coordination service."""

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias, final

from jax.errors import JaxRuntimeError

from loadax.core.distributed import this_process
from loadax.sharding.compat import coordination_client

_ROOT = "loadax"
_KEPT = 32  # directories of runs, closed last, whose keys are kept, since another process may be late

_lock = threading.RLock()  # reentrant: garbage collection may close a run while another one is forgotten
_closed: deque[str] = deque()  # directories of the runs that were closed last

_Request: TypeAlias = tuple[Future[Any], Callable[[], Any]]


class UnansweredError(JaxRuntimeError):  # type: ignore[misc]  # JAX does not say that it is a class
    """The coordinator has not answered in time: its process is stopped, cut off or busy. It may answer later."""


class KeyValueStore(Protocol):
    """Texts by key, the same for all processes of a run.

    Keys are paths such as "streams/0/ended". Calls never wait for a device, nor for processes other than process 0,
    which runs the coordinator: they may raise `jax.errors.JaxRuntimeError` once that is gone, and `UnansweredError`
    while it is stopped. What was to be set or deleted then is so when it goes on.
    """

    def set(self, key: str, value: str) -> None:
        """Sets a key, which may have a value already."""
        ...

    def get(self, key: str) -> str | None:
        """The value of a key, None if it is not set."""
        ...

    def list(self, directory: str) -> dict[str, str]:
        """The values of all keys below a directory, by the rest of their path."""
        ...

    def delete(self, key: str) -> None:
        """Deletes a key, and all keys below it if it is a directory. It may be missing."""
        ...


def key_value_store(limit: float = 5.0) -> KeyValueStore | None:
    """The store of this JAX run; None if it has one process, or its JAX version offers no store.

    Args:
        limit: Seconds to wait for an answer of the coordinator.

    Examples:
        >>> from loadax.sharding.key_value import key_value_store
        >>> key_value_store() is None
        True
    """
    client = coordination_client()
    return None if client is None or this_process().count == 1 else _CoordinationStore(client, limit)


def group_name(processes: Sequence[int]) -> str:
    """A name for a group of processes, as part of a key."""
    return hashlib.sha256(str(tuple(processes)).encode()).hexdigest()[:8]


def forget(store: KeyValueStore, directory: str) -> None:
    """Counts a run as closed, and deletes the keys of those that were closed long before.

    Args:
        store: Store of all keys.
        directory: Directory of the run's keys.
    """
    early = []
    with _lock:
        _closed.append(directory)
        while len(_closed) > _KEPT:
            early.append(_closed.popleft())
    for name in early:
        store.delete(name)


@final
@dataclass(frozen=True)
class Subdirectory:
    """The keys of a store below a directory, as a store.

    Args:
        store: Store of all keys.
        path: Path of the directory.
    """

    store: KeyValueStore
    path: str

    def set(self, key: str, value: str) -> None:
        self.store.set(f"{self.path}/{key}", value)

    def get(self, key: str) -> str | None:
        return self.store.get(f"{self.path}/{key}")

    def list(self, directory: str) -> dict[str, str]:
        return self.store.list(f"{self.path}/{directory}")

    def delete(self, key: str) -> None:
        self.store.delete(f"{self.path}/{key}")


@final
@dataclass(frozen=True)
class _CoordinationStore:
    """The key-value store of the coordination service.

    JAX gives requests no deadline, so a thread sends them, one after the other.

    Args:
        client: Its client, as of `coordination_client`.
        limit: Seconds to wait for an answer.
    """

    client: Any
    limit: float
    _late: dict[str, Future[Any]] = field(default_factory=dict)  # answers that are still awaited, by directory

    def set(self, key: str, value: str) -> None:
        self._answer(self._ask(self.client.key_value_set, f"{_ROOT}/{key}", value, True))

    def get(self, key: str) -> str | None:
        try:
            return str(self._answer(self._ask(self.client.key_value_try_get, f"{_ROOT}/{key}")))
        except JaxRuntimeError as error:
            if "NOT_FOUND" not in str(error):
                raise
            return None

    def list(self, directory: str) -> dict[str, str]:
        path = f"{_ROOT}/{directory}/"
        answer = self._late.pop(path, None) or self._ask(self.client.key_value_dir_get, path)
        try:
            return {key.removeprefix(path): str(value) for key, value in self._answer(answer)}
        except UnansweredError:
            self._late[path] = answer  # a coordinator that always takes so long answers in the end
            raise

    def delete(self, key: str) -> None:
        self._answer(self._ask(self.client.key_value_delete, f"{_ROOT}/{key}"))

    def _ask(self, method: Callable[..., Any], *arguments: Any) -> Future[Any]:
        answer = Future[Any]()
        _requests().put((answer, partial(method, *arguments)))
        return answer

    def _answer(self, answer: Future[Any]) -> Any:
        try:
            return answer.result(self.limit)
        except TimeoutError:
            raise UnansweredError(f"the coordinator has not answered for {self.limit:g} s") from None


@cache
def _requests() -> "SimpleQueue[_Request | None]":
    """Queue of the thread that sends requests. Without a lock: garbage collection may close a run on any thread."""
    queue: SimpleQueue[_Request | None] = SimpleQueue()
    threading.Thread(target=_send, args=(queue,), name="loadax-requests", daemon=True).start()
    return queue


def _send(queue: "SimpleQueue[_Request | None]") -> None:
    """Sends requests until there is None."""
    while (request := queue.get()) is not None:
        answer, send = request
        try:
            answer.set_result(send())
        except Exception as error:  # noqa: BLE001 - whoever has asked gets it
            answer.set_exception(error)
        del request, answer, send  # a client shuts down when it is no longer referenced
