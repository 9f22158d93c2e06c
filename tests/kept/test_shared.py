"""What processes of a run tell each other of a pass that they do together; processes are threads of this test."""

import json
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from loadax.core.distributed import Process
from loadax.core.key_value import CoordinatorError, KeyValueStore
from loadax.errors import ArgumentError, HostError
from loadax.kept import shared
from loadax.kept.shared import EXITS, SharedPass
from tests.key_values import memory_store
from tests.limits import HANG

IDENTITY = {"rows": 30, "function": "f" * 100, "files": None}


def never() -> bool:
    return False


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> KeyValueStore:
    monkeypatch.setattr(shared, "register_exit", lambda: None)
    monkeypatch.setattr(shared, "VISIBLE", 0.2)
    return memory_store()


@pytest.fixture
def passes(store: KeyValueStore, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], SharedPass]:
    """Makes the first pass of a run as a process sees it."""

    def of(index: int) -> SharedPass:
        monkeypatch.setattr(shared, "this_process", lambda: Process(index, 3))
        return SharedPass(store, "passes/1", 1)

    return of


def test_processes_with_one_folder_and_one_identity_begin(passes: Callable[[int], SharedPass], tmp_path: Path) -> None:
    """Also those that were there before process 0."""
    other = passes(2)
    begun = threading.Timer(0.3, passes(0).check_folder, [tmp_path, "filter f", IDENTITY, never])
    begun.start()
    other.check_folder(tmp_path, "filter f", IDENTITY, never)
    begun.join(HANG)
    assert [each.suffix for each in tmp_path.iterdir()] == [".shared"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 31}, "hosts differ in rows of filter f, pass 1 of this run: 30 on process 0; 31 on process 1; start"),
        ({"rows": 31, "files": 2}, r"30 on process 0; 31 on process 1 \(also in: files\); start"),
        ({"function": "f" * 101}, r'differ in function .*: "f{79}… \(digest [0-9a-f]{8}\) on process 0; "f{79}… \(d'),
        ({"more": 1}, "hosts differ in more of filter f, pass 1 of this run: None on process 0; 1 on process 1; start"),
    ],
)
def test_processes_with_other_passes_are_told(
    changes: dict[str, object], message: str, passes: Callable[[int], SharedPass], tmp_path: Path
) -> None:
    passes(0).check_folder(tmp_path, "filter f", IDENTITY, never)
    with pytest.raises(HostError, match=message):
        passes(1).check_folder(tmp_path, "filter f", IDENTITY | changes, never)


def test_another_folder_of_the_same_path_is_told(passes: Callable[[int], SharedPass], tmp_path: Path) -> None:
    """Unless it has the result already."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    passes(0).check_folder(tmp_path / "here", "filter f", IDENTITY, never)
    other = passes(1)
    with pytest.raises(ArgumentError, match=r"is not one folder: process 1 on .* pass a folder that all 3 processes"):
        other.check_folder(tmp_path / "there", "filter f", IDENTITY, never)
    other.check_folder(tmp_path / "there", "filter f", IDENTITY, lambda: True)


def test_a_kept_result_needs_no_process_0(passes: Callable[[int], SharedPass], tmp_path: Path) -> None:
    passes(1).check_folder(tmp_path / "none", "filter f", IDENTITY, lambda: True)


def test_a_failure_ends_the_waits_of_all(passes: Callable[[int], SharedPass]) -> None:
    passes(2).fail(KeyError("http://me:secret@host/a"))
    for index in (0, 1):
        with pytest.raises(HostError, match="filter f: process 2 has failed with KeyError: ") as caught:
            passes(index).wait_until(never, "filter f", "the end")
        assert "secret" not in str(caught.value)


def test_the_end_of_process_0_ends_the_waits_of_the_others_alone(
    passes: Callable[[int], SharedPass], store: KeyValueStore
) -> None:
    store.set(f"{EXITS}/0", " with KeyError: 'x'")
    with pytest.raises(HostError, match="process 0 has ended with KeyError: 'x' while others waited for the end; sta"):
        passes(1).wait_until(never, "filter f", "the end")
    answers = iter([False, True])
    passes(0).wait_until(lambda: next(answers), "filter f", "the end")
    passes(1).wait_until(lambda: True, "filter f", "the end")  # what is done is done


@pytest.mark.parametrize("length", [80, 81])
def test_long_values_are_told_as_digests(length: int) -> None:
    text = "v" * (length - 2)
    (told,) = shared.briefly({"x": text}).values()
    assert (told == json.dumps(text)) == (length == 80)


@pytest.mark.parametrize("silent", [3, 10**9])
def test_a_coordinator_that_does_not_answer_is_waited_for(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a while, which begins again with each answer."""
    monkeypatch.setattr(shared, "register_exit", lambda: None)
    monkeypatch.setattr(shared, "SILENT", 1.0)
    monkeypatch.setattr(shared, "POLL", 0.01)

    calls = count(1)

    def answer(*_: Any) -> dict[str, str]:
        if next(calls) <= silent:
            raise CoordinatorError("unavailable")
        return {}

    waiting = SharedPass(KeyValueStore(answer), "passes/1", 1)
    if silent == 3:
        waiting.wait_until(lambda: True, "filter f", "the end")
    else:
        with pytest.raises(
            HostError, match=r"filter f: process 0, which runs the coordinator, has not answered for 1 s"
        ):
            waiting.wait_until(lambda: True, "filter f", "the end")


def test_one_process_tells_nobody(store: KeyValueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared.shared_pass() as alone:
        assert alone is None
    monkeypatch.setattr(shared, "this_process", lambda: Process(0, 2))
    monkeypatch.setattr(shared, "key_value_store", lambda: store)

    def fails() -> None:
        with shared.shared_pass("tested"):
            raise KeyError("broken")

    with pytest.raises(KeyError):
        fails()
    assert store.list("tested/1/failed") == {"0": "KeyError: 'broken'"}
