"""The shards and rows of a batch that every process holds, computed for all processes at once.

`layout.plan_leaf` plans one process, which is all that a run needs; calling it for each of thousands of hosts takes
seconds. These functions need a few NumPy calls for all hosts together.

A host's index is its rank among the processes that own a device, in ascending order.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, final

import numpy as np

from loadax.protocols import Integers
from loadax.sharding.layout import (
    MeshGrid,
    entries_of,
    positions,
    shard_count,
    shards_at,
)


@final
@dataclass(frozen=True, eq=False)
class LeafHoldings:
    """The shards of one leaf that every host holds: distinct pairs of host and shard, sorted by host, then by shard.

    Args:
        shape: Shape of the global leaf, rows first.
        cuts: Number of shards along each dim.
        hosts: Number of hosts.
        host: Host of each pair, int64[n].
        shard: Shard of each pair, int64[n], as an index in row-major order (the last dim varies fastest).
    """

    shape: tuple[int, ...]
    cuts: tuple[int, ...]
    hosts: int
    host: Integers
    shard: Integers

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """The shape of one shard."""
        return tuple(
            size // cut for size, cut in zip(self.shape, self.cuts, strict=True)
        )

    @cached_property
    def columns(self) -> int:
        """Number of shards that hold the same rows."""
        return math.prod(self.cuts[1:])

    @cached_property
    def counts(self) -> Integers:
        """int64[hosts]: number of shards that each host holds."""
        return np.bincount(self.host, minlength=self.hosts)


@final
@dataclass(frozen=True, eq=False)
class HeldRows:
    """The rows of a batch that every host reads: disjoint intervals, sorted by host, then by row.

    Args:
        batch_size: Rows of the batch.
        hosts: Number of hosts.
        host: Host of each interval, int64[n].
        start: First row of each interval, int64[n].
        stop: Row after the last one of each interval, int64[n].
    """

    batch_size: int
    hosts: int
    host: Integers
    start: Integers
    stop: Integers

    @cached_property
    def counts(self) -> Integers:
        """int64[hosts]: number of rows that each host reads."""
        return np.bincount(self.host, self.stop - self.start, self.hosts).astype(
            np.int64
        )

    @cached_property
    def copies(self) -> Integers:
        """int64[batch_size]: number of hosts that read each row."""
        begun, ended = (
            np.bincount(ends, minlength=self.batch_size + 1)
            for ends in (self.start, self.stop)
        )
        return np.cumsum(begun - ended)[:-1]

    def positions(self, host: int) -> Integers:
        """int64[n]: rows of one host, ascending."""
        intervals = self._intervals[host]
        return positions(
            zip(
                self.start[intervals].tolist(),
                self.stop[intervals].tolist(),
                strict=True,
            )
        )

    @cached_property
    def alike(self) -> list[Integers]:
        """Groups of hosts that read the same rows, ordered by their first host."""
        groups: dict[bytes, list[int]] = {}
        bounds = np.stack([self.start, self.stop], axis=1)
        for host in range(self.hosts):
            groups.setdefault(bounds[self._intervals[host]].tobytes(), []).append(
                host
            )
        return [np.array(group, np.int64) for group in groups.values()]

    @cached_property
    def _intervals(self) -> list[slice]:
        """The intervals of each host."""
        return [
            slice(*ends)
            for ends in pairwise(
                np.searchsorted(self.host, np.arange(self.hosts + 1)).tolist()
            )
        ]


def hold_leaf(
    grid: MeshGrid, spec: Iterable[Any], shape: Sequence[int]
) -> LeafHoldings:
    """The shards that every host holds of an array of `shape`, which `spec` splits evenly.

    Examples:
        >>> import numpy as np
        >>> from loadax.sharding.holdings import hold_leaf
        >>> from loadax.sharding.layout import MeshGrid
        >>> grid = MeshGrid(("data", "model"), np.array([[0, 0], [1, 1]]), process=0)
        >>> held = hold_leaf(grid, ("data", "model"), (8, 6))
        >>> held.extents, held.host, held.shard
        ((4, 3), array([0, 0, 1, 1]), array([0, 1, 2, 3]))
    """
    shape = tuple(int(size) for size in shape)
    entries = entries_of(spec, len(shape))
    cuts = tuple(shard_count(grid, entry) for entry in entries)
    coordinates = tuple(
        axis_coordinates.ravel() for axis_coordinates in np.indices(grid.owners.shape)
    )
    shard = np.zeros(grid.owners.size, np.int64)
    for entry, cut in zip(entries, cuts, strict=True):
        shard = shard * cut + shards_at(grid, entry, coordinates)
    processes, host = np.unique(grid.owners.ravel(), return_inverse=True)
    pairs = np.divmod(np.unique(host * math.prod(cuts) + shard), math.prod(cuts))
    return LeafHoldings(shape, cuts, len(processes), *pairs)


def hold_rows(leaves: Sequence[LeafHoldings]) -> HeldRows:
    """The rows that each host reads for all `leaves`, without repeats.

    Examples:
        >>> import numpy as np
        >>> from loadax.sharding.holdings import hold_leaf, hold_rows
        >>> from loadax.sharding.layout import MeshGrid
        >>> grid = MeshGrid(("data",), np.array([0, 0, 1, 1]), process=0)
        >>> rows = hold_rows([hold_leaf(grid, ("data",), (8,)), hold_leaf(grid, (None, "data"), (8, 4))])
        >>> rows.counts, rows.copies
        (array([8, 8]), array([2, 2, 2, 2, 2, 2, 2, 2]))
    """
    batch_size = leaves[0].shape[0]
    hosts = leaves[0].hosts
    # Each host's rows are shifted by a multiple of `width`, which leaves a gap between hosts: one pass then merges the
    # intervals of all hosts.
    width = batch_size + 1
    starts = []
    stops = []
    for leaf in leaves:
        host, row = np.divmod(
            np.unique(leaf.host * leaf.cuts[0] + leaf.shard // leaf.columns),
            leaf.cuts[0],
        )
        starts.append(host * width + row * leaf.extents[0])
        stops.append(starts[-1] + leaf.extents[0])
    order = np.argsort(np.concatenate(starts), kind="stable")
    start = np.concatenate(starts)[order]
    reached = np.maximum.accumulate(np.concatenate(stops)[order])
    first = np.flatnonzero(np.concatenate([[True], start[1:] > reached[:-1]]))
    start = start[first]
    stop = reached[np.append(first[1:], len(order)) - 1]
    return HeldRows(batch_size, hosts, start // width, start % width, stop % width)
