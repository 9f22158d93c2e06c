"""Which mesh batches go to: the caller's, a preset, or one that is not there and is only planned for.

Mesh contexts are per thread, in JAX's new form (`jax.set_mesh`) and its old one (`with mesh:`), so a mesh is looked up
on the caller's thread, and the very object is kept: its axis types decide what `jit` accepts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh
from numpy.typing import ArrayLike, NDArray

from loadax.core.arguments import integer, shown
from loadax.errors import ArgumentError, MeshError
from loadax.sharding.compat import legacy_mesh
from loadax.sharding.layout import MeshGrid


@final
@dataclass(frozen=True, eq=False, repr=False)
class PlannedMesh:
    """A mesh that is not there: enough of one to plan for, but nothing can be placed on it. `plan_mesh` makes them.

    Args:
        axes: the size of every axis, major to minor.
        owners: the process that owns each device; int64 in the shape of the mesh, read-only.
        process: the process to plan as.
    """

    axes: dict[str, int]
    owners: NDArray[np.int64]
    process: int

    def __repr__(self) -> str:
        """The axes with their sizes, the number of hosts and the process."""
        axes = ", ".join(f"{name}={size}" for name, size in self.axes.items())
        hosts = len(np.unique(self.owners))
        return f"PlannedMesh({axes}; {hosts} {'host' if hosts == 1 else 'hosts'}, as process {self.process})"


def plan_mesh(
    axes: Mapping[str, int], *, hosts: int | None = None, owners: ArrayLike | None = None, process: int = 0
) -> PlannedMesh:
    """A mesh to plan for, of any size, on any machine.

    Args:
        axes: name and size of every axis, major to minor.
        hosts: that many hosts own equal runs of devices, in row-major order. Either this or `owners`.
        owners: the process that owns each device; integers in the shape of the mesh.
        process: the process to plan as; one that owns no device holds nothing.

    Raises:
        ArgumentError: when sizes are not positive, `hosts` does not divide the number of devices, `owners` has another
            shape or is not made of integers from 0 on, both or none of the two are given, or `process` is negative.

    Examples:
        >>> plan_mesh({"data": 512, "seq": 64}, hosts=4096)
        PlannedMesh(data=512, seq=64; 4096 hosts, as process 0)
        >>> plan_mesh({"data": 4}, owners=[0, 1, 0, 1], process=1).owners
        array([0, 1, 0, 1])
    """
    sizes = _checked_axes("axes", axes)
    process = integer("process", process, 0, remedy="the number of the process to plan as, from 0 on")
    if (hosts is None) == (owners is None):
        raise ArgumentError(f"hosts={hosts!r} and owners={owners!r}: give exactly one of the two")
    shape = tuple(sizes.values())
    if owners is None:
        devices = math.prod(shape)
        hosts = integer("hosts", hosts, 1)
        if devices % hosts:
            raise ArgumentError(
                f"hosts={hosts!r} can't own equal runs of the {devices} devices of {sizes}; use a divisor of {devices}"
            )
        grid = np.repeat(np.arange(hosts, dtype=np.int64), devices // hosts).reshape(shape)
    else:
        grid = _checked_owners(owners, shape)
    grid.setflags(write=False)
    return PlannedMesh(sizes, grid, process)


def _checked_owners(owners: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.int64]:
    given = np.asarray(owners)
    if given.shape != shape:
        raise ArgumentError(f"owners has the shape {given.shape}, the axes make a mesh of shape {shape}")
    if given.dtype.kind not in "iu" or given.min() < 0:
        raise ArgumentError(f"owners={owners!r}: the processes that own the devices are integers from 0 on")
    return given.astype(np.int64)


def _checked_axes(argument: str, axes: Any) -> dict[str, int]:
    """`axes` as a dict of names and positive sizes."""
    remedy = "a dict of axis names and positive sizes, say {'data': 8}"
    if not isinstance(axes, Mapping) or not axes or not all(isinstance(name, str) for name in axes):
        raise ArgumentError(f"{argument}={shown(axes)}: pass {remedy}")
    return {name: integer(f"{argument}[{name!r}]", size, 1, remedy=remedy) for name, size in axes.items()}


def current_mesh() -> Mesh | None:
    """The mesh that the caller's thread is in, of `jax.set_mesh` or of a `with mesh:` block.

    Returns:
        The very mesh object, or None when there is none.

    Raises:
        MeshError: inside `jax.jit`, where JAX shows no mesh of devices.

    Examples:
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
        raise MeshError(f"the current mesh can't be had inside jax.jit: call this outside of it ({error})") from None
    return legacy_mesh() if mesh.empty else mesh


def resolve_mesh(mesh: Any = None) -> Mesh | PlannedMesh:
    """The mesh that was given, else the caller's current one, else all devices on one axis "data".

    Raises:
        ArgumentError: when `mesh` is something else.
        MeshError: when it is empty, or an `AbstractMesh`.

    Examples:
        >>> resolve_mesh().axis_names
        ('data',)
    """
    if mesh is None:
        return current_mesh() or data_parallel()
    if isinstance(mesh, AbstractMesh):
        raise MeshError(
            f"mesh={mesh!r} has no devices: pass a jax.sharding.Mesh, or plan with loadax.sharding.plan_mesh"
        )
    if not isinstance(mesh, Mesh | PlannedMesh):
        raise ArgumentError(f"mesh={mesh!r} is a {type(mesh).__name__}: pass a jax.sharding.Mesh")
    if isinstance(mesh, Mesh) and mesh.empty:
        raise MeshError(f"mesh={mesh!r} is empty: pass one with devices, say loadax.sharding.data_parallel()")
    return mesh


