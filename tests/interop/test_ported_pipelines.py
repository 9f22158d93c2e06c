"""Patterns of the input pipelines of public JAX trainers: they work, or the error says what to write, and that works.

`tests/interop/test_trainers.py` has MaxText's evaluation and checkpoints, `tests/core/test_replacements.py` names.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, concat, from_arrays, from_source, from_stream, from_tokens
from loadax.errors import ArgumentError

TEXTS = ["a few words of text"[: 1 + number % 19] for number in range(800)]
CALLS = [0]


class Tokenizer:
    """An object of a tokenizer library: its code and state can't be identified."""

    def encode(self, text: str) -> list[int]:
        CALLS[0] += 1
        return list(text.encode())


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer()


def tokenize_by_getter(text: str) -> Any:
    return np.array(tokenizer().encode(text), np.uint16)


def tokenize_by_object(text: str, tokenizer: Tokenizer = Tokenizer()) -> Any:  # noqa: B008
    return np.array(tokenizer.encode(text), np.uint16)


@pytest.mark.parametrize(("tokenize", "key"), [(tokenize_by_object, "bpe of Monday"), (tokenize_by_getter, None)])
def test_tokenizing_for_pack_happens_once_with_an_index(tokenize: Any, key: str | None, tmp_path: Path) -> None:
    packed, calls = [], []
    for _ in range(2):
        CALLS[0] = 0
        data = from_source(TEXTS).map(tokenize).pack(64, index=tmp_path, key=key, progress=False)
        calls.append(CALLS[0])
        packed.append(data.read(range(len(data))))
    assert calls[0] >= len(TEXTS)
    assert calls[1] < len(TEXTS) / 4
    np.testing.assert_array_equal(packed[0]["tokens"], packed[1]["tokens"])


HOURS = from_arrays({"t": np.arange(20)})


def negated(row: Any) -> Any:
    return {"t": -row["t"]}


def test_windows_of_yearly_stores_stay_within_a_year() -> None:
    windows = concat([HOURS, HOURS]).windows(3)
    assert len(windows) == 36
    assert windows[18]["t"].tolist() == [0, 1, 2]
    assert len(concat([HOURS, HOURS]).windows(3, seams="cross")) == 38


@pytest.mark.parametrize(
    "mapped", [HOURS.map(negated), HOURS.map_batch(negated), HOURS.map_batch(negated, elementwise=True)]
)
def test_windows_of_mapped_rows_are_mapped_windows(mapped: Any) -> None:
    assert mapped.windows(3)[2]["t"].tolist() == [-2, -3, -4]
    assert len(mapped.windows(3)) == len(HOURS.windows(3).map(negated))


def test_windows_come_before_verbs_that_reorder() -> None:
    for data in (HOURS.shuffle(0), HOURS.repeat(2), HOURS.exclude([3])):
        with pytest.raises(ArgumentError, match=r"call windows\(3\) before (shuffle|repeat|exclude)\b.*, not after it"):
            data.windows(3)
    assert len(HOURS.windows(3).shuffle(0).repeat(2)) == 36
    assert HOURS[::2].windows(3)[1]["t"].tolist() == [2, 4, 6]


def test_lanes_of_a_stream_are_packed_as_their_documents_are_or_from_tokens_written_once(tmp_path: Path) -> None:
    def documents(lane: int, lanes: int) -> Iterator[Any]:
        return (np.array(tokenizer().encode(text), np.uint16) for text in TEXTS[lane::lanes])

    whole = [from_source(list(documents(lane, 4))).pack(64, progress=False) for lane in range(4)]
    batches = list(Dataloader(from_stream(documents, lanes=4).pack(64), 8))
    assert len(batches) > 8
    for step, batch in enumerate(batches):
        expected = np.concatenate([lane.read([2 * step, 2 * step + 1])["tokens"] for lane in whole])
        np.testing.assert_array_equal(np.sort(batch["tokens"], axis=0), np.sort(expected, axis=0))

    path = tmp_path / "tokens.bin"
    np.concatenate(list(documents(0, 1))).tofile(path)
    rows = from_tokens(path, 64, dtype="uint16")
    assert rows[0]["tokens"][:64].tolist() == from_source(list(documents(0, 1))).pack(64)[0]["tokens"].tolist()
