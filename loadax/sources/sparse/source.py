"""SparseSource: rows of a CSR matrix, as ragged entries or dense."""

import threading
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, final

import numpy as np

from loadax.core.formatting import count_text
from loadax.core.spec import split_rows
from loadax.errors import SourceError
from loadax.protocols import Array, ArraySpec, Integers, Location, Tree, Visits
from loadax.sources.arrays import ArraySource
from loadax.sources.base import Attributes, BaseSource, Traits
from loadax.sources.checks import check_rows
from loadax.sources.sparse.entries import Entries, StoredEntries
from loadax.sources.tokens.token_documents import DocumentSource
from loadax.sources.wrappers.chunk_cache import chunk_of

INDICES = "indices"
VALUES = "values"
DENSE = "x"  # the leaf of dense rows


@final
@dataclass(eq=False)
class SparseSource(BaseSource):
    """Row i: the entries `[bounds[i], bounds[i + 1])` of a CSR matrix, beside columns with one value a row.

    Args:
        flats: Column and value of each entry.
        bounds: First entry of each row, and the end of the last one, int64[rows + 1].
        columns: Number of columns.
        name: Name for messages.
        beside: Columns beside it; None: there are none.
        dense: Whether a row is `x`, of all columns, instead of `indices` and `values`.
        attributes: Names of the categories of the columns.
        kept: Number of chunks whose entries are kept in memory.
    """

    flats: tuple[Entries, Entries]
    bounds: Integers
    columns: int
    name: str
    beside: ArraySource | None
    dense: bool
    attributes: Attributes
    kept: int = 0

    def __post_init__(self) -> None:
        self._documents = DocumentSource(
            self.flats, self.bounds[:-1], self.bounds[1:]
        )
        self._length = len(self.bounds) - 1
        self._stored = [
            flat for flat in self.flats if isinstance(flat, StoredEntries)
        ]
        self._lock = threading.Lock()
        self._chunk = lru_cache(max(1, self.kept))(self._read_chunk)
        self.traits = Traits(
            reads_examples=not self.dense,
            owns_memory=True,
            concurrent_reads=min((flat.reads for flat in self._stored), default=1),
            cached_chunks=self.kept,
            attributes=self.attributes,
        )

    def __repr__(self) -> str:
        entries = count_text(self.bounds[-1], "entry", "entries")
        return f"{self.name}, {entries} in {count_text(self.columns, 'column')}"

    def __reduce__(self) -> Any:
        # another process has chunks of its own
        return SparseSource, tuple(
            getattr(self, field.name) for field in fields(self)
        )

    @cached_property
    def spec(self) -> Tree | None:
        if not self.dense:
            return None
        x = ArraySpec((self.columns,), self.flats[1].spec.dtype)
        return {DENSE: x, **(self.beside.spec if self.beside else {})}

    @cached_property
    def chunks(self) -> Integers | None:
        """First rows of the chunks of the array with the largest ones; None if entries are in memory."""
        size = max((flat.chunk_entries for flat in self._stored), default=1)
        begins = self.bounds[:-1]
        if size == 1 or not self._length:
            return None
        # Rows without entries where a chunk begins belong to the one before.
        marks = np.arange(size, int(begins[-1]) + 1, size)
        return np.unique(np.append(0, np.searchsorted(begins, marks)))

    def cache_chunks(self, count: int) -> "SparseSource | None":
        return None if self.chunks is None else replace(self, kept=count)

    def lengths(self, rows: Integers) -> Integers | None:
        return None if self.dense else self._documents.lengths(rows)

    def read_examples(self, visits: Visits) -> list[Tree]:
        rows = check_rows(visits.rows, self._length)
        if self.dense:
            return split_rows(self.read(rows), len(rows))
        columns, values = self._entries(rows)
        ends = np.cumsum(self._documents.lengths(rows)).tolist()
        examples: list[Any] = [
            {INDICES: columns[begin:end], VALUES: values[begin:end]}
            for begin, end in pairwise([0, *ends])
        ]
        if self.beside is None:
            return examples
        more: Any = split_rows(self.beside.read(rows), len(rows))
        return [
            example | leaves for example, leaves in zip(examples, more, strict=True)
        ]

    def read(self, rows: Integers) -> Tree:
        """Reads rows, dense, or of equal numbers of entries.

        Raises:
            SourceError: When rows can't be stacked, or an entry is out of range.
        """
        rows = check_rows(rows, self._length)
        counts = self._documents.lengths(rows)
        columns, values = self._entries(rows)
        if self.dense:
            x = np.zeros((len(rows), self.columns), values.dtype)
            starts = np.arange(len(rows)) * self.columns
            # Adds entries of one column, as SciPy does.
            np.add.at(x.reshape(-1), np.repeat(starts, counts) + columns, values)
            leaves = {DENSE: x}
        elif len(np.unique(counts)) > 1:
            raise SourceError(
                f"the {len(rows)} requested rows have different numbers of entries and "
                "can't be stacked; pack them with loadax.pack_sparse(data), pad them "
                "with .pad(lengths), or open them with dense=True"
            )
        else:
            shape = (len(rows), len(columns) // max(1, len(rows)))
            leaves = {INDICES: columns.reshape(shape), VALUES: values.reshape(shape)}
        if self.beside is None:
            return leaves
        return leaves | self.beside.read(rows)

    @property
    def addresses(self) -> list[str]:
        return sorted({*self._documents.addresses})

    def held(self, most: int) -> list[Array]:
        beside = self.beside.held(most) if self.beside else []
        return [*self._documents.held(most), *beside]

    def locate(self, row: int) -> list[Location]:
        return list(dict.fromkeys(self._documents.locate(row)))

    def _entries(self, rows: Integers) -> tuple[Array, Array]:
        """Columns and values of the entries of rows, concatenated, from chunks in memory if these are kept."""
        if not self.kept or self.chunks is None or not len(rows):
            return self._gather(rows)
        numbers = chunk_of(self.chunks, rows)
        with self._lock:  # so that a chunk is read once
            chunks = {
                number: self._chunk(number) for number in np.unique(numbers).tolist()
            }
        before = self.bounds[self.chunks[numbers]]
        begins = (self.bounds[rows] - before).tolist()
        ends = (self.bounds[rows + 1] - before).tolist()
        places = list(zip(numbers.tolist(), begins, ends, strict=True))
        columns, values = (
            np.concatenate(
                [chunks[number][flat][begin:end] for number, begin, end in places]
            )
            for flat in (0, 1)
        )
        return columns, values

    def _read_chunk(self, number: int) -> tuple[Array, Array]:
        """Columns and values of the entries of the rows of a chunk."""
        assert self.chunks is not None, "chunks are asked for by number"
        starts = np.append(self.chunks, self._length)
        return self._gather(np.arange(starts[number], starts[number + 1]))

    def _gather(self, rows: Integers) -> tuple[Array, Array]:
        """Columns (int32, or int64 of 2^31 columns or more) and values of the entries of rows, concatenated.

        Raises:
            SourceError: When a column is out of range; names the row.
        """
        lengths = self._documents.lengths(rows)
        parts: Any = self._documents.read_parts(
            rows, np.zeros_like(rows), lengths, [True, True]
        )
        columns, values = parts
        if len(columns) and not 0 <= columns.min() <= columns.max() < self.columns:
            wrong = int(np.argmax((columns < 0) | (columns >= self.columns)))
            row = rows[np.searchsorted(np.cumsum(lengths), wrong, side="right")]
            raise SourceError(
                f"{self.name}: row {row} has an entry in column {columns[wrong]}, but "
                f"columns are at least 0 and below {self.columns}; write the matrix "
                "again"
            )
        return columns.astype(
            np.int32 if self.columns < 1 << 31 else np.int64, copy=False
        ), values
