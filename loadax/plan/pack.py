"""Packing plans: the documents, or parts of documents, in each row of fixed length.

A plan is a few flat arrays, so it can be memory-mapped from disk, and any packed row can be looked up directly.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import ArgumentError
from loadax.plan.fit import fit
from loadax.protocols import Integers, Segments

PACK_VERSION = 1
"""Version of the packing algorithms. Another version packs the same lengths into other rows."""

Method: TypeAlias = Literal["split", "best_fit", "first_fit"]
Long: TypeAlias = Literal["error", "cut", "drop"]
Packed: TypeAlias = "Split | Fitted"
Arrays: TypeAlias = dict[str, NDArray[Any]]


@final
class Split:
    """All documents concatenated, and cut every `seq_len` entries. The last row may be shorter.

    Args:
        seq_len: Entries of a row.
        arrays: `ends`, int64[documents]: the end of each document in the concatenation.
    """

    def __init__(self, seq_len: int, arrays: Mapping[str, NDArray[Any]]):
        self._seq_len, self._ends = seq_len, arrays["ends"]
        self.entries = int(self._ends[-1])
        self.size = -(-self.entries // seq_len)

    in_order = True
    """Whether consecutive rows hold consecutive documents."""

    @property
    def reads_per_document(self) -> float:
        """Mean number of reads of a document in one pass: one more for every row that it continues in."""
        return 1 + self.size / len(self._ends)

    def first_documents(self, rows: Integers) -> Integers:
        """First document of each row."""
        return np.searchsorted(self._ends, rows * self._seq_len, side="right")

    def segments(self, rows: Integers) -> Segments:
        """Segments of `rows`."""
        start = rows * self._seq_len
        stop = np.minimum(start + self._seq_len, self.entries)
        first = np.searchsorted(self._ends, start, side="right")
        counts = np.searchsorted(self._ends, stop, side="left") + 1 - first
        owners, within = _spread(counts)
        documents = np.repeat(first, counts) + within
        ends = np.asarray(self._ends[documents])
        begins = np.where(documents > 0, self._ends[documents - 1], 0)
        low, high = np.maximum(begins, start[owners]), np.minimum(ends, stop[owners])
        not_empty = high > low  # excludes empty documents
        owners, documents, low = owners[not_empty], documents[not_empty], low[not_empty]
        lengths = high[not_empty] - low
        return Segments(owners, documents, low - begins[not_empty], low - start[owners], lengths, _numbers(owners))


@final
class Fitted:
    """Whole documents, several per row; the rest of a row is empty.

    Args:
        align: Divisor of the first column of every segment.
        arrays: `bounds`, int64[rows + 1]: index of each row's first segment in the others; `documents`: document of
            each segment; `lengths`: its length; `skips`, only if long documents were cut: its first entry.
    """

    def __init__(self, align: int, arrays: Mapping[str, NDArray[Any]]):
        self._align = align
        self._bounds, self._documents, self._lengths = arrays["bounds"], arrays["documents"], arrays["lengths"]
        self._skips = arrays.get("skips")
        self.size = len(self._bounds) - 1

    in_order = False

    @property
    def reads_per_document(self) -> float:
        """Mean number of reads of a document in one pass: 1, unless documents were cut."""
        return 1.0 if self._skips is None else len(self._documents) / max(1, int((self._skips == 0).sum()))

    def first_documents(self, rows: Integers) -> Integers:
        """First document of each row."""
        return np.asarray(self._documents[self._bounds[rows]], np.int64)

    @property
    def entries(self) -> int:
        """Number of document entries in all rows."""
        return int(np.sum(self._lengths, dtype=np.int64))

    def segments(self, rows: Integers) -> Segments:
        """Segments of `rows`."""
        first = np.asarray(self._bounds[rows])
        owners, within = _spread(self._bounds[rows + 1] - first)
        places = first[owners] + within
        lengths = self._lengths[places].astype(np.int64)
        widths = -(-lengths // self._align) * self._align
        before = np.cumsum(widths) - widths
        columns = before - before[np.searchsorted(owners, owners)]
        skips = np.zeros_like(lengths) if self._skips is None else self._skips[places].astype(np.int64)
        return Segments(owners, self._documents[places].astype(np.int64), skips, columns, lengths, within + 1)


def packed(method: Method, seq_len: int, arrays: Mapping[str, NDArray[Any]], align: int = 1) -> Packed:
    """The plan with these arrays, which `plan_arrays` made."""
    return Split(seq_len, arrays) if method == "split" else Fitted(align, arrays)


def plan_arrays(
    lengths: Integers,
    seq_len: int,
    method: Method,
    long: Long,
    window: int,
    align: int = 1,
    most_documents: int | None = None,
    row_of: Callable[[int], int] = int,
    noun: str = "document",
) -> Arrays:
    """Arrays of a plan, by name.

    Args:
        lengths: Lengths of the documents, int64[documents].
        seq_len: Entries of a row.
        method: "split", "best_fit" or "first_fit".
        long: Handling of documents longer than a row, unless `method` is "split".
        window: Number of documents that are packed together.
        align: Divisor of the first column of every document, unless `method` is "split". It divides `seq_len`.
        most_documents: Largest number of documents of a row, unless `method` is "split".
        row_of: Function that returns the row of a document, for errors.
        noun: What has these lengths, for errors.

    Raises:
        ArgumentError: When nothing is left to pack, or a document is longer than a row and `long` is "error".
    """
    if not lengths.any():
        raise ArgumentError(f"pack(): all {len(lengths)} documents are empty; pack a dataset with entries")
    if method == "split":
        return {"ends": np.cumsum(lengths, dtype=np.int64)}
    too_long = lengths > seq_len
    if long == "error" and too_long.any():
        which = int(np.argmax(too_long))
        raise ArgumentError(
            f"row {row_of(which)} is a {noun} of {lengths[which]}, longer than seq_len={seq_len}, "
            f"as are {int(too_long.sum()) - 1} more of {len(lengths)}; "
            "pass long='cut' (cuts them into rows), long='drop' (leaves them out), or method='split'"
        )
    if long == "drop" and not (lengths[~too_long]).any():
        raise ArgumentError(
            f"long='drop': all {len(lengths)} documents are empty or longer than seq_len={seq_len}; pass a larger one"
        )
    most = seq_len if most_documents is None else most_documents

    def rows_of(sizes: Integers) -> Integers:
        return fit(-(-sizes // align) * align, seq_len, method == "best_fit", most)

    return _fitted_arrays(lengths, seq_len, rows_of, long, window)


def check_arrays(
    arrays: Mapping[str, NDArray[Any]], lengths: Integers, seq_len: int, method: Method, long: Long, align: int
) -> None:
    """Checks that arrays are a plan of documents with these lengths: every entry in one row, and no row too long.

    Args:
        arrays: Arrays that may be of `plan_arrays`, by name.
        lengths: Lengths of the documents, int64[documents].
        seq_len: Entries of a row.
        method: As in `plan_arrays`.
        long: As in `plan_arrays`.
        align: As in `plan_arrays`.

    Raises:
        ValueError: When they are not.
    """
    if method == "split":
        if arrays["ends"].dtype != np.int64 or not np.array_equal(arrays["ends"], np.cumsum(lengths)):
            raise ValueError("the ends of the documents are not the sums of their lengths")
        return
    bounds, documents, sizes = arrays["bounds"], arrays["documents"], arrays["lengths"]
    skips = arrays.get("skips", np.zeros(1, np.int64)[:0])
    if any(array.ndim != 1 or array.dtype not in (np.int32, np.int64) for array in (bounds, documents, sizes, skips)):
        raise ValueError("the arrays are not flat arrays of integers")
    counts = -(-lengths // seq_len)
    cut = bool(long == "cut" and counts.max(initial=0) > 1)
    if long == "drop":
        counts = np.where(counts > 1, 0, counts)
    number = int(counts.sum())
    if len(bounds) < 2 or bounds[0] or bounds[-1] != number or (np.diff(bounds) <= 0).any():
        raise ValueError(f"the bounds of the rows don't ascend from 0 to {number}")
    if ("skips" in arrays) != cut or {len(documents), len(sizes), len(skips) if cut else number} != {number}:
        raise ValueError(f"the arrays don't have {number} values")
    if documents.min() < 0 or not np.array_equal(np.bincount(documents, minlength=len(lengths)), counts):
        raise ValueError("a document is missing, or in too many rows")
    begins = skips.astype(np.int64) if cut else np.zeros(number, np.int64)
    parts, rest = np.divmod(begins, seq_len)
    if cut and (rest.any() or begins.min() < 0 or len(np.unique(documents * counts.max() + parts)) < number):
        raise ValueError("the parts of a cut document overlap")
    widths = -(-sizes.astype(np.int64) // align) * align
    if (sizes != np.minimum(lengths[documents] - begins, seq_len)).any() or sizes.min() < 1:
        raise ValueError("the lengths are not those of the documents")
    if np.add.reduceat(widths, bounds[:-1]).max() > seq_len:
        raise ValueError(f"a row is longer than {seq_len}")


def _fitted_arrays(
    lengths: Integers, seq_len: int, rows_of: Callable[[Integers], Integers], long: Long, window: int
) -> Arrays:
    small = np.int32 if len(lengths) < 1 << 31 else np.int64
    cut = bool(long == "cut" and (lengths > seq_len).any())
    parts: dict[str, list[NDArray[Any]]] = {"bounds": [np.zeros(1, np.int64)], "documents": [], "lengths": []}
    if cut:
        parts["skips"] = []
    before = 0
    for start in range(0, len(lengths), window):
        documents, skips, sizes = _items(lengths[start : start + window], seq_len, drop=long == "drop")
        if not len(documents):
            continue
        rows = rows_of(sizes)
        by_row = np.argsort(rows.astype(np.int32), kind="stable")
        parts["documents"].append((documents[by_row] + start).astype(small))
        parts["lengths"].append(sizes[by_row].astype(np.int32))
        if cut:
            parts["skips"].append(skips[by_row])
        parts["bounds"].append(before + np.cumsum(np.bincount(rows)))
        before += len(documents)
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def _items(lengths: Integers, seq_len: int, drop: bool) -> tuple[Integers, Integers, Integers]:
    """Items to pack: their documents, first entries and lengths. Long documents are cut, or dropped if `drop`."""
    counts = -(-lengths // seq_len)  # 0 for an empty document
    if drop:
        counts[counts > 1] = 0
    documents, within = _spread(counts)
    skips = within * seq_len
    return documents, skips, np.minimum(lengths[documents] - skips, seq_len)


def _spread(counts: Integers) -> tuple[Integers, Integers]:
    """Each index repeated `counts` times, and the number of each repetition, from 0."""
    owners = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return owners, np.arange(len(owners), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)


def _numbers(owners: Integers) -> Integers:
    """1, 2, 3, … within each run of equal owners."""
    return np.arange(1, len(owners) + 1) - np.searchsorted(owners, owners)
