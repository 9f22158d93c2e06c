"""The mesh that batches are placed on: the caller's current mesh, a preset, or a planned one without devices.

Mesh contexts are thread-local, both the new form (`jax.set_mesh`) and the old one (`with mesh:`). So the mesh is looked
up on the caller's thread, and the same object is kept, because its axis types decide what `jit` accepts.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh
from numpy.typing import ArrayLike, NDArray

from loadax.core.arguments import integer, shown
from loadax.core.formatting import count_text, type_text
from loadax.errors import ArgumentError, MeshError
from loadax.sharding.compat import legacy_mesh
from loadax.sharding.layout import MeshGrid


@final
@dataclass(frozen=True, eq=False, repr=False)
class PlannedMesh:
    """A mesh without devices, made by `plan_mesh`: runs can be planned for it, but nothing can be placed on it.

    Args:
        axes: Size of every axis, major to minor.
        owners: Process that owns each device; int64 in the shape of the mesh, read-only.
        process: Process to plan for.
    """

    axes: dict[str, int]
    owners: NDArray[np.int64]
    process: int

    def __repr__(self) -> str:
        """The axes with their sizes, the number of hosts and the process."""
        axes = ", ".join(f"{name}={size}" for name, size in self.axes.items())
        hosts = len(np.unique(self.owners))
        return (
            f"PlannedMesh({axes}; {count_text(hosts, 'host')}, as process "
            f"{self.process})"
        )


def plan_mesh(
    axes: Mapping[str, int],
    *,
    hosts: int | None = None,
    owners: ArrayLike | None = None,
    process: int = 0,
) -> PlannedMesh:
    """Describes a mesh of any size without its devices, to plan and check a run on any machine.

    Args:
        axes: Name and size of every axis, major to minor.
        hosts: Number of hosts. They own equal, consecutive groups of devices in row-major order. Give this or `owners`.
        owners: Process that owns each device: integers in the shape of the mesh.
        process: Process to plan for. A process that owns no device holds nothing.

    Raises:
        ArgumentError: If sizes are not positive, `hosts` does not divide the number of devices, `owners` has another
            shape or contains anything but integers >= 0, both or neither of the two are given, or `process` is
            negative.

    Examples:
        >>> from loadax.sharding import plan_mesh
        >>> plan_mesh({"data": 512, "seq": 64}, hosts=4096)
        PlannedMesh(data=512, seq=64; 4,096 hosts, as process 0)
        >>> plan_mesh({"data": 4}, owners=[0, 1, 0, 1], process=1).owners
        array([0, 1, 0, 1])
    """
    sizes = _checked_axes("axes", axes)
    process = integer(
        "process",
        process,
        0,
        remedy="the number of the process to plan as, from 0 on",
    )
    if (hosts is None) == (owners is None):
        raise ArgumentError(
            f"hosts={hosts!r} and owners={owners!r}: give exactly one of the two"
        )
    shape = tuple(sizes.values())
    if hosts is not None:
        devices = math.prod(shape)
        hosts = integer("hosts", hosts, 1)
        if devices % hosts:
            raise ArgumentError(
                f"hosts={hosts!r} can't own equal parts of the "
                f"{count_text(devices, 'device')} of {sizes}; use a divisor of "
                f"{devices}"
            )
        owners = np.repeat(np.arange(hosts), devices // hosts).reshape(shape)
    given = np.asarray(owners)
    if given.shape != shape:
        raise ArgumentError(
            f"owners has shape {given.shape}, but the axes make a mesh of shape "
            f"{shape}"
        )
    if given.dtype.kind not in "iu" or given.min() < 0:
        raise ArgumentError(
            f"owners={owners!r}: pass the process that owns each device, as integers "
            ">= 0"
        )
    grid = given.astype(np.int64)
    grid.setflags(write=False)
    return PlannedMesh(sizes, grid, process)


def _checked_axes(argument: str, axes: Any) -> dict[str, int]:
    """`axes` as a dict of names and positive sizes."""
    remedy = "a dict of axis names and positive sizes, such as {'data': 8}"
    if (
        not isinstance(axes, Mapping)
        or not axes
        or not all(isinstance(name, str) for name in axes)
    ):
        raise ArgumentError(f"{argument}={shown(axes)}: pass {remedy}")
    return {
        name: integer(f"{argument}[{name!r}]", size, 1, remedy=remedy)
        for name, size in axes.items()
    }


def current_mesh() -> Mesh | None:
    """The mesh of the caller's thread, from `jax.set_mesh` or a `with mesh:` block.

    Returns:
        The same mesh object, or None if there is none.

    Raises:
        MeshError: Inside `jax.jit`, where JAX does not expose the mesh of devices.

    Examples:
        >>> import jax
        >>> from loadax.sharding import data_parallel
        >>> from loadax.sharding.mesh import current_mesh
        >>> mesh = data_parallel()
        >>> with jax.set_mesh(mesh):
        ...     current_mesh() is mesh
        True
        >>> current_mesh() is None
        True
    """
    try:
        mesh = jax.sharding.get_mesh()
    except ValueError as error:
        raise MeshError(
            "the current mesh isn't available inside jax.jit: call this outside of "
            f"it ({error})"
        ) from None
    if mesh.empty:
        return legacy_mesh()
    return mesh


def resolve_mesh(mesh: Any = None) -> Mesh | PlannedMesh:
    """`mesh` if given, else the caller's current mesh, else all devices on one axis "data".

    Raises:
        ArgumentError: If `mesh` is not a mesh.
        MeshError: If it is empty, or an `AbstractMesh`.

    Examples:
        >>> from loadax.sharding.mesh import resolve_mesh
        >>> resolve_mesh().axis_names
        ('data',)
    """
    if mesh is None:
        return current_mesh() or data_parallel()
    if isinstance(mesh, AbstractMesh) or (isinstance(mesh, Mesh) and mesh.empty):
        raise MeshError(
            f"mesh={mesh!r} has no devices: pass a jax.sharding.Mesh, or a "
            "loadax.sharding.plan_mesh"
        )
    if not isinstance(mesh, Mesh | PlannedMesh):
        raise ArgumentError(
            f"mesh={mesh!r} is {type_text(mesh)}: pass a jax.sharding.Mesh"
        )
    return mesh


def axis_sizes(mesh: Mesh | PlannedMesh) -> dict[str, int]:
    """Size of every axis, major to minor."""
    if isinstance(mesh, PlannedMesh):
        return dict(mesh.axes)
    return dict(mesh.shape)


def grid_of(mesh: Mesh | PlannedMesh) -> MeshGrid:
    """The mesh as an integer grid, for this process, or for the planned process of a `PlannedMesh`.

    Examples:
        >>> from loadax.sharding import data_parallel
        >>> from loadax.sharding.mesh import grid_of
        >>> grid_of(data_parallel()).owners
        array([0, 0, 0, 0, 0, 0, 0, 0])
    """
    if isinstance(mesh, PlannedMesh):
        return MeshGrid(tuple(mesh.axes), mesh.owners, mesh.process)
    devices = mesh.devices
    owners = np.fromiter(
        (device.process_index for device in devices.flat), np.int64, devices.size
    )
    return MeshGrid(
        tuple(mesh.axis_names), owners.reshape(devices.shape), jax.process_index()
    )


def data_parallel(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Makes a mesh with one axis, "data": every device has its own rows and a copy of the parameters.

    Args:
        devices: Devices, in mesh order. None: all devices.

    Examples:
        >>> from loadax.sharding import data_parallel
        >>> data_parallel().shape["data"]
        8
    """
    return _make_mesh(devices, {"data": -1})


