import jax
import pytest
from jax.errors import JaxRuntimeError

from loadax.sharding import compat, key_value
from loadax.sharding.key_value import Subdirectory, key_value_store
from tests.key_values import MemoryStore, check_store


def test_a_run_of_one_process_has_no_store() -> None:
    assert not jax.distributed.is_initialized()
    assert key_value_store() is None


def test_without_private_jax_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for changed in (None, object()):
        monkeypatch.setattr(compat, "_distributed", changed)
        assert key_value_store() is None


def test_the_memory_store_of_tests_does_as_a_store_must() -> None:
    check_store(MemoryStore())


def test_a_subdirectory_is_a_store() -> None:
    store = MemoryStore()
    check_store(Subdirectory(store, "some/where"))
    Subdirectory(store, "some/where").set("a", "1")
    assert store.list("some") == {"where/a": "1"}


def test_errors_of_the_coordinator_are_raised() -> None:
    class Gone:
        def __getattr__(self, name: str) -> object:
            def call(*_: object) -> object:
                raise JaxRuntimeError(f"UNAVAILABLE: {name}")

            return call

    store = key_value._CoordinationStore(Gone())
    for call in (lambda: store.get("a", 1), lambda: store.try_get("a"), lambda: store.list("a")):
        with pytest.raises(JaxRuntimeError, match="UNAVAILABLE"):
            call()
