"""What a process holds of an array that a mesh cuts: boxes, rows and columns, by arithmetic alone.

A mesh is here a grid of numbers (which process owns the device at each place), a spec is any sequence of `None`, an
axis name, or a tuple of axis names (a `PartitionSpec` is one), and nothing imports JAX. So the layout of any process of
any run can be had anywhere.

The rule is that of `jax.sharding.NamedSharding`: a dimension cut by the axes (a, b) falls into `size(a) * size(b)`
equal shards, and the device at the coordinates (i, j) of these axes holds shard `i * size(b) + j`; an axis that cuts
nothing holds copies.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import PartitionError
from loadax.protocols import Columns, Integers

Interval: TypeAlias = tuple[int, int]
"""`(start, stop)`."""

Box: TypeAlias = tuple[Interval, ...]
"""One shard of an array: `(start, stop)` for every dimension."""


@final
@dataclass(frozen=True, eq=False)
class MeshGrid:
    """A mesh as numbers.

    Args:
        axis_names: the names of the axes, major to minor.
        owners: the process that owns each device; integers in the shape of the mesh.
        process: the process that asks.
    """

    axis_names: tuple[str, ...]
    owners: NDArray[np.int64]
    process: int


@final
@dataclass(frozen=True)
class ColumnGroup:
    """The boxes of a leaf that have the same columns, so one read with these columns serves them all.

    Args:
        columns: `(start, stop)` for every dimension after the first.
        starts: the first row of each of these boxes, ascending.
        height: rows in each of them.
    """

    columns: Columns
    starts: tuple[int, ...]
    height: int


@final
@dataclass(frozen=True)
class LeafLayout:
    """What one process holds of one leaf.

    Args:
        shape: of the whole, global leaf.
        boxes: what the process's devices hold, each box once, ascending; all have the same extents. A leaf of rank 0
            has the box `()`.
        rows: the first dimension of these boxes, merged: ascending, apart. Empty for a leaf of rank 0.
        groups: the same boxes, sorted by their columns. Empty for a leaf of rank 0.
    """

    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    rows: tuple[Interval, ...]
    groups: tuple[ColumnGroup, ...]


@final
@dataclass(frozen=True, eq=False)
class DimensionShare:
    """Which shards of one dimension a process holds, and how many of them each process does.

    Args:
        held: the numbers of the shards that the asking process holds, ascending, each once.
        total: how many shards the dimension is cut in.
        processes: the processes that own a device of the mesh, ascending.
        counts: how many different shards each of these holds.
    """

    held: Integers
    total: int
    processes: Integers
    counts: Integers

    @property
    def equal(self) -> bool:
        """Whether all processes hold the same number of shards."""
        return bool((self.counts == self.counts[0]).all())


def axes_of(entry: Any) -> tuple[str, ...]:
    """The mesh axes that one entry of a spec names, major to minor.

    Examples:
        >>> axes_of(None), axes_of("data"), axes_of(("data", "model"))
        ((), ('data',), ('data', 'model'))
    """
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def plan_leaf(grid: MeshGrid, spec: Iterable[Any], shape: Sequence[int], process: int | None = None) -> LeafLayout:
    """Which boxes of an array of `shape`, cut by `spec`, a process holds.

    Args:
        grid: the mesh.
        spec: `None`, an axis name or a tuple of them for each dimension; it may be shorter than the shape.
        shape: of the whole array.
        process: whose boxes; the grid's own process when None. One that owns no device holds nothing.

    Raises:
        PartitionError: when the spec is longer than the shape, names an axis that the grid has not, or cuts a dimension
            into parts that are not equal.

    Examples:
        >>> grid = MeshGrid(("data", "model"), np.array([[0, 0], [1, 1]]), process=1)
        >>> layout = plan_leaf(grid, ("data", "model"), (8, 6))
        >>> layout.boxes
        (((4, 8), (0, 3)), ((4, 8), (3, 6)))
        >>> layout.rows, plan_leaf(grid, (), (8, 6)).rows
        (((4, 8),), ((0, 8),))
    """
    shape = tuple(int(size) for size in shape)
    entries = tuple(spec)
    if len(entries) > len(shape):
        raise PartitionError(
            f"the spec {entries!r} has {len(entries)} entries, an array of shape {shape} only {len(shape)} dims"
        )
    entries += (None,) * (len(shape) - len(entries))
    coordinates = np.nonzero(grid.owners == (grid.process if process is None else process))
    devices = len(coordinates[0])
    if not shape or not devices:
        return LeafLayout(shape, ((),) if devices else (), (), ())
    extents = np.array([_extent(grid, entries, shape, dim) for dim in range(len(shape))], np.int64)
    shards = np.stack([shards_at(grid, entry, coordinates) for entry in entries], axis=1)
    starts = np.unique(shards * extents, axis=0)
    boxes = tuple(
        tuple(zip(low, high, strict=True))
        for low, high in zip(starts.tolist(), (starts + extents).tolist(), strict=True)
    )
    return LeafLayout(shape, boxes, merge(box[0] for box in boxes), _groups(boxes))


def share_along(grid: MeshGrid, entry: Any) -> DimensionShare:
    """Which shards of a dimension cut by `entry` the grid's process holds, and how many each process does.

    Raises:
        PartitionError: when the entry names an axis that the grid has not.

    Examples:
        >>> share = share_along(MeshGrid(("data",), np.array([0, 1, 0, 1]), process=1), "data")
        >>> share.held, share.total, share.counts
        (array([1, 3]), 4, array([2, 2]))
    """
    shards = shards_at(grid, entry, tuple(np.indices(grid.owners.shape)))
    total = shard_count(grid, entry)
    # One number for each pair (owner, shard), so that copies on one process count once.
    owners, held = np.divmod(np.unique(grid.owners * total + shards), total)
    processes, counts = np.unique(owners, return_counts=True)
    return DimensionShare(held[owners == grid.process], total, processes, counts)


def positions(intervals: Iterable[Interval]) -> Integers:
    """The numbers in `intervals`, one interval after the other.

    Examples:
        >>> positions([(0, 2), (6, 9)])
        array([0, 1, 6, 7, 8])
    """
    runs = [np.arange(start, stop, dtype=np.int64) for start, stop in intervals]
    return np.concatenate(runs) if runs else np.empty(0, np.int64)


def merge(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """The union of `intervals`, in any order: ascending, joined where they touch or overlap; empty ones vanish.

    Examples:
        >>> merge([(4, 6), (0, 2), (2, 3), (5, 8)])
        ((0, 3), (4, 8))
    """
    merged: list[Interval] = []
    for start, stop in sorted(intervals):
        if start >= stop:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return tuple(merged)


def _sizes(grid: MeshGrid, entry: Any) -> tuple[list[int], tuple[int, ...]]:
    """Where the axes of `entry` stand in the grid, and their sizes."""
    try:
        places = [grid.axis_names.index(axis) for axis in axes_of(entry)]
    except ValueError:
        raise PartitionError(
            f"{entry!r} names an axis that the mesh has not; its axes are {list(grid.axis_names)}"
        ) from None
    return places, tuple(grid.owners.shape[place] for place in places)


def shard_count(grid: MeshGrid, entry: Any) -> int:
    """In how many shards `entry` cuts a dimension."""
    return int(np.prod(_sizes(grid, entry)[1], dtype=np.int64))


def _extent(grid: MeshGrid, entries: Sequence[Any], shape: tuple[int, ...], dim: int) -> int:
    """The size of one shard along `dim`."""
    count = shard_count(grid, entries[dim])
    if shape[dim] % count:
        raise PartitionError(
            f"dim {dim} of an array of shape {shape} can't be cut by {entries[dim]!r} in {count} equal parts"
        )
    return shape[dim] // count


def shards_at(grid: MeshGrid, entry: Any, coordinates: tuple[NDArray[Any], ...]) -> Integers:
    """The shard of a dimension cut by `entry` that the device at each of the `coordinates` holds."""
    places, sizes = _sizes(grid, entry)
    shards = np.zeros_like(coordinates[0], dtype=np.int64)
    for place, size in zip(places, sizes, strict=True):
        shards = shards * size + coordinates[place]
    return shards


def _groups(boxes: tuple[Box, ...]) -> tuple[ColumnGroup, ...]:
    """The sorted `boxes` of a leaf of rank 1 or more, by their columns."""
    starts: dict[Columns, list[int]] = {}
    for box in boxes:
        starts.setdefault(box[1:], []).append(box[0][0])
    height = boxes[0][0][1] - boxes[0][0][0]
    return tuple(ColumnGroup(columns, tuple(starts[columns]), height) for columns in sorted(starts))
