"""Bin packing of whole documents into rows, on the histogram of their lengths.

Best-fit and first-fit decreasing (Johnson, "Near-optimal bin packing algorithms", 1973) take the documents from the
longest to the shortest. On the histogram, as in Krell, Kosec, Perez and Fitzgibbon ("Efficient sequence packing without
cross-contamination", 2021; best fit is their longest-pack-first), all documents of one length are placed at once, and
equally filled rows form one run. So the cost is proportional to the distinct lengths, not to the documents.

Documents whose leaves have different lengths seldom have equal sizes, so `fit_by_leaf` places them one at a time.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np

from loadax.protocols import Integers


class _Bins(NamedTuple):
    """Rows from `first` to `first + rows` (exclusive), which have equal space left, each for `most` more documents."""

    first: int
    rows: int
    most: int


@final
class _OpenBins:
    """Rows with space left, for documents of descending lengths: rows that fit one document fit all later ones.

    Args:
        best: Whether the rows with the least space are taken first; otherwise the first rows.
    """

    def __init__(self, best: bool):
        self._best = best
        # a heap, each with its space
        self._fitting: list[tuple[int, _Bins, int]] = []
        self._waiting: list[tuple[int, _Bins]] = []  # a heap by descending space

    def take(self, length: int) -> tuple[int, _Bins] | None:
        """Removes the next rows with space for `length` entries; returns their space and them, or None."""
        while self._waiting and -self._waiting[0][0] >= length:
            space, rows = heapq.heappop(self._waiting)
            heapq.heappush(self._fitting, (-space if self._best else 0, rows, -space))
        if not self._fitting:
            return None
        _, rows, space = heapq.heappop(self._fitting)
        return space, rows

    def put(self, space: int, rows: _Bins) -> None:
        """Adds rows that have `space` entries left."""
        heapq.heappush(self._waiting, (-space, rows))


def fit(lengths: Integers, seq_len: int, best: bool, most: int) -> Integers:
    """Row of each document, int64[n]. Rows are numbered by their first document.

    Args:
        lengths: Lengths of the documents, each from 1 to `seq_len`, int64[n].
        seq_len: Entries of a row.
        best: Whether to use best fit; otherwise first fit.
        most: Largest number of documents of a row.
    """
    # NumPy uses radix sort for short integers
    short = np.uint16 if seq_len < 1 << 16 else np.int64
    descending = np.argsort((seq_len - lengths).astype(short), kind="stable")
    distinct, counts = np.unique(lengths, return_counts=True)
    placed = np.array(
        _place(distinct[::-1].tolist(), counts[::-1].tolist(), seq_len, best, most),
        np.int64,
    )
    first, rows, per_row = placed.T
    total = rows * per_row
    within = np.arange(len(lengths)) - np.repeat(np.cumsum(total) - total, total)
    row = np.empty(len(lengths), np.int64)
    row[descending] = np.repeat(first, total) + within // np.repeat(per_row, total)
    return _numbered(row, int((first + rows).max()))


def fit_by_leaf(
    lengths: Integers, seq_lens: Sequence[int], best: bool, most: int
) -> Integers:
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
    row_of = np.empty(len(lengths), np.int64)
    rows = 0
    for document in np.argsort(-largest, kind="stable").tolist():
        fitting = np.flatnonzero((spaces[:, :rows] >= sizes[document]).all(axis=0))
        if not len(fitting):
            row = rows
            rows = rows + 1
        elif best:
            space = sum(
                spaces[leaf, fitting] / seq_len
                for leaf, seq_len in enumerate(seq_lens)
            )
            row = int(fitting[np.argmin(space)])
        else:
            row = int(fitting[0])
        row_of[document] = row
        spaces[:, row] -= sizes[document, :, 0]
    return _numbered(row_of, rows)


def _place(
    lengths: list[int], counts: list[int], seq_len: int, best: bool, most: int
) -> list[tuple[int, int, int]]:
    """Places documents of descending lengths: `(first row, number of rows, documents of this length in each row)`."""
    placed: list[tuple[int, int, int]] = []
    rows = 0
    open_rows = _OpenBins(best)
    for length, count in zip(lengths, counts, strict=True):
        left = count
        while left:
            taken = open_rows.take(length)
            if taken is None:
                # New rows, all filled with this length; the last one may get fewer.
                taken = (
                    seq_len,
                    _Bins(rows, -(-left // min(seq_len // length, most)), most),
                )
                rows += taken[1].rows
            space, (first, available, room) = taken
            per_row = min(space // length, room, left)
            used = min(available, left // per_row)
            placed.append((first, used, per_row))
            left -= used * per_row
            if space > per_row * length and room > per_row:
                open_rows.put(
                    space - per_row * length, _Bins(first, used, room - per_row)
                )
            if available > used:
                open_rows.put(space, _Bins(first + used, available - used, room))
    return placed


def _numbered(row: Integers, rows: int) -> Integers:
    """Renumbers rows by their first document, so that they are roughly in the order of the documents."""
    first = np.empty(rows, np.int64)
    # of several values for one row, the last is kept
    first[row[::-1]] = np.arange(len(row) - 1, -1, -1)
    rank = np.empty(rows, np.int64)
    rank[np.argsort(first)] = np.arange(rows)
    return rank[row]