def axis_sizes(mesh: Mesh | PlannedMesh) -> dict[str, int]:
    """The size of every axis, major to minor."""
    return dict(mesh.axes) if isinstance(mesh, PlannedMesh) else dict(mesh.shape)


def grid_of(mesh: Mesh | PlannedMesh) -> MeshGrid:
    """The mesh as numbers, seen from this process; from the planned one on a `PlannedMesh`.

    Examples:
        >>> grid_of(data_parallel()).owners
        array([0, 0, 0, 0, 0, 0, 0, 0])
    """
    if isinstance(mesh, PlannedMesh):
        return MeshGrid(tuple(mesh.axes), mesh.owners, mesh.process)
    devices = mesh.devices
    owners = np.fromiter((device.process_index for device in devices.flat), np.int64, devices.size)
    return MeshGrid(tuple(mesh.axis_names), owners.reshape(devices.shape), jax.process_index())


def data_parallel(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh with one axis, "data": every device has its own rows, and a copy of the parameters.

    Args:
        devices: in this order; all of them when None.

    Examples:
        >>> data_parallel().shape["data"]
        8
    """
    return _mesh(_devices(devices), {"data": -1})


def fully_sharded(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh with one axis, "fsdp": every device has its own rows, and its own part of the parameters.

    Args:
        devices: in this order; all of them when None.

    Examples:
        >>> fully_sharded().axis_names
        ('fsdp',)
    """
    return _mesh(_devices(devices), {"fsdp": -1})


def hybrid(
    inside: int | Mapping[str, int] | None = None,
    between: int | Mapping[str, int] | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """A mesh whose minor axes stay on the devices of one host, where links are fast, and whose major axes cross hosts.

    Args:
        inside: the minor axes and their sizes; a number n means `{"fsdp": n}`. When None: what `between` leaves, or the
            devices of one process.
        between: the major axes and their sizes; a number n means `{"data": n}`. When None: what `inside` leaves.
        devices: all of them when None. They are dealt out by process, and so in each process by id.

    Raises:
        ArgumentError: when the sizes don't multiply up to the number of devices, an axis is named twice, or `inside`
            can't be chosen because the processes have different numbers of devices.

    Examples:
        >>> dict(hybrid(inside={"fsdp": 2, "model": 2}).shape)
        {'data': 2, 'fsdp': 2, 'model': 2}
    """
    ordered = sorted(_devices(devices), key=lambda device: (device.process_index, device.id))
    inner = _given_axes("inside", inside, "fsdp")
    outer = _given_axes("between", between, "data")
    if inner is None and outer is None:
        inner = {"fsdp": _devices_per_process(ordered)}
    if inner is None:
        assert outer is not None
        inner = {"fsdp": _rest(len(ordered), "between", outer)}
    if outer is None:
        outer = {"data": _rest(len(ordered), "inside", inner)}
    if twice := sorted(set(inner) & set(outer)):
        raise ArgumentError(f"inside={inner} and between={outer} both name the axis {twice[0]!r}: rename one of them")
    axes = outer | inner
    if math.prod(axes.values()) != len(ordered):
        raise ArgumentError(
            f"between={outer} and inside={inner} make a mesh of {math.prod(axes.values())} devices, "
            f"there are {len(ordered)}: leave one of the two out to have it chosen, or pass devices="
        )
    return _mesh(ordered, axes)


def _given_axes(argument: str, given: Any, name: str) -> dict[str, int] | None:
    if given is None:
        return None
    return _checked_axes(argument, {name: given} if isinstance(given, int) else given)


def _rest(count: int, argument: str, axes: dict[str, int]) -> int:
    """How many times the mesh of `axes` fits into `count` devices."""
    size = math.prod(axes.values())
    if count % size:
        raise ArgumentError(
            f"{argument}={axes} takes {size} devices at a time, which does not divide the {count} there are"
        )
    return count // size


def _devices_per_process(devices: list[jax.Device]) -> int:
    counts = np.unique([device.process_index for device in devices], return_counts=True)[1].tolist()
    if len(set(counts)) > 1:
        raise ArgumentError(f"inside=None: the processes have different numbers of devices, {counts}; say inside=")
    return int(counts[0])


def _devices(devices: Sequence[jax.Device] | None) -> list[jax.Device]:
    chosen = jax.devices() if devices is None else list(devices)
    if not chosen:
        raise ArgumentError("devices=[] is empty: a mesh needs at least one; leave it out for all devices")
    return chosen


def _mesh(devices: list[jax.Device], axes: dict[str, int]) -> Mesh:
    # A list of devices goes through an empty object array: np.array would ask each of them whether it is a sequence.
    grid = np.empty(len(devices), object)
    grid[:] = devices
    return Mesh(grid.reshape(tuple(axes.values())), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
