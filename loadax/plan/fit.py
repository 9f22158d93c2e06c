"""Bin packing of whole documents into rows, on the histogram of their lengths.

Best-fit and first-fit decreasing (Johnson, "Near-optimal bin packing algorithms", 1973) take the documents from the
longest to the shortest. On the histogram, as in Krell, Kosec, Perez and Fitzgibbon ("Efficient sequence packing without
cross-contamination", 2021; best fit is their longest-pack-first), all documents of one length are placed at once, and
equally filled rows form one run. So the cost is proportional to the distinct lengths, not to the documents.

Documents whose leaves have different lengths seldom have equal sizes, so `fit_by_leaf` places them one at a time.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple, Protocol, final

import numpy as np

from loadax.protocols import Integers


class _Run(NamedTuple):
    """Rows from `first` to `first + rows` (exclusive), which have equal space left, each for `most` more documents."""

    first: int
    rows: int
    most: int


class _Open(Protocol):
    """Runs of rows with space left."""

    def take(self, least: int) -> tuple[int, _Run] | None:
        """Removes the next run with space for `least` entries; returns its space and the run, or None."""
        ...

    def put(self, space: int, run: _Run) -> None:
        """Adds a run whose rows have `space` entries left."""
        ...


@final
class _Tightest:
    """Best fit: the first run of those with the least sufficient space."""

    def __init__(self) -> None:
        self._spaces: list[int] = []  # ascending
        self._runs: dict[int, list[_Run]] = {}

    def take(self, least: int) -> tuple[int, _Run] | None:
        index = bisect_left(self._spaces, least)
        if index == len(self._spaces):
            return None
        space = self._spaces[index]
        runs = self._runs[space]
        run = heapq.heappop(runs)
        if not runs:
            del self._runs[space], self._spaces[index]
        return space, run

    def put(self, space: int, run: _Run) -> None:
        if space not in self._runs:
            self._runs[space] = []
            insort(self._spaces, space)
        heapq.heappush(self._runs[space], run)


@final
class _Earliest:
    """First fit: the run of the first rows with sufficient space, found by a segment tree of minima over the spaces."""

    def __init__(self, most: int):
        self._leaves = 1 << most.bit_length()
        self._none = 1 << 62
        self._tree = [self._none] * (2 * self._leaves)
        self._runs: dict[int, list[_Run]] = {}

    def take(self, least: int) -> tuple[int, _Run] | None:
        low, node, earliest = least + self._leaves, 0, self._none
        # All spaces from `least` on: the right siblings on the way up.
        while low >= 1:
            if self._tree[low] < earliest:
                node, earliest = low, self._tree[low]
            while low & 1:
                low >>= 1
            low += 1 if low else 0
        if earliest == self._none:
            return None
        while node < self._leaves:
            node = 2 * node + (self._tree[2 * node] != earliest)
        space = node - self._leaves
        run = heapq.heappop(self._runs[space])
        self._update(space)
        return space, run

    def put(self, space: int, run: _Run) -> None:
        heapq.heappush(self._runs.setdefault(space, []), run)
        self._update(space)

    def _update(self, space: int) -> None:
        runs = self._runs[space]
        node, value = space + self._leaves, runs[0].first if runs else self._none
        while node:
            self._tree[node] = value
            value = min(value, self._tree[node ^ 1]) if node > 1 else value
            node >>= 1


def fit(lengths: Integers, seq_len: int, best: bool, most: int) -> Integers:
    """Row of each document, int64[n]. Rows are numbered by their first document.

    Args:
        lengths: Lengths of the documents, each from 1 to `seq_len`, int64[n].
        seq_len: Entries of a row.
        best: Whether to use best fit; otherwise first fit.
        most: Largest number of documents of a row.
    """
    narrow = lengths.astype(np.uint16) if seq_len < 1 << 16 else lengths  # NumPy uses radix sort for short integers
    ascending = np.argsort(narrow, kind="stable")
    distinct, counts = np.unique(lengths, return_counts=True)
    placed = np.array(_place(distinct[::-1].tolist(), counts[::-1].tolist(), seq_len, best, most), np.int64)
    # Documents by descending length; those of equal length in their order.
    ends = np.cumsum(counts)
    starts = (ends - counts)[::-1]
    descending = ascending[
        np.repeat(starts - (np.cumsum(counts[::-1]) - counts[::-1]), counts[::-1]) + np.arange(len(lengths))
    ]
    first, rows, per_row = placed.T
    total = rows * per_row
    within = np.arange(len(lengths)) - np.repeat(np.cumsum(total) - total, total)
    row = np.empty(len(lengths), np.int64)
    row[descending] = np.repeat(first, total) + within // np.repeat(per_row, total)
    return _numbered(row, int((first + rows).max()))


def fit_by_leaf(lengths: Integers, seq_lens: Sequence[int], best: bool, most: int) -> Integers:
    """Row of each document, int64[n], such that every leaf fits its row. Rows are numbered by their first document.

    Documents are placed in descending order of the largest share of a row that one of their leaves takes. Best fit
    prefers the row with the least space, as the sum of its leaves' shares.

    Args:
        lengths: Lengths of the documents' leaves, each at most that of `seq_lens`, int64[n, leaves].
        seq_lens: Entries of a row, for each leaf.
        best: Whether to use best fit; otherwise first fit.
        most: Largest number of documents of a row.
    """
    largest = (lengths / np.array(seq_lens)).max(axis=1)
    # The number of documents is one more length: each takes 1 of `most`.
    sizes = np.column_stack([lengths, np.ones(len(lengths), np.int64)])[:, :, None]
    spaces = np.repeat(np.array([[*seq_lens, most]]).T, len(lengths), axis=1)
    row_of, rows = np.empty(len(lengths), np.int64), 0
    for document in np.argsort(-largest, kind="stable").tolist():
        fitting = np.flatnonzero((spaces[:, :rows] >= sizes[document]).all(axis=0))
        if not len(fitting):
            row, rows = rows, rows + 1
        elif best:
            space = sum(spaces[leaf, fitting] / seq_len for leaf, seq_len in enumerate(seq_lens))
            row = int(fitting[np.argmin(space)])
        else:
            row = int(fitting[0])
        row_of[document] = row
        spaces[:, row] -= sizes[document, :, 0]
    return _numbered(row_of, rows)


def _place(lengths: list[int], counts: list[int], seq_len: int, best: bool, most: int) -> list[tuple[int, int, int]]:
    """Places documents of descending lengths: `(first row, number of rows, documents of this length in each row)`."""
    placed: list[tuple[int, int, int]] = []
    rows = 0
    runs: _Open = _Tightest() if best else _Earliest(seq_len)
    for length, count in zip(lengths, counts, strict=True):
        left = count
        while left:
            taken = runs.take(length)
            if taken is None:
                # New rows, all filled with this length; the last one may get fewer.
                taken = seq_len, _Run(rows, -(-left // min(seq_len // length, most)), most)
                rows += taken[1].rows
            space, (first, available, room) = taken
            per_row = min(space // length, room, left)
            used = min(available, left // per_row)
            placed.append((first, used, per_row))
            left -= used * per_row
            if space > per_row * length and room > per_row:
                runs.put(space - per_row * length, _Run(first, used, room - per_row))
            if available > used:
                runs.put(space, _Run(first + used, available - used, room))
    return placed


def _numbered(row: Integers, rows: int) -> Integers:
    """Renumbers rows by their first document, so that they are roughly in the order of the documents."""
    first = np.empty(rows, np.int64)
    first[row[::-1]] = np.arange(len(row) - 1, -1, -1)  # of several values for one row, the last is kept
    rank = np.empty(rows, np.int64)
    rank[np.argsort(first)] = np.arange(rows)
    return rank[row]
