"""MemoryStore: a `KeyValueStore` for hosts that are threads of one test, and what every store must do."""

import threading
from typing import final

from loadax.sharding.key_value import KeyValueStore


@final
class MemoryStore:
    """Keys in a dict, for hosts that are threads."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Lock()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value

    def get(self, key: str) -> str | None:
        return self._values.get(key)

    def list(self, directory: str) -> dict[str, str]:
        path = f"{directory}/"
        with self._changed:
            return {key.removeprefix(path): value for key, value in self._values.items() if key.startswith(path)}

    def delete(self, key: str) -> None:
        with self._changed:
            for known in [known for known in self._values if known == key or known.startswith(f"{key}/")]:
                del self._values[known]


def check_store(store: KeyValueStore) -> None:
    """One process uses all methods, in a directory that nobody else uses."""
    assert store.get("checked/a") is None
    assert store.list("checked") == {}
    store.delete("checked")
    for key, value in {"a": "1", "b/c": "two, ü/\n", "b/d": "", "a": "new"}.items():  # noqa: F601 - sets twice
        store.set(f"checked/{key}", value)
    store.set("checked", "a key beside the directory of that name")
    assert store.get("checked/a") == "new"
    assert store.list("checked") == {"a": "new", "b/c": "two, ü/\n", "b/d": ""}
    assert store.list("checked/b") == {"c": "two, ü/\n", "d": ""}
    assert store.list("check") == {}
    store.delete("checked/b")
    assert store.list("checked") == {"a": "new"}
    store.delete("checked")
    assert store.list("checked") == {}
    assert store.get("checked") is None
