"""Reads every selected row once, in large batches: a pass whose parts are spans of rows."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.leaf_names import path_of, value_at
from loadax.core.spec import flatten_spec, leaf_arrays
from loadax.core.tree import LEAF, flatten
from loadax.core.user_object import RAISED, blame
from loadax.errors import LeafError
from loadax.kept.kept_pass import part_size
from loadax.protocols import Integers, Tree, Visits
from loadax.reader import Reader
from loadax.sources.checks import chunk_starts

_SPAN_BYTES = 4 << 20
SPAN_ROWS = 1024
_WORKERS = 4
_MOST_WORKERS = 32


class RowSpan(NamedTuple):
    """Rows that were read together.

    Args:
        rows: Rows, int64[n].
        batch: Tree of arrays whose first dimension is n; None if rows were read one by one.
        listed: One tree per row, if rows were read one by one; shapes may differ.
        over: Event that cancels the pass.
    """

    rows: Integers
    batch: Tree | None
    listed: list[Tree]
    over: threading.Event

    def examples(self) -> Iterator[tuple[int, Tree]]:
        """Yields each row with its example."""
        examples = self.listed if self.batch is None else _apart(self.batch)
        for row, example in zip(self.rows.tolist(), examples, strict=True):
            if self.over.is_set():
                raise CancelledError
            yield row, example

    def column(self, index: int, name: str) -> Any:
        """Values of one leaf for all rows: an array, or a list if rows were read one by one.

        Args:
            index: Place of the leaf among the leaves of an example.
            name: Its keys joined by dots.

        Raises:
            LeafError: When a row that was read by itself lacks the leaf; names the row.
        """
        if self.batch is None:
            return [_leaf(example, name, row) for row, example in self.examples()]
        return flatten(self.batch)[0][index]


def _leaf(example: Tree, name: str, row: int) -> Any:
    """Leaf of an example, by name: examples that were not stacked may have other leaves before it."""
    path = path_of(example, name)
    if path is None and not name:
        path = ()  # the example itself
    value = None
    if path is not None:
        value = value_at(example, path)
    if flatten(value)[1] != LEAF:
        raise LeafError(
            f"row {row}: leaf {name!r} is None or missing, but the first row has it; "
            "replace None in a map, or leave such rows out with filter()"
        )
    return value


def _apart(batch: Tree) -> Iterator[Tree]:
    """Yields the examples of a batch as read-only views, since the source may own the memory."""
    leaves, structure = flatten(batch)
    leaves = [leaf.view() for leaf in leaves]
    for leaf in leaves:
        leaf.flags.writeable = False
    for row in range(len(leaves[0])):
        yield structure.build([leaf[row] for leaf in leaves])


def read_span(reader: Reader, rows: Integers, over: threading.Event) -> RowSpan:
    """Reads rows as of epoch 0: one by one where that is not slower, so that documents may have any length."""
    visits = Visits(rows, np.zeros_like(rows))
    if reader.traits.reads_examples:
        return RowSpan(rows, None, reader.examples(visits), over)
    if reader.maps and reader.maps_columns:
        # the source reads no leaf that keep() has dropped
        specs, structure = flatten_spec(reader.spec)
        boxes = [tuple((0, extent) for extent in spec.shape) for spec in specs]
        columns = reader.mapped_columns(visits, boxes)
        return RowSpan(rows, structure.build(columns), [], over)
    return RowSpan(rows, reader.read_visits(visits), [], over)


def results(
    span: RowSpan, function: Callable[..., Any], name: str
) -> Iterator[tuple[int, Any]]:
    """Yields each row with the user function's result; adds `name` and the row to exceptions."""
    for row, example in span.examples():
        try:
            result = function(example)
        except RAISED as error:
            blame(error, name, f"loadax: in {name}, on row {row}")
            raise
        yield row, result


# Function that computes the values of a span of rows as one array.
RowFunction = Callable[[RowSpan], NDArray[Any]]


