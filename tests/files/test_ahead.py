"""Ranges that are requested ahead: their bytes are those of the files, none is requested twice, and all are freed."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from loadax.errors import StorageError
from loadax.files.ahead import Ahead
from loadax.files.byte_ranges import NEAR, ByteRange, FileInfo
from loadax.files.remote import Answer
from loadax.files.remote_ranges import RemoteRanges
from tests.limits import HANG, examples

SIZE = 1 << 16
FILES = {name: bytes((index * step + 7) % 251 for index in range(SIZE)) for name, step in (("a", 1), ("b", 3))}


@dataclass
class Store:
    """Files in memory, requested as of a server; answers come when the test says."""

    begun: list[ByteRange] = field(default_factory=list)
    waiting: list[tuple[ByteRange, "Future[Any]"]] = field(default_factory=list)
    direct: list[ByteRange] = field(default_factory=list)
    error: Exception | None = None
    sent: int = SIZE
    """Bytes of each file that the server has."""

    def gap(self, _: str) -> int:
        return 16 << 10

    def begin(self, ranges: Sequence[ByteRange], urgent: bool) -> list["Future[Any]"]:
        assert not urgent
        futures = [Future[Any]() for _ in ranges]
        self.begun += ranges
        self.waiting += zip(ranges, futures, strict=True)
        return futures

    def answer(self) -> None:
        """Answers all that is under way."""
        for wanted, future in self.waiting:
            if not future.set_running_or_notify_cancel():
                continue
            if self.error is not None:
                future.set_exception(self.error)
            else:
                content = FILES[wanted.location][wanted.start : min(wanted.stop, self.sent)]
                future.set_result(Answer(FileInfo(SIZE, b"1"), content))
        self.waiting.clear()

    def wait(self, futures: "Sequence[Future[Any]]", _: Sequence[ByteRange]) -> list[Any]:
        self.answer()
        wait(futures, HANG)
        return [future.result() for future in futures]

    def read(self, ranges: Sequence[ByteRange], **_: Any) -> tuple[list[bytes], dict[str, FileInfo]]:
        self.direct += ranges
        return [content(each) for each in ranges], {}


def content(wanted: ByteRange) -> bytes:
    return FILES[wanted.location][wanted.start : wanted.stop]


def opened(store: Any) -> tuple[RemoteRanges, Ahead]:
    ranges = RemoteRanges()
    vars(ranges)["remote"] = store
    return ranges, ranges.open_ahead()


RANGES = st.tuples(st.sampled_from("ab"), st.integers(0, SIZE - 2), st.integers(1, 20_000)).map(
    lambda each: ByteRange(each[0], each[1], min(SIZE, each[1] + each[2]))
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.lists(RANGES, max_size=6), min_size=1, max_size=8), st.integers(1, 4), st.booleans(), st.randoms())
def test_steps_read_the_bytes_of_the_files_and_none_is_under_way_twice(
    steps: list[list[ByteRange]], together: int, answered: bool, random: Any
) -> None:
    store = Store()
    ranges, ahead = opened(store)
    for first in range(0, len(steps), together):
        ahead.start([*enumerate(steps)][first : first + together], once=False, window=1 << 20)
        held = {location: file.blocks for location, file in ahead._files.items()}
        for blocks in held.values():
            assert all(one.range.stop <= other.range.start for one, other in pairwise(blocks))
        assert ahead.bytes_at_hand == sum(
            each.range.stop - each.range.start for blocks in held.values() for each in blocks
        )
        assert ahead.unanswered == sum(not future.done() for _, future in store.waiting)
        if answered:
            store.answer()
            assert ahead.unanswered == 0
        for step in range(first, min(first + together, len(steps))):
            wanted = random.sample(steps[step], len(steps[step]))
            assert ranges.read(wanted)[0] == [content(each) for each in wanted]
            if random.random() < 0.8:
                ahead.finish(step)
    assert not store.direct
    for step in range(len(steps)):
        ahead.finish(step)
    assert (ahead.bytes_at_hand, ahead._files, ahead._of_step) == (0, {}, {})
    assert ahead.unanswered == 0


@given(st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True), st.integers(1, 3))
def test_what_is_read_once_is_requested_once_and_freed_when_it_was_read(chunks: list[int], times: int) -> None:
    store = Store()
    ranges, ahead = opened(store)
    parts = [ByteRange("a", chunk << 12, (chunk + 1) << 12) for chunk in chunks]
    for step in range(times):
        ahead.start([(step, parts)], once=True, window=1 << 20)
    assert sum(each.stop - each.start for each in store.begun) >= len(parts) << 12
    assert len(set(store.begun)) == len(store.begun)
    assert ranges.read(parts)[0] == [content(each) for each in parts]
    assert ahead.bytes_at_hand == 0
    ahead.start([(times, parts)], once=True, window=1 << 20)
    assert ahead.bytes_at_hand == 0  # the reader has read them since it told what it lacks
    ahead.mark()
    ahead.start([(times, parts)], once=True, window=1 << 20)
    assert ahead.bytes_at_hand >= len(parts) << 12


def test_what_is_read_once_is_held_until_its_last_byte_was_read() -> None:
    ranges, ahead = opened(Store())
    ahead.start([(0, [ByteRange("a", 0, 99), ByteRange("a", 99, 100)])], once=True, window=1 << 20)
    ranges.read([ByteRange("a", 0, 99)])
    assert ahead.bytes_at_hand == 100
    ranges.read([ByteRange("a", 99, 100)])
    assert ahead.bytes_at_hand == 0


def test_a_small_gap_between_steps_is_requested_with_the_later_one() -> None:
    store = Store()
    ranges, ahead = opened(store)
    ahead.start([(0, [ByteRange("a", 0, 100)])], once=False, window=1 << 20)
    ahead.start([(1, [ByteRange("a", 100 + NEAR, 9000)])], once=False, window=1 << 20)
    assert store.begun == [ByteRange("a", 0, 100), ByteRange("a", 100, 9000)]
    assert ranges.read([ByteRange("a", 50, 8000)])[0] == [FILES["a"][50:8000]]
    assert not store.direct


def test_a_range_that_failed_is_told_of_once_and_then_requested_again() -> None:
    store = Store(error=StorageError("a: refused; wait"))
    ranges, ahead = opened(store)
    ahead.start([(0, [ByteRange("a", 0, 100)])], once=False, window=1 << 20)
    with pytest.raises(StorageError, match="refused"):
        ranges.read([ByteRange("a", 0, 100)])
    assert ahead.bytes_at_hand == 0
    assert ranges.read([ByteRange("a", 0, 100)])[0] == [FILES["a"][:100]]
    assert store.direct == [ByteRange("a", 0, 100)]


def test_bytes_that_an_answer_lacks_are_requested_by_themselves() -> None:
    """The error, or the row that is masked, is that of a read without requests ahead."""
    store = Store(sent=150)
    ranges, ahead = opened(store)
    rows = [ByteRange("a", 0, 100), ByteRange("a", 100, 200)]
    ahead.start([(0, rows)], once=False, window=1 << 20)
    assert store.begun == [ByteRange("a", 0, 200)]
    assert ranges.read(rows)[0] == [content(each) for each in rows]
    assert store.direct == [rows[1]]


def test_closing_cancels_what_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    ranges, ahead = opened(store)
    ahead.start([(0, [ByteRange("a", 0, 100)]), (1, [ByteRange("b", 0, 100)])], once=False, window=1 << 20)
    begins, goes_on = threading.Event(), threading.Event()
    answer = store.answer

    def late() -> None:
        begins.set()
        goes_on.wait(HANG)
        answer()

    monkeypatch.setattr(store, "answer", late)
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(ranges.read([ByteRange("a", 0, 100)])[0]))
    reader.start()
    assert begins.wait(HANG)
    futures = dict(store.waiting)
    ranges.close_ahead(ahead)
    ranges.close_ahead(ahead)
    goes_on.set()
    reader.join(HANG)
    assert [future.cancelled() for future in futures.values()] == [False, True]
    assert found == [[FILES["a"][:100]]]
    assert ahead.bytes_at_hand == 0
    ahead.start([(2, [ByteRange("b", 0, 100)])], once=False, window=1 << 20)
    assert ahead.bytes_at_hand == 0
