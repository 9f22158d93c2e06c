"""PackedSource: several documents in each row of fixed length, with segment ids and positions."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from loadax.packing.documents import Documents
from loadax.packing.packed_rows import PackedRows
from loadax.plan.pack import ALL, DOCUMENTS, Packed
from loadax.protocols import Array, Columns, Integers, Order, Outputs, Segments, Tree
from loadax.sources.base import BaseSource, Child, MapChild, Traits
from loadax.sources.checks import check_rows, chunk_starts
from loadax.sources.wrappers.chunk_cache import chunk_of

_AT_ONCE = 1 << 20  # rows per step of a scan over all rows


class DocumentPart(NamedTuple):
    """Part of a document in a packed row: source row, first entry, length, and first column."""

    row: int
    start: int
    length: int
    column: int


class PackedDocument(NamedTuple):
    """A document in a packed row: source row, and length and first column by leaf."""

    row: int
    lengths: dict[str, int]
    columns: dict[str, int]

    @property
    def length(self) -> int:
        """Entries of all leaves."""
        return sum(self.lengths.values())


class Group(NamedTuple):
    """Leaves of one budget.

    Args:
        name: Name of the budget.
        plan: Assignment of their entries to rows, with the same documents in each row for all groups.
    """

    name: str
    plan: Packed


@final
class PackedSource(BaseSource):
    """Row i: the documents of row i of a plan.

    Args:
        documents: Documents to pack.
        groups: Groups of leaves, in the order of the budgets.
        rows: Leaves of the rows.
        described: Everything that determines the rows, as JSON.
        summary: Text for `repr`.
    """

    spec: Tree = None

    def __init__(
        self,
        documents: Documents,
        groups: Sequence[Group],
        rows: PackedRows,
        described: list[Any],
        summary: str,
    ):
        self._documents = documents
        self._groups = groups
        self._plan = groups[0].plan
        self._rows = rows
        self.described = [described]
        self._summary = summary
        flat = documents.flat
        several = self._plan.reads_per_document > 1 or documents.order.repeats
        self.traits = Traits(
            # documents that are read whole cost the same for any columns
            reads_columns=flat,
            owns_memory=True,
            concurrent_reads=documents.traits.concurrent_reads,
            num_maps=documents.traits.num_maps + 1,
            # whole documents are read one by one
            runs_python=not flat or documents.reader.source.traits.runs_python,
            shared_by=documents.reader.traits.shared_by or "pack()" * several,
        )
        self._by_leaf = groups[0].name != ALL
        self.spec = rows.spec

    def __len__(self) -> int:
        return self._plan.size

    def __repr__(self) -> str:
        return self._summary

    @property
    def seq_lens(self) -> dict[str, int]:
        """Columns of a row, by budget."""
        return self._rows.seq_lens

    @property
    def children(self) -> Sequence[Child]:
        documents = self._documents
        times = (
            self._plan.reads_per_document
            * documents.size
            / max(1, len(documents.reader.source))
        )
        return (
            Child("", documents.reader.source, None, times, documents.reader.maps),
        )

    def map_children(self, wrap: MapChild) -> "PackedSource":
        documents = self._documents.with_source(wrap(self.children[0]))
        return PackedSource(
            documents, self._groups, self._rows, self.described[0], self._summary
        )

    @property
    def child_order(self) -> Order | None:
        if self._plan.in_order:
            return self._documents.order
        return None

    @cached_property
    def chunks(self) -> Integers | None:
        """First packed rows per chunk of documents, if documents are packed in source order; None otherwise."""
        starts = chunk_starts(self._documents.reader.source)
        if starts is None or not self._plan.in_order:
            return None
        begins = []
        last = -1
        for low in range(0, len(self), _AT_ONCE):
            rows = np.arange(low, min(low + _AT_ONCE, len(self)))
            firsts = self._documents.row_of(self._plan.first_documents(rows))
            chunk = chunk_of(starts, firsts)
            turns = np.diff(chunk, prepend=last)
            if (turns < 0).any():
                return None
            begins.append(rows[turns > 0])
            last = int(chunk[-1])
        return np.concatenate(begins)

    def rows_below(self, rows: Integers) -> tuple[Integers, Integers]:
        segments = self._plan.segments(check_rows(rows, len(self)))
        return segments.rows, self._documents.row_of(segments.documents)

    def squared_lengths(self, rows: Integers) -> Array:
        segments = self._plan.segments(check_rows(rows, len(self)))
        return np.bincount(segments.rows, segments.lengths**2.0, len(rows))

    def tokens(self, rows: Integers) -> Integers:
        total = np.zeros(len(rows), np.int64)
        for group, segments in zip(self._groups, self._segments(rows), strict=True):
            if group.name != DOCUMENTS:
                entries = np.bincount(segments.rows, segments.lengths, len(rows))
                total += entries.astype(np.int64)
        return total

    def segments_of(self, row: int, budget: str) -> list[tuple[int, int]]:
        """First column and length of each document in a row, of the leaves of one budget."""
        index = [group.name for group in self._groups].index(budget)
        segments = self._segments(np.array([row]))[index]
        return list(
            zip(segments.columns.tolist(), segments.lengths.tolist(), strict=True)
        )

    def documents(self, row: int) -> list[DocumentPart] | list[PackedDocument]:
        segments = self._segments(np.array([row]))
        rows = self._documents.row_of(segments[0].documents).tolist()
        parts = [
            [skips.tolist(), lengths.tolist(), (segment.columns + begins).tolist()]
            for segment in segments
            for skips, lengths, begins in [
                self._rows.without_bos(segment.skips, segment.lengths)
            ]
        ]
        if not self._by_leaf:
            return [
                DocumentPart(*fields) for fields in zip(rows, *parts[0], strict=True)
            ]
        names = [group.name for group in self._groups if group.name != DOCUMENTS]
        return [
            PackedDocument(
                inner,
                *(
                    {
                        name: part[field][index]
                        for name, part in zip(names, parts, strict=False)
                    }
                    for field in (1, 2)
                ),
            )
            for index, inner in enumerate(rows)
        ]

    def read(self, rows: Integers) -> Tree:
        return self._rows.read(
            len(rows), self._segments(rows), self._documents.parts, self._row_of
        )

    def read_into(
        self, rows: Integers, boxes: Sequence[Columns | None], out: Outputs
    ) -> None:
        self._rows.read_into(
            self._segments(rows), self._documents.parts, self._row_of, boxes, out
        )

    def _row_of(self, document: int) -> int:
        return int(self._documents.row_of(np.array([document]))[0])

    def _segments(self, rows: Integers) -> list[Segments]:
        """Segments of rows, for each group."""
        rows = check_rows(rows, len(self))
        return [group.plan.segments(rows) for group in self._groups]
