"""Packing plans of documents whose leaves have different lengths: the documents of each row."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.errors import ArgumentError
from loadax.plan.fit import fit_by_leaf
from loadax.plan.pack import Arrays, Fitted
from loadax.protocols import Integers

PACK_BY_LEAF_VERSION = 1
"""Version of the algorithm. Another version packs the same lengths into other rows."""


def plan_by_leaf(
    lengths: Integers,
    seq_lens: Mapping[str, int],
    best: bool,
    drop: bool,
    window: int,
    most_documents: int | None,
    row_of: Callable[[int], int] = int,
) -> Arrays:
    """Arrays of a plan: `bounds`, int64[rows + 1], the index of each row's first document in `documents`, int64[n].

    Args:
        lengths: Lengths of the documents' leaves, int64[documents, leaves].
        seq_lens: Entries of a row by leaf, in the order of `lengths`.
        best: Whether to use best fit; otherwise first fit.
        drop: Whether documents that are too long in a leaf are left out; otherwise they are an error.
        window: Number of documents that are packed together.
        most_documents: Largest number of documents of a row; None: no limit.
        row_of: Function that returns the row of a document, for errors.

    Raises:
        ArgumentError: When nothing is left to pack, or a document is too long and `drop` is false.
    """
    if not lengths.any():
        raise ArgumentError(f"pack(): all {len(lengths)} documents are empty; pack a dataset with entries")
    sizes = list(seq_lens.values())
    too_long = lengths > sizes
    if not drop and too_long.any():
        document, leaf = np.argwhere(too_long)[0].tolist()
        raise ArgumentError(
            f"row {row_of(document)} is a document whose leaf {list(seq_lens)[leaf]!r} has length "
            f"{lengths[document, leaf]}, longer than seq_len={dict(seq_lens)}, as are "
            f"{int(too_long.any(axis=1).sum()) - 1} more of {len(lengths)}; pass long='drop' (leaves them out), "
            "or truncate them in a map"
        )
    kept = packable(lengths, seq_lens)
    if not len(kept):
        raise ArgumentError(
            f"long='drop': all {len(lengths)} documents are empty or longer than seq_len={dict(seq_lens)}; "
            "pass larger ones"
        )
    documents, bounds, before = [], [np.zeros(1, np.int64)], 0
    most = len(lengths) if most_documents is None else most_documents
    for start in range(0, len(lengths), window):
        chosen = kept[slice(*np.searchsorted(kept, [start, start + window]))]
        if len(chosen):
            rows = fit_by_leaf(lengths[chosen], sizes, best, most)
            documents.append(chosen[np.argsort(rows, kind="stable")])
            bounds.append(before + np.cumsum(np.bincount(rows)))
            before += len(chosen)
    return {"bounds": np.concatenate(bounds), "documents": np.concatenate(documents)}


def packable(lengths: Integers, seq_lens: Mapping[str, int]) -> Integers:
    """Numbers of the documents that are neither empty nor too long, ascending."""
    return np.flatnonzero(lengths.any(axis=1) & (lengths <= list(seq_lens.values())).all(axis=1))


def plans_by_leaf(arrays: Mapping[str, NDArray[Any]], lengths: Integers) -> list[Fitted]:
    """For each leaf, the plan of its entries. All have the same documents in each row."""
    documents = arrays["documents"]
    return [Fitted(1, {**arrays, "lengths": leaf[documents]}) for leaf in lengths.T]


def check_by_leaf(arrays: Mapping[str, NDArray[Any]], lengths: Integers, seq_lens: Mapping[str, int]) -> None:
    """Checks that arrays are a plan of documents with these lengths: each in one row, and no row too long.

    Raises:
        ValueError: When they are not.
    """
    bounds, documents = arrays["bounds"], arrays["documents"]
    if any(array.ndim != 1 or array.dtype != np.int64 for array in (bounds, documents)):
        raise ValueError("the arrays are not flat arrays of int64")
    if not np.array_equal(np.sort(documents), packable(lengths, seq_lens)):
        raise ValueError("a document is missing, or in too many rows")
    if len(bounds) < 2 or bounds[0] or bounds[-1] != len(documents) or (np.diff(bounds) <= 0).any():
        raise ValueError(f"the bounds of the rows don't ascend from 0 to {len(documents)}")
    if (np.add.reduceat(lengths[documents], bounds[:-1]) > list(seq_lens.values())).any():
        raise ValueError(f"a row is longer than {dict(seq_lens)}")
