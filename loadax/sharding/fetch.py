"""Copies global arrays back to host memory, without communication between hosts."""

import math
from collections import Counter
from typing import Any

import jax
import numpy as np

from loadax.core.casting import leaf_name
from loadax.core.formatting import type_text
from loadax.errors import LeafTypeError, PartitionError
from loadax.protocols import Array, Interval
from loadax.sharding.layout import Box
from loadax.sharding.partition import DataPartitionType, is_full


def global_to_host_array(
    global_arrays: Any, *, partition: DataPartitionType = DataPartitionType.FULL
) -> Any:
    """Copies this process's part of global arrays into NumPy arrays.

    The inverse of `host_to_global_device_array`.

    Args:
        global_arrays: Pytree of `jax.Array`s with any sharding.
        partition: FULL returns this process's rows in ascending order, with all their columns. REPLICATED returns whole
            arrays, which every device must hold.

    Returns:
        The same pytree with a new NumPy array for each leaf.

    Raises:
        PartitionError: If some columns of FULL rows are only on other processes, or a REPLICATED array is not
            replicated.
        LeafTypeError: If a leaf is not a `jax.Array`, is traced, or is an array of random keys.
        UnsupportedError: (a NotImplementedError) If `partition` has another value.

    Examples:
        >>> import numpy as np
        >>> from loadax.sharding import data_parallel, global_to_host_array, host_to_global_device_array
        >>> array = host_to_global_device_array({"x": np.arange(8.0)}, mesh=data_parallel())
        >>> global_to_host_array(array)
        {'x': array([0., 1., 2., 3., 4., 5., 6., 7.], dtype=float32)}
    """
    full = is_full(partition)
    keyed, structure = jax.tree.flatten_with_path(global_arrays)
    leaves = [(jax.tree_util.keystr(path), leaf) for path, leaf in keyed]
    parts = [_local_boxes(path, leaf, full) for path, leaf in leaves]
    # The user's transfer guard is meant for implicit transfers; this one is explicit.
    with jax.transfer_guard_device_to_host("allow"):
        # Start all copies before waiting for the first.
        for data in (data for boxes in parts for data in boxes.values()):
            data.copy_to_host_async()
        return jax.tree.unflatten(
            structure,
            [
                _copy_rows(leaf, boxes)
                for (_, leaf), boxes in zip(leaves, parts, strict=True)
            ],
        )


def _local_boxes(path: str, leaf: Any, full: bool) -> dict[Box, jax.Array]:
    """This process's distinct boxes of an array, checked to cover whole rows or the whole array."""
    name = leaf_name(path)
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        raise LeafTypeError(
            f"{name} is {type_text(leaf)}, not a jax.Array: fetch placed arrays, "
            "outside jit"
        )
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise LeafTypeError(
            f"{name} has dtype {leaf.dtype}, which NumPy lacks: fetch "
            "jax.random.key_data(it) instead"
        )
    boxes = {
        _box(shard.index, leaf.shape): shard.data for shard in leaf.addressable_shards
    }
    whole = not full or not leaf.shape
    if whole and not (leaf.is_fully_replicated and boxes):
        raise PartitionError(
            f"{name} is not fully replicated on this process; its sharding is "
            f"{leaf.sharding}: fetch its rows with DataPartitionType.FULL, or "
            "reshard it to P() first"
        )
    columns = Counter[Interval]()
    for rows, *sides in boxes if leaf.shape else ():
        columns[rows] += math.prod(stop - start for start, stop in sides)
    if any(count != math.prod(leaf.shape[1:]) for count in columns.values()):
        raise PartitionError(
            f"{name}, of shape {leaf.shape}, has rows whose columns are partly on "
            f"other processes; its sharding is {leaf.sharding}. Reshard it first, so "
            "that only dim 0 is split between processes"
        )
    return boxes


def _box(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    return tuple(
        part.indices(size)[:2] for part, size in zip(index, shape, strict=True)
    )


def _copy_rows(leaf: jax.Array, boxes: dict[Box, jax.Array]) -> Array:
    """The rows of `boxes` in ascending order, copied into one array."""
    if not leaf.shape:
        return np.array(next(iter(boxes.values())))
    row_slices: dict[Interval, slice] = {}
    count = 0
    for start, stop in sorted({box[0] for box in boxes}):
        row_slices[start, stop] = slice(count, count + stop - start)
        count += stop - start
    rows = np.empty((count, *leaf.shape[1:]), leaf.dtype)
    for box, data in boxes.items():
        rows[(row_slices[box[0]], *(slice(*column) for column in box[1:]))] = (
            np.asarray(data)
        )
    return rows
