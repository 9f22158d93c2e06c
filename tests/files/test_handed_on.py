"""What process 0 of a run tells the others of what it has opened; processes are threads of this test."""

import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from loadax.core.distributed import Process
from loadax.files.metadata import Metadata, load_answers
from loadax.kept import handed_on, opening as kept_opening
from loadax.kept.handed_on import RunOpening
from tests.key_values import memory_store


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], RunOpening]:
    """Makes an opening as a process sees it, each with the numbers of a run of its own."""
    store = memory_store()
    process = threading.local()
    numbers = [count(1), count(1)]
    monkeypatch.setattr(handed_on, "this_process", lambda: process.value)
    monkeypatch.setattr(handed_on, "register_exit", lambda: None)
    monkeypatch.setattr(handed_on, "BEGINS", 0.3)
    monkeypatch.setattr(handed_on, "VISIBLE", 0.3)

    def opening(index: int, key: str) -> RunOpening:
        process.value = Process(index, 2)
        return RunOpening(store, next(numbers[index]), key)

    return opening


CONTENT = b"what was learnt"


def nothing() -> bytes | None:
    return None


def test_what_is_told_arrives(openings: Callable[[int, str], RunOpening], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed_on, "MESSAGE", 4)  # in several messages
    for key in ("a", "b"):
        openings(0, key).tell(CONTENT + key.encode())
    for key in ("a", "b"):
        assert openings(1, key).told(nothing) == CONTENT + key.encode()


def test_a_process_waits_until_process_0_has_opened(openings: Callable[[int, str], RunOpening]) -> None:
    first = openings(0, "a")
    other = openings(1, "a")
    timer = threading.Timer(0.5, first.tell, [CONTENT])  # longer than it waits for the beginning
    timer.start()
    assert other.told(nothing) == CONTENT
    timer.join()


def test_a_process_that_opens_other_data_reads_for_itself(openings: Callable[[int, str], RunOpening]) -> None:
    openings(0, "a").tell(CONTENT)
    assert openings(1, "b").told(nothing) is None


def test_a_process_that_opens_alone_reads_for_itself(openings: Callable[[int, str], RunOpening]) -> None:
    assert openings(1, "a").told(nothing) is None


def test_a_process_reads_for_itself_where_process_0_fails(openings: Callable[[int, str], RunOpening]) -> None:
    openings(0, "a").fail()
    assert openings(1, "a").told(nothing) is None


def test_what_is_too_long_is_read_from_the_index(
    openings: Callable[[int, str], RunOpening], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handed_on, "MOST", 4)
    openings(0, "a").tell(CONTENT)
    openings(0, "b").tell(CONTENT)
    found: Iterator[bytes | None] = iter([None, b"of an earlier run", CONTENT])  # it takes a while to be there
    assert openings(1, "a").told(lambda: next(found)) == CONTENT
    assert openings(1, "b").told(nothing) is None


def learn(openings: Callable[[int, str], RunOpening], monkeypatch: pytest.MonkeyPatch, index: int) -> list[str]:
    """Opens data as a process does, and returns the URLs whose footers it asked for."""
    asked: list[str] = []

    def ask(urls: list[str]) -> list[bytes]:
        asked.extend(urls)
        return [url.encode() for url in urls]

    monkeypatch.setattr(kept_opening, "next_opening", lambda key: openings(index, key))
    with kept_opening.opening("from_npy", "s3://bucket/a", None) as metadata:
        assert metadata.is_current == (index > 0)  # else its files are listed again
        assert metadata.recall("footer", ["s3://bucket/a"], ask) == [b"s3://bucket/a"]
    return asked


def test_other_processes_do_not_ask_what_process_0_has(
    openings: Callable[[int, str], RunOpening], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [learn(openings, monkeypatch, index) for index in (0, 1)] == [["s3://bucket/a"], []]


def test_error_of_process_0_lets_the_others_open_for_themselves(
    openings: Callable[[int, str], RunOpening], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_opening, "next_opening", lambda key: openings(0, key))
    with pytest.raises(OSError, match="no answer"), kept_opening.opening("from_npy", "s3://bucket/a", None):
        raise OSError("no answer")
    monkeypatch.setattr(kept_opening, "next_opening", lambda key: openings(1, key))
    with kept_opening.opening("from_npy", "s3://bucket/a", None) as metadata:
        assert not metadata.is_current


def test_error_while_data_is_opened_by_one_process_is_raised() -> None:
    with pytest.raises(OSError, match="no answer"), kept_opening.opening("from_npy", "s3://bucket/a", None):
        raise OSError("no answer")


def test_answers_of_other_types_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"file": {"u": [1, "x"]}},
        {"file": {"u": 3}},
        {"list": {"u": [["x"], []]}},
        {"some names": {"u": [1]}},
        {"footer": {"u": 3}},
        {"footer": []},
    ]
    for answers in wrong:
        with pytest.raises(ValueError, match="other types"):
            load_answers(Metadata(answers).dump())
    for content in (b"", b"x", Metadata().dump()[:-4]):
        with pytest.raises(ValueError, match=r"."):
            load_answers(content)
    right: dict[str, dict[str, Any]] = {
        "footer": {"s3://a": b"\0\xff", "s3://b": None},
        "file": {"s3://a": [3, b"tag"]},
    }
    assert load_answers(Metadata(right).dump()) == right


def test_answers_are_forgotten_once_data_is_open() -> None:
    kept = []
    metadata = Metadata(complete=lambda one: kept.append(one.dump()))
    asked: list[list[str]] = []

    def ask(urls: list[str]) -> list[Any]:
        asked.append(urls)
        return [url.encode() for url in urls]

    assert metadata.recall("footer", ["a", "b", "a"], ask) == [b"a", b"b", b"a"]
    assert metadata.recall("footer", ["b", "c"], ask) == [b"b", b"c"]
    assert metadata.recall("footer", ["http://host/?token=x"], ask) == [b"http://host/?token=x"]
    metadata.complete()
    metadata.complete()
    assert asked == [["a", "b"], ["c"], ["http://host/?token=x"]]
    assert metadata.recall("footer", ["a"], ask) == [b"a"]
    assert [load_answers(content) for content in kept] == [{"footer": {"a": b"a", "b": b"b", "c": b"c"}}]