def threads_for(reader: Reader, workers: int | None) -> int:
    """Number of reader threads: more than the cores of a small machine, since reads wait for disk and network."""
    return workers or max(
        _WORKERS, min(reader.traits.concurrent_reads, _MOST_WORKERS)
    )


@final
@dataclass(frozen=True)
class RowSpans:
    """The selected rows of a source, in runs that are read together, and parts of runs.

    Args:
        reader: Reader of the rows, without random maps.
        met: Mask of the rows to read, bool[rows]; None: all.
        spans: First row of each span, and the number of rows, int64[spans + 1].
        parts: Number of the first span of each part, and the number of spans, int64[parts + 1].
        sizes: Number of selected rows of each part.
    """

    reader: Reader
    met: NDArray[np.bool_] | None
    spans: Integers
    parts: Integers
    sizes: list[int]

    def of_part(self, part: int, over: threading.Event) -> Iterator[RowSpan]:
        """Reads the runs of a part, one after the other."""
        for span in range(self.parts[part], self.parts[part + 1]):
            begin, end = self.spans[span : span + 2]
            if self.met is None:
                rows = np.arange(begin, end)
            else:
                rows = begin + np.flatnonzero(self.met[begin:end])
            yield read_span(self.reader, rows, over)


@final
@dataclass(frozen=True)
class RowWork:
    """Evaluation of a function on the selected rows; see `loadax.kept.pass_work.Work`.

    Args:
        rows: The rows.
        judge: Function to evaluate, called concurrently.
        dtype: Dtype of its values.
        label: Name of the pass, for messages.
    """

    rows: RowSpans
    judge: RowFunction
    dtype: Any
    label: str
    unit: str = "row"

    @property
    def sizes(self) -> list[int]:
        return self.rows.sizes

    def compute(self, part: int, over: threading.Event) -> dict[str, NDArray[Any]]:
        """Values of the selected rows of a part."""
        values = [np.empty(0, self.dtype)]
        values.extend(map(self.judge, self.rows.of_part(part, over)))
        return {"values": np.concatenate(values)}


def row_spans(
    reader: Reader, met: NDArray[np.bool_], most_rows: int = SPAN_ROWS
) -> RowSpans:
    """Plans spans of whole chunks with at least one selected row, and parts of them, from numbers alone."""
    total = len(met)
    group = 1
    begins = np.empty(0, np.int64)
    if met.any():  # else no row is read for its size
        together = max(1, min(_SPAN_BYTES // max(1, _row_bytes(reader)), most_rows))
        rows = part_size(total, together)
        size = min(together, rows)
        starts = chunk_starts(reader.source)
        if isinstance(starts, range):
            begins = np.arange(0, total, starts.step * max(1, size // starts.step))
        else:
            begins = np.arange(0, total, size)
            if starts is not None:
                begins = np.unique(
                    starts[np.searchsorted(starts, begins, side="right") - 1]
                )
        # a span has a whole chunk, which may be larger than a part
        group = max(1, rows * len(begins) // total)
        begins = begins[np.logical_or.reduceat(met, begins)]
    parts = np.append(np.arange(0, len(begins), group), len(begins))
    spans = np.append(begins, total)
    sizes = [
        int(np.count_nonzero(met[low:high]))
        for low, high in pairwise(spans[parts].tolist())
    ]
    return RowSpans(reader, None if met.all() else met, spans, parts, sizes)


def _row_bytes(reader: Reader) -> int:
    """Bytes of a row of the source; of the first row if sizes may differ."""
    # rows are stacked or mapped; others may have no common spec
    if reader.maps or not reader.traits.reads_examples:
        # which infers the specs once, before the threads start
        return reader.source_row_bytes
    assert reader.first is not None
    return sum(leaf.nbytes for leaf in leaf_arrays(reader.examples(reader.first)[0]))
