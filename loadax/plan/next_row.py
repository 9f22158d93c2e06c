"""The next packed row, of documents that are packed as they are read.

A lane holds the parts of documents that it has read and not packed yet. "split" takes them in order, and cuts the last
one. Otherwise they are fitted into rows, as in `loadax.plan.fit`. The fullest row is next, and each 8th time the row of
the oldest part, so that no document waits for long. The parts of other rows are fitted again, with those that are read
next. For documents of log-normal lengths, rows are 97 % full.
"""

import numpy as np

from loadax.plan.pack import PackOptions, check_lengths, fit_parts
from loadax.protocols import Integers

# Version of these rules, in saved states
NEXT_ROW_VERSION = 1

# by default, parts of as many rows are fitted: more fill rows better, but the first one comes later
_ROWS_HELD = 4
_OLDEST_EVERY = 8
_WHOLE = 1 << 20  # shares of rows are integers, which every machine adds up alike


def document_parts(
    lengths: Integers, options: PackOptions, row: int
) -> tuple[Integers, Integers]:
    """Parts of one document; none if it is empty or dropped.

    Args:
        lengths: Lengths of its leaves, int64[lengths].
        options: How it is packed.
        row: Its row, for errors.

    Returns:
        First entry, int64[parts], and lengths of each part, int64[parts, lengths].

    Raises:
        ArgumentError: If it is longer than a row, and may be neither cut nor dropped.
    """
    documents = options.lengths(lengths[None])
    if options.method == "split":
        documents = documents[documents.any(axis=1)]
        return np.zeros(len(documents), np.int64), documents
    check_lengths(documents, options, lambda _: row)
    _, skips, sizes = options.parts(documents)
    return skips[:, 0], sizes


def is_enough(parts: int, entries: Integers, rows: int, options: PackOptions) -> bool:
    """Whether enough parts were read to choose the next row.

    Args:
        parts: Number of parts that are held.
        entries: Sum of their lengths, int64[lengths].
        rows: Number of rows before it in this epoch. The first rows choose from fewer parts, and come earlier.
        options: How parts are packed. `window`: number of parts to choose from; 0: by their entries.
    """
    if options.window:
        return parts >= options.window
    if options.method == "split":
        wanted = 1
    else:
        wanted = min(_ROWS_HELD, rows + 2)
    return bool((entries >= wanted * options.sizes).any())


def next_row(lengths: Integers, rows: int, options: PackOptions) -> Integers:
    """Entries of every part that are in the next row, int64[parts, lengths].

    Args:
        lengths: Lengths of the parts that are held, the oldest first, int64[parts, lengths].
        rows: Number of rows before it in this epoch.
        options: How they are packed.
    """
    if options.method != "split":
        row_of = fit_parts(lengths, options)
        shares = (lengths * _WHOLE // options.sizes).sum(axis=1)
        oldest = rows % _OLDEST_EVERY == _OLDEST_EVERY - 1
        row = 0 if oldest else np.argmax(np.bincount(row_of, weights=shares))
        return lengths * (row_of == row)[:, None]
    ends = np.cumsum(lengths, axis=0)
    used: Integers = np.minimum(ends, options.sizes) - np.minimum(
        ends - lengths, options.sizes
    )
    return used
