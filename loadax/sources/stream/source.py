"""StreamSource: what has no random access, as a fixed number of lanes. `OpenStream`: its rows that one run has read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from loadax.core.spec import (
    RowNames,
    all_columns,
    flatten_spec,
    normalise_spec,
    own_all,
    spec_of,
    stack,
    stack_into,
)
from loadax.core.tree import Structure
from loadax.errors import StreamError
from loadax.protocols import Array, ArraySpec, Boxes, Integers, Outputs, Tree, Visits
from loadax.sources.base import BaseSource, Traits, all_parts, asked_for
from loadax.sources.stream.blocks import (
    BlockSpec,
    FilledRows,
    block_rows,
    join_parts,
    rows_of_block,
)
from loadax.sources.stream.lane import (
    BEGIN,
    Lane,
    OpenLane,
    no_rows,
    open_rows,
    state_methods,
)

# More rows than any run reads. Sums over the parts of a mixture still fit into int64.
_ROWS = 1 << 55

# Writes rows that lanes yield, each as one leaf, into an array for each leaf of their spec.
Fill: TypeAlias = Callable[[Sequence[Any], Sequence[Array]], None]

_STACKED_BYTES = 1 << 20
# rows of lane 0, until one has no empty list
_MOST_LEADING = 64
_NOTHING = Traits()


class Origin(NamedTuple):
    """Where the lanes of a stream come from, for messages.

    Args:
        name: Name of what opens them.
        call: The call that takes their number; empty: there is one lane, always.
        inexact: Why the states of their iterators don't say where they are, so that rows are skipped instead; empty:
            they do.
    """

    name: str
    call: str = ""
    inexact: str = ""


@final
class StreamSource(BaseSource):
    """A stream that no run has opened yet. Only its first row can be read, to infer the spec.

    Row r is row r // lanes of lane r % lanes.

    Args:
        open_lane: Opens a lane.
        lanes: Number of lanes.
        spec: Spec of a row. None: inferred.
        origin: Where the lanes come from.
        below: Traits of the data that the lanes read.
        batched: Whether lanes yield blocks of rows.
        first: Stream of the same rows in another order, whose first row is read to infer the spec. None: this one.
        fill: Writes rows that lanes yield, each as one leaf, into an array for each leaf of the spec, which is given.
            None: lanes yield the rows themselves, or blocks.
    """

    def __init__(
        self,
        open_lane: OpenLane,
        lanes: int,
        spec: Tree | None,
        origin: Origin,
        below: Traits = _NOTHING,
        batched: bool = False,
        first: "StreamSource | None" = None,
        fill: Fill | None = None,
    ):
        self.open_lane = open_lane
        self.lanes = lanes
        self.batched = batched
        self.fill = fill
        self._spec = normalise_spec(spec)
        self._first_of = first
        self.origin = origin
        self.traits = Traits(
            reads_examples=not batched and fill is None,
            owns_memory=True,
            concurrent_reads=below.concurrent_reads,
            num_maps=below.num_maps,
            runs_python=True,
            row_step=lanes,
        )
        # The rows of lane 0 that `leading_rows` has read, and the iterator of the others: for the first run, since what
        # a live generator has yielded does not come again.
        self._opened: list[tuple[list[Any], Iterator[Any]]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": []}

    def __len__(self) -> int:
        return _ROWS

    def __repr__(self) -> str:
        return (
            f"a stream of {self.lanes} lane{'s' * (self.lanes != 1)} from "
            f"{self.origin.name}"
        )

    @property
    def spec(self) -> Tree | None:
        return self._spec

    @cached_property
    def row_spec(self) -> Tree:
        """Spec of a row. Reads the first one unless it is given."""
        if self._spec is None:
            return spec_of(self.first_row)
        return self._spec

    def read(self, rows: Integers) -> Tree:
        leading = self._leading(rows)
        return stack([leading], self.row_spec, [f"{rows[0] // self.lanes} of lane 0"])

    def read_examples(self, visits: Visits) -> list[Tree]:
        leading = self._leading(visits.rows)
        return own_all([leading], [f"{visits.rows[0] // self.lanes} of lane 0"])

    def lane(self, number: int, epochs: int | None, start: Any = BEGIN) -> Lane:
        """Opens a lane for one run."""
        if start.state is not None:
            open_lane = self.open_lane
        else:
            open_lane = self.open_again
        return Lane(
            open_lane,
            number,
            self.lanes,
            epochs,
            start,
            self.blocks,
            self.origin.call,
        )

    def open_again(self, number: int, lanes: int, epoch: int) -> Any:
        """Opens a lane, or takes over the one whose first rows were read already, which it yields again."""
        if (number, epoch) == (0, 0):
            with suppress(IndexError):
                return chain(*self._opened.pop())
        return self.open_lane(number, lanes, epoch)

    def of_rows(self) -> "StreamSource":
        """The stream whose lanes yield rows one by one."""
        if not self.batched and self.fill is None:
            return self
        return StreamSource(
            self._open_rows,
            self.lanes,
            self._spec,
            self.origin,
            self.traits,
            first=self,
        )

    def _open_rows(self, number: int, lanes: int, epoch: int) -> Iterator[Any]:
        opened = open_rows(self.open_again, number, lanes, epoch)
        methods = state_methods(opened)
        if self.fill is None:
            return block_rows(opened, f"lane {number}", methods)
        rows = FilledRows(opened, self.filled)
        # a generator has no states
        if methods is None:
            return (row for row in rows)
        return rows

    def filled(self, item: Any) -> Tree:
        """The row that a lane yields to be filled."""
        assert self.fill is not None
        specs, structure = self.flat_spec
        out = [np.empty((1, *spec.shape), spec.dtype) for spec in specs]
        self.fill([item], out)
        return structure.build(leaf[0] for leaf in out)

    @cached_property
    def blocks(self) -> BlockSpec | None:
        """Spec of the blocks that lanes yield. None: they yield rows."""
        if self.batched:
            return BlockSpec(self.row_spec)
        return None

    @cached_property
    def flat_spec(self) -> tuple[list[ArraySpec], Structure]:
        """Spec of a row, flattened."""
        return flatten_spec(self.row_spec)

    def leading_rows(self) -> Iterator[Any]:
        """The rows of lane 0 in epoch 0. The next run that opens the lane gets them too."""
        try:
            read, rows = self._opened.pop()
        except IndexError:
            read = []
            rows = open_rows(self.open_lane, 0, self.lanes, 0)
        # What has states is opened again.
        opened: list[tuple[list[Any], Iterator[Any]]] = []
        if not state_methods(rows):
            opened.append((read, rows))
        for row in chain(read, _appended(rows, read)):
            self._opened = opened
            if self.batched:
                leaves, structure = rows_of_block(row, "the first block of lane 0")
                yield from (
                    structure.build(leaf[index] for leaf in leaves)
                    for index in range(len(leaves[0]))
                )
            elif self.fill is not None:
                yield self.filled(row)
            else:
                yield row

    def _leading(self, rows: Integers) -> Tree:
        """One of the first rows of lane 0: an empty list in the first one may have no dtype.

        Raises:
            StreamError: If other rows are asked for.
        """
        (row, *others) = rows.tolist()
        turn, lane = divmod(row, self.lanes)
        if others or lane or turn >= _MOST_LEADING:
            raise StreamError(f"row {row}")
        if turn == 0:
            return self.first_row
        if self._first_of is not None:
            return self._first_of._leading(rows)  # noqa: SLF001 - of this class
        for leading in islice(self.leading_rows(), turn, None):
            return leading
        raise StreamError(f"row {row}")

    @cached_property
    def first_row(self) -> Tree:
        """The first row of lane 0."""
        if self._first_of is not None:
            return self._first_of.first_row
        for row in self.leading_rows():
            return row
        raise no_rows("lane 0", self.lanes, self.origin.call)


def _appended(rows: Iterator[Any], read: list[Any]) -> Iterator[Any]:
    """Yields rows, and appends each one to those that were read."""
    for row in rows:
        read.append(row)
        yield row


@final
class _Read:
    """Rows that were read from lanes for one piece.

    Args:
        rows: Their numbers, int64[n]; -1: a row that its lane lacks.
        items: Examples, in the order of `rows`. None: the rows are in `columns`.
        columns: An array for each leaf, in the order of `rows`.
    """

    def __init__(
        self, rows: Integers, items: list[Tree] | None, columns: Sequence[Array] = ()
    ):
        self.rows = rows
        self.items = items
        self.columns = columns

    def places(self, rows: Integers) -> Integers | None:
        """Indices of `rows` among those that were read; None if some of them were not."""
        order = np.argsort(self.rows)
        found = order[
            np.minimum(np.searchsorted(self.rows, rows, sorter=order), len(order) - 1)
        ]
        if np.array_equal(self.rows[found], rows):
            return found
        return None


@final
class OpenStream(BaseSource):
    """The rows that a run has read from the lanes of a stream for the pieces that are being assembled.

    Args:
        stream: The stream.
    """

    def __init__(self, stream: StreamSource):
        self._stream = stream
        # rows are stacked into their place, without a copy
        self.traits = stream.traits._replace(reads_columns=True)
        self._pieces: list[_Read] = []

    def __len__(self) -> int:
        return len(self._stream)

    def __repr__(self) -> str:
        return repr(self._stream)

    @property
    def spec(self) -> Tree | None:
        return self._stream.spec

    def add(
        self, rows: Integers, items: list[Tree] | None, columns: Sequence[Array] = ()
    ) -> _Read:
        """Adds rows that were read, until `release`; see `_Read`."""
        piece = _Read(rows, items, columns)
        self._pieces.append(piece)
        return piece

    def release(self, piece: _Read) -> None:
        """Drops rows that were added."""
        self._pieces.remove(piece)

    def read(self, rows: Integers) -> Tree:
        found = self._find(rows)
        if found is None:
            return self._stream.read(rows)
        piece, places = found
        columns = piece.columns
        structure = self._stream.flat_spec[1]
        if piece.items is not None:
            columns = self.empty(len(piece.rows))
            self.join(piece.items, piece.rows, columns)
        elif places is None:  # they may be the buffers of a batch
            return structure.build(leaf.copy() for leaf in columns)
        return structure.build(
            columns if places is None else (leaf[places] for leaf in columns)
        )

    def empty(self, count: int) -> list[Array]:
        """An array for each leaf, for `count` rows; their contents are undefined."""
        return [
            np.empty((count, *spec.shape), spec.dtype)
            for spec in self._stream.flat_spec[0]
        ]

    @cached_property
    def rows_at_once(self) -> int:
        """Number of rows to stack at once: they fit into the caches of a core."""
        row_bytes = sum(spec.nbytes for spec in self._stream.flat_spec[0])
        return max(1, _STACKED_BYTES // max(1, row_bytes))

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        if len(rows):
            found = self._find(rows)
        else:
            found = None
        if found is None:
            super().read_into(rows, boxes, out)
            return
        piece, places = found
        if piece.items is None:
            chosen: Any = slice(None) if places is None else places
            for leaf, columns, into in asked_for(piece.columns, boxes, out):
                into[...] = leaf[(chosen, *(slice(*column) for column in columns))]
        elif places is None and _whole(self._stream.flat_spec[0], boxes, out):
            whole = [destination for destination in out if destination is not None]
            self.join(piece.items, piece.rows, whole)
        else:
            super().read_into(rows, boxes, out)

    def join(self, items: list[Tree], rows: Integers, out: Sequence[Array]) -> None:
        """Stacks examples, joins parts of blocks, or fills rows.

        Args:
            items: The examples, the parts, or what lanes yield to be filled.
            rows: Numbers of the rows, int64[n].
            out: An array for each leaf, with n rows.

        Raises:
            LeafError: When one of them differs from the spec; names it.
        """
        if self._stream.batched:
            join_parts(items, out)
        elif self._stream.fill is not None:
            self._stream.fill(items, out)
        else:
            names = _row_names(rows, self._stream.lanes)
            stack_into(items, *self._stream.flat_spec, names, out)

    def read_examples(self, visits: Visits) -> list[Tree]:
        found = self._find(visits.rows)
        if found is None:
            return self._stream.read_examples(visits)
        piece, places = found
        if piece.items is None:
            return super().read_examples(visits)
        if places is None:
            items = piece.items
        else:
            items = [piece.items[place] for place in places.tolist()]
        return own_all(items, _row_names(visits.rows, self._stream.lanes))

    def _find(self, rows: Integers) -> tuple[_Read, Integers | None] | None:
        """The piece that has these rows, and their indices in it (None: all, in order). None if no piece has them."""
        pieces = list(self._pieces)
        for piece in pieces:
            if rows is piece.rows or np.array_equal(rows, piece.rows):
                return piece, None
        for piece in pieces:
            places = piece.places(rows)
            if places is not None:
                return piece, places
        return None


def _row_names(rows: Integers, lanes: int) -> RowNames:
    def name(index: int) -> str:
        row, lane = divmod(int(rows[index]), lanes)
        return f"{row} of lane {lane}"

    return RowNames(len(rows), name)


def _whole(specs: Sequence[ArraySpec], boxes: Boxes, out: Outputs) -> bool:
    """Whether all columns of all leaves are read, into memory without gaps."""
    return all(
        box == all_columns(spec.shape)
        and into is not None
        and into.dtype == spec.dtype
        and into.flags.c_contiguous
        for spec, box, into in zip(specs, boxes, out, strict=True)
    )


def streams_in(source: BaseSource) -> list[tuple[int, StreamSource]]:
    """The streams below a source, depth first, each with the number of its first row there."""
    return [
        (first_row, part)
        for _, part, first_row in all_parts(source)
        if isinstance(part, StreamSource)
    ]
