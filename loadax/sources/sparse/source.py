"""SparseSource: rows of a CSR matrix, as ragged entries or dense."""

import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, final

import numpy as np

from loadax.core.spec import split_rows
from loadax.errors import SourceError
from loadax.protocols import Array, ArraySpec, Integers, Location, Tree, Visits
from loadax.sources.arrays import ArraySource, rows_in_memory, some_rows
from loadax.sources.base import Attributes, BaseSource, Traits
from loadax.sources.checks import check_rows
from loadax.sources.sparse.entries import Entries, StoredEntries
from loadax.sources.wrappers.chunk_cache import chunk_of

INDICES = "indices"
VALUES = "values"
DENSE = "x"  # the leaf of dense rows


@final
@dataclass(frozen=True)
class Csr:
    """A CSR matrix: the entries of row i are `[bounds[i], bounds[i + 1])` of the flat arrays.

    Args:
        indices: Column of each entry.
        values: Value of each entry.
        bounds: First entry of each row, and the end of the last one, int64[rows + 1].
        columns: Number of columns.
        name: Name for messages.

    Raises:
        SourceError: When the bounds don't fit the arrays.
    """

    indices: Entries
    values: Entries
    bounds: Integers
    columns: int
    name: str

    def __post_init__(self) -> None:
        bounds = self.bounds
        falls = np.flatnonzero(bounds[1:] < bounds[:-1])
        counts = f"{len(self.indices)} indices and {len(self.values)} values"
        if len(self.indices) != len(self.values):
            problem = f"has {counts}"
        elif len(falls):
            problem = (
                f"has an indptr with {bounds[falls[0] + 1]} after {bounds[falls[0]]}"
            )
        elif bounds[0] != 0 or bounds[-1] > len(self.indices):
            problem = f"has an indptr from {bounds[0]} to {bounds[-1]}, but {counts}"
        else:
            return
        raise SourceError(f"{self.name} {problem}; write the matrix again")

    @property
    def flats(self) -> tuple[Entries, Entries]:
        return self.indices, self.values

    def gather(self, rows: Integers) -> tuple[Array, Array]:
        """Columns (int32, or int64 of 2^31 columns or more) and values of the entries of rows, concatenated.

        Raises:
            SourceError: When a column is out of range; names the row.
        """
        first = self.bounds[rows]
        lengths = self.bounds[rows + 1] - first
        filled = lengths > 0
        if not filled.any():
            columns, values = (np.empty(0, each.spec.dtype) for each in self.flats)
        else:
            columns, values = (
                each.gather(first[filled], lengths[filled]) for each in self.flats
            )
        if len(columns) and not 0 <= columns.min() <= columns.max() < self.columns:
            wrong = int(np.argmax((columns < 0) | (columns >= self.columns)))
            row = rows[np.searchsorted(np.cumsum(lengths), wrong, side="right")]
            raise SourceError(
                f"{self.name}: row {row} has an entry in column {columns[wrong]}, but "
                f"columns are at least 0 and below {self.columns}; write the matrix "
                "again"
            )
        return columns.astype(self.index_dtype, copy=False), values

    @property
    def index_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int32 if self.columns < 1 << 31 else np.int64)


