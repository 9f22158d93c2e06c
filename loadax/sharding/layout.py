"""The boxes, rows and columns that a process holds of a sharded array, by arithmetic alone.

A mesh is an integer grid (the process that owns each device). A spec is a sequence of `None`, an axis name, or a tuple
of axis names; a `PartitionSpec` is one. Nothing here imports JAX, so the layout of any process of any run can be
computed anywhere.

The rule is that of `jax.sharding.NamedSharding`: a dimension split over the axes (a, b) has `size(a) * size(b)` equal
shards, and the device at coordinates (i, j) of these axes holds shard `i * size(b) + j`. Axes that the spec does not
name hold copies.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from loadax.core.intervals import merge
from loadax.protocols import Columns, Integers, Interval

# One shard of an array: `(start, stop)` for every dimension.
Box: TypeAlias = tuple[Interval, ...]


class MeshGrid(NamedTuple):
    """A mesh as an integer grid.

    Args:
        axis_names: Names of the axes, major to minor.
        owners: Process that owns each device, in the shape of the mesh.
        process: Process to plan for.
    """

    axis_names: tuple[str, ...]
    owners: NDArray[np.int64]
    process: int


class ColumnGroup(NamedTuple):
    """The boxes of a leaf that have the same columns, so that one read of these columns serves all of them.

    Args:
        columns: `(start, stop)` for every dimension after the first.
        starts: First row of each box, ascending.
        height: Rows of each box.
    """

    columns: Columns
    starts: tuple[int, ...]
    height: int


class LeafLayout(NamedTuple):
    """The part of one leaf that one process holds.

    Args:
        shape: Shape of the global leaf.
        boxes: Distinct boxes of the process's devices, ascending, all of the same size. A leaf of rank 0 has the box
            `()`.
        rows: Union of the boxes along the first dimension: ascending, disjoint. Empty for a leaf of rank 0.
        groups: The same boxes, grouped by their columns. Empty for a leaf of rank 0.
    """

    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    rows: tuple[Interval, ...]
    groups: tuple[ColumnGroup, ...]


class DimensionShare(NamedTuple):
    """The shards of one dimension that a process holds, and how many each process holds.

    Args:
        held: Distinct indices of the shards that the grid's process holds, ascending.
        total: Number of shards of the dimension.
        processes: Processes that own a device of the mesh, ascending.
        counts: Number of distinct shards that each of these processes holds.
    """

    held: Integers
    total: int
    processes: Integers
    counts: Integers


def axes_of(entry: Any) -> tuple[str, ...]:
    """The mesh axes that one entry of a spec names, major to minor.

    Examples:
        >>> from loadax.sharding.layout import axes_of
        >>> axes_of(None), axes_of("data"), axes_of(("data", "model"))
        ((), ('data',), ('data', 'model'))
    """
    if entry is None:
        return ()
    if isinstance(entry, str):
        return (entry,)
    return tuple(entry)


def plan_leaf(
    grid: MeshGrid,
    spec: Iterable[Any],
    shape: Sequence[int],
    devices: tuple[Integers, ...] | None = None,
) -> LeafLayout:
    """Computes the boxes that a process holds of an array of `shape` split by `spec`.

    Args:
        grid: Mesh grid.
        spec: `None`, an axis name, or a tuple of them for each dimension. It may be shorter than the shape. It fits the
            grid and the shape, as `partition.check_spec` checks.
        shape: Shape of the global array, which the spec splits into equal parts.
        devices: Coordinates of the process's devices, int64[n] for each axis. None: those of the grid's process. A
            process that owns no device holds nothing.

    Examples:
        >>> import numpy as np
        >>> from loadax.sharding.layout import MeshGrid, plan_leaf
        >>> grid = MeshGrid(("data", "model"), np.array([[0, 0], [1, 1]]), process=1)
        >>> layout = plan_leaf(grid, ("data", "model"), (8, 6))
        >>> layout.boxes
        (((4, 8), (0, 3)), ((4, 8), (3, 6)))
        >>> layout.rows, plan_leaf(grid, (), (8, 6)).rows
        (((4, 8),), ((0, 8),))
    """
    shape = tuple(int(size) for size in shape)
    entries = entries_of(spec, len(shape))
    if devices is None:
        coordinates = np.nonzero(grid.owners == grid.process)
    else:
        coordinates = devices
    count = len(coordinates[0])
    if not shape or not count:
        return LeafLayout(shape, ((),) if count else (), (), ())
    extents = [
        size // shard_count(grid, entry)
        for size, entry in zip(shape, entries, strict=True)
    ]
    shards = (shards_at(grid, entry, coordinates) for entry in entries)
    starts = [
        (shard * extent).tolist()
        for shard, extent in zip(shards, extents, strict=True)
    ]
    # Without `np.unique`, whose fixed cost for rows would be most of what a host of thousands takes.
    corners = sorted({*zip(*starts, strict=True)})
    boxes = tuple(
        tuple(
            (start, start + extent)
            for start, extent in zip(corner, extents, strict=True)
        )
        for corner in corners
    )
    return LeafLayout(
        shape, boxes, merge(box[0] for box in boxes), _column_groups(boxes)
    )


def share_along(grid: MeshGrid, entry: Any) -> DimensionShare:
    """The shards of a dimension split by `entry`: those of the grid's process, and the number of each process.

    Examples:
        >>> import numpy as np
        >>> from loadax.sharding.layout import MeshGrid, share_along
        >>> share = share_along(MeshGrid(("data",), np.array([0, 1, 0, 1]), process=1), "data")
        >>> share.held, share.total, share.counts
        (array([1, 3]), 4, array([2, 2]))
    """
    shards = shards_at(grid, entry, tuple(np.indices(grid.owners.shape)))
    total = shard_count(grid, entry)
    # Each pair (owner, shard) becomes one integer, so that copies on one process count once.
    owners, owner_shards = np.divmod(np.unique(grid.owners * total + shards), total)
    processes, counts = np.unique(owners, return_counts=True)
    return DimensionShare(
        owner_shards[owners == grid.process], total, processes, counts
    )


def positions(intervals: Iterable[Interval]) -> Integers:
    """The integers in `intervals`, concatenated.

    Examples:
        >>> from loadax.sharding.layout import positions
        >>> positions([(0, 2), (6, 9)])
        array([0, 1, 6, 7, 8])
    """
    return np.concatenate(
        [
            np.empty(0, np.int64),
            *(np.arange(start, stop) for start, stop in intervals),
        ]
    )


def position_ranges(positions: Integers) -> list[Interval]:
    """Converts ascending positions to `(start, stop)` ranges.

    Examples:
        >>> import numpy as np
        >>> from loadax.sharding.layout import position_ranges
        >>> position_ranges(np.array([0, 1, 2, 3, 6, 7]))
        [(0, 4), (6, 8)]
    """
    if not len(positions):
        return []
    bounds = [
        *np.flatnonzero(np.diff(positions, prepend=positions[0]) != 1).tolist(),
        len(positions),
    ]
    return [
        (int(positions[low]), int(positions[high - 1]) + 1)
        for low, high in pairwise(bounds)
    ]


def shard_count(grid: MeshGrid, entry: Any) -> int:
    """Number of shards of a dimension split by `entry`."""
    return math.prod(
        grid.owners.shape[grid.axis_names.index(axis)] for axis in axes_of(entry)
    )


def shards_at(
    grid: MeshGrid, entry: Any, coordinates: tuple[NDArray[Any], ...]
) -> Integers:
    """The shard of a dimension split by `entry` on the device at each of the `coordinates`."""
    shards = np.zeros_like(coordinates[0], dtype=np.int64)
    for axis in axes_of(entry):
        dim = grid.axis_names.index(axis)
        shards = shards * grid.owners.shape[dim] + coordinates[dim]
    return shards


def entries_of(spec: Iterable[Any], rank: int) -> tuple[Any, ...]:
    """The entry of a spec for each dimension of an array."""
    return (*spec, *(None,) * rank)[:rank]


def _column_groups(boxes: tuple[Box, ...]) -> tuple[ColumnGroup, ...]:
    """Groups the sorted `boxes` of a leaf of rank 1 or more by their columns."""
    starts: dict[Columns, list[int]] = {}
    for box in boxes:
        starts.setdefault(box[1:], []).append(box[0][0])
    height = boxes[0][0][1] - boxes[0][0][0]
    return tuple(
        ColumnGroup(columns, tuple(starts[columns]), height)
        for columns in sorted(starts)
    )
