"""Indices of files: parts are whole files, scans get the bytes that they ask for, and records are in their files."""

from collections.abc import Generator
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from loadax.kept.index_folder import Entry
from loadax.sources import file_index
from loadax.sources.file_index import check_records, run_scan

FEW, MOST, WORTH = 4, 8, 50


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=60), remote=st.booleans())
def test_parts_are_consecutive_files_and_few(sizes: list[int], remote: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("FEW_PARTS", FEW), ("PARTS", MOST), ("PART", WORTH)):
            patch.setattr(file_index, name, value)
        work = file_index._work(Any, Any, [], sizes, remote)  # type: ignore[arg-type]
    parts = [sizes[first:end] for first, end in pairwise(work.firsts)]
    assert [*map(sum, parts)] == work.sizes
    assert [*chain.from_iterable(parts)] == sizes
    assert all(parts)
    if len(sizes) <= FEW:
        assert len(parts) == len(sizes)
        return
    total = sum(sizes)
    least = -(-total // MOST)
    if not remote:
        least = max(least, min(WORTH, -(-total // FEW)))
    assert len(parts) <= (MOST if remote else max(1, -(-total // max(1, least)))) + 1
    assert all(sum(part[:-1]) < max(1, least) for part in parts)


@given(
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12),
    size=st.integers(0, 200),
    window=st.integers(1, 40),
)
def test_a_scan_gets_what_it_asks_for_and_one_window_is_read_once(
    steps: list[tuple[int, int]], size: int, window: int
) -> None:
    content = bytes(range(size))
    reads: list[tuple[int, int]] = []

    def read(start: int, stop: int) -> bytes:
        reads.append((start, stop))
        return content[start:stop]

    def scan() -> Generator[tuple[int, int], memoryview, str]:
        start = 0
        for skip, length in steps:
            start = min(start + skip, size)
            view = yield start, start + length
            assert bytes(view[:length]) == content[start : start + length]
        return "done"

    if steps:
        assert run_scan(scan(), size, read, window) == "done"
    assert all(stop <= size for _, stop in reads)
    reads.clear()
    if steps:
        run_scan(scan(), size, read, 1000)
    assert len(reads) <= 1  # one window has all


@pytest.mark.parametrize("after", [0, 4])
def test_a_record_may_end_where_its_file_ends_and_no_later(after: int) -> None:
    sizes = np.array([20, 10])

    def check(begins: list[int], lengths: list[int]) -> None:
        arrays = {"begins": np.array(begins), "sizes": np.array(lengths), "counts": np.array([2, 1])}
        check_records(Entry(arrays, {}), sizes, "counts", after)

    check([0, 8, 3], [8, 12 - after, 7 - after])
    for begins, lengths in [([0, 8, 3], [8, 13 - after, 1]), ([0, 8, 3], [8, 1, 8 - after]), ([0, 8, 11], [1, 1, 0])]:
        with pytest.raises(ValueError, match="a record ends after its file"):
            check(begins, lengths)
