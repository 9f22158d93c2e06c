"""RowArena: memory of cached rows, in which small leaves are stored side by side.

A random row of many small leaves costs one or two cache misses then, and not one for each leaf. Gathered rows are split
into their leaves block by block, while they are in the CPU cache.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, final

import numpy as np

from loadax.core.buffers import Allocate, aligned_bytes
from loadax.protocols import Array, ArraySpec, Boxes, Columns, Integers, Outputs

_SMALL = 64  # bytes: larger leaves fill cache lines of their own
_WIDEST = 512  # bytes of leaves side by side
BLOCK = 256 << 10  # bytes of rows that are gathered, and then split


@final
@dataclass(frozen=True)
class RowLayout:
    """Leaves whose values for a row are stored side by side, without gaps.

    Args:
        leaves: Indices of the leaves.
        specs: Spec of the stored columns of each.
        boxes: Stored columns of each.
    """

    leaves: tuple[int, ...]
    specs: tuple[ArraySpec, ...]
    boxes: tuple[Columns, ...]

    @cached_property
    def width(self) -> int:
        """Bytes of a row."""
        return sum(spec.nbytes for spec in self.specs)

    @cached_property
    def fields(self) -> list[tuple[ArraySpec, int, tuple[int, ...]]]:
        """Of each leaf: its spec, its offset in a row, and the strides of its rows, in bytes."""
        offsets = accumulate((spec.nbytes for spec in self.specs), initial=0)
        return [
            (spec, offset, (self.width, *_strides(spec)))
            for spec, offset in zip(self.specs, offsets, strict=False)
        ]


@final
class RowArena:
    """Memory for rows of one layout; its contents are undefined.

    Args:
        layout: Leaves of a row.
        rows: Number of rows.
        allocate: Allocates uint8[n].
    """

    def __init__(
        self, layout: RowLayout, rows: int, allocate: Allocate = aligned_bytes
    ):
        self.layout = layout
        memory = allocate(rows * layout.width)
        # The rows, as opaque bytes
        self.rows: Array = np.ndarray((rows,), f"V{layout.width}", memory)
        # The rows of each leaf
        self.fields: list[Array] = [
            np.ndarray((rows, *spec.shape), spec.dtype, memory, offset, strides)
            for spec, offset, strides in layout.fields
        ]

    def gather(
        self,
        places: Integers,
        boxes: Boxes,
        out: Outputs,
        targets: Integers | None,
        allocate: Allocate,
    ) -> None:
        """Copies the rows at `places`.

        Args:
            places: int64[n], each in [0, rows).
            boxes: Columns to copy of every leaf of the source, within the stored ones; None: none.
            out: Destination of every leaf of the source.
            targets: Rows of the destinations, int64[n]; None: all.
            allocate: Allocates memory for a block of rows.
        """
        wanted: list[tuple[int, Any, Array]] = []
        for index, (leaf, stored) in enumerate(
            zip(self.layout.leaves, self.layout.boxes, strict=True)
        ):
            columns = boxes[leaf]
            destination = out[leaf]
            if columns is not None and destination is not None:
                cuts = (
                    slice(start - first, stop - first)
                    for (start, stop), (first, _) in zip(columns, stored, strict=True)
                )
                wanted.append(
                    (index, () if columns == stored else tuple(cuts), destination)
                )
        if len(wanted) < 2:
            for each in wanted:
                self._gather_leaf(places, *each, targets)
            return
        step = BLOCK // self.layout.width
        block = RowArena(self.layout, step, allocate)
        for begin in range(0, len(places), step):
            part = places[begin : begin + step]
            np.take(self.rows, part, out=block.rows[: len(part)], mode="wrap")
            to = (
                slice(begin, begin + len(part))
                if targets is None
                else targets[begin : begin + step]
            )
            for index, cuts, destination in wanted:
                destination[to] = block.fields[index][(slice(len(part)), *cuts)]

    def _gather_leaf(
        self,
        places: Integers,
        index: int,
        cuts: Any,
        destination: Array,
        targets: Integers | None,
    ) -> None:
        field = self.fields[index]
        whole = not cuts and targets is None and destination.dtype == field.dtype
        if whole and destination.flags.c_contiguous and field.flags.c_contiguous:
            np.take(field, places, axis=0, out=destination, mode="wrap")
        else:
            destination[slice(None) if targets is None else targets] = field[
                (places, *cuts)
            ]


def row_layouts(specs: Sequence[ArraySpec], boxes: Boxes) -> list[RowLayout]:
    """Layouts of the stored columns of leaves: small leaves of one element size together, each large one by itself.

    Elements of one size are aligned without gaps, as sources expect of what they read into.

    Examples:
        >>> import numpy as np
        >>> from loadax.protocols import ArraySpec
        >>> from loadax.sources.wrappers.row_arena import row_layouts
        >>> specs = [ArraySpec(shape, np.dtype("int32")) for shape in ((), (1000,), (2,))]
        >>> [(layout.leaves, layout.width) for layout in row_layouts(specs, [(), ((0, 250),), ((0, 2),)])]
        [((0, 2), 12), ((1,), 1000)]
    """
    stored = {
        leaf: ArraySpec(tuple(stop - start for start, stop in box), spec.dtype)
        for leaf, (spec, box) in enumerate(zip(specs, boxes, strict=True))
        if box is not None
    }
    groups: list[list[int]] = []
    # by bytes of an element: the group, and the bytes it has left
    open_groups: dict[int, tuple[list[int], int]] = {}
    for leaf, spec in stored.items():
        size = spec.nbytes
        if not 0 < size <= _SMALL:
            groups.append([leaf])
            continue
        group, room = open_groups.get(spec.dtype.itemsize, ([], 0))
        if size > room:
            group = []
            room = _WIDEST
            groups.append(group)
        group.append(leaf)
        open_groups[spec.dtype.itemsize] = group, room - size
    return [
        RowLayout(
            tuple(group),
            tuple(stored[leaf] for leaf in group),
            tuple(box for leaf in group if (box := boxes[leaf]) is not None),
        )
        for group in groups
    ]


def _strides(spec: ArraySpec) -> tuple[int, ...]:
    """Strides of a row, in bytes."""
    return tuple(
        math.prod(spec.shape[dim + 1 :]) * spec.dtype.itemsize
        for dim in range(len(spec.shape))
    )
