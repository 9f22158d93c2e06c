"""Resolves the user's `partition` into one checked `PartitionSpec` per leaf.

Accepts a spec, a `NamedSharding`, a pytree prefix of these, or a `DataPartitionType`. Only the names and sizes of the
mesh's axes are used, so planned meshes work too.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any, final

from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from loadax.core.casting import leaf_name
from loadax.core.formatting import count_text, type_text
from loadax.core.tree import Structure, broadcast_prefix
from loadax.errors import ArgumentError, MeshError, PartitionError, UnsupportedError
from loadax.sharding.layout import axes_of
from loadax.sharding.mesh import PlannedMesh, axis_sizes


@final
class DataPartitionType(enum.Enum):
    """The two partitions that need no spec.

    Attributes:
        FULL: Split rows over all devices of the mesh.
        REPLICATED: Copy everything to every device.
    """

    FULL = "full"
    REPLICATED = "replicated"


def is_full(partition: Any) -> bool:
    """Whether `partition` is FULL rather than REPLICATED.

    Raises:
        UnsupportedError: (a NotImplementedError) If it is neither.
    """
    if not isinstance(partition, DataPartitionType):
        raise UnsupportedError(
            f"partition={partition!r}: pass DataPartitionType.FULL or "
            "DataPartitionType.REPLICATED"
        )
    return partition is DataPartitionType.FULL


def resolve_partition(
    partition: Any,
    structure: Structure,
    shapes: Sequence[tuple[int, ...]],
    mesh: Mesh | PlannedMesh,
) -> list[PartitionSpec]:
    """Resolves `partition` into one spec per leaf of a batch, in leaf order.

    Args:
        partition: None (rows over the axis of a one-axis mesh), a spec, a `NamedSharding` on `mesh`, a pytree prefix of
            these and of `DataPartitionType`s. A spec given for several leaves is truncated to the rank of each.
        structure: Structure of the batch.
        shapes: Shapes of the leaves of the global batch.
        mesh: Mesh of the batch.

    Raises:
        PartitionError: If a spec does not fit its leaf or the mesh, or none is given on a mesh of several axes.
        MeshError: If a `NamedSharding` has another mesh.
        ArgumentError: If `partition` is none of these, or not a prefix of the batch.
        UnsupportedError: If a `NamedSharding` requests a memory kind other than the devices' default.

    Examples:
        >>> from jax.sharding import PartitionSpec
        >>> from loadax.core.tree import flatten
        >>> from loadax.sharding import plan_mesh
        >>> from loadax.sharding.partition import resolve_partition
        >>> mesh = plan_mesh({"data": 4, "model": 2}, hosts=2)
        >>> structure = flatten({"x": 0, "y": 0})[1]
        >>> resolve_partition(PartitionSpec("data", "model"), structure, [(8, 4), (8,)], mesh)
        [P('data', 'model'), P('data',)]
    """
    sizes = axis_sizes(mesh)
    if partition is None:
        partition = _default_spec(sizes)
    try:
        given = broadcast_prefix(partition, structure, _is_spec)
    except ArgumentError as error:
        raise ArgumentError(
            f"partition: {error}. Give one spec for all leaves, or one for each leaf"
        ) from None
    specs: list[PartitionSpec] = []
    for (entry, own), path, shape in zip(given, structure.paths, shapes, strict=True):
        spec = _as_spec(entry, mesh, path)
        if not own:
            spec = _truncate(spec, len(shape))
        check_spec(spec, len(shape), sizes, path)
        _check_shape(spec, shape, sizes, path)
        specs.append(spec)
    return specs


def check_spec(
    spec: PartitionSpec, rank: int, sizes: Mapping[str, int], path: str
) -> None:
    """Checks that the spec fits a leaf of this rank and the mesh, and uses each axis at most once.

    Raises:
        PartitionError: If it does not. The message names the leaf at `path`.
    """
    leaf = leaf_name(path)
    if len(spec) > rank:
        raise PartitionError(
            f"{leaf} has {rank} {'dim' if rank == 1 else 'dims'}, but {_text(spec)} "
            f"has {count_text(len(spec), 'entry', 'entries')}: use "
            f"{_text(_truncate(spec, rank))}"
        )
    if spec.unreduced or spec.reduced or PartitionSpec.UNCONSTRAINED in tuple(spec):
        raise PartitionError(
            f"{leaf}: {spec} has unreduced, reduced or unconstrained axes: leave "
            "them out of host data"
        )
    axes = [axis for entry in spec for axis in axes_of(entry)]
    for axis in axes:
        if axis not in sizes:
            raise PartitionError(
                f"{leaf}: {_text(spec)} names the axis {axis!r}, but the mesh has "
                f"{dict(sizes)}: use one of these"
            )
        if axes.count(axis) > 1:
            raise PartitionError(
                f"{leaf}: {_text(spec)} uses the axis {axis!r} twice: an axis can "
                "split only one dim"
            )


def _check_shape(
    spec: PartitionSpec, shape: tuple[int, ...], sizes: Mapping[str, int], path: str
) -> None:
    for dim, entry in enumerate(spec):
        count = math.prod(sizes[axis] for axis in axes_of(entry))
        if shape[dim] % count == 0:
            continue
        what = "row"
        argument = "batch_size"
        remedy = f"Use a batch_size that is a multiple of {count}"
        if dim:
            what = "column"
            argument = "partition"
            remedy = (
                f"Pad it to a multiple of {count} in a map, or pass partition= as a "
                "tree with a spec for each leaf"
            )
        raise PartitionError(
            f"{leaf_name(path)}: dim {dim} has {count_text(shape[dim], what)}, "
            f"but {_text(spec)} splits it into {count} equal parts. {remedy}",
            argument=argument,
        )


def _default_spec(sizes: Mapping[str, int]) -> PartitionSpec:
    if len(sizes) == 1:
        return PartitionSpec(*sizes)
    cutting = [f'"{axis}"' for axis in sizes if sizes[axis] > 1] or [
        f'"{next(iter(sizes))}"'
    ]
    if len(cutting) > 1:
        every = f", or over all of them: partition=P(({', '.join(cutting)}))"
    else:
        every = ""
    raise PartitionError(
        f"the mesh has several axes, {dict(sizes)}, so name the ones to split rows "
        f"over: partition=P({cutting[0]}){every}"
    )


def _is_spec(node: Any) -> bool:
    # None and strings are leaves too, so that their errors can be specific.
    return node is None or isinstance(
        node, PartitionSpec | Sharding | DataPartitionType | str
    )


def _as_spec(entry: Any, mesh: Mesh | PlannedMesh, path: str) -> PartitionSpec:
    if isinstance(entry, PartitionSpec):
        return entry
    if isinstance(entry, DataPartitionType):
        if is_full(entry):
            return PartitionSpec(tuple(axis_sizes(mesh)))
        return PartitionSpec()
    if isinstance(entry, NamedSharding):
        if entry.mesh != mesh:
            raise MeshError(
                f"{leaf_name(path)}: its NamedSharding is on {entry.mesh!r}, the "
                f"loader on {mesh!r}: use one mesh"
            )
        kind = entry.memory_kind
        if (
            kind is not None
            and kind != entry.mesh.devices.flat[0].default_memory().kind
        ):
            raise UnsupportedError(
                f"{leaf_name(path)}: its partition has memory_kind={kind!r}, but "
                "batches are only placed in the devices' default memory: leave "
                "memory_kind out"
            )
        return entry.spec
    if entry is None:
        raise PartitionError(
            f"{leaf_name(path)}: its partition is None: use P() to replicate"
        )
    if isinstance(entry, str):
        hint = f"write P({entry!r})"
    else:
        hint = "pass a PartitionSpec or a NamedSharding"
    raise ArgumentError(
        f"{leaf_name(path)}: its partition is {entry!r}, {type_text(entry)}: {hint}"
    )


def _text(spec: PartitionSpec) -> str:
    """The spec as users write it: P('data') instead of JAX's P('data',)."""
    return f"P({', '.join(map(repr, spec))})"


def _truncate(spec: PartitionSpec, rank: int) -> PartitionSpec:
    if len(spec) <= rank:
        return spec
    return PartitionSpec(*tuple(spec)[:rank])