@final
class SparseSource(BaseSource):
    """Row i: the entries of row i of a CSR matrix, beside columns with one value a row.

    Args:
        csr: The matrix.
        beside: Columns beside it; None: there are none.
        dense: Whether a row is `x`, of all columns, instead of `indices` and `values`.
        attributes: Names of the categories of the columns.
        kept: Number of chunks whose entries are kept in memory.
    """

    spec: Tree = None

    def __init__(
        self,
        csr: Csr,
        beside: ArraySource | None,
        dense: bool,
        attributes: Attributes,
        kept: int = 0,
    ):
        self.csr = csr
        self.dense = dense
        self._beside = beside
        self._kept = kept
        self._chunks: OrderedDict[int, Future[tuple[Array, Array]]] = OrderedDict()
        self._lock = threading.Lock()
        self._length = len(csr.bounds) - 1
        reads = [each.reads for each in csr.flats if isinstance(each, StoredEntries)]
        self.traits = Traits(
            reads_examples=not dense,
            owns_memory=True,
            concurrent_reads=min(reads, default=1),
            kept_chunks=kept,
            attributes=attributes,
        )
        if dense:
            x = ArraySpec((csr.columns,), csr.values.spec.dtype)
            self.spec = {DENSE: x, **({} if beside is None else beside.spec)}

    def __repr__(self) -> str:
        return (
            f"{self.csr.name}, {len(self.csr.indices)} entries in {self.csr.columns} "
            "columns"
        )

    def __reduce__(self) -> Any:
        # another process has chunks of its own
        given = (
            self.csr,
            self._beside,
            self.dense,
            self.traits.attributes,
            self._kept,
        )
        return SparseSource, given

    @cached_property
    def chunks(self) -> Integers | None:
        """First rows of the chunks of the array with the largest ones; None if entries are in memory."""
        stored = [each for each in self.csr.flats if isinstance(each, StoredEntries)]
        size = max((each.chunk_entries for each in stored), default=1)
        if size == 1 or not self._length:
            return None
        begins = self.csr.bounds[:-1]
        marks = np.arange(size, int(begins[-1]) + 1, size)
        # rows without entries at a mark belong to the chunk before
        starts = np.unique(np.searchsorted(begins, marks, side="left"))
        return np.concatenate([[0], starts[starts > 0]]).astype(np.int64)

    def keep_chunks(self, count: int) -> "SparseSource | None":
        if self.chunks is None:
            return None
        attributes = self.traits.attributes
        return SparseSource(self.csr, self._beside, self.dense, attributes, count)

    def lengths(self, rows: Integers) -> Integers | None:
        if self.dense:
            return None
        rows = check_rows(rows, self._length)
        return self.csr.bounds[rows + 1] - self.csr.bounds[rows]

    def read_examples(self, visits: Visits) -> list[Tree]:
        rows = check_rows(visits.rows, self._length)
        if self.dense:
            return split_rows(self.read(rows), len(rows))
        columns, values = self._entries(rows)
        counts = self.csr.bounds[rows + 1] - self.csr.bounds[rows]
        cuts = pairwise([0, *np.cumsum(counts).tolist()])
        examples: list[dict[str, Any]] = [
            {INDICES: columns[begin:end], VALUES: values[begin:end]}
            for begin, end in cuts
        ]
        if self._beside is not None:
            more = split_rows(self._beside.read(rows), len(rows))
            for example, leaves in zip(examples, more, strict=True):
                example.update(leaves)
        return examples

    def read(self, rows: Integers) -> Tree:
        """Reads rows, dense, or of equal numbers of entries.

        Raises:
            SourceError: When rows can't be stacked, or an entry is out of range.
        """
        rows = check_rows(rows, self._length)
        columns, values = self._entries(rows)
        counts = self.csr.bounds[rows + 1] - self.csr.bounds[rows]
        if self.dense:
            leaves = {DENSE: self._filled(columns, values, counts)}
        else:
            if len(np.unique(counts)) > 1:
                raise SourceError(
                    f"the {len(rows)} requested rows have different numbers of "
                    "entries and can't be stacked; pack them with "
                    "loadax.pack_sparse(data), pad them with .pad(lengths), or open "
                    "them with dense=True"
                )
            shape = (len(rows), len(columns) // max(1, len(rows)))
            leaves = {INDICES: columns.reshape(shape), VALUES: values.reshape(shape)}
        if self._beside is None:
            return leaves
        return leaves | self._beside.read(rows)

    @property
    def addresses(self) -> list[str]:
        return sorted({place for each in self.csr.flats for place in each.addresses})

    def held(self, most: int) -> list[Array]:
        bounds = self.csr.bounds
        entries: Any = self.csr.flats
        beside = [] if self._beside is None else self._beside.held(most)
        return [
            *rows_in_memory(entries, most),
            some_rows(bounds, bounds.nbytes, most),
            *beside,
        ]

    def locate(self, row: int) -> list[Location]:
        index = int(check_rows([row], self._length)[0])
        begin, end = self.csr.bounds[index : index + 2].tolist()
        found = [
            place for each in self.csr.flats for place in each.locate(begin, end)
        ]
        return list(dict.fromkeys(found))

    def _filled(self, columns: Array, values: Array, counts: Integers) -> Array:
        """Dense rows; entries of one column are added, as SciPy does."""
        dense = np.zeros((len(counts), self.csr.columns), values.dtype)
        starts = np.arange(len(counts)) * self.csr.columns
        np.add.at(dense.reshape(-1), np.repeat(starts, counts) + columns, values)
        return dense

    def _entries(self, rows: Integers) -> tuple[Array, Array]:
        """Columns and values of the entries of rows, concatenated, from chunks in memory if these are kept."""
        starts = self.chunks if self._kept else None
        if starts is None or not len(rows):
            return self.csr.gather(rows)
        numbers = chunk_of(starts, rows)
        chunks = {
            number: self._chunk(starts, number)
            for number in np.unique(numbers).tolist()
        }
        bounds = self.csr.bounds
        before = bounds[starts[numbers]]
        places = zip(
            numbers.tolist(),
            (bounds[rows] - before).tolist(),
            (bounds[rows + 1] - before).tolist(),
            strict=True,
        )
        parts = [
            [flat[begin:end] for flat in chunks[number]]
            for number, begin, end in places
        ]
        columns, values = map(np.concatenate, zip(*parts, strict=True))
        return columns, values

    def _chunk(self, starts: Integers, number: int) -> tuple[Array, Array]:
        """Entries of the rows of a chunk, read by the first who asks, and kept until others take their place."""
        with self._lock:
            known = self._chunks.get(number)
            chunk = self._chunks[number] = known or Future()
            self._chunks.move_to_end(number)
            while len(self._chunks) > self._kept:
                self._chunks.popitem(last=False)
        if known is None:
            end = [*starts[number + 1 : number + 2].tolist(), self._length][0]
            try:
                chunk.set_result(self.csr.gather(np.arange(starts[number], end)))
            except BaseException as error:
                with self._lock:
                    self._chunks.pop(number, None)
                chunk.set_exception(error)
                raise
        return chunk.result()


def columns_of(source: BaseSource) -> set[int]:
    """Numbers of columns of the sparse matrices below a source."""
    from loadax.sources.base import walk

    return {
        each.csr.columns for each in walk(source) if isinstance(each, SparseSource)
    }
