"""PackedSource: several documents in each row of fixed length, with segment ids and positions."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.casting import fill_value
from loadax.core.spec import flatten_spec
from loadax.core.tree import flatten
from loadax.errors import ArgumentError
from loadax.protocols import ArraySpec, Columns, Integers, Tree
from loadax.sources.base import MapChild
from loadax.sources.checks import check_rows, chunk_starts
from loadax.sources.io.byte_stream import indices
from loadax.sources.wrappers.packed_rows import Documents, PackedRows, Plan

_AT_ONCE = 1 << 20  # rows per step of a scan over all rows

_MASK = "loss_mask"
_ADDED = {_MASK: np.dtype(np.bool_), "positions": np.dtype(np.int32), "segment_ids": np.dtype(np.int32)}


class Part(NamedTuple):
    """Part of a document in a packed row: source row, first entry, length, and first column."""

    row: int
    start: int
    length: int
    column: int


@final
class PackedSource(PackedRows):
    """Row i: the documents of row i of a plan, `seq_len` entries of every leaf, padded.

    Examples are dicts of the documents' leaves and of `segment_ids` (1, 2, … within the row; 0: padding), `positions`
    (from 0 in every segment) and `loss_mask` (whether the previous entry is of the same segment, so that this one can
    be predicted; and, if documents have a leaf of that name, whether that is true).

    Args:
        documents: Documents to pack.
        plan: Assignment of documents to rows.
        seq_len: Length of a row.
        described: Everything that determines the rows, as JSON.
        summary: Text for `repr`.
        value: Value of the padding of the documents' leaves; or a dict of values by leaf, 0 for the others.
        bos: As `value`, of an entry before every document, which the plan counts as its first; None: there is none.
        given: Whether documents bring shifted targets, so that `loss_mask` is True for all of their entries.

    Raises:
        ArgumentError: When a leaf of the documents has the name of an added leaf, or `value` does not fit a leaf.
    """

    spec: Tree = None

    def __init__(
        self,
        documents: Documents,
        plan: Plan,
        seq_len: int,
        described: list[Any],
        summary: str,
        value: Any = 0,
        bos: Any = None,
        given: bool = False,
    ):
        super().__init__(documents, plan, described, summary)
        self._seq_len, self._value, self._bos, self._given = seq_len, value, bos, given
        form = documents.form
        # For every leaf: the index of the document's leaf, or the name of an added one.
        numbered = form.build(list(range(len(form.dtypes))))
        # Index of the documents' own loss mask, if they have one.
        self._own_mask: int | None = numbered.get(_MASK)
        for name in _ADDED:
            if name in numbered and name != _MASK:
                raise ArgumentError(
                    f"the documents have a leaf {name!r}, which pack() adds; rename or drop it in a map"
                )
        if self._own_mask is not None and (
            not isinstance(self._own_mask, int) or form.dtypes[self._own_mask].kind != "b"
        ):
            raise ArgumentError(
                f"the documents' leaf {_MASK!r} is not an array of bools, True where the loss counts; "
                "cast it in a map, or rename it if it is something else"
            )
        sample = form.build([ArraySpec((seq_len,), dtype) for dtype in form.dtypes])
        self.spec = {**sample, **{name: ArraySpec((seq_len,), dtype) for name, dtype in _ADDED.items()}}
        self._specs, self._structure = flatten_spec(self.spec)
        self._shows: list[Any] = flatten({**numbered, **{name: name for name in _ADDED}})[0]
        self._fills = self._fill_values("value", value)
        self._bos_values = None if bos is None else self._fill_values("bos", bos)

    def _fill_values(self, argument: str, value: Any) -> list[Any]:
        """Value of every leaf where no document has an entry."""
        names = [path[2:-2] for path in self._structure.paths]
        own = [name for name, shown in zip(names, self._shows, strict=True) if isinstance(shown, int)]
        for name in value if isinstance(value, dict) else ():
            if name not in own:
                raise ArgumentError(
                    f"{argument} has the key {name!r}, which is not a leaf of the documents: {own}; leave it out",
                    argument=argument,
                )
        return [
            fill_value(name, value, spec.dtype, argument) if isinstance(shown, int) else 0
            for name, spec, shown in zip(names, self._specs, self._shows, strict=True)
        ]

    def map_children(self, wrap: MapChild) -> "PackedSource":
        documents = self._documents.with_source(wrap(self.children[0]))
        return PackedSource(
            documents, self._plan, self._seq_len, self._described, self._summary, self._value, self._bos, self._given
        )

    @property
    def in_order(self) -> bool:
        """Whether consecutive rows hold consecutive documents of `order`."""
        return self._plan.in_order

    @property
    def runs_python(self) -> bool:
        return not self._documents.flat or self._documents.source.runs_python  # whole documents are read one by one

    @cached_property
    def chunks(self) -> Integers | None:
        """First packed rows per chunk of documents, if documents are packed in source order; None otherwise."""
        starts = chunk_starts(self._documents.source)
        if starts is None or not self._plan.in_order:
            return None
        begins, last = [], -1
        for low in range(0, len(self), _AT_ONCE):
            rows = np.arange(low, min(low + _AT_ONCE, len(self)))
            firsts = self._documents.row_of(self._plan.first_documents(rows))
            chunk = (
                firsts // starts.step
                if isinstance(starts, range)
                else np.searchsorted(starts, firsts, side="right") - 1
            )
            turns = np.diff(chunk, prepend=last)
            if (turns < 0).any():
                return None
            begins.append(rows[turns > 0])
            last = int(chunk[-1])
        return np.concatenate(begins)

    def read(self, rows: Integers) -> Tree:
        rows = check_rows(rows, len(self))
        out = [
            np.full((len(rows), self._seq_len), fill, spec.dtype)
            for spec, fill in zip(self._specs, self._fills, strict=True)
        ]
        self._fill(rows, 0, self._seq_len, dict(enumerate(out)))
        return self._structure.build(out)

    def documents(self, row: int) -> list[Part]:
        segments = self._plan.segments(check_rows([row], len(self)))
        rows = self._documents.row_of(segments.documents)
        skips, lengths, begins = self._without_bos(segments.skips, segments.lengths)
        columns = (values.tolist() for values in (rows, skips, lengths, segments.columns + begins))
        return [Part(*fields) for fields in zip(*columns, strict=True)]

    @property
    def reads_columns(self) -> bool:
        return self._documents.flat  # documents that are read whole cost the same for any columns

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        rows = check_rows(rows, len(self))
        for low, high in sorted({box[0] for box in boxes if box is not None}):
            same = {
                leaf: destination
                for leaf, (box, destination) in enumerate(zip(boxes, out, strict=True))
                if box is not None and box[0] == (low, high) and destination is not None
            }
            for leaf, destination in same.items():
                destination[...] = self._fills[leaf]
            self._fill(rows, low, high, same)

    def _fill(self, rows: Integers, low: int, high: int, out: dict[int, NDArray[Any]]) -> None:
        """Writes the columns `[low, high)` of some leaves to `out`, which contains padding."""
        segments = self._plan.segments(rows)
        first = np.maximum(segments.columns, low)
        lengths = np.minimum(segments.columns + segments.lengths, high) - first
        visible = lengths > 0
        begun = (first - segments.columns)[visible]  # entries of the segment before the first column
        lengths, first = lengths[visible], first[visible]
        places = indices(segments.rows[visible] * (high - low) + first - low, lengths)
        wanted = [False] * len(self._documents.form.dtypes)
        for leaf in out:
            number = self._own_mask if self._shows[leaf] == _MASK else self._shows[leaf]
            if isinstance(number, int):
                wanted[number] = True
        skips, read, begins = self._without_bos(segments.skips[visible] + begun, lengths)
        parts = self._documents.parts(segments.documents[visible], skips, read, wanted) if any(wanted) else []
        own = np.ones(len(places), np.bool_)  # whether an entry is the document's own
        own[(np.cumsum(lengths) - lengths)[begins]] = False
        for leaf, destination in out.items():
            match self._shows[leaf]:
                case "segment_ids":
                    values: Any = np.repeat(segments.numbers[visible], lengths)
                case "positions":
                    values = indices(begun, lengths)
                case "loss_mask":
                    values = own.copy() if self._given else indices(begun, lengths) > 0
                    if self._own_mask is not None:
                        values[own] &= parts[self._own_mask]
                case number if self._bos_values is None:
                    values = parts[number]
                case number:
                    values = np.full(len(places), self._bos_values[leaf], destination.dtype)
                    values[own] = parts[number]
            _scatter(values, places, destination)

    def _without_bos(self, skips: Integers, lengths: Integers) -> tuple[Integers, Integers, NDArray[np.bool_]]:
        """First entries and lengths of parts in the documents themselves, and which parts begin with `bos`."""
        if self._bos_values is None:
            return skips, lengths, np.zeros(len(skips), np.bool_)
        begins = skips == 0
        return np.maximum(skips - 1, 0), lengths - begins, begins


def _scatter(values: NDArray[Any], places: Integers, destination: NDArray[Any]) -> None:
    if len(places) == destination.size:  # no padding
        destination[...] = values.reshape(destination.shape)
    elif destination.flags.c_contiguous:
        destination.reshape(-1)[places] = values
    else:
        destination[np.unravel_index(places, destination.shape)] = values
