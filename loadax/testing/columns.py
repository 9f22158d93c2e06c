"""Laws of `Source.read_into`: it writes the requested columns of the requested leaves, and nothing else."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.protocols import ArraySpec, Columns, Integers
from loadax.testing.comparison import difference
from loadax.testing.laws import Law, show_rows
from loadax.testing.reads import absent_rows, check_absent
from loadax.testing.subject import ROWS_STAY, Subject

COLUMNS = Law(
    "read_into equals read",
    "read_into must write the columns of each box, of every requested row, into its destination",
)
OUTSIDE = Law(
    "nothing beside the destination",
    "read_into must write to its destination alone: other rows, and other devices' columns, surround it",
)
NOT_WANTED = Law("leaves that are not wanted", "a leaf whose box and destination are None must be left out")

_TRIALS = 24
_GUARD = 0xA5  # fill byte of each destination and its surroundings
_MARGIN = 64  # bytes before and after it: a usual alignment

ReadInto = Callable[..., Any]


def check_columns(subject: Subject) -> None:
    """Checks the laws of `read_into`, if the source has it."""
    if not subject.source.reads_columns:
        return
    read_into = subject.source.read_into
    nothing: list[None] = [None] * len(subject.leaves)
    _call(subject, read_into, subject.draw(2), nothing, nothing, NOT_WANTED, "")
    kinds = ("contiguous", "not contiguous", "not aligned")
    for trial in range(_TRIALS):
        rows = _rows(subject, trial)
        # The first trials read all columns of all leaves, as every loader does.
        boxes = [_full(leaf) if trial < len(kinds) else _box(subject, leaf) for leaf in subject.leaves]
        _check(subject, read_into, rows, boxes, kinds[trial % len(kinds)])
    all_columns = [_full(leaf) for leaf in subject.leaves]
    out = [np.empty((1, *leaf.shape), leaf.dtype) for leaf in subject.leaves]
    for row in absent_rows(subject):
        check_absent(subject, [row], lambda rows: read_into(rows, all_columns, out), "read_into")


def _rows(subject: Subject, trial: int) -> Integers:
    if trial % 4 == 0:
        return subject.sample
    if trial == _TRIALS - 1:
        return np.empty(0, np.int64)
    return subject.draw(int(subject.random.integers(1, 2 * len(subject.sample) + 1)))


def _check(subject: Subject, read_into: ReadInto, rows: Integers, boxes: list[Columns | None], kind: str) -> None:
    guarded = [
        None if box is None else _guarded(kind, (len(rows), *(stop - start for start, stop in box)), leaf.dtype)
        for box, leaf in zip(boxes, subject.leaves, strict=True)
    ]
    shown = f" with the boxes {boxes} and destinations that are {kind}"
    _call(subject, read_into, rows, boxes, [None if pair is None else pair[0] for pair in guarded], COLUMNS, shown)
    whole = subject.expected(rows) if len(rows) else [np.empty((0, *leaf.shape), leaf.dtype) for leaf in subject.leaves]
    for path, box, leaf, pair in zip(subject.paths, boxes, whole, guarded, strict=True):
        if box is None or pair is None:
            continue
        array, memory = pair
        wanted = leaf[(slice(None), *(slice(*column) for column in box))]
        mismatch = difference([array], [wanted], [path], rows)
        if mismatch:
            raise COLUMNS.broken(subject.name, f"in read_into({show_rows(rows)}){shown} {mismatch}")
        if memory is not None:
            array[...] = _guard(array.dtype)
            if (memory != _GUARD).any():
                raise OUTSIDE.broken(
                    subject.name,
                    f"read_into({show_rows(rows)}){shown} wrote beside the destination of leaf {path or 'given'}",
                )


def _call(
    subject: Subject,
    read_into: ReadInto,
    rows: Integers,
    boxes: list[Any],
    out: list[Any],
    law: Law,
    shown: str,
) -> None:
    asked = rows.copy()
    with law.during(subject.name, f"read_into({show_rows(asked)}){shown}"):
        read_into(rows, boxes, out)
    if not np.array_equal(rows, asked):
        raise ROWS_STAY.broken(subject.name, f"read_into({show_rows(asked)}) changed them to {show_rows(rows)}")


def _full(leaf: ArraySpec) -> Columns:
    return tuple((0, extent) for extent in leaf.shape)


def _box(subject: Subject, leaf: ArraySpec) -> Columns | None:
    """None, all columns, one element, or any box."""
    choice = subject.random.integers(5)
    if choice == 0:
        return None
    if choice == 1 or 0 in leaf.shape:
        return _full(leaf)
    starts = [int(subject.random.integers(extent)) for extent in leaf.shape]
    if choice == 2:
        return tuple((start, start + 1) for start in starts)
    return tuple(
        (start, int(subject.random.integers(start + 1, extent + 1)))
        for start, extent in zip(starts, leaf.shape, strict=True)
    )


def _guarded(kind: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.uint8] | None]:
    """A destination within guard bytes, and the whole memory."""
    if dtype.hasobject or not dtype.itemsize:  # guard bytes would be invalid references
        return np.empty(shape, dtype), None
    outer, inner = _part(shape) if kind == "not contiguous" else (shape, ())
    begin = _MARGIN + (kind == "not aligned")
    size = int(np.prod(outer, dtype=np.int64)) * dtype.itemsize
    memory = np.full(size + 2 * _MARGIN + 1, _GUARD, np.uint8)
    return memory[begin : begin + size].view(dtype).reshape(outer)[inner], memory


def _guard(dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.full(dtype.itemsize, _GUARD, np.uint8).view(dtype)


def _part(shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """A larger shape, and the index of a part of `shape` in it, with a margin on all sides."""
    if len(shape) == 1:
        return (shape[0] + 2, 2), (slice(1, -1), 0)
    return (shape[0] + 2, *(extent + 3 for extent in shape[1:])), (slice(1, -1), *(slice(1, -2) for _ in shape[1:]))
