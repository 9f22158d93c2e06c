"""Law of `Source.read_into`: it writes the requested columns of the requested leaves, and nothing else."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.core.spec import all_columns
from loadax.protocols import ArraySpec, Columns, Integers
from loadax.testing.comparison import difference
from loadax.testing.laws import Law
from loadax.testing.reads import check_absent
from loadax.testing.subject import Subject

COLUMNS = Law(
    "read_into equals read",
    "read_into must write the columns of each box, of every requested row, to its destination and nothing beside it, "
    "where other rows and other devices' columns are; a leaf whose box and destination are None must be left out",
)

_TRIALS = 24
_GUARD = 0xA5  # fill byte of each destination and its surroundings
_MARGIN = 64  # bytes before and after it: a usual alignment
_KINDS = ("contiguous", "not contiguous", "not aligned")


def check_columns(subject: Subject) -> None:
    """Checks the law of `read_into`, if the source has it."""
    if not subject.source.traits.reads_columns:
        return
    full: list[Any] = [all_columns(leaf.shape) for leaf in subject.leaves]
    for trial in range(_TRIALS):
        rows = subject.sample if trial % 4 == 0 else subject.draw(trial * len(subject.sample) // 8)
        # The first trials read all columns of all leaves, as every loader does, and then none; the last one no rows.
        boxes = full if trial < len(_KINDS) else [_box(subject, leaf, trial) for leaf in subject.leaves]
        _check(subject, rows[:0] if trial == _TRIALS - 1 else rows, boxes, _KINDS[trial % len(_KINDS)])

    def read_into(rows: Integers) -> None:
        out = [np.empty((len(rows), *leaf.shape), leaf.dtype) for leaf in subject.leaves]
        subject.source.read_into(rows, full, out)

    check_absent(subject, read_into, "read_into")


def _check(subject: Subject, rows: Integers, boxes: list[Columns | None], kind: str) -> None:
    guarded = [
        None if box is None else _guarded(kind, (len(rows), *(stop - start for start, stop in box)), leaf.dtype)
        for box, leaf in zip(boxes, subject.leaves, strict=True)
    ]
    with subject.watched(rows, COLUMNS, "read_into") as (asked, shown):
        subject.source.read_into(asked, boxes, [None if pair is None else pair[0] for pair in guarded])
    shown = f"{shown} with the boxes {boxes} and destinations that are {kind}"
    for path, box, leaf, pair in zip(subject.structure.paths, boxes, subject.expected(rows), guarded, strict=True):
        if box is None or pair is None:
            continue
        array, memory = pair
        mismatch = difference([array], [leaf[(slice(None), *(slice(*column) for column in box))]], [path], rows)
        array[...] = np.frombuffer(bytes([_GUARD]) * array.itemsize, array.dtype) if len(memory) else array
        if not mismatch and (memory != _GUARD).any():
            mismatch = f"it wrote beside the destination of leaf {path or 'given'}"
        if mismatch:
            raise COLUMNS.broken(subject.name, f"in {shown} {mismatch}")


def _box(subject: Subject, leaf: ArraySpec, trial: int) -> Columns | None:
    """None, all columns, or any box."""
    choice = subject.random.integers(4) if trial > len(_KINDS) else 0
    if choice < 2 or 0 in leaf.shape:
        return all_columns(leaf.shape) if choice else None
    starts = subject.random.integers(0, leaf.shape).tolist()
    stops = subject.random.integers(starts, leaf.shape).tolist()
    return tuple((start, stop + 1) for start, stop in zip(starts, stops, strict=True))


def _guarded(kind: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """A destination within guard bytes, and the whole memory."""
    if dtype.hasobject or not dtype.itemsize:  # guard bytes would be invalid references
        return np.empty(shape, dtype), np.empty(0, np.uint8)
    gaps = kind == "not contiguous"  # on all sides, and between entries
    outer = (*(extent + 2 for extent in shape), 2) if gaps else shape
    inner: Any = (*(slice(1, -1) for _ in shape), 0) if gaps else ...
    begin, size = _MARGIN + (kind == "not aligned"), int(np.prod(outer, dtype=np.int64)) * dtype.itemsize
    memory = np.full(size + 2 * _MARGIN + 1, _GUARD, np.uint8)
    return memory[begin : begin + size].view(dtype).reshape(outer)[inner], memory
