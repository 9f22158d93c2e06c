"""Laws of the reads of a source, of its claims about itself, and of the sources that it wraps."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import integer
from loadax.core.formatting import count_text
from loadax.core.spec import all_columns
from loadax.protocols import ArraySpec, Columns, Integers
from loadax.sources.base import Child
from loadax.sources.checks import chunk_starts
from loadax.testing.laws import Law, difference, show_error, show_rows
from loadax.testing.subject import Subject

READS = Law(
    "reads equal single ones",
    "entry i of read(rows) must be what read([rows[i]]) gives, for rows in any "
    "order, repeated rows and no rows, and the same each time: randomness belongs in "
    "a map with rng=True",
)
FRESH = Law(
    "results stay",
    "later reads must not write to the result of read, and maps may if owns_memory = "
    "True: allocate a new array",
)
ABSENT = Law(
    "rows out of range",
    "read must raise an IndexError for each row below 0 or not below len()",
)
CLAIMS = Law(
    "claims",
    "chunks must be the first rows of chunks, ascending from 0, below len(); "
    "concurrent_reads an int, 1 or more",
)
COLUMNS = Law(
    "read_into equals read",
    "read_into must write the columns of each box, of every row, to its destination "
    "and nothing beside it; a leaf whose box and destination are None must be left "
    "out",
)
EXAMPLES = Law(
    "rows one by one",
    "entry i of examples(rows) must equal row rows[i] of read, in its own memory",
)
WRAPPER = Law(
    "a wrapper answers for what it wraps",
    "a source that wraps others must make the same claims about its rows as those, "
    "unless it changes that aspect",
)

_TRIALS = 24  # of read_into
_GUARD = 0xA5  # fill byte of each destination and its surroundings
_MARGIN = 64  # bytes before and after it: a usual alignment
_KINDS = ("contiguous", "not contiguous", "not aligned")


def check_claims(subject: Subject) -> None:
    """Checks the claims of a source about itself, except its spec."""
    with CLAIMS.during(subject.name, "checking them"):
        chunk_starts(subject.source)
        integer("concurrent_reads", subject.source.traits.concurrent_reads, 1)


def check_reads(subject: Subject) -> None:
    """Checks the laws of `read`, the plain ones first."""
    sample = subject.sample
    mixed = subject.random.permutation(subject.sample)
    first = subject.read(sample, READS)
    twice = subject.draw(len(sample) + 2)
    some = (
        sample,
        sample[:1],
        sample[-1:],
        sample[::-1].copy(),
        mixed,
        np.repeat(mixed[:4], 2),
        sample[:0],
    )
    for rows in (*some, twice, twice):
        subject.compare(
            subject.read(rows, READS), rows, READS, f"in read({show_rows(rows)})"
        )
    subject.compare(
        first,
        sample,
        FRESH,
        f"after later reads, in the first result of read({show_rows(sample)})",
    )
    # Contiguous rows, because a source is most likely to return a view of those.
    for rows in (sample, sample[:1]) if subject.source.traits.owns_memory else ():
        leaves = subject.read(rows, FRESH)
        later = subject.read(rows, FRESH)
        for path, leaf, other in zip(
            subject.structure.paths, leaves, later, strict=True
        ):
            if not leaf.flags.writeable or np.may_share_memory(leaf, other):
                if leaf.flags.writeable:
                    which = "shares memory with that of the next read"
                else:
                    which = "can't be written to"
                raise FRESH.broken(
                    subject.name,
                    f"leaf {path or 'given'} of read({show_rows(rows)}) {which}",
                )
    for absent in (
        [subject.length],
        [0, subject.length],
        [-1],
        [0, -1],
        [subject.length + 5],
    ):
        try:
            did = (
                "returned "
                f"{type(subject.source.read(np.array(absent, np.int64))).__name__}"
            )
        except IndexError:
            continue
        except Exception as error:  # noqa: BLE001 - its type and text are shown
            did = f"raised {show_error(error)}"
        raise ABSENT.broken(
            subject.name, f"read({absent}), with len() {subject.length}, {did}"
        )


def check_columns(subject: Subject) -> None:
    """Checks the law of `read_into`, if the source has it."""
    for trial in range(_TRIALS if subject.source.traits.reads_columns else 0):
        if trial % 4 == 0:
            rows = subject.sample
        else:
            rows = subject.draw(trial * len(subject.sample) // 8)
        if trial == _TRIALS - 1:
            rows = rows[:0]
        kind = _KINDS[trial % len(_KINDS)]
        boxes = [_box(subject, leaf, trial) for leaf in subject.leaves]
        guarded: list[Any] = [
            (None, None)
            if box is None
            else _guarded(
                kind, (len(rows), *(stop - start for start, stop in box)), leaf
            )
            for box, leaf in zip(boxes, subject.leaves, strict=True)
        ]
        with subject.watched(rows, COLUMNS, "read_into") as (asked, shown):
            subject.source.read_into(asked, boxes, [array for array, _ in guarded])
        leaves = zip(
            subject.structure.paths,
            boxes,
            subject.expected(rows),
            guarded,
            strict=True,
        )
        for path, box, leaf, (array, memory) in leaves:
            if box is None:
                continue
            mismatch = difference(
                [array],
                [leaf[(slice(None), *(slice(*column) for column in box))]],
                [path],
                rows,
            )
            if len(memory):
                array[...] = np.frombuffer(
                    bytes([_GUARD]) * array.itemsize, array.dtype
                )
            else:
                array[...] = array
            if not mismatch and (memory != _GUARD).any():
                mismatch = (
                    f"it wrote beside the destination of leaf {path or 'given'}"
                )
            if mismatch:
                where = (
                    f"in {shown} with the boxes {boxes} and destinations that are "
                    f"{kind}"
                )
                raise COLUMNS.broken(subject.name, f"{where} {mismatch}")


def _box(subject: Subject, leaf: ArraySpec, trial: int) -> Columns | None:
    """None, all columns, or any box. The first trials read all columns, as every loader does, and then none."""
    choice = (
        subject.random.integers(4) if trial > len(_KINDS) else trial < len(_KINDS)
    )
    if choice < 2 or 0 in leaf.shape:
        if choice:
            return all_columns(leaf.shape)
        return None
    starts = subject.random.integers(0, leaf.shape).tolist()
    stops = subject.random.integers(starts, leaf.shape).tolist()
    return tuple((start, stop + 1) for start, stop in zip(starts, stops, strict=True))


def _guarded(
    kind: str, shape: tuple[int, ...], leaf: ArraySpec
) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """A destination within guard bytes, and the whole memory."""
    dtype = leaf.dtype
    # guard bytes would be invalid references
    if dtype.hasobject or not dtype.itemsize:
        return np.empty(shape, dtype), np.empty(0, np.uint8)
    gaps = kind == "not contiguous"  # on all sides, and between entries
    if gaps:
        outer = (*(extent + 2 for extent in shape), 2)
    else:
        outer = shape
    inner: Any
    if gaps:
        inner = (*(slice(1, -1) for _ in shape), 0)
    else:
        inner = ...
    begin = _MARGIN + (kind == "not aligned")
    size = int(np.prod(outer, dtype=np.int64)) * dtype.itemsize
    memory = np.full(size + 2 * _MARGIN + 1, _GUARD, np.uint8)
    return memory[begin : begin + size].view(dtype).reshape(outer)[inner], memory


def check_wrapper(subject: Subject) -> None:
    """Checks that a wrapper makes the same claims about its rows as the sources that it wraps."""
    for child in subject.source.children:
        for claim, own, its in _claims(subject, child):
            if own != its:
                text = (
                    f"{claim} is {own!r}, that of {child.source.type_name} is {its!r}"
                )
                raise WRAPPER.broken(subject.name, text)
    if subject.source.children:
        again = subject.source.map_children(lambda child: child.source)
        if len(again) != subject.length:
            raise WRAPPER.broken(
                subject.name,
                f"rebuilt on the same sources it has {count_text(len(again), 'row')}",
            )
        subject.check_examples(
            again, subject.sample, WRAPPER, "rebuilt on the same sources,"
        )


def _claims(subject: Subject, child: Child) -> Iterator[tuple[str, Any, Any]]:
    """Answers of a wrapper about itself and its rows, with what follows from what a child says."""
    source = subject.source
    inner = child.source
    first = child.first_row
    own = source.traits._asdict()
    its = inner.traits._asdict()
    implied = ["concurrent_reads", "num_maps", "random", "runs_python"]
    only = first == 0 and len(inner) == len(source) and len(source.children) == 1
    if only and own["num_maps"] == its["num_maps"]:  # else its rows are mapped
        implied.append("reads_examples")
        yield "chunks", _listed(source.chunks), _listed(inner.chunks)
    for trait in implied:
        yield trait, own[trait], max(own[trait], its[trait])
    yield "describe()", source.describe(), source.describe() or inner.describe()
    if first is None:
        return
    if not 0 <= first <= first + len(inner) <= subject.length:
        raise WRAPPER.broken(
            subject.name,
            f"{inner.type_name} has {count_text(len(inner), 'row')} from row "
            f"{first} on",
        )
    inside = (subject.sample >= first) & (subject.sample < first + len(inner))
    for row in subject.sample[inside].tolist():
        yield f"locate({row})", source.locate(row), inner.locate(row - first)
        yield f"documents({row})", source.documents(row), inner.documents(row - first)
        lengths = _listed(source.lengths(np.array([row])))
        if lengths is not None:
            yield (
                f"lengths([{row}])",
                lengths,
                _listed(inner.lengths(np.array([row - first]))),
            )


def _listed(array: Integers | range | None) -> list[int] | None:
    if array is None:
        return None
    return np.asarray(array).tolist()
