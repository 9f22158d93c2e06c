"""Strings in arrays of objects are sent to processes as a few buffers, and read there as they are."""

import copy
import os
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest

import loadax
from loadax.files import shared_strings
from loadax.files.shared_strings import SharedStrings
from loadax.protocols import Visits
from loadax.sources.arrays import ArraySource
from loadax.work.payload import pack, unpack

TEXTS = ["", "plain", "naïve", "日本語", "🙂 and 🦆", "nul \0 in it", "\ud83d", "\ud83d\ude00", "end"] * 5
ROWS: dict[str, list[Any]] = {
    "ascii": ["", "a", "bc"] * 9,
    "any text": TEXTS,
    "bytes": [text.encode("utf-8", "surrogatepass") for text in TEXTS],
    "empty": [""] * 7,
    "one": ["only"],
    "none": [],
    "with None": ["a", None, "b"],
    "text and bytes": ["a", b"a"],
    "numbers": [1, "a", 2.5],
    "of a subclass": ["a", np.str_("b")],
}
SHARED = {"ascii", "any text", "bytes", "empty", "one"}


def objects(values: list[Any]) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def there_and_back(value: Any) -> Any:
    parcel = pack(value)
    try:
        return unpack(parcel)
    finally:
        os.close(parcel.descriptor)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_strings, "BLOCK", 4)


def array_of(source: Any) -> Any:
    return source._arrays[0]._array


def assert_same(found: Any, expected: list[Any]) -> None:
    assert list(found) == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


@pytest.mark.parametrize("name", ROWS)
def test_rows_in_another_process_are_equal_and_of_the_same_types(name: str) -> None:
    values = ROWS[name]
    source = ArraySource({"text": objects(values)})
    for sent in (there_and_back(source), there_and_back(there_and_back(source)), pickle.loads(pickle.dumps(source, 5))):
        assert isinstance(array_of(sent), SharedStrings) == (name in SHARED)
        rows = np.random.default_rng(0).integers(0, max(len(values), 1), 3 * len(values))
        assert_same(sent.read(rows)["text"], [values[row] for row in rows])
        assert_same(sent.held(1 << 30)[0], values)
        assert sent.spec == source.spec
        assert (len(sent), repr(sent)) == (len(source), repr(source))


def test_older_protocols_and_copies_keep_the_array() -> None:
    source = ArraySource({"text": objects(TEXTS)})
    for same in (copy.copy(source), copy.deepcopy(source), pickle.loads(pickle.dumps(source, 4))):
        assert isinstance(array_of(same), np.ndarray)
        assert_same(same.read(np.arange(len(TEXTS)))["text"], TEXTS)
    sent = there_and_back(source)
    for same in (copy.copy(sent), copy.deepcopy(sent), pickle.loads(pickle.dumps(sent, 4))):
        assert_same(same.read(np.arange(len(TEXTS)))["text"], TEXTS)


def test_sample_for_fingerprints_is_the_same() -> None:
    source = ArraySource({"text": objects(TEXTS)})
    here, there = source.held(64)[0], there_and_back(source).held(64)[0]
    assert_same(there, list(here))
    assert len(here) < len(TEXTS)


@pytest.mark.parametrize("cut", [lambda array: array[::-1], lambda array: array[3:40:2], lambda array: array])
def test_views_windows_and_bounds(cut: Any) -> None:
    array = cut(objects(TEXTS))
    data = loadax.from_arrays({"text": array}).windows(3)
    reader, sent = data.reader, there_and_back(data.reader)
    visits = Visits(np.arange(len(data)), np.zeros(len(data), np.int64))
    found, expected = sent.read_visits(visits)["text"], reader.read_visits(visits)["text"]
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()


def test_ragged_strings_can_be_sent() -> None:
    array = objects(TEXTS)
    source: Any = ArraySource(array)._arrays[0]
    sent = there_and_back(source)
    first, lengths = np.array([0, 5, 20]), np.array([3, 4, 9])
    assert sent.gather(first, lengths).tolist() == source.gather(first, lengths).tolist()
    assert sent.spans(first, 2, ()).tolist() == source.spans(first, 2, ()).tolist()
    assert sent.locate(0, 3) == []


def test_arrays_of_objects_of_two_dimensions_are_sent_as_they_are() -> None:
    array = objects(TEXTS).reshape(5, -1)
    sent = there_and_back(ArraySource(array))
    assert sent.read(np.arange(5)).tolist() == array.tolist()


def test_arrays_of_maps_stay_arrays() -> None:
    array = objects(TEXTS)
    assert isinstance(there_and_back(lambda: array)(), np.ndarray)


def test_reads_of_joined_sources_decode_the_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    data = loadax.concat([loadax.from_arrays(objects([f"{part} {row}" for row in range(50)])) for part in "ab"])
    sent, decoded = there_and_back(data.reader), []
    read = SharedStrings.__getitem__

    def counted(strings: SharedStrings, index: Any) -> Any:
        decoded.append(index)
        return read(strings, index)

    monkeypatch.setattr(SharedStrings, "__getitem__", counted)
    out = np.empty(3, object)
    sent.source.read_into(np.array([3, 60, 4]), [()], [out])
    assert out.tolist() == ["a 3", "b 10", "a 4"]
    assert decoded
    assert not any(isinstance(index, slice) for index in decoded)  # all rows


def test_memory_of_pickling_and_unpickling_does_not_grow_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_strings, "BLOCK", 1 << 10)
    count, length = 1 << 16, 64
    source = ArraySource(objects([f"{row:>{length}}" for row in range(count)]))
    tracemalloc.start()
    try:
        parcel = pack(source)
        packing = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        sent = unpack(parcel)
        unpacking = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
        os.close(parcel.descriptor)
    assert sent.read(np.array([count - 1])).tolist() == [f"{count - 1:>{length}}"]
    whole = count * length
    assert packing < whole / 8
    assert unpacking < whole / 8
    assert len(parcel.message) < whole / 64


def test_documents_of_strings_are_read_in_another_process() -> None:
    words = objects([f"wörd {index}" for index in range(1000)])
    documents = loadax.from_documents(words, offsets=np.arange(0, 1001, 100))
    restored = unpack(pack(documents))
    for rows in ([3], [3, 4], [9, 2, 5]):  # one part, neighbours, and long parts apart from each other
        assert restored.source.read(np.array(rows)).tolist() == documents.source.read(np.array(rows)).tolist()


def test_long_strings_take_little_memory_while_they_are_sent() -> None:
    """Joined with a row that has an emoji, each character would take four bytes, and the place of each more."""
    texts = objects([f"{row} 🙂 " + "a" * 20_000 for row in range(500)])
    source, sent = ArraySource(texts), list[int]()
    tracemalloc.start()
    try:
        pickle.dumps(source, 5, buffer_callback=lambda buffer: sent.append(buffer.raw().nbytes))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(sent) > 10_000_000
    assert peak < 2.5 * sum(sent)
    assert unpack(pack(source)).read(np.array([0, 499])).tolist() == texts[[0, 499]].tolist()
