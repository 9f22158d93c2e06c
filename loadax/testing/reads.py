"""Laws of `Source.read`, and of the claims of a source."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.protocols import Integers
from loadax.testing.comparison import difference
from loadax.testing.laws import Law, show_error, show_rows
from loadax.testing.subject import LENGTH, Subject, measure

BATCHED = Law("batched reads equal single ones", "entry i of read(rows) must be what read([rows[i]]) gives")
ORDER = Law("rows in any order", "read must return rows in the requested order, even if another one is faster to read")
REPEATS = Law("repeated rows", "read must return a row as often as it is requested")
AGAIN = Law("the same again", "a row must be the same in every read: randomness belongs in a map with rng=True")
STAY = Law(
    "results stay", "read must return memory that later reads don't write to: allocate a new array, or copy the buffer"
)
FRESH = Law(
    "memory of its own",
    "owns_memory = True promises that maps may write to the result of read: copy it, or leave owns_memory out",
)
EMPTY = Law("empty read", "read of no rows must give every leaf with 0 rows, of the right shape and dtype")
ABSENT = Law(
    "rows out of range",
    "read must raise an IndexError for each row below 0 or not below len()",
)
CHUNKS = Law(
    "chunks", "chunks must be int64[m], or a range: ascending from 0 and below len(), the first rows of chunks"
)
CONCURRENT = Law("concurrent_reads", "it must be an int, 1 or more: the best number of reads in flight")


def check_reads(subject: Subject) -> None:
    """Checks the laws of `read`, the plain ones first."""
    sample = subject.sample
    for rows, law in (
        (sample, BATCHED),
        (sample[:1], BATCHED),
        (sample[-1:], BATCHED),
        (sample[::-1].copy(), ORDER),
        (subject.random.permutation(sample), ORDER),
        (np.repeat(subject.random.permutation(sample[:4]), 2), REPEATS),
        (subject.draw(len(sample) + 2), REPEATS),
    ):
        subject.compare(subject.read(rows, law), rows, law)
    _check_repetition(subject)
    _check_fresh(subject)
    subject.read(np.empty(0, np.int64), EMPTY)
    for row in absent_rows(subject):
        check_absent(subject, [row], subject.source.read, "read")
        check_absent(subject, [0, row], subject.source.read, "read")


def check_claims(subject: Subject) -> None:
    """Checks the claims of a source about itself, except its spec."""
    _check_chunks(subject, subject.source.chunks)
    wanted = subject.source.traits.concurrent_reads
    if isinstance(wanted, bool) or not isinstance(wanted, int | np.integer) or wanted < 1:
        raise CONCURRENT.broken(subject.name, f"it is {wanted!r}")


def check_length_stays(subject: Subject) -> None:
    """Checks that reading did not change the length."""
    after = measure(subject.source, subject.name)
    if after != subject.length:
        raise LENGTH.broken(subject.name, f"len() was {subject.length} at first, but {after} after some reads")


def absent_rows(subject: Subject) -> list[int]:
    """Rows that are out of range."""
    return [subject.length, -1, subject.length + 5]


def check_absent(subject: Subject, rows: list[int], read: Callable[[Integers], Any], method: str) -> None:
    """Checks that `read(rows)` raises an IndexError."""
    shown = f"{method}({show_rows(rows)}), with len() {subject.length},"
    try:
        result = read(np.array(rows, np.int64))
    except IndexError:
        return
    except Exception as error:
        raise ABSENT.broken(subject.name, f"{shown} raised {show_error(error)}") from error
    raise ABSENT.broken(subject.name, f"{shown} returned {type(result).__name__}")


def _check_repetition(subject: Subject) -> None:
    rows = subject.draw(len(subject.sample))
    first = subject.read(rows, AGAIN)
    copies = [np.array(leaf) for leaf in first]
    subject.compare(subject.read(rows, AGAIN), rows, AGAIN)
    others = _other_rows(subject, rows)
    subject.read(others, STAY)
    mismatch = difference(first, copies, subject.paths, rows)
    if mismatch:
        raise STAY.broken(
            subject.name,
            f"after read({show_rows(others)}), in the earlier result of read({show_rows(rows)}) {mismatch}",
        )


def _other_rows(subject: Subject, rows: Integers) -> Integers:
    """As many rows, each different from the one in `rows` if the sample has several."""
    places = np.searchsorted(subject.sample, rows)
    return subject.sample[(places + 1) % len(subject.sample)]


def _check_fresh(subject: Subject) -> None:
    """Checks that results may be written to, if the source claims so; otherwise the reader copies them."""
    if not subject.source.traits.owns_memory:
        return
    # Contiguous rows, because a source is most likely to return a view of those.
    for rows in (subject.sample, subject.sample[:1]):
        leaves = subject.read(rows, FRESH)
        for path, leaf in zip(subject.paths, leaves, strict=True):
            if not leaf.flags.writeable:
                raise FRESH.broken(
                    subject.name, f"leaf {path or 'given'} of read({show_rows(rows)}) can't be written to"
                )
        before = [leaf.copy() for leaf in leaves]
        try:
            for leaf in leaves:
                _scribble(leaf)
            mismatch = difference(subject.read(rows, FRESH), before, subject.paths, rows)
        finally:  # the memory may be a mapped file of the user
            for leaf, values in zip(leaves, before, strict=True):
                leaf[...] = values
        if mismatch:
            raise FRESH.broken(
                subject.name, f"after writing to the result of read({show_rows(rows)}), in the next read {mismatch}"
            )


def _scribble(leaf: NDArray[Any]) -> None:
    if leaf.dtype.kind == "b":
        np.logical_not(leaf, out=leaf)
    elif leaf.dtype.kind in "OSU":
        leaf[...] = "written by loadax.testing"
    else:
        leaf[...] = np.full(leaf.dtype.itemsize, 0x5A, np.uint8).view(leaf.dtype)


def _check_chunks(subject: Subject, chunks: Any) -> None:
    if chunks is None:
        return
    if isinstance(chunks, range):
        starts = np.array(chunks, np.int64)
    elif isinstance(chunks, np.ndarray) and chunks.dtype == np.int64 and chunks.ndim == 1:
        starts = chunks
    else:
        kind = f"{chunks.dtype}{list(chunks.shape)}" if isinstance(chunks, np.ndarray) else type(chunks).__name__
        raise CHUNKS.broken(subject.name, f"they are {kind}")
    if not len(starts) or starts[0] != 0 or (np.diff(starts) <= 0).any() or starts[-1] >= subject.length:
        raise CHUNKS.broken(
            subject.name, f"with len() {subject.length} they are {show_rows(starts)}, the last {starts[-1:]}"
        )
