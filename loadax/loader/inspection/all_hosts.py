"""AllHosts: the shards of all hosts of a run, derived from that of one process."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from loadax.loader.assembly.host_shard import HostShard
from loadax.protocols import Integers
from loadax.sharding.holdings import HeldRows, LeafHoldings, hold_leaf, hold_rows
from loadax.sharding.layout import MeshGrid, axes_of, plan_leaf
from loadax.sharding.mesh import grid_of

_PARTS = "the processes"  # mesh axis over processes that have their own meshes


@final
@dataclass(frozen=True, eq=False)
class AllHosts:
    """The shards of all hosts. Hosts are the processes that own a device, in ascending order.

    Args:
        one: Shard of one host.
        batch_size: Rows of the global batch. If the shard's own is smaller, every process has its own mesh like this
            one, for its part of the batch.
    """

    one: HostShard
    batch_size: int

    @cached_property
    def grid(self) -> MeshGrid:
        """Devices of all hosts; meshes of single processes are stacked along a new first axis."""
        grid = grid_of(self.one.mesh)
        parts = self.batch_size // self.one.batch_size
        if parts == 1:
            return grid
        numbers = np.arange(parts).reshape(parts, *(1 for _ in grid.axis_names))
        return MeshGrid(
            (_PARTS, *grid.axis_names),
            np.broadcast_to(numbers, (parts, *grid.owners.shape)),
            process=0,
        )

    @cached_property
    def leaves(self) -> tuple[LeafHoldings, ...]:
        """Parts of every leaf, by host."""
        return tuple(
            hold_leaf(self.grid, spec, shape) for spec, shape in self._leaves
        )

    def held_by_devices(self, leaf: int) -> LeafHoldings:
        """Parts of one leaf, by device in place of host."""
        owners = self.grid.owners
        devices = self.grid._replace(
            owners=np.arange(owners.size).reshape(owners.shape)
        )
        spec, shape = self._leaves[leaf]
        return hold_leaf(devices, spec, shape)

    @cached_property
    def rows(self) -> HeldRows:
        """Rows that each host reads."""
        return hold_rows(self.leaves)

    @cached_property
    def processes(self) -> Integers:
        """int64[hosts]: process index of each host."""
        return np.unique(self.grid.owners)

    def shard(self, host: int) -> HostShard:
        """The shard of a host, as that host computes it."""
        devices = np.unravel_index(self._devices[host], self.grid.owners.shape)
        layouts = tuple(
            plan_leaf(self.grid, spec, shape, devices) for spec, shape in self._leaves
        )
        return replace(self.one, layouts=layouts, batch_size=self.batch_size, first=0)

    @cached_property
    def _devices(self) -> list[Integers]:
        """Devices of each host, as indices into the flat grid: one sort finds those of all hosts."""
        owners = self.grid.owners.ravel()
        order = np.argsort(owners, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(owners[order])) + 1)

    @property
    def _leaves(self) -> list[tuple[tuple[Any, ...], tuple[int, ...]]]:
        """Spec and global shape of each leaf."""
        specs = [tuple(spec) for spec in self.one.specs]
        if self.grid.axis_names[0] == _PARTS:
            specs = [
                ((_PARTS, *axes_of((spec or (None,))[0])), *spec[1:])
                for spec in specs
            ]
        shapes = [(self.batch_size, *layout.shape[1:]) for layout in self.one.layouts]
        return list(zip(specs, shapes, strict=True))
