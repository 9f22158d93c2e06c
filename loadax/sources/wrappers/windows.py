"""WindowSource: sliding windows over the rows of another source."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.spec import flatten_spec, normalise_spec
from loadax.errors import SourceError
from loadax.protocols import ArraySpec, Columns, Integers, Location, Tree, Visits
from loadax.sources.base import BaseSource, Child, MapChild
from loadax.sources.checks import check_rows
from loadax.sources.io.locations import joined


@final
class WindowSource(BaseSource):
    """Windows of `length` consecutive rows; window i begins at row `begin + i * stride`.

    A column box may also slice the window's dimension.

    Args:
        source: Source of the rows.
        spec: Spec of one row.
        within: Rows that windows may contain, `(begin, end)`.
        length: Rows per window: the first dimension of every leaf of an example.
        stride: Rows from the start of one window to the start of the next.
        lead: Rows from the window's last row to the first target row: an example is then a dict of `inputs` (the
            window) and `targets`. None: an example is a window.
        targets: Number of target rows.

    Raises:
        SourceError: When there are too few rows for one window.
    """

    spec: Tree = None

    def __init__(
        self,
        source: BaseSource,
        spec: Tree,
        within: tuple[int, int],
        length: int,
        stride: int,
        lead: int | None,
        targets: int,
    ):
        self._source = source
        self.traits = source.traits._replace(reads_examples=False, reads_parts=False, kept_chunks=0, attributes={})
        self._within = within
        self._row_spec = normalise_spec(spec, "spec")
        self._specs, self._structure = flatten_spec(self._row_spec)
        self._arguments = length, stride, lead, targets
        # (first row relative to the window's begin, number of rows) of inputs and targets.
        self._parts = [(0, length)] if lead is None else [(0, length), (length - 1 + lead, targets)]
        span = max(first + count for first, count in self._parts)
        available = within[1] - within[0]
        self._length = (available - span) // stride + 1 if available >= span else 0
        if self._length == 0:
            raise SourceError(
                f"a window needs {span} rows ({self._shown}), but there are only {available}; pass a smaller length"
            )
        self._stride = stride
        built = [
            self._structure.build(ArraySpec((count, *leaf.shape), leaf.dtype) for leaf in self._specs)
            for _, count in self._parts
        ]
        self.spec = built[0] if lead is None else {"inputs": built[0], "targets": built[1]}

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"windows ({self._shown}) of {self._source!r}"

    @property
    def _shown(self) -> str:
        length, stride, lead, targets = self._arguments
        return f"length={length}, stride={stride}" + ("" if lead is None else f", lead={lead}, targets={targets}")

    @property
    def children(self) -> Sequence[Child]:
        times = sum(count for _, count in self._parts) / self._stride
        return (Child("", self._source, None, max(1.0, times)),)

    def map_children(self, wrap: MapChild) -> "WindowSource":
        return WindowSource(wrap(self.children[0]), self._row_spec, self._within, *self._arguments)

    def describe(self) -> list[Any]:
        return self._source.describe()

    @property
    def chunks(self) -> Integers | range | None:
        """First windows per chunk: windows that begin in one chunk are read together."""
        starts = self._source.chunks
        if starts is None:
            return None
        if isinstance(starts, range) and starts.step % self._stride == 0 and self._within[0] % starts.step == 0:
            return range(0, self._length, starts.step // self._stride) if starts.step > self._stride else None
        first = np.unique(np.maximum(-(-(np.asarray(starts, np.int64) - self._within[0]) // self._stride), 0))
        first = first[first < self._length]
        return None if len(first) == self._length else first

    def locate(self, row: int) -> list[Location]:
        """Files of the rows of a window, as far as they are known."""
        begin = self._within[0] + int(check_rows([row], self._length)[0]) * self._stride
        rows = sorted({begin + first + offset for first, count in self._parts for offset in range(count)})
        return joined(location for inner in rows for location in self._source.locate(inner))

    def read_visits(self, visits: Visits) -> Tree:
        begins = self._within[0] + check_rows(visits.rows, self._length) * self._stride
        built = [self._source.read_runs(Visits(begins + first, visits.epochs), count) for first, count in self._parts]
        return built[0] if len(built) == 1 else {"inputs": built[0], "targets": built[1]}

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        begins = self._within[0] + check_rows(rows, self._length) * self._stride
        for (first, _), part_boxes, part in zip(self._parts, self._by_part(boxes), self._by_part(out), strict=True):
            # Leaves that need the same rows of the window, usually all of them, are read together.
            for low, high in sorted({box[0] for box in part_boxes if box is not None}):
                wanted = [box if box is not None and box[0] == (low, high) else None for box in part_boxes]
                self._source.read_runs_into(
                    begins + (first + low),
                    high - low,
                    [None if box is None else box[1:] for box in wanted],
                    [None if box is None else destination for box, destination in zip(wanted, part, strict=True)],
                )

    def _by_part(self, leaves: Sequence[Any]) -> list[Sequence[Any]]:
        count = len(self._specs)
        return [leaves[low : low + count] for low in range(0, len(leaves), count)]
