"""WindowSource: sliding windows over the rows of a dataset."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.composition.window_places import Places, WindowPlaces
from loadax.core.arguments import choice, integer, shown
from loadax.core.digest import digest_values
from loadax.core.formatting import count_text
from loadax.core.spec import flatten_spec, normalise_spec
from loadax.core.tree import map_leaves
from loadax.errors import ArgumentError, SourceError
from loadax.files.locations import joined
from loadax.plan.order import depth_first
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
from loadax.sources.checks import read_columns

# Verbs of which a part has single rows, as they are described
_DRAWN = {"split", "split_by", "select", "first epoch"}


class WindowOptions(NamedTuple):
    """Rows of a window; see `Dataset.windows`.

    Args:
        length: Rows of the window: the first dimension of every leaf of an example.
        stride: Positions from the begin of one window to the begin of the next.
        lead: Positions from the window's last row to the first target row: an example is then a dict of `inputs` (the
            window) and `targets`. None: an example is a window.
        targets: Number of target rows.
        every: Positions from one row of a window to the next, and from one target to the next.
        seams: Whether windows may contain rows of several spans.
        pad: Rows in place of those before or behind a window's group; see `Dataset.windows`. None: windows have none.
    """

    length: int
    stride: int = 1
    lead: int | None = None
    targets: int = 1
    every: int = 1
    seams: Literal["avoid", "cross"] = "avoid"
    pad: Literal["edge", "zeros"] | None = None

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
    def anchor(self) -> int:
        """Positions from a padded window's begin to the row that it is made for."""
        if self.lead is None:
            return 0
        return (self.length - 1) * self.every

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
        shown += f", seams={self.seams!r}" if self.seams == "cross" else ""
        return shown + (f", pad={self.pad!r}" if self.pad else "")


def window_options(
    length: Any,
    stride: Any,
    lead: Any,
    targets: Any,
    every: Any,
    seams: Any,
    pad: Any,
) -> WindowOptions:
    """The arguments of `Dataset.windows`, checked.

    Raises:
        ArgumentError: When one can't be used, or two don't go together.
    """
    length = integer("length", length, 1)
    stride = integer("stride", stride, 1)
    every = integer("every", every, 1)
    if lead is None:
        ahead = None
    else:
        ahead = integer("lead", lead)
    least = (1 - length) * every
    if ahead is not None and ahead < least:
        raise ArgumentError(
            f"lead={ahead}: the first target would be before the window; pass "
            f"{least} or more"
        )
    if ahead is None and targets != 1:
        raise ArgumentError(
            f"targets={shown(targets)} needs lead=, from a window's last row to "
            "them; pass lead=1"
        )
    choice(
        "seams",
        seams,
        ["avoid", "cross"],
        "'avoid', or 'cross' for windows over the seams of concat()",
    )
    choice("pad", pad, [None, "edge", "zeros"])
    return WindowOptions(
        length, stride, ahead, integer("targets", targets, 1), every, seams, pad
    )


def window_remedy(whole: Order, length: Any) -> str:
    """The call that makes windows of an order whose rows are not consecutive."""
    # the innermost such verb
    *_, order = (below for below in depth_first(whole) if below.runs is None)
    if order.mixes:
        return (
            "make windows of each dataset, then mix those: mix({name: "
            f"ds.windows({length}), …}}, weights)"
        )
    drawn = {
        verb[0] for below in depth_first(whole) for verb in below.describe()
    } & _DRAWN
    if drawn:  # windows before it would share rows
        return (
            f"split into runs of rows instead of {order.text()[-1]}, and make "
            "windows of each part: split(0.8, "
            f"contiguous=True)[0].windows({length})"
        )
    return f"call windows({length}) before {order.text()[-1]}, not after it"


