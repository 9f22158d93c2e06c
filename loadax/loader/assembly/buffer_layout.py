"""Buffer layout of a group of steps: one 64-byte aligned box per device shard, all in one allocation.

A tile groups the boxes of one leaf that have the same columns. In the buffers of k steps, a tile is an array of shape
(k, boxes, height, *columns). Padding between boxes keeps each on a 64-byte boundary. Usually none is needed: then the
rows of all k steps are contiguous, and a source reads them in one call.
"""

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.buffers import align
from loadax.core.casting import cast_into
from loadax.core.formatting import size_text
from loadax.core.spec import all_columns
from loadax.loader.batch_spec import BatchLeaf
from loadax.protocols import ArraySpec, Columns, Integers


@final
@dataclass(frozen=True, eq=False)
class ColumnTile:
    """The boxes of one leaf with the same columns.

    Args:
        leaf: Leaf of the batch.
        columns: Columns of the boxes.
        boxes: Number of boxes.
        height: Rows per box.
        select: Ascending indices of these rows among the shard's local rows; None: all.
    """

    leaf: BatchLeaf
    columns: Columns
    boxes: int
    height: int
    select: Integers | None

    @property
    def rows(self) -> int:
        """Rows per step."""
        return self.boxes * self.height

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """The shape of one row of a box."""
        return tuple(stop - start for start, stop in self.columns)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row of a box on the device."""
        return math.prod(self.extents) * self.leaf.dtype.itemsize

    @cached_property
    def stride(self) -> int:
        """Bytes from the start of one box to the next."""
        return align(self.height * self.row_bytes)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """NumPy strides in bytes: step, box, row, columns."""
        inner = [
            math.prod(self.extents[dim:]) * self.leaf.dtype.itemsize
            for dim in range(len(self.extents) + 1)
        ]
        return (self.boxes * self.stride, self.stride, *inner)

    @cached_property
    def whole(self) -> bool:
        """Whether the tile has all columns of the leaf."""
        return self.columns == all_columns(self.leaf.spec.shape)


@final
@dataclass(frozen=True, eq=False)
class BufferLayout:
    """Memory layout of one step.

    Args:
        tiles: Tiles of all leaves, by leaf.
        order: `(tile, box in the tile)` of every box of every leaf, in the order of its layout: first of the leaves
            that are placed, then of those that stay on the host, which have one box each.
    """

    tiles: tuple[ColumnTile, ...]
    order: tuple[tuple[tuple[int, int], ...], ...]

    @cached_property
    def rows(self) -> int:
        """Rows of a step that some tile has, and at least 1."""
        rows = [
            tile.rows if tile.select is None else max(tile.select, default=0) + 1
            for tile in self.tiles
        ]
        return max([1, *rows])

    @cached_property
    def gapless(self) -> bool:
        """Whether the rows of all steps of a tile are contiguous."""
        return all(tile.stride == tile.height * tile.row_bytes for tile in self.tiles)

    @cached_property
    def bytes_per_step(self) -> int:
        """Bytes of the buffers of one step."""
        return sum(tile.boxes * tile.stride for tile in self.tiles)

    def too_large(self, count: int) -> str:
        """Error message for too little memory for `count` steps; names the largest leaf."""
        tile = max(
            self.tiles, key=lambda candidate: candidate.boxes * candidate.stride
        )
        leaf = tile.leaf
        return (
            f"leaf {leaf.path or 'of the example'} is "
            f"{leaf.dtype}{list(leaf.spec.shape)}, {size_text(tile.row_bytes)} a row "
            "on this host: there is not enough memory for "
            f"{count} x {size_text(self.bytes_per_step)}, the bytes of a step; "
            "choose a smaller batch_size or prefetch, or check the shape that the "
            "data reports"
        )


@final
class BatchBuffers:
    """Buffers of the batches of some steps, in one allocation.

    Args:
        layout: Layout of one step.
        memory: uint8[count * layout.bytes_per_step] on a 64-byte boundary.
        count: Number of steps.
    """

    def __init__(self, layout: BufferLayout, memory: NDArray[np.uint8], count: int):
        self.memory = memory
        self.count = count
        self._order = layout.order
        self._views: list[NDArray[Any]] = []
        offset = 0
        for tile in layout.tiles:
            shape = (count, tile.boxes, tile.height, *tile.extents)
            if tile.leaf.dtype.hasobject:
                self._views.append(np.empty(shape, tile.leaf.dtype))
            else:
                self._views.append(
                    np.ndarray(shape, tile.leaf.dtype, memory, offset, tile.strides)
                )
            offset += count * tile.boxes * tile.stride
        self._tiles = layout.tiles

    def rows(self, index: int) -> NDArray[Any] | None:
        """All rows of tile `index` over all steps and boxes, as one writable array; None if boxes have gaps."""
        tile = self._tiles[index]
        view = self._views[index]
        alone = len(view) * tile.boxes == 1
        gapless = (
            alone
            or tile.leaf.dtype.hasobject
            or tile.stride == tile.height * tile.row_bytes
        )
        if gapless:
            return view.reshape(len(view) * tile.boxes * tile.height, *tile.extents)
        return None

    def whole_rows(
        self, low: int, high: int, specs: Sequence[ArraySpec]
    ) -> list[NDArray[Any]] | None:
        """Rows `low` to `high`, counted over all steps, as one array for each leaf of the source.

        None if the buffers have gaps, other dtypes than `specs`, only some of the leaves or columns, or some twice.
        """
        found: dict[int, NDArray[Any]] = {}
        for index, tile in enumerate(self._tiles):
            if tile.leaf.source is None:
                continue
            rows = self.rows(index)
            plain = (
                tile.whole
                and tile.select is None
                and tile.leaf.dtype == tile.leaf.spec.dtype
            )
            if rows is None or not plain or tile.leaf.source in found:
                return None
            found[tile.leaf.source] = rows[low:high]
        same = [
            leaf in found and found[leaf].dtype == spec.dtype
            for leaf, spec in enumerate(specs)
        ]
        if all(same):
            return [found[leaf] for leaf in range(len(specs))]
        return None

    def write(self, index: int, low: int, high: int, values: NDArray[Any]) -> None:
        """Writes `values` to rows `low` to `high` of tile `index` in each step.

        Raises:
            LeafError: If a value does not fit the device's dtype; names the leaf.
        """
        tile = self._tiles[index]
        view = self._views[index]
        rows = self.rows(index)
        values = values.reshape(self.count, high - low, *tile.extents)
        if rows is not None:
            cast_into(
                rows.reshape(self.count, tile.rows, *tile.extents)[:, low:high],
                values,
                tile.leaf.path,
            )
        elif high - low == tile.rows:
            cast_into(view, values.reshape(view.shape), tile.leaf.path)
        else:
            for box in range(low // tile.height, -(-high // tile.height)):
                first = box * tile.height
                start = max(low, first)
                stop = min(high, first + tile.height)
                cast_into(
                    view[:, box, start - first : stop - first],
                    values[:, start - low : stop - low],
                    tile.leaf.path,
                )

    def copy_row(self, to: int, source: "BatchBuffers", row: int) -> None:
        """Copies a row of other buffers to row `to` of these, both with one box for each leaf."""
        for view, other in zip(self._views, source._views, strict=True):  # noqa: SLF001 - of this class
            view[0, 0, to] = other[0, 0, row]

    def step(self, index: int) -> "BatchBuffers":
        """Buffers of the `index`-th step."""
        one = copy(self)
        one.count, one._views = 1, [view[index : index + 1] for view in self._views]  # noqa: SLF001 - of this class
        return one

    def objects(self, low: int, high: int) -> list[NDArray[Any]]:
        """Rows `low` to `high` of each step, [steps, rows, ...], of every tile of Python objects."""
        tiles = [
            (tile, view)
            for tile, view in zip(self._tiles, self._views, strict=True)
            if tile.leaf.dtype.hasobject
        ]
        return [
            view.reshape(self.count, tile.rows, *tile.extents)[:, low:high]
            for tile, view in tiles
        ]

    def boxes(self, leaf: int, index: int) -> list[NDArray[Any]]:
        """Boxes of a leaf for the `index`-th step, in the order of its layout."""
        views = self._views
        return [views[tile][index, box] for tile, box in self._order[leaf]]


def lease_buffers(
    layout: BufferLayout, lease: Callable[[int], NDArray[np.uint8]], count: int
) -> BatchBuffers:
    """Buffers of `count` steps in memory from `lease`, to which it returns when their last view is gone."""
    return BatchBuffers(layout, lease(count * layout.bytes_per_step), count)
