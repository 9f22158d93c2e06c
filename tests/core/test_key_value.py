import threading
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace

import jax
import pytest
from jax.errors import JaxRuntimeError

from loadax.core import key_value
from loadax.core.distributed import coordination_client
from loadax.core.key_value import CoordinatorError, KeyValueStore, LoaderRuns, UnansweredError, key_value_store
from tests.key_values import check_store, memory_store
from tests.limits import HANG


@pytest.fixture
def requests() -> Iterator[None]:
    """Ends the thread that sends requests."""
    yield
    key_value._requests().put(None)
    key_value._requests.cache_clear()


def test_a_run_of_one_process_has_no_store() -> None:
    assert not jax.distributed.is_initialized()
    assert key_value_store() is None


def test_without_private_jax_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for changed in (None, object()):
        monkeypatch.setattr("jax._src.distributed.global_state", changed)
        assert coordination_client() is None
    client = memory_store().call
    monkeypatch.setattr("jax._src.distributed.global_state", SimpleNamespace(client=client))
    assert coordination_client() is client


def test_the_memory_store_of_tests_does_as_a_store_must() -> None:
    check_store(memory_store())


def test_a_subdirectory_is_a_store() -> None:
    store = memory_store()
    check_store(store.below("some/where"))
    store.below("some").below("where").set("a", "1")
    assert store.list("some") == {"where/a": "1"}


def test_keys_of_a_run_closed_long_before_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_value, "KEPT", 2)
    monkeypatch.setattr(key_value, "_closed", deque())
    store, runs = memory_store(), LoaderRuns()
    for _ in range(4):
        keys = runs.next_keys(store, [0, 1])
        keys.set("a", "")
        keys.forget()
    assert len(store.list("runs")) == 2


def test_runs_are_numbered_by_their_processes() -> None:
    """Others may not have been on the mesh that this process was on before."""
    store, runs, others = memory_store(), LoaderRuns(), LoaderRuns()
    paths = [runs.next_keys(store, processes).path for processes in ((0, 1), (1, 2), (1, 2))]
    assert [path.rpartition("/")[2] for path in paths] == ["0", "0", "1"]
    assert others.next_keys(store, (1, 2)).path.rpartition("/")[2] == "0"
    assert len({*paths, others.next_keys(store, (0, 1)).path}) == 4


@pytest.mark.usefixtures("requests")
def test_errors_of_the_coordinator_are_raised() -> None:
    class Gone:
        def __getattr__(self, name: str) -> object:
            def call(*_: object) -> object:
                raise JaxRuntimeError(f"UNAVAILABLE: {name}")

            return call

    store = KeyValueStore(key_value.Requests(Gone(), HANG))
    for call in (lambda: store.list("a"), lambda: store.set("a", "")):
        with pytest.raises(CoordinatorError, match="UNAVAILABLE"):
            call()


class Stopped:
    """A client whose coordinator does not answer until it goes on."""

    def __init__(self) -> None:
        self.goes_on, self.asked = threading.Event(), list[tuple[object, ...]]()

    def __getattr__(self, name: str) -> object:
        def call(*arguments: object) -> object:
            assert self.goes_on.wait(HANG)
            self.asked.append((name, *arguments))
            return [("loadax/a/b", "c")]

        return call


@pytest.mark.usefixtures("requests")
def test_requests_to_a_stopped_coordinator_have_a_deadline_and_reach_it_later_in_order() -> None:
    client = Stopped()
    store = KeyValueStore(key_value.Requests(client, 0.01))
    for value in ("1", "2"):
        with pytest.raises(UnansweredError, match=r"the coordinator has not answered for 0\.01 s"):
            store.set("a", value)
    for _ in range(2):
        with pytest.raises(UnansweredError):
            store.list("a")
    client.goes_on.set()
    late = KeyValueStore(key_value.Requests(client, HANG))
    late.set("a", "3")
    assert [asked[2] for asked in client.asked if asked[0] == "key_value_set"] == ["1", "2", "3"]
    assert [asked[0] for asked in client.asked].count("key_value_dir_get") == 1, "the second one waits for the first"
    assert store.list("a") == {"b": "c"}, "an answer that is late is not lost"
