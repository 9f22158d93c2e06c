"""Places host data as global arrays, without communication between hosts."""

import threading
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from loadax.core.buffers import aligned_empty
from loadax.core.casting import cast_into, leaf_name
from loadax.core.formatting import count_text
from loadax.errors import MeshError, PartitionError
from loadax.sharding.constraint import broadcast_shardings
from loadax.sharding.dtypes import host_array, placed_dtype
from loadax.sharding.layout import (
    Box,
    DimensionShare,
    MeshGrid,
    plan_leaf,
    share_along,
)
from loadax.sharding.mesh import (
    PlannedMesh,
    axis_sizes,
    current_mesh,
    grid_of,
    resolve_mesh,
)
from loadax.sharding.partition import DataPartitionType, check_spec, is_full
from loadax.sharding.placer import Placer


def host_to_global_device_array(
    host_arrays: Any,
    *,
    partition: DataPartitionType = DataPartitionType.FULL,
    mesh: Mesh | None = None,
) -> Any:
    """Makes global arrays from each host's own rows (FULL), or from a copy on every host (REPLICATED).

    Every host calls this; there is no communication. The data is copied, so the caller may reuse its arrays.

    Args:
        host_arrays: Pytree of arrays and scalars. FULL: this process's rows, in ascending global order.
        partition: FULL splits dim 0 over all devices of the mesh. REPLICATED splits no dim.
        mesh: Mesh to place on. None: the caller's current mesh.

    Returns:
        The same pytree of `jax.Array`s.

    Raises:
        MeshError: If there is no mesh, or this process has no device on it.
        PartitionError: If the rows can't be split evenly, processes have different numbers of devices, or a leaf has no
            rows.
        LeafError: If an integer does not fit without x64.
        LeafTypeError: If JAX has no such dtype.
        UnsupportedError: (a NotImplementedError) If `partition` has another value.

    Examples:
        >>> import numpy as np
        >>> from loadax.sharding import data_parallel, global_to_host_array, host_to_global_device_array
        >>> array = host_to_global_device_array(np.arange(16), mesh=data_parallel())
        >>> array.shape, array.sharding.spec, global_to_host_array(array).max()
        ((16,), P('data',), np.int32(15))
    """
    full = is_full(partition)
    mesh = _placing_mesh(mesh)
    if full:
        spec = PartitionSpec(tuple(mesh.axis_names))
    else:
        spec = PartitionSpec()
    leaves, structure = _host_leaves(host_arrays)
    for path, leaf in leaves:
        if full and leaf.ndim == 0:
            raise PartitionError(
                f"{leaf_name(path)} is a scalar, {leaf}: use "
                "DataPartitionType.REPLICATED"
            )
    return jax.tree.unflatten(
        structure, _place_local(leaves, [spec] * len(leaves), mesh)
    )


def host_local_to_global(local_inputs: Any, mesh: Mesh, pspecs: Any) -> Any:
    """Makes global arrays from each host's own part of them.

    Like `jax.experimental.multihost_utils.host_local_array_to_global_array`, but it also accepts meshes whose hosts own
    non-contiguous blocks. Along every dim, local data consists of this process's distinct shards in ascending global
    order. A process that holds only some combinations of its rows and columns must pass all of them.

    Args:
        local_inputs: Pytree of arrays and scalars.
        mesh: Mesh of all hosts.
        pspecs: Pytree prefix of `PartitionSpec`s.

    Returns:
        The same pytree of `jax.Array`s. The global size of a dim is the local size, divided by the number of shards
        that this process holds, times the number of all shards.

    Raises:
        MeshError: If nothing can be placed on `mesh`, or this process has no device on it.
        PartitionError: If a spec does not fit its leaf, a local dim can't be split evenly, or the hosts have unequal
            shares of a dim. Every host raises this error for unequal shares.
        ArgumentError: If `pspecs` is not a prefix of the inputs, or contains anything but specs.
        LeafError: If an integer does not fit without x64.
        LeafTypeError: If JAX has no such dtype.

    Examples:
        >>> import numpy as np
        >>> from jax.sharding import PartitionSpec
        >>> from loadax.sharding import data_parallel, host_local_to_global
        >>> host_local_to_global({"x": np.ones((8, 2))}, data_parallel(), PartitionSpec("data"))["x"].shape
        (8, 2)
    """
    mesh = _placing_mesh(mesh)
    specs = broadcast_shardings("pspecs", pspecs, local_inputs, PartitionSpec)
    leaves, structure = _host_leaves(local_inputs)
    for spec, (path, leaf) in zip(specs, leaves, strict=True):
        check_spec(spec, leaf.ndim, axis_sizes(mesh), path)
    return jax.tree.unflatten(structure, _place_local(leaves, specs, mesh))