class _PartGroup(NamedTuple):
    """Parts of an example that are read together.

    Args:
        group: Number of each part, with the offsets of its rows that are needed.
        columns: Column boxes of the leaves of a row.
    """

    group: Sequence[tuple[int, range]]
    columns: Boxes

    def destinations(self, out: Outputs) -> Iterator[tuple[range, Outputs]]:
        """Yields the offsets of each part, with the destinations of its leaves among those of an example."""
        count = len(self.columns)
        for part, offsets in self.group:
            yield offsets, out[part * count : (part + 1) * count]


@final
class WindowSource(BaseSource):
    """Windows over the rows at the positions of an order, which form spans; the first window of a span begins with it.

    A column box may also slice the window's dimension. Rows that several windows of one read contain are mapped once.

    Args:
        reader: Reader of the rows.
        spec: Spec of one row.
        order: Order of the rows, with `spans`.
        options: Rows of a window. With `pad`, each window in turn has a row of its group for its anchor, and positions
            before or behind the group are those of its first or last row.
        groups: First positions of groups, which take the place of the spans, int64[groups] from 0, ascending. None:
            spans of the order.

    Raises:
        SourceError: When no span has enough rows for a window.
    """

    spec: Tree = None

    def __init__(
        self,
        reader: Reader,
        spec: Tree,
        order: Order,
        options: WindowOptions,
        groups: Integers | None = None,
    ):
        self._reader = reader
        self._order = order
        self._options = options
        self.traits = reader.traits._replace(
            reads_examples=False,
            reads_columns=reader.maps_columns,
            reads_parts=False,
            cached_chunks=0,
            attributes={},
            shared_by=reader.traits.shared_by
            or (f"windows({options})" if options.overlap or order.repeats else ""),
        )
        self._row_spec = normalise_spec(spec)
        self._specs, structure = flatten_spec(self._row_spec)
        self._offsets = options.offsets
        self._groups = groups
        self.places = WindowPlaces(
            self._group_starts(),
            order.size,
            options.stride,
            options.span if options.pad is None else None,
            options.anchor,
        )
        if groups is not None:
            self._groups = self.places.starts  # one copy of them
        self._length = len(self.places)
        if self._length == 0:
            raise SourceError(self._too_short(self.places.largest))
        built = [
            structure.build(
                ArraySpec((len(offsets), *leaf.shape), leaf.dtype)
                for leaf in self._specs
            )
            for offsets in self._offsets
        ]
        self.spec = self._example(built)

    def _group_starts(self) -> Integers:
        """First positions of the runs or groups that no window leaves."""
        if self._groups is not None:
            return self._groups
        spans = self._order.runs
        assert spans is not None, "Dataset.windows() refuses other orders"
        if self._options.seams == "avoid":
            return spans
        return spans[:1]

    def _too_short(self, largest: int) -> str:
        """The error of groups or runs that have `largest` rows or less, and no window."""
        span = self._options.span
        several = self.places.num_groups > 1
        if self._groups is not None:
            place = " in a group"
            remedy = "a smaller length, or pad='edge'"
        elif several:
            place = " between two seams"
            remedy = "a smaller length" + ", or seams='cross'" * (
                self._order.size >= span
            )
        else:
            place = ""
            remedy = "a smaller length"
        return (
            f"a window needs {count_text(span, 'row')} ({self._options}), but there "
            f"are only {largest}{place}; pass {remedy}"
        )

    @property
    def offsets(self) -> list[range]:
        """Positions of the rows of each part of an example, relative to the window's begin; see `WindowOptions`."""
        return self._offsets

    @property
    def groups(self) -> Integers:
        """First window of each span or group."""
        return self.places.first_windows

    def __repr__(self) -> str:
        maps = "".join(f".{transform.text()}" for transform in self._reader.maps)
        within = ""
        if self._groups is not None:
            within = f" within {count_text(len(self._groups), 'group')}"
        return f"windows ({self._options}){within} of {self._reader.source!r}{maps}"

    @property
    def children(self) -> Sequence[Child]:
        times = sum(map(len, self._offsets)) / self._options.stride
        return (
            Child("", self._reader.source, None, max(1.0, times), self._reader.maps),
        )

    def map_children(self, wrap: MapChild) -> "WindowSource":
        reader = self._reader.with_source(wrap(self.children[0]))
        return WindowSource(
            reader, self._row_spec, self._order, self._options, self._groups
        )

    def describe(self) -> list[Any]:
        stride = self._options.stride
        every = self._options.every
        rows = self._order.row_range
        num_spans = self.places.num_groups
        if (
            every == num_spans == 1
            and self._options.pad is None
            and rows is not None
            and rows.step == 1
            and not self._reader.maps
        ):
            # as states have it that were saved before there were other windows
            return self._reader.describe()
        offsets = [[offsets.start, len(offsets)] for offsets in self._offsets]
        within = list[Any]()
        if self._groups is not None:
            within = [[digest_values(self._groups), self._options.pad]]
        return [
            [
                "windows",
                offsets,
                every,
                stride,
                num_spans,
                self._order.describe(),
                self._reader.describe(),
                *within,
            ]
        ]

    @property
    def chunks(self) -> Integers | range | None:
        """First windows per chunk: windows that begin in one chunk are read together."""
        starts = self._reader.source.chunks
        if starts is None:
            return None
        rows = self._order.row_range
        plain = self._options.pad is None and self.places.num_groups == 1
        if isinstance(starts, range) and rows is not None and plain:
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
            places = self.places(np.minimum(middle, self._length - 1))
            begins = places.positions(np.zeros(1, np.int64))[:, 0]
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
        positions = self.places(visits.rows).positions(offsets).reshape(-1)
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
            self.places(np.array([row])), np.zeros(1, np.int64), self._offsets
        )
        return joined(
            location
            for inner in visits.rows.tolist()
            for location in self._reader.source.locate(inner)
        )

    def read_visits(self, visits: Visits) -> Tree:
        if self.traits.reads_columns and self._reads_spans(self._offsets):
            return read_columns(self, visits.rows)
        shared, found = self._shared(
            self.places(visits.rows), visits.epochs, self._offsets
        )
        batch = map_leaves(np.asarray, self._reader.read_visits(shared))
        return self._example([map_leaves(itemgetter(at), batch) for at in found])

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        if self.traits.reads_columns:
            self.read_placed(self.places(rows), boxes, out)
        else:
            super().read_into(rows, boxes, out)

    def read_placed(self, places: Places, boxes: Boxes, out: Outputs) -> None:
        """Reads columns of the windows at some places, if the source reads columns; see `read_into`."""
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
            self._read_group(places, key, leaves, boxes, out)

    def _read_group(
        self,
        places: Places,
        group: Sequence[tuple[int, range]],
        leaves: Sequence[int],
        boxes: Boxes,
        out: Outputs,
    ) -> None:
        """Reads leaves of windows that need the same rows.

        Args:
            places: Places of the windows.
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
        wanted = {part * count + leaf for part, _ in group for leaf in leaves}
        own = [into if leaf in wanted else None for leaf, into in enumerate(out)]
        parts = _PartGroup(group, columns)
        if not self._reads_spans(all_offsets):
            self._read_shared(parts, places, own)
            return
        begins, step, form_spans = self._row_begins(places)
        read_spans = partial(self._read_spans, parts, step)
        if form_spans.all():
            read_spans(begins, own)
            return
        last = len(self._reader.source) - step * (self._options.span - 1)
        if self._reader.source.memory is not None and step > 0 and last > 0:
            # Any rows, which are overwritten: memory costs less to read than to copy.
            read_spans(np.clip(begins, 0, last - 1), own)
        else:
            whole = np.flatnonzero(form_spans)
            _read_some(partial(read_spans, begins[whole]), whole, own)
        others = np.flatnonzero(~form_spans)
        read_rows = partial(self._read_rows, parts, places.some(others))
        _read_some(read_rows, others, own)

    def _read_spans(
        self, parts: _PartGroup, step: int, begins: Integers, out: Outputs
    ) -> None:
        """Reads windows whose rows are `step` apart, from the rows `begins` on; see `_read_group`."""
        for offsets, leaves in parts.destinations(out):
            self._reader.source.read_spans_into(
                begins + offsets.start * step,
                len(offsets),
                offsets.step * step,
                parts.columns,
                leaves,
            )

    def _read_rows(self, parts: _PartGroup, places: Places, out: Outputs) -> None:
        """Reads windows row by row into contiguous arrays, each row as often as windows have it; see `_read_group`."""
        for offsets, leaves in parts.destinations(out):
            positions = places.positions(np.asarray(offsets)).reshape(-1)
            rows = self._order.visits(np.zeros_like(positions), positions).rows
            flat = [
                None if into is None else into.reshape(-1, *into.shape[2:])
                for into in leaves
            ]
            self._reader.source.read_into(rows, parts.columns, flat)

    def _read_shared(self, parts: _PartGroup, places: Places, out: Outputs) -> None:
        """Reads windows, and each row once that several have; see `_read_group`."""
        shared, found = self._shared(
            places,
            np.zeros(len(places.begins), np.int64),
            [offsets for _, offsets in parts.group],
        )
        values = self._reader.mapped_columns(shared, parts.columns)
        for (_, leaves), at in zip(parts.destinations(out), found, strict=True):
            for leaf, destination in enumerate(leaves):
                if destination is not None:
                    # other modes copy it twice
                    np.take(values[leaf], at, 0, destination, "wrap")

    def _reads_spans(self, all_offsets: Sequence[range]) -> bool:
        """Whether rows that are needed several times are best read as often.

        Rows are shared where user code makes them, and if a chunk would be decoded by two reads.
        """
        source = self._reader.source
        traits = source.traits
        if self._reader.maps or traits.runs_python or traits.random:
            return False
        if len(all_offsets) > 1 and source.chunks is not None:
            return False
        if self._order.row_range is not None:
            return True
        # across a seam, rows may be in any order
        return self._options.seams == "avoid" and not self._order.varies

    def _row_begins(self, places: Places) -> tuple[Integers, int, NDArray[np.bool_]]:
        """Row at each window's begin, the rows from one position to the next, and whether the window has such rows."""
        begins = places.begins
        form_spans = places.all_inside(self._offsets[0])
        if len(self._offsets) > 1:
            form_spans &= places.all_inside(self._offsets[1])
        rows = self._order.row_range
        if rows is not None:
            return rows.start + begins * rows.step, rows.step, form_spans
        first_rows = np.zeros_like(begins)
        whole = np.flatnonzero(form_spans)
        zeros = np.zeros_like(whole)
        first_rows[whole] = self._order.visits(zeros, begins[whole]).rows
        further = self._options.span - 1
        last_rows = self._order.visits(zeros, begins[whole] + further).rows
        form_spans[whole] = last_rows - first_rows[whole] == further
        return first_rows, 1, form_spans

    def _shared(
        self, places: Places, epochs: Integers, all_offsets: Sequence[range]
    ) -> tuple[Visits, list[Integers]]:
        """Visits of the rows of windows, each once, and where to find the rows of each part: int64[n, offsets]."""
        offsets = np.concatenate(all_offsets)
        positions = places.positions(offsets)
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


def _read_some(
    read: Callable[[Outputs], None], windows: Integers, out: Outputs
) -> None:
    """Reads some windows of a batch, and puts them into their places in it."""
    if not len(windows):
        return
    values = [
        None
        if into is None
        else np.empty((len(windows), *into.shape[1:]), into.dtype)
        for into in out
    ]
    read(values)
    for into, read_values in zip(out, values, strict=True):
        if into is not None and read_values is not None:
            into[windows] = read_values
