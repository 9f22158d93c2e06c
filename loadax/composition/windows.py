"""WindowSource: sliding windows over the rows of a dataset."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple, final

import numpy as np

from loadax.core.spec import flatten_spec, normalise_spec
from loadax.core.tree import map_leaves
from loadax.errors import SourceError
from loadax.files.locations import joined
from loadax.protocols import (
    ArraySpec,
    Boxes,
    Integers,
    Location,
    Order,
    Outputs,
    Tree,
    Visits,
)
from loadax.reader import Reader
from loadax.sources.base import BaseSource, Below, Child, MapChild
from loadax.sources.checks import check_rows, read_columns


class WindowOptions(NamedTuple):
    """Rows of a window; see `Dataset.windows`.

    Args:
        length: Rows of the window: the first dimension of every leaf of an example.
        stride: Positions from the begin of one window to the begin of the next.
        lead: Positions from the window's last row to the first target row: an example is then a dict of `inputs` (the
            window) and `targets`. None: an example is a window.
        targets: Number of target rows.
        every: Positions from one row of a window to the next, and from one target to the next.
        seams: Whether windows may contain rows of several runs.
    """

    length: int
    stride: int = 1
    lead: int | None = None
    targets: int = 1
    every: int = 1
    seams: Literal["avoid", "cross"] = "avoid"

    @property
    def offsets(self) -> list[range]:
        """Positions of the rows, relative to the window's begin: of the window, and of its targets, if it has any."""
        inputs = range(0, self.length * self.every, self.every)
        if self.lead is None:
            return [inputs]
        first = inputs[-1] + self.lead
        return [inputs, range(first, first + self.targets * self.every, self.every)]

    @property
    def span(self) -> int:
        """Positions from a window's begin to the end of its last row, or of its last target."""
        return 1 + max(offsets[-1] for offsets in self.offsets)

    @property
    def overlap(self) -> bool:
        """Whether a window may have rows of the next one."""
        return self.stride < self.span

    def __str__(self) -> str:
        shown = f"length={self.length}, stride={self.stride}"
        shown += (
            "" if self.lead is None else f", lead={self.lead}, targets={self.targets}"
        )
        shown += f", every={self.every}" if self.every > 1 else ""
        return shown + (f", seams={self.seams!r}" if self.seams == "cross" else "")


