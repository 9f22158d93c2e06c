"""Builds the buffer layout of a step from a host's shard."""

import numpy as np

from loadax.core.spec import all_columns
from loadax.loader.assembly.buffer_layout import BufferLayout, ColumnTile
from loadax.loader.assembly.host_shard import HostShard
from loadax.protocols import Integers
from loadax.sharding.layout import ColumnGroup


def buffer_layout(shard: HostShard) -> BufferLayout:
    """Computes the buffer layout of one step of this shard."""
    tiles: list[ColumnTile] = []
    order: list[tuple[tuple[int, int], ...]] = []
    for leaf, layout in zip(shard.batch.leaves, shard.layouts, strict=True):
        places = {}
        for group in layout.groups:
            for box, start in enumerate(group.starts):
                places[(start, group.columns)] = (len(tiles), box)
            tiles.append(ColumnTile(leaf, group.columns, len(group.starts), group.height, _select(shard, group)))
        order.append(tuple(places[(box[0][0], box[1:])] for box in layout.boxes))
    for leaf in shard.host.leaves:
        order.append(((len(tiles), 0),))
        tiles.append(ColumnTile(leaf, all_columns(leaf.spec.shape), 1, len(shard.local_rows), None))
    return BufferLayout(tuple(tiles), tuple(order))


def _select(shard: HostShard, group: ColumnGroup) -> Integers | None:
    rows = (np.asarray(group.starts)[:, None] + np.arange(group.height)).ravel()
    if np.array_equal(rows, shard.local_rows):
        return None
    return np.searchsorted(shard.local_rows, rows)