def _placing_mesh(mesh: Mesh | None) -> Mesh:
    resolved = current_mesh() if mesh is None else resolve_mesh(mesh)
    if resolved is None:
        raise MeshError(
            "loadax needs a mesh: pass mesh=..., or call inside 'with "
            "jax.set_mesh(mesh):'. Mesh contexts are thread-local; this thread "
            f"({threading.current_thread().name!r}) has none."
        )
    if isinstance(resolved, PlannedMesh):
        raise MeshError(
            f"mesh={resolved!r} is only planned and has no devices to place on: pass "
            "a jax.sharding.Mesh"
        )
    return resolved


def _host_leaves(tree: Any) -> tuple[list[tuple[str, NDArray[Any]]], Any]:
    """The path and NumPy array of every leaf, and the structure."""
    keyed, structure = jax.tree.flatten_with_path(tree)
    paths = [jax.tree_util.keystr(path) for path, _ in keyed]
    return [
        (path, host_array(leaf, path))
        for path, (_, leaf) in zip(paths, keyed, strict=True)
    ], structure


def _place_local(
    leaves: Iterable[tuple[str, NDArray[Any]]],
    specs: Iterable[PartitionSpec],
    mesh: Mesh,
) -> list[jax.Array]:
    """Makes global arrays from host-local ones. Checks all leaves before it places the first."""
    grid = grid_of(mesh)
    shares: dict[Any, DimensionShare] = {}
    jobs = []
    for (path, local), spec in zip(leaves, specs, strict=True):
        dtype = placed_dtype(local.dtype, path)
        entries = tuple(spec) + (None,) * (local.ndim - len(spec))
        for entry in entries:
            if entry not in shares:
                shares[entry] = share_along(grid, entry)
        along = [shares[entry] for entry in entries]
        shape = _global_shape(local.shape, along, spec, path, grid)
        layout = plan_leaf(grid, spec, shape)
        # Copy the boxes now, into memory that JAX can take over.
        buffers = []
        for box in layout.boxes:
            source = local[_local_slices(box, shape, along)]
            buffers.append(aligned_empty(source.shape, dtype))
            cast_into(buffers[-1], source, path)
        jobs.append((Placer(layout, NamedSharding(mesh, spec), dtype), buffers))
    return [place(buffers) for place, buffers in jobs]


def _global_shape(
    local: tuple[int, ...],
    shares: list[DimensionShare],
    spec: PartitionSpec,
    path: str,
    grid: MeshGrid,
) -> tuple[int, ...]:
    shape: list[int] = []
    for dim, (size, share) in enumerate(zip(local, shares, strict=True)):
        few = int(share.counts.argmin())
        many = int(share.counts.argmax())
        if share.counts[few] != share.counts[many]:
            raise PartitionError(
                f"{leaf_name(path)}: the hosts have unequal shares of dim {dim} "
                f"under {spec}: of its {count_text(share.total, 'shard')}, process "
                f"{share.processes[few]} holds {share.counts[few]} and process "
                f"{share.processes[many]} holds {share.counts[many]}. So global "
                "sizes can't be computed from local ones: use a loadax.Dataloader, "
                "or jax.make_array_from_callback with the global shape"
            )
        if share.total > 1:
            count = len(share.held)
        else:
            count = 1
        if count == 0:
            raise MeshError(
                f"{leaf_name(path)}: process {grid.process} has no device on the "
                "mesh, so the global shape can't be computed from its data: use a "
                "mesh with devices of every process, or don't call this on that "
                "process"
            )
        if size % count:
            raise PartitionError(
                f"{leaf_name(path)}: dim {dim} has local size {size}, but this "
                f"process holds {count} of the {count_text(share.total, 'shard')} "
                f"of {spec}. Pass a multiple of {count}"
            )
        shape.append(size // count * share.total)
    return tuple(shape)


def _local_slices(
    box: Box, shape: tuple[int, ...], shares: list[DimensionShare]
) -> tuple[slice, ...]:
    """Maps a box of the global array to slices of the local array, in which this process's shards are concatenated."""
    slices: list[slice] = []
    for (start, stop), size, share in zip(box, shape, shares, strict=True):
        extent = size // share.total
        if extent:
            first = int(np.searchsorted(share.held, start // extent)) * extent
        else:
            first = 0
        slices.append(slice(first, first + stop - start))
    return tuple(slices)