@final
class WindowSource(BaseSource):
    """Windows over the rows at the positions of an order, which form runs; the first window of a run begins with it.

    A column box may also slice the window's dimension. Rows that several windows of one read contain are mapped once.

    Args:
        reader: Reader of the rows.
        spec: Spec of one row.
        order: Order of the rows, with `runs`.
        options: Rows of a window.

    Raises:
        SourceError: When no run has enough rows for a window.
    """

    spec: Tree = None

    def __init__(
        self, reader: Reader, spec: Tree, order: Order, options: WindowOptions
    ):
        self._reader = reader
        self._order = order
        self._options = options
        self.traits = reader.traits._replace(
            reads_examples=False,
            reads_columns=reader.maps_columns,
            reads_parts=False,
            kept_chunks=0,
            attributes={},
            shared_by=reader.traits.shared_by
            or (f"windows({options})" if options.overlap or order.repeats else ""),
        )
        self._row_spec = normalise_spec(spec)
        self._specs, structure = flatten_spec(self._row_spec)
        self._offsets = options.offsets
        runs = order.runs
        assert runs is not None, "Dataset.windows() refuses other orders"
        if options.seams == "avoid":
            begins = runs
        else:
            begins = runs[:1]
        span = options.span
        sizes = np.diff(begins, append=order.size)
        counts = np.maximum((sizes - span) // options.stride + 1, 0)
        self._ends = np.cumsum(counts)
        # begin of window 0, if all were in this run
        self._firsts = begins - (self._ends - counts) * options.stride
        self._length = int(counts.sum())
        if self._length == 0:
            several = len(begins) > 1
            remedy = "a smaller length" + ", or seams='cross'" * (
                several and order.size >= span
            )
            raise SourceError(
                f"a window needs {span} rows ({options}), but there are only "
                f"{sizes.max(initial=0)}{' between two seams' * several}; pass "
                f"{remedy}"
            )
        built = [
            structure.build(
                ArraySpec((len(offsets), *leaf.shape), leaf.dtype)
                for leaf in self._specs
            )
            for offsets in self._offsets
        ]
        self.spec = self._example(built)

    def __repr__(self) -> str:
        maps = "".join(f".{transform.text()}" for transform in self._reader.maps)
        return f"windows ({self._options}) of {self._reader.source!r}{maps}"

    @property
    def children(self) -> Sequence[Child]:
        times = sum(map(len, self._offsets)) / self._options.stride
        return (
            Child("", self._reader.source, None, max(1.0, times), self._reader.maps),
        )

    def map_children(self, wrap: MapChild) -> "WindowSource":
        reader = self._reader.with_source(wrap(self.children[0]))
        return WindowSource(reader, self._row_spec, self._order, self._options)

    def describe(self) -> list[Any]:
        _, stride, _, _, every, _ = self._options
        rows = self._order.row_range
        num_runs = len(self._ends)
        if (
            every == num_runs == 1
            and rows is not None
            and rows.step == 1
            and not self._reader.maps
        ):
            # as states have it that were saved before there were other windows
            return self._reader.describe()
        offsets = [[offsets.start, len(offsets)] for offsets in self._offsets]
        return [
            [
                "windows",
                offsets,
                every,
                stride,
                num_runs,
                self._order.describe(),
                self._reader.describe(),
            ]
        ]

    @property
    def chunks(self) -> Integers | range | None:
        """First windows per chunk: windows that begin in one chunk are read together."""
        starts = self._reader.source.chunks
        if starts is None:
            return None
        rows = self._order.row_range
        if isinstance(starts, range) and rows is not None and len(self._ends) == 1:
            apart = rows.step * self._options.stride
            if starts.step % apart == 0 and rows.start % starts.step == 0:
                if starts.step > apart:
                    return range(0, self._length, starts.step // apart)
                return None
        # First windows whose first rows are in or after each chunk, by bisection.
        bounds = np.asarray(starts, np.int64)
        low = np.zeros_like(bounds)
        high = np.full_like(bounds, self._length)
        while (low < high).any():
            middle = (low + high) // 2
            begins = self._begins(np.minimum(middle, self._length - 1))
            before = self._order.visits(np.zeros_like(begins), begins).rows < bounds
            low = np.where(before & (low < high), middle + 1, low)
            high = np.where(before, high, middle)
        first = np.unique(low)
        first = first[first < self._length]
        if len(first) == self._length:
            return None
        return first

    def visits_below(self, visits: Visits) -> list[Below]:
        offsets = np.concatenate(self._offsets)
        positions = (self._begins(visits.rows)[:, None] + offsets).reshape(-1)
        asked = np.repeat(np.arange(len(visits.rows)), len(offsets))
        return [
            Below(
                self._reader.source,
                asked,
                self._order.visits(visits.epochs[asked], positions),
            )
        ]

    def locate(self, row: int) -> list[Location]:
        """Files of the rows of a window, as far as they are known."""
        visits, _ = self._shared(
            np.array([row]), np.zeros(1, np.int64), self._offsets
        )
        return joined(
            location
            for inner in visits.rows.tolist()
            for location in self._reader.source.locate(inner)
        )

    def read_visits(self, visits: Visits) -> Tree:
        if self.traits.reads_columns and self._direct_rows(self._offsets) is not None:
            return read_columns(self, visits.rows)
        shared, places = self._shared(visits.rows, visits.epochs, self._offsets)
        batch = map_leaves(np.asarray, self._reader.read_visits(shared))
        return self._example([map_leaves(itemgetter(at), batch) for at in places])

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        if not self.traits.reads_columns:
            super().read_into(rows, boxes, out)
            return
        # Leaves that need the same rows of the window, usually all of them, are read together.
        groups: dict[tuple[tuple[int, range], ...], list[int]] = {}
        count = len(self._specs)
        for leaf in range(count):
            asked = [
                (part, self._offsets[part][slice(*box[0])], box[1:])
                for part, box in enumerate(boxes[leaf::count])
                if box is not None
            ]
            for columns in {columns for _, _, columns in asked}:
                key = tuple(
                    (part, offsets)
                    for part, offsets, its_columns in asked
                    if its_columns == columns
                )
                groups.setdefault(key, []).append(leaf)
        for key, leaves in groups.items():
            self._read_group(rows, key, leaves, boxes, out)

    def _read_group(
        self,
        windows: Integers,
        group: Sequence[tuple[int, range]],
        leaves: Sequence[int],
        boxes: Boxes,
        out: Outputs,
    ) -> None:
        """Reads leaves of windows that need the same rows.

        Args:
            windows: The windows, int64[n].
            group: Parts of an example, each with the offsets of its rows that are needed.
            leaves: Leaves of a row, with the same columns in all of these parts.
            boxes: Column boxes of all leaves of an example.
            out: Destinations of all leaves of an example.
        """
        count = len(self._specs)
        all_offsets = [offsets for _, offsets in group]
        first = group[0][0] * count
        columns = [
            box[1:] if leaf in leaves and (box := boxes[first + leaf]) else None
            for leaf in range(count)
        ]
        rows = self._direct_rows(all_offsets)
        if rows is not None:
            begins = rows.start + self._begins(windows) * rows.step
            for part, offsets in group:
                targets = [
                    out[part * count + leaf] if leaf in leaves else None
                    for leaf in range(count)
                ]
                self._reader.source.read_runs_into(
                    begins + offsets.start * rows.step,
                    len(offsets),
                    offsets.step * rows.step,
                    columns,
                    targets,
                )
            return
        shared, places = self._shared(
            windows, np.zeros(len(windows), np.int64), all_offsets
        )
        values = self._reader.mapped_columns(shared, columns)
        for (part, _), at in zip(group, places, strict=True):
            for leaf in leaves:
                destination = out[part * count + leaf]
                assert destination is not None
                # other modes copy it twice
                np.take(values[leaf], at, 0, destination, "wrap")

    def _begins(self, windows: Integers) -> Integers:
        """Positions at which windows begin."""
        windows = check_rows(windows, self._length)
        return (
            self._firsts[np.searchsorted(self._ends, windows, side="right")]
            + windows * self._options.stride
        )

    def _direct_rows(self, all_offsets: Sequence[range]) -> range | None:
        """Rows at all positions, if rows that are needed several times are best read as often; None otherwise.

        Rows are shared where user code makes them, and if a chunk would be decoded by two reads.
        """
        source = self._reader.source
        if (
            self._reader.maps
            or source.traits.runs_python
            or (len(all_offsets) > 1 and source.chunks is not None)
        ):
            return None
        return self._order.row_range

    def _shared(
        self, windows: Integers, epochs: Integers, all_offsets: Sequence[range]
    ) -> tuple[Visits, list[Integers]]:
        """Visits of the rows of windows, each once, and where to find the rows of each part: int64[n, offsets]."""
        offsets = np.concatenate(all_offsets)
        positions = self._begins(windows)[:, None] + offsets
        rows, its_epochs = self._order.visits(
            np.repeat(epochs, len(offsets)), positions.reshape(-1)
        )
        keys = (
            np.unique(its_epochs, return_inverse=True)[1] * len(self._reader.source)
            + rows
        )
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        ends = np.cumsum([len(each) for each in all_offsets])
        return Visits(rows[first], its_epochs[first]), np.split(
            inverse.reshape(positions.shape), ends[:-1], axis=1
        )

    def _example(self, parts: Sequence[Tree]) -> Tree:
        if len(parts) == 1:
            return parts[0]
        return {"inputs": parts[0], "targets": parts[1]}
