"""StreamSource: what has no random access, as a fixed number of lanes. `OpenStream`: its rows that one run has read."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.spec import all_columns, flatten_spec, normalise_spec, own, spec_of, stack
from loadax.core.tree import flatten, map_leaves
from loadax.errors import SourceError, StreamError
from loadax.protocols import ArraySpec, Columns, Integers, Tree, Visits
from loadax.sources.base import BaseSource
from loadax.sources.stream.lane import BEGIN, Lane, OpenLane

# More rows than any run reads. Sums over the parts of a mixture still fit into int64.
_ROWS = 1 << 55


@final
class StreamSource(BaseSource):
    """A stream that no run has opened yet. Only its first row can be read, to infer the spec.

    Row r is row r // lanes of lane r % lanes.

    Args:
        open_lane: Opens a lane.
        lanes: Number of lanes.
        spec: Spec of a row. None: inferred.
        batched: Whether lanes yield blocks of rows.
        name: Name of what opens the lanes, for messages.
    """

    owns_memory = True
    runs_python = True

    def __init__(self, open_lane: OpenLane, lanes: int, spec: Tree | None, batched: bool, name: str):
        self.open_lane, self.lanes, self.batched = open_lane, lanes, batched
        self._spec = None if spec is None else normalise_spec(spec, "spec")
        self._name = name

    def __len__(self) -> int:
        return _ROWS

    def __repr__(self) -> str:
        return f"a stream of {self.lanes} lane{'s' * (self.lanes != 1)} from {self._name}"

    @property
    def spec(self) -> Tree | None:
        return self._spec

    @cached_property
    def row_spec(self) -> Tree:
        """Spec of a row. Reads the first one unless it is given."""
        return spec_of(self._first) if self._spec is None else self._spec

    @property
    def reads_examples(self) -> bool:
        return not self.batched

    def read(self, rows: Integers) -> Tree:
        self._check_first(rows)
        return stack([self._first], self.row_spec, ["0 of lane 0"])

    def read_examples(self, visits: Visits) -> list[Tree]:
        self._check_first(visits.rows)
        return [own(self._first)]

    def lane(self, number: int, epochs: int | None, start: Any = BEGIN) -> Lane:
        """Opens a lane for one run."""
        return Lane(self.open_lane, number, self.lanes, epochs, self.row_spec if self.batched else None, start)

    def _check_first(self, rows: Integers) -> None:
        if rows.tolist() != [0]:
            raise StreamError(f"row {rows.tolist()[0]}")

    @cached_property
    def _first(self) -> Tree:
        """The first row of lane 0, read with an iterator of its own."""
        for item in iter(self.open_lane(0, self.lanes, 0)):
            if not self.batched:
                return item
            leaves = [np.asarray(leaf) for leaf in flatten(item)[0]]
            if all(leaf.ndim and len(leaf) for leaf in leaves):
                return map_leaves(lambda leaf: np.asarray(leaf)[0], item)
            if any(not leaf.ndim for leaf in leaves):
                raise SourceError(
                    "batched=True, so each item of a lane must be a tree of arrays with rows as first dimension, and "
                    "the first item of lane 0 has a leaf without dimensions; leave out batched=True if lanes yield rows"
                )
        raise SourceError(
            f"lane 0 of {self.lanes} has no rows; pass a number of lanes= that each have rows, such as the number of "
            "files"
        )


@final
class _Read:
    """Rows that were read from lanes for one piece.

    Args:
        rows: Their numbers, int64[n].
        items: Examples, or lists of the leaves of blocks, in the order of `rows`.
    """

    def __init__(self, rows: Integers, items: list[Tree]):
        self.rows, self.items = rows, items

    def places(self, rows: Integers) -> Integers | None:
        """Indices of `rows` among those that were read; None if some of them were not."""
        order = np.argsort(self.rows)
        found = order[np.minimum(np.searchsorted(self.rows, rows, sorter=order), len(order) - 1)]
        return found if np.array_equal(self.rows[found], rows) else None


@final
class OpenStream(BaseSource):
    """The rows that a run has read from the lanes of a stream for the pieces that are being assembled.

    Args:
        stream: The stream.
    """

    owns_memory = True
    runs_python = True

    def __init__(self, stream: StreamSource):
        self._stream = stream
        self._pieces: list[_Read] = []

    def __len__(self) -> int:
        return len(self._stream)

    def __repr__(self) -> str:
        return repr(self._stream)

    @property
    def spec(self) -> Tree | None:
        return self._stream.spec

    @property
    def reads_examples(self) -> bool:
        return self._stream.reads_examples

    def keep(self, rows: Integers, items: list[Tree]) -> _Read:
        """Keeps rows that were read until `release`."""
        piece = _Read(rows, items)
        self._pieces.append(piece)
        return piece

    def release(self, piece: _Read) -> None:
        """Drops rows that were kept."""
        self._pieces.remove(piece)

    def read(self, rows: Integers) -> Tree:
        found = self._find(rows)
        if found is None:
            return self._stream.read(rows)
        piece, places = found
        batch = self._join(piece)
        return batch if places is None else map_leaves(lambda leaf: leaf[places], batch)

    @property
    def reads_columns(self) -> bool:
        return True  # rows are stacked into their place, without a copy in between

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        found = self._find(rows) if len(rows) else None
        specs = flatten_spec(self._stream.row_spec)[0]
        if found is None or found[1] is not None or not _whole(specs, boxes, out):
            super().read_into(rows, boxes, out)
        else:
            self._join(found[0], [destination for destination in out if destination is not None])

    def _join(self, piece: _Read, out: list[NDArray[Any]] | None = None) -> Tree:
        """The rows of a piece as one tree of arrays, in `out` if it is given."""
        spec = self._stream.row_spec
        if not self._stream.batched:
            return stack(piece.items, spec, _RowNames(piece.rows, self._stream.lanes), out)
        columns = zip(*piece.items, strict=True)
        destinations = [None] * len(piece.items[0]) if out is None else out
        joined = [np.concatenate(column, out=into) for column, into in zip(columns, destinations, strict=True)]
        return flatten_spec(spec)[1].build(joined)

    def read_examples(self, visits: Visits) -> list[Tree]:
        if self._stream.batched:
            return super().read_examples(visits)
        found = self._find(visits.rows)
        if found is None:
            return self._stream.read_examples(visits)
        piece, places = found
        return list(map(own, piece.items if places is None else (piece.items[place] for place in places.tolist())))

    def _find(self, rows: Integers) -> tuple[_Read, Integers | None] | None:
        """The piece that has these rows, and their indices in it (None: all, in order). None if no piece has them."""
        pieces = list(self._pieces)
        for piece in pieces:
            if len(rows) == len(piece.rows) and rows[0] == piece.rows[0] and np.array_equal(rows, piece.rows):
                return piece, None
        for piece in pieces:
            places = piece.places(rows)
            if places is not None:
                return piece, places
        return None


@final
class _RowNames(Sequence[str]):
    """Names of rows for errors, made only where one is needed."""

    def __init__(self, rows: Integers, lanes: int):
        self._rows, self._lanes = rows, lanes

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        row, lane = divmod(int(self._rows[index]), self._lanes)
        return f"{row} of lane {lane}"


def _whole(specs: Sequence[ArraySpec], boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> bool:
    """Whether all columns of all leaves are read, into memory without gaps."""
    return all(
        box == all_columns(spec.shape) and into is not None and into.dtype == spec.dtype and into.flags.c_contiguous
        for spec, box, into in zip(specs, boxes, out, strict=True)
    )


def streams_in(source: BaseSource, first_row: int = 0) -> Iterator[tuple[int, StreamSource]]:
    """The streams below a source, depth first, each with the number of its first row there."""
    if isinstance(source, StreamSource):
        yield first_row, source
    for child in source.children:
        if child.first_row is not None:
            yield from streams_in(child.source, first_row + child.first_row)
