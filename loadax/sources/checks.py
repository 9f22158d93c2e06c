"""Checks that sources share."""

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from loadax.core.formatting import size_text
from loadax.core.spec import all_columns, flatten_spec
from loadax.core.tree import flatten
from loadax.errors import RowIndexError, SourceError
from loadax.protocols import Integers, Tree
from loadax.sources.base import BaseSource

_Source = TypeVar("_Source", bound=BaseSource)
_INT64 = np.dtype(np.int64)


def check_rows(rows: Any, length: int, noun: str = "row") -> Integers:
    """Converts `rows` to int64[n].

    Raises:
        RowIndexError: When a row is outside `[0, length)`; shows it and the length.
    """
    rows = np.asarray(rows)
    if rows.dtype is not _INT64 or rows.ndim != 1:
        if rows.dtype.kind not in "iu" and rows.size:
            raise RowIndexError(
                f"{noun}s are {rows.dtype}; pass integers (for a mask: "
                "numpy.flatnonzero(mask))"
            )
        rows = rows.astype(np.int64, copy=False).reshape(-1)
    # Viewed as unsigned, negative rows are huge: one pass over the rows finds both kinds.
    if rows.size and int(rows.view(np.uint64).max()) >= length:
        if int(rows.min()) < 0:
            wrong = int(rows.min())
        else:
            wrong = int(rows.max())
        raise RowIndexError(
            f"{noun} {wrong} is out of range: {noun}s are at least 0 and below "
            f"{length}"
        )
    return rows


def read_columns(source: BaseSource, rows: Integers) -> Tree:
    """Reads whole rows of a source with a spec by its `read_into`.

    Raises:
        SourceError: When there is not enough memory for them; names the leaf.
    """
    specs, structure = flatten_spec(source.spec)
    out = []
    for spec, path in zip(specs, structure.paths, strict=True):
        try:
            out.append(np.empty((len(rows), *spec.shape), spec.dtype))
        except (
            MemoryError,
            ValueError,
        ) as error:  # ValueError: beyond the address space
            raise SourceError(
                f"{f'leaf {path}' if path else 'the data'}: there is not enough "
                f"memory for {len(rows)} x "
                f"{spec.dtype}{list(spec.shape)}, {size_text(spec.nbytes)} each; "
                "check its shape"
            ) from error
    source.read_into(rows, [all_columns(spec.shape) for spec in specs], out)
    return structure.build(out)


def with_leaves(source: _Source, leaves: Tree) -> _Source:
    """A copy of a source of a tree of arrays with some of them; see `BaseSource.keep_leaves`."""
    other = copy.copy(source)
    known = vars(source)
    indices, structure = flatten(leaves)
    specs = flatten_spec(known["spec"])[0]
    arrays = [known["_arrays"][index] for index in indices]
    spec = structure.build(specs[index] for index in indices)
    vars(other).update(_arrays=arrays, _structure=structure, spec=spec)
    return other


def common_length(paths: Sequence[str], lengths: Sequence[int]) -> int:
    """Returns the length that all leaves share.

    Raises:
        SourceError: When there is no leaf, or lengths differ; lists every leaf with its length.
    """
    if not lengths:
        raise SourceError("the data has no arrays; pass at least one leaf")
    if len(set(lengths)) > 1:
        shown = ", ".join(
            f"{path}: {length}" for path, length in zip(paths, lengths, strict=True)
        )
        raise SourceError(
            f"the leaves have different numbers of rows ({shown}); dim 0 of every "
            "leaf must be equal"
        )
    return lengths[0]


def chunk_starts(source: BaseSource) -> Integers | range | None:
    """The rows at which what `source` decodes together begins; None when it does not say, or decodes row by row.

    Raises:
        SourceError: When they don't begin at 0, don't ascend, or exceed its length.
    """
    given = source.chunks
    length = len(source)
    if given is None or len(given) in (0, length):
        return None
    starts = given if isinstance(given, range) else np.asarray(given)
    if isinstance(starts, range):
        good = starts.start == 0 and starts.step > 0 and starts[-1] < length
    else:
        good = (
            starts.dtype.kind in "iu"
            and starts.ndim == 1
            and starts[0] == 0
            and starts[-1] < length
        )
        good = good and bool((np.diff(starts) > 0).all())
    if not good:
        raise SourceError(
            f"{source.type_name}.chunks is {given!r}; give the rows at which chunks "
            f"begin: ascending ints from 0, below {length}"
        )
    return starts if isinstance(starts, range) else starts.astype(np.int64)


def chunk_rows(source: BaseSource) -> int | None:
    """The most common number of rows in a chunk of `source`; None if it has no chunks."""
    starts = chunk_starts(source)
    if starts is None:
        return None
    if isinstance(starts, range):
        return min(starts.step, len(source))
    sizes, counts = np.unique(np.diff(starts, append=len(source)), return_counts=True)
    return int(sizes[np.argmax(counts)])
