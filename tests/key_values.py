"""A `KeyValueStore` for hosts that are threads of one test, and what every store must do."""

import threading
from collections import deque
from typing import Any, final
from unittest.mock import patch

from loadax.core import key_value
from loadax.core.key_value import KeyValueStore


@final
class MemoryClient:
    """A coordination service in a dict, called as a `KeyValueStore` does."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Lock()

    def __call__(self, method: str, path: str, *more: Any) -> Any:
        with self._changed:
            return getattr(self, method)(path, *more)

    def key_value_set(self, path: str, value: str, _: bool) -> None:
        self._values[path] = value

    def key_value_dir_get(self, path: str) -> list[tuple[str, str]]:
        return [(key, value) for key, value in self._values.items() if key.startswith(path)]

    def key_value_delete(self, path: str) -> None:
        for known in [known for known in self._values if known == path or known.startswith(f"{path}/")]:
            del self._values[known]


def memory_store() -> KeyValueStore:
    """A store of its own."""
    return KeyValueStore(MemoryClient())


def check_store(store: KeyValueStore) -> None:
    """One process uses all methods, in a directory that nobody else uses."""
    assert store.list("checked") == {}
    for key, value in {"a": "1", "b/c": "two, ü/\n", "b/d": "", "a": "new"}.items():  # noqa: F601 - sets twice
        store.set(f"checked/{key}", value)
    store.set("checked", "a key beside the directory of that name")
    assert store.list("checked") == {"a": "new", "b/c": "two, ü/\n", "b/d": ""}
    assert store.list("checked/b") == {"c": "two, ü/\n", "d": ""}
    assert store.list("check") == {}
    with patch.object(key_value, "KEPT", 0), patch.object(key_value, "_closed", deque()):
        store.below("checked/b").forget()
        assert store.list("checked") == {"a": "new"}
        store.below("checked").forget()
        store.below("checked").forget()
    assert store.list("checked") == {}