def fully_sharded(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Makes a mesh with one axis, "fsdp": every device has its own rows and its own shard of the parameters.

    Args:
        devices: Devices, in mesh order. None: all devices.

    Examples:
        >>> from loadax.sharding import fully_sharded
        >>> fully_sharded().axis_names
        ('fsdp',)
    """
    return _make_mesh(devices, {"fsdp": -1})


def hybrid(
    inside: int | Mapping[str, int] | None = None,
    between: int | Mapping[str, int] | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """Makes a mesh whose minor axes stay within one host, where links are fast, and whose major axes cross hosts.

    Args:
        inside: Minor axes and their sizes. An int n means `{"fsdp": n}`. None: whatever `between` leaves, or the
            devices of one process.
        between: Major axes and their sizes. An int n means `{"data": n}`. None: whatever `inside` leaves.
        devices: Devices; they are sorted by process, then by id. None: all devices.

    Raises:
        ArgumentError: If the product of the sizes is not the number of devices, an axis is named twice, or `inside` has
            no default because the processes have different numbers of devices.

    Examples:
        >>> from loadax.sharding import hybrid
        >>> dict(hybrid(inside={"fsdp": 2, "model": 2}).shape)
        {'data': 2, 'fsdp': 2, 'model': 2}
    """
    ordered = sorted(
        _checked_devices(devices),
        key=lambda device: (device.process_index, device.id),
    )
    inner = _optional_axes("inside", inside, "fsdp")
    outer = _optional_axes("between", between, "data")
    if outer is None and inner is None:
        counts = Counter(device.process_index for device in ordered)
        if len(set(counts.values())) > 1:
            raise ArgumentError(
                f"inside=None: devices per process differ, {list(counts.values())}; "
                "pass inside="
            )
        inner = {"fsdp": counts[ordered[0].process_index]}
    left = max(1, len(ordered) // math.prod((outer or inner or {}).values()))
    inner = inner or {"fsdp": left}
    outer = outer or {"data": left}
    if twice := sorted(set(inner) & set(outer)):
        raise ArgumentError(
            f"inside={inner} and between={outer} both name the axis {twice[0]!r}: "
            "rename one of them"
        )
    axes = outer | inner
    if math.prod(axes.values()) != len(ordered):
        raise ArgumentError(
            f"between={outer} and inside={inner} make a mesh of "
            f"{count_text(math.prod(axes.values()), 'device')}, but there are "
            f"{len(ordered)}: use sizes whose product is {len(ordered)}, or pass "
            "devices="
        )
    return _make_mesh(ordered, axes)


def _optional_axes(argument: str, given: Any, name: str) -> dict[str, int] | None:
    if given is None:
        return None
    return _checked_axes(argument, {name: given} if isinstance(given, int) else given)


def _checked_devices(devices: Sequence[jax.Device] | None) -> list[jax.Device]:
    if devices is None:
        chosen = jax.devices()
    else:
        chosen = list(devices)
    if not chosen:
        raise ArgumentError(
            "devices=[] is empty: a mesh needs at least one; leave it out for all "
            "devices"
        )
    return chosen


def _make_mesh(devices: Sequence[jax.Device] | None, axes: dict[str, int]) -> Mesh:
    grid = np.array(_checked_devices(devices)).reshape(tuple(axes.values()))
    return Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
