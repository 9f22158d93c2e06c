"""Laws of `Source.read`, and of the claims of a source."""

from collections.abc import Callable
from typing import Any

import numpy as np

from loadax.protocols import Integers
from loadax.sources.checks import chunk_starts
from loadax.testing.laws import Law, show_error, show_rows
from loadax.testing.subject import LENGTH, Subject, measure

READS = Law(
    "reads equal single ones",
    "entry i of read(rows) must be what read([rows[i]]) gives, for rows in any order, repeated rows and no rows, and "
    "the same each time: randomness belongs in a map with rng=True",
)
STAY = Law(
    "results stay", "read must return memory that later reads don't write to: allocate a new array, or copy the buffer"
)
FRESH = Law(
    "memory of its own",
    "owns_memory = True promises that maps may write to the result of read: copy it, or leave owns_memory out",
)
ABSENT = Law("rows out of range", "read must raise an IndexError for each row below 0 or not below len()")
CHUNKS = Law("chunks", "chunks must be int64[m], or a range: the first rows of chunks, ascending from 0, below len()")
CONCURRENT = Law("concurrent_reads", "it must be an int, 1 or more: the best number of reads in flight")


def check_reads(subject: Subject) -> None:
    """Checks the laws of `read`, the plain ones first."""
    sample, mixed = subject.sample, subject.random.permutation(subject.sample)
    first = subject.check(READS, sample)
    for rows in (sample, sample[:1], sample[-1:], sample[::-1].copy(), mixed, np.repeat(mixed[:4], 2), sample[:0]):
        subject.check(READS, rows)
    rows = subject.draw(len(sample) + 2)
    for _ in range(2):
        subject.check(READS, rows)
    subject.compare(first, sample, STAY, f"after later reads, in the first result of read({show_rows(sample)})")
    # Contiguous rows, because a source is most likely to return a view of those.
    for rows in (sample, sample[:1]) if subject.source.traits.owns_memory else ():
        _check_fresh(subject, rows)
    check_absent(subject, subject.source.read, "read")


def check_claims(subject: Subject) -> None:
    """Checks the claims of a source about itself, except its spec."""
    with CHUNKS.during(subject.name, "using them"):
        chunk_starts(subject.source)
    wanted = subject.source.traits.concurrent_reads
    if isinstance(wanted, bool) or not isinstance(wanted, int | np.integer) or wanted < 1:
        raise CONCURRENT.broken(subject.name, f"it is {wanted!r}")


def check_length_stays(subject: Subject) -> None:
    """Checks that reading did not change the length."""
    after = measure(subject.source, subject.name)
    if after != subject.length:
        raise LENGTH.broken(subject.name, f"len() was {subject.length} at first, but {after} after some reads")


def check_absent(subject: Subject, read: Callable[[Integers], Any], method: str) -> None:
    """Checks that `read(rows)` raises an IndexError for rows that are out of range."""
    length = subject.length
    for rows in ([length], [0, length], [-1], [0, -1], [length + 5]):
        try:
            did = f"returned {type(read(np.array(rows, np.int64))).__name__}"
        except IndexError:
            continue
        except Exception as error:  # noqa: BLE001 - its type and text are shown
            did = f"raised {show_error(error)}"
        raise ABSENT.broken(subject.name, f"{method}({show_rows(rows)}), with len() {length}, {did}")


def _check_fresh(subject: Subject, rows: Integers) -> None:
    """Checks that the result of a read may be written to; the reader copies those of other sources."""
    leaves, shown = subject.read(rows, FRESH), f"read({show_rows(rows)})"
    for path, leaf in zip(subject.structure.paths, leaves, strict=True):
        if not leaf.flags.writeable:
            raise FRESH.broken(subject.name, f"leaf {path or 'given'} of {shown} can't be written to")
    before = [leaf.copy() for leaf in leaves]
    try:
        for leaf in leaves:
            if leaf.dtype.kind in "bOSU":
                leaf[...] = ~leaf if leaf.dtype.kind == "b" else "written by loadax.testing"
            else:
                leaf[...] = np.full(leaf.dtype.itemsize, 0x5A, np.uint8).view(leaf.dtype)
        subject.compare(
            subject.read(rows, FRESH), rows, FRESH, f"after writing to the result of {shown}, in the next read"
        )
    finally:  # the memory may be a mapped file of the user
        for leaf, values in zip(leaves, before, strict=True):
            leaf[...] = values
