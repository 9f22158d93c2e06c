"""The next packed row, of documents that are packed as they are read.

A lane holds the parts of documents that it has read and not packed yet. They are fitted into rows, as in
`loadax.plan.fit`; "split" takes documents in order instead, and cuts the last one. The fullest row is next, and each
8th time the row of the oldest part, so that no document waits for long. The parts of other rows are fitted again, with
those that are read next. For documents of log-normal lengths, rows are 97 % full.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadax.plan.pack import PackOptions, fit_parts
from loadax.protocols import Integers

# Version of these rules, in saved states
NEXT_ROW_VERSION = 1

# by default, parts of as many rows are fitted: more fill rows better, but the first one comes later
_ROWS_HELD = 4
_OLDEST_EVERY = 8
_WHOLE = 1 << 20  # shares of rows are integers, which every machine adds up alike


def entries_wanted(rows: int, options: PackOptions) -> list[int]:
    """Entries to choose the next row from, by budget, if their number decides: it is enough to have those of one.

    Args:
        rows: Number of rows before it in this epoch. The first rows choose from fewer parts, and come earlier.
        options: How parts are packed.
    """
    wanted = min(_ROWS_HELD, rows + 2)
    return [wanted * size for size in options.seq_lens.values()]


def is_enough(
    parts: int, entries: Sequence[int], wanted: Sequence[int], options: PackOptions
) -> bool:
    """Whether enough parts were read to choose the next row.

    Args:
        parts: Number of parts that are held.
        entries: Sum of their lengths, by budget.
        wanted: What `entries_wanted` gives.
        options: How parts are packed. `window`: number of parts to choose from; 0: by their entries.
    """
    if options.window:
        return parts >= options.window
    return any(held >= most for held, most in zip(entries, wanted, strict=True))


def next_row(lengths: Integers, rows: int, options: PackOptions) -> NDArray[np.bool_]:
    """Which parts are in the next row, bool[parts].

    Args:
        lengths: Lengths of the parts that are held, the oldest first, int64[parts, lengths].
        rows: Number of rows before it in this epoch.
        options: How they are packed.
    """
    row_of = fit_parts(lengths, options)
    shares = (lengths * _WHOLE // options.sizes).sum(axis=1)
    if rows % _OLDEST_EVERY == _OLDEST_EVERY - 1:
        row = 0
    else:
        row = int(np.argmax(np.bincount(row_of, weights=shares)))
    chosen: NDArray[np.bool_] = row_of == row
    return chosen
