"""A `KeyValueStore` for hosts that are threads of one test, and what every store must do."""

import threading
from typing import Any, final

from jax.errors import JaxRuntimeError

from loadax.sharding.key_value import KeyValueStore


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

    def key_value_try_get(self, path: str) -> str:
        if path not in self._values:
            raise JaxRuntimeError(f"NOT_FOUND: {path}")
        return self._values[path]

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
