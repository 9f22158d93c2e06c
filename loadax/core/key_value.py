"""KeyValueStore: small texts that the processes of a JAX run share through its coordination service."""

import hashlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache, partial
from itertools import count
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias, final

from loadax.core.distributed import coordination_client, this_process

# directories of runs, closed last, whose keys are kept, since another process may be late
KEPT = 32

_lock = threading.RLock()  # reentrant: a run may begin in a signal handler
# loaders of a group of processes, and runs of a loader
_counts: "defaultdict[str, count[int]]" = defaultdict(count)
# directories of the runs that were closed last; changed without a lock, at any time
_closed: deque[str] = deque()

_Request: TypeAlias = tuple[Future[Any], Callable[[], Any]]


class CoordinatorError(RuntimeError):
    """The coordinator can't be reached."""


class UnansweredError(CoordinatorError):
    """The coordinator has not answered in time: its process is stopped, cut off or busy. It may answer later."""


class KeyValueStore(NamedTuple):
    """Texts by key, below a directory, the same for all processes of a run.

    Keys are paths such as "streams/0/ended". Calls never wait for a device, nor for processes other than process 0,
    which runs the coordinator: they may raise `CoordinatorError` once that is gone, and `UnansweredError`
    while it is stopped. What was to be set then is set when it goes on.

    Args:
        call: Calls a method of the coordination service's client.
        path: Path of the directory.
    """

    call: Callable[..., Any]
    path: str = "loadax"

    def below(self, directory: str) -> "KeyValueStore":
        """The keys below a directory of this one."""
        return self._replace(path=f"{self.path}/{directory}")

    def set(self, key: str, value: str) -> None:
        """Sets a key, which may have a value already."""
        self.call("key_value_set", f"{self.path}/{key}", value, True)

    def list(self, directory: str) -> dict[str, str]:
        """The values of all keys below a directory, by the rest of their path."""
        path = f"{self.path}/{directory}/"
        return {
            key.removeprefix(path): str(value)
            for key, value in self.call("key_value_dir_get", path)
        }

    def forget(self) -> None:
        """Counts this directory as that of a closed run, and deletes one that was closed long before."""
        _closed.append(self.path)
        if len(_closed) > KEPT:
            self.call("key_value_delete", _closed.popleft())


def key_value_store(limit: float = 5.0) -> KeyValueStore | None:
    """The store of this JAX run; None if it has one process, or its JAX version offers no store.

    Args:
        limit: Seconds to wait for an answer of the coordinator.

    Examples:
        >>> from loadax.core.key_value import key_value_store
        >>> key_value_store() is None
        True
    """
    client = coordination_client()
    if client is None or this_process().count == 1:
        return None
    return KeyValueStore(Requests(client, limit))


@final
class LoaderRuns:
    """Names the runs of one loader.

    Loaders are numbered in the order in which they begin to iterate, and so are the runs of each. A program that is the
    same on all hosts finds the same names there. The coordination service belongs to the whole process, and so do the
    numbers of loaders.

    Args:
        kind: Directory of the runs of this kind.
    """

    def __init__(self, kind: str = "runs"):
        self._kind = kind
        # of this loader, by the processes of a mesh
        self._directories: dict[str, str] = {}

    def next_keys(
        self, store: KeyValueStore, processes: Sequence[int]
    ) -> KeyValueStore:
        """The keys of the next run of these processes. Others may have been on other meshes before."""
        group = f"{self._kind}/{_group(processes)}"
        with _lock:
            if group not in self._directories:
                self._directories[group] = f"{group}/{next(_counts[group])}"
            directory = self._directories[group]
            return store.below(f"{directory}/{next(_counts[directory])}")


def runs_without(store: KeyValueStore, process: int, count: int) -> set[str]:
    """Directories of the open runs of all `count` processes that process 0 has begun, and this one has not."""
    begun: dict[str, set[str]] = defaultdict(set)
    for key, text in store.list(f"runs/{_group(range(count))}").items():
        directory, records, other = key.partition("/records/")
        if records and text:
            begun[directory].add(other)
    return {
        directory
        for directory, others in begun.items()
        if "0" in others and str(process) not in others
    }


def _group(processes: Sequence[int]) -> str:
    return hashlib.sha256(str(tuple(processes)).encode()).hexdigest()[:8]


@final
class Requests:
    """Calls methods of the coordination service's client, with a deadline.

    JAX gives requests none, so a thread sends them, one after the other.

    Args:
        client: The client, as of `coordination_client`.
        limit: Seconds to wait for an answer.
    """

    def __init__(self, client: Any, limit: float):
        self._client = client
        self._limit = limit
        # lists of directories that are still awaited
        self._late: dict[str, Future[Any]] = {}

    def __call__(self, method: str, path: str, *more: Any) -> Any:
        if method == "key_value_dir_get":
            answer = self._late.pop(path, None)
        else:
            answer = None
        if answer is None:
            answer = Future[Any]()
            _requests().put(
                (answer, partial(getattr(self._client, method), path, *more))
            )
        try:
            return answer.result(self._limit)
        except TimeoutError:
            if method == "key_value_dir_get":
                # a coordinator that always takes so long answers in the end
                self._late[path] = answer
            raise UnansweredError(
                f"the coordinator has not answered for {self._limit:g} s"
            ) from None
        # `jax.errors.JaxRuntimeError`, which this room does not import
        except RuntimeError as error:
            raise CoordinatorError(str(error)) from error


@cache
def _requests() -> "SimpleQueue[_Request | None]":
    """Queue of the thread that sends requests. Without a lock: garbage collection may close a run on any thread."""
    queue: SimpleQueue[_Request | None] = SimpleQueue()
    threading.Thread(
        target=_send, args=(queue,), name="loadax-requests", daemon=True
    ).start()
    return queue


def _send(queue: "SimpleQueue[_Request | None]") -> None:
    """Sends requests until there is None."""
    while (request := queue.get()) is not None:
        answer, send = request
        try:
            answer.set_result(send())
        except Exception as error:  # noqa: BLE001 - whoever has asked gets it
            answer.set_exception(error)
        # a client shuts down when it is no longer referenced
        del request, answer, send
