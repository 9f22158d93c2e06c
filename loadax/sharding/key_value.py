"""KeyValueStore: small texts that the processes of a JAX run share through its coordination service."""

import hashlib
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

from jax.errors import JaxRuntimeError

from loadax.core.distributed import this_process
from loadax.sharding.compat import coordination_client

_ROOT = "loadax"
_KEPT = 32  # directories of runs, closed last, whose keys are kept, since another process may be late

_lock = threading.RLock()  # reentrant: garbage collection may close a run while another one is forgotten
_closed: deque[str] = deque()  # directories of the runs that were closed last


class KeyValueStore(Protocol):
    """Texts by key, the same for all processes of a run.

    Keys are paths such as "streams/0/ended". Calls never wait for a device, and only `get` waits for other processes.
    The coordinator is a thread of process 0, so every call may raise `jax.errors.JaxRuntimeError` once that is gone.
    """

    def set(self, key: str, value: str) -> None:
        """Sets a key, which may have a value already."""
        ...

    def get(self, key: str, limit: float) -> str | None:
        """Waits up to `limit` seconds for a key to be set; None if it is not."""
        ...

    def try_get(self, key: str) -> str | None:
        """The value of a key, None if it is not set. Does not wait."""
        ...

    def list(self, directory: str) -> dict[str, str]:
        """The values of all keys below a directory, by the rest of their path."""
        ...

    def delete(self, key: str) -> None:
        """Deletes a key, and all keys below it if it is a directory. It may be missing."""
        ...


def key_value_store() -> KeyValueStore | None:
    """The store of this JAX run; None if it has one process, or its JAX version offers no store.

    Examples:
        >>> from loadax.sharding.key_value import key_value_store
        >>> key_value_store() is None
        True
    """
    client = coordination_client()
    return None if client is None or this_process().count == 1 else _CoordinationStore(client)


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

    def get(self, key: str, limit: float) -> str | None:
        return self.store.get(f"{self.path}/{key}", limit)

    def try_get(self, key: str) -> str | None:
        return self.store.try_get(f"{self.path}/{key}")

    def list(self, directory: str) -> dict[str, str]:
        return self.store.list(f"{self.path}/{directory}")

    def delete(self, key: str) -> None:
        self.store.delete(f"{self.path}/{key}")


@final
class _CoordinationStore:
    """The key-value store of the coordination service.

    Args:
        client: Its client, as of `coordination_client`.
    """

    def __init__(self, client: Any):
        self._client = client

    def set(self, key: str, value: str) -> None:
        self._client.key_value_set(f"{_ROOT}/{key}", value, allow_overwrite=True)

    def get(self, key: str, limit: float) -> str | None:
        try:
            return str(self._client.blocking_key_value_get(f"{_ROOT}/{key}", max(1, int(1000 * limit))))
        except JaxRuntimeError as error:
            _raise_unless("DEADLINE_EXCEEDED", error)
            return None

    def try_get(self, key: str) -> str | None:
        try:
            return str(self._client.key_value_try_get(f"{_ROOT}/{key}"))
        except JaxRuntimeError as error:
            _raise_unless("NOT_FOUND", error)
            return None

    def list(self, directory: str) -> dict[str, str]:
        path = f"{_ROOT}/{directory}/"
        return {key.removeprefix(path): str(value) for key, value in self._client.key_value_dir_get(path)}

    def delete(self, key: str) -> None:
        self._client.key_value_delete(f"{_ROOT}/{key}")


def _raise_unless(status: str, error: JaxRuntimeError) -> None:
    if status not in str(error):
        raise error
