"""What every source checks in the same words."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadax.errors import RowIndexError, SourceError
from loadax.protocols import Integers


def check_rows(rows: Any, length: int) -> Integers:
    """`rows` as int64[n], when each lies in `[0, length)`.

    Raises:
        RowIndexError: when one does not; shows it and the length.
    """
    rows = np.asarray(rows)
    if rows.dtype.kind not in "iu" and rows.size:
        raise RowIndexError(f"rows are {rows.dtype}; pass integers")
    rows = rows.astype(np.int64, copy=False).reshape(-1)
    # As unsigned numbers negative ones are huge, so one pass over the rows finds both kinds.
    if rows.size and int(rows.view(np.uint64).max()) >= length:
        wrong = int(rows.min()) if int(rows.min()) < 0 else int(rows.max())
        raise RowIndexError(f"row {wrong} is not there: rows are at least 0 and below {length}")
    return rows


def common_length(paths: Sequence[str], lengths: Sequence[int]) -> int:
    """The one length that all leaves have.

    Raises:
        SourceError: when there is no leaf, or they differ; lists every leaf with its length.
    """
    if not lengths:
        raise SourceError("there is no array: pass at least one leaf")
    if len(set(lengths)) > 1:
        shown = ", ".join(f"{path}: {length}" for path, length in zip(paths, lengths, strict=True))
        raise SourceError(f"the leaves have different numbers of rows ({shown}); dim 0 of every leaf must be equal")
    return lengths[0]
