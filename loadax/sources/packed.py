"""Packed rows: documents side by side in rows of one length, with what tells them apart."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import ArgumentError
from loadax.protocols import ArraySpec, Columns, Integers, Segments, Source, Tree
from loadax.sources.checks import check_rows
from loadax.sources.flat import indices
from loadax.sources.ragged import Form
from loadax.specs import flatten_spec
from loadax.trees import flatten

_ADDED = {"loss_mask": np.dtype(np.bool_), "positions": np.dtype(np.int32), "segment_ids": np.dtype(np.int32)}


class Plan(Protocol):
    """Which documents each row holds; see `loadax.plan.pack`."""

    @property
    def size(self) -> int: ...

    def segments(self, rows: Integers) -> Segments: ...


class Documents(Protocol):
    """What is packed, numbered as the plan numbers it."""

    @property
    def form(self) -> Form: ...

    @property
    def flat(self) -> bool:
        """Whether parts of documents are read without the rest."""
        ...

    @property
    def concurrent_reads(self) -> int: ...

    @property
    def depth(self) -> int:
        """How many maps documents went through."""
        ...

    def parts(self, numbers: Integers, skips: Integers, lengths: Integers, wanted: Sequence[bool]) -> list[NDArray[Any] | None]:
        """Parts of documents one behind another, for every leaf that is wanted."""
        ...

    @property
    def source(self) -> Source:
        """What they are read from."""
        ...

    def row_of(self, numbers: Integers) -> Integers:
        """The rows of the source that documents come from."""
        ...

    def where(self, number: int) -> Any:
        """The places in files that a document comes from, or None."""
        ...


class Part(NamedTuple):
    """A part of a document that lies in a packed row: the source's row, the first entry, how many, and the column where it begins."""

    row: int
    start: int
    length: int
    column: int


@final
class PackedSource:
    """Row i: the documents of row i of a plan, `seq_len` entries of every leaf, zeros behind the last.

    Examples are dicts of the documents' leaves and of `segment_ids` (1, 2, … within the row; 0: nothing is there), `positions` (from 0 in every
    segment) and `loss_mask` (whether the entry before is of the same segment, so that this one can be predicted).

    Args:
        documents: what is packed.
        plan: into which rows.
        seq_len: of a row.
        described: what decides the rows, as JSON.
        summary: of the packing, in words.

    Raises:
        ArgumentError: when a leaf of the documents has the name of one that is added.
    """

    fresh = True  # what `read` gives is nobody else's memory

    maps_random = False

    def __init__(self, documents: Documents, plan: Plan, seq_len: int, described: list[Any], summary: str):
        self._documents, self._plan, self._seq_len, self._summary = documents, plan, seq_len, summary
        form = documents.form
        sample = form.build([ArraySpec((seq_len,), dtype) for dtype in form.dtypes])
        for name in _ADDED:
            if name in sample:
                raise ArgumentError(
                    f"the documents have a leaf {name!r}, which pack() adds by itself; rename or leave it out in a map"
                )
        added = {name: ArraySpec((seq_len,), dtype) for name, dtype in _ADDED.items()}
        self.spec = {**sample, **added}
        # Of every leaf, in leaf order: the document's leaf that it shows, or the name of what is added.
        numbered = {**form.build(list(range(len(form.dtypes)))), **{name: name for name in _ADDED}}
        self._specs, self._structure = flatten_spec(self.spec)
        self._shows: list[Any] = flatten(numbered)[0]
        self.concurrent_reads = documents.concurrent_reads
        # Not for documents that are read whole: then all columns cost no more than some.
        self.read_into = self._read_into if documents.flat else None
        self.maps_depth = documents.depth + 1
        self.maps_described = [described]

    def __len__(self) -> int:
        return self._plan.size

    @property
    def documents_source(self) -> Source:
        """What the documents are read from."""
        return self._documents.source

    def __repr__(self) -> str:
        return self._summary

    def read(self, rows: Integers) -> Tree:
        """The packed rows at `rows`."""
        rows = check_rows(rows, len(self))
        out = [np.zeros((len(rows), self._seq_len), each.dtype) for each in self._specs]
        self._fill(rows, 0, self._seq_len, dict(enumerate(out)))
        return self._structure.build(out)

    def documents(self, row: int) -> list[Part]:
        """What lies in a packed row."""
        found = self._plan.segments(check_rows([row], len(self)))
        rows = self._documents.row_of(found.documents)
        columns = (each.tolist() for each in (rows, found.skips, found.lengths, found.columns))
        return [Part(*each) for each in zip(*columns, strict=True)]

    def where(self, row: int) -> list[Any]:
        """The files that a packed row's documents lie in, each with the first and the last byte of it; as far as it is known."""
        found = self._plan.segments(check_rows([row], len(self)))
        return [place for number in found.documents.tolist() for place in self._documents.where(number) or ()]

    def _read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        """The packed rows at `rows`, only the columns of `boxes`, into `out`; see `Source`."""
        rows = check_rows(rows, len(self))
        for low, high in sorted({box[0] for box in boxes if box is not None}):
            same = {
                leaf: destination
                for leaf, (box, destination) in enumerate(zip(boxes, out, strict=True))
                if box is not None and box[0] == (low, high) and destination is not None
            }
            for each in same.values():
                each[...] = 0
            self._fill(rows, low, high, same)

    def _fill(self, rows: Integers, low: int, high: int, out: dict[int, NDArray[Any]]) -> None:
        """Writes columns `low` to before `high` of some leaves to `out`, which is zeros."""
        found = self._plan.segments(rows)
        first = np.maximum(found.columns, low)
        lengths = np.minimum(found.columns + found.lengths, high) - first
        there = lengths > 0
        begun = (first - found.columns)[there]  # entries of the segment that lie before the first column
        lengths, first = lengths[there], first[there]
        places = indices(found.rows[there] * (high - low) + first - low, lengths)
        wanted = [False] * len(self._documents.form.dtypes)
        for leaf in out:
            if isinstance(self._shows[leaf], int):
                wanted[self._shows[leaf]] = True
        parts = self._documents.parts(found.documents[there], found.skips[there] + begun, lengths, wanted) if any(wanted) else []
        for leaf, destination in out.items():
            match self._shows[leaf]:
                case "segment_ids":
                    values: Any = np.repeat(found.numbers[there], lengths)
                case "positions":
                    values = indices(begun, lengths)
                case "loss_mask":
                    values = indices(begun, lengths) > 0
                case number:
                    values = parts[number]
            _scatter(values, places, destination)


def _scatter(values: NDArray[Any], places: Integers, destination: NDArray[Any]) -> None:
    if len(places) == destination.size:  # no entry is left empty
        destination[...] = values.reshape(destination.shape)
    elif destination.flags.c_contiguous:
        destination.reshape(-1)[places] = values
    else:
        destination[np.unravel_index(places, destination.shape)] = values
