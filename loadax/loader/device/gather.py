"""Gathers batches by row index from a dataset in device memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from loadax.core.tree import flatten
from loadax.loader.assembly.host_shard import HostShard, batch_specs
from loadax.protocols import ArraySpec, Integers, Tree
from loadax.reader import Reader
from loadax.sharding.layout import plan_leaf
from loadax.sharding.mesh import grid_of
from loadax.sharding.own_devices import OwnDevices, Placed
from loadax.sources.base import BaseSource

# Dtype of row indices on the device: half the size of int64, and available without x64.
INDEX_DTYPE = np.dtype(np.int32)


@final
@dataclass(frozen=True, eq=False)
class RowIndexSource(BaseSource):
    """A source of indices into the cached rows, whose row 0 is zeros.

    Args:
        rows: Cached rows, ascending; None: all.
        num_rows: Number of rows of the dataset's source.
        leaves: Number of leaves, all with the same indices.
    """

    rows: Integers | None
    num_rows: int
    leaves: int = 1

    @property
    def count(self) -> int:
        """Number of cached rows."""
        if self.rows is None:
            return self.num_rows
        return len(self.rows)

    @property
    def spec(self) -> Tree:
        return {"rows": [ArraySpec((), INDEX_DTYPE)] * self.leaves}

    def __len__(self) -> int:
        return self.num_rows

    def read(self, rows: Integers) -> Tree:
        if self.rows is None:
            places = rows
        else:
            places = np.searchsorted(self.rows, rows)
        return {"rows": [(places + 1).astype(INDEX_DTYPE)] * self.leaves}


@final
class DeviceGather:
    """Gathers batches of one shard from cached rows.

    Args:
        shard: Shard of the batches.
        source: Source of the row indices.
        placed: Shapes and shardings of `arrays`.
        arrays: Leaves of the cached rows, with row 0 of zeros.

    Attributes:
        reader: Reader of row indices in place of rows.
        shard: Shard of the batches of row indices.
    """

    def __init__(
        self,
        shard: HostShard,
        source: RowIndexSource,
        placed: Sequence[Placed],
        arrays: Sequence[jax.Array],
    ):
        assert isinstance(shard.mesh, Mesh)
        self._arrays = list(arrays)
        data = [
            (leaf.source, PartitionSpec(*spec[:1]))
            for leaf, spec in shard.leaf_specs
            if not leaf.generated
        ]
        # A device needs the indices of the rows that it holds: one leaf per partition of the rows.
        cuts = list(dict.fromkeys(spec for _, spec in data))
        self.reader = Reader(replace(source, leaves=len(cuts)), (), None)
        self.shard = _index_shard(shard, self.reader.spec, cuts)
        leaves = self.shard.batch.leaves
        generated = {
            leaf.generated: index
            for index, leaf in enumerate(leaves)
            if leaf.generated
        }
        self._generated = [
            generated.get(leaf.generated) for leaf in shard.batch.leaves
        ]
        self._index_leaves = [
            index for index, leaf in enumerate(leaves) if not leaf.generated
        ]
        wanted = [(source, cuts.index(spec)) for source, spec in data]

        def gather(*given: jax.Array) -> list[jax.Array]:
            kept = given[: len(placed)]
            rows = given[len(placed) :]
            return [
                kept[source or 0].at[rows[cut]].get(mode="promise_in_bounds")
                for source, cut in wanted
            ]

        inputs = flatten(self.shard.shape_dtypes)[0]
        outputs = zip(flatten(shard.shape_dtypes)[0], shard.batch.leaves, strict=True)
        self._program = OwnDevices(shard.mesh).compile(
            gather,
            [*placed, *(inputs[index] for index in self._index_leaves)],
            [output for output, leaf in outputs if not leaf.generated],
        )

    def __call__(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Gathers the leaves of a batch. Asynchronous; never communicates."""
        gathered = iter(
            self._program(
                [*self._arrays, *(arrays[index] for index in self._index_leaves)]
            )
        )
        return [
            next(gathered) if index is None else arrays[index]
            for index in self._generated
        ]


def _index_shard(
    shard: HostShard, spec: Tree, cuts: Sequence[PartitionSpec]
) -> HostShard:
    """The shard of batches of row indices, one leaf per partition of the rows; generated leaves are unchanged."""
    as_before = {
        leaf.generated: spec for leaf, spec in shard.leaf_specs if leaf.generated
    }
    batch = batch_specs(spec, list(as_before))[0]
    specs = tuple(
        as_before[leaf.generated] if leaf.generated else cuts[leaf.source or 0]
        for leaf in batch.leaves
    )
    grid = grid_of(shard.mesh)
    rows = shard.batch_size
    layouts = tuple(
        plan_leaf(grid, spec, (rows, *leaf.spec.shape))
        for leaf, spec in zip(batch.leaves, specs, strict=True)
    )
    return replace(shard, batch=batch, specs=specs, layouts=layouts)
