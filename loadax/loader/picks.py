"""Batches picked out of a dataset that the devices keep, by the numbers of their rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from numpy.typing import NDArray

from loadax.loader.share import Share, batch_spec
from loadax.protocols import ArraySpec, Integers, Tree
from loadax.reader import Reader
from loadax.sharding.layout import plan_leaf
from loadax.sharding.mesh import grid_of
from loadax.sharding.own_devices import OwnDevices, Placed
from loadax.specs import flatten_spec
from loadax.trees import flatten

NUMBER = np.dtype(np.int32)
"""Of a row, on the device: half the bytes of int64, and there without x64."""

_ROWS = "rows"


@final
@dataclass(frozen=True, eq=False)
class Numbers:
    """A source that gives for a row where it stands among those that are kept, which begin with one of zeros."""

    rows: Integers | None
    num_rows: int
    spec: Tree = None

    @property
    def count(self) -> int:
        """How many rows are kept."""
        return self.num_rows if self.rows is None else len(self.rows)

    def __len__(self) -> int:
        return self.num_rows

    def with_spec(self, spec: Tree) -> "Numbers":
        return Numbers(self.rows, self.num_rows, spec)

    def read(self, rows: Integers) -> Tree:
        places = rows if self.rows is None else np.searchsorted(self.rows, rows)
        leaves, structure = flatten_spec(self.spec)
        numbers: NDArray[Any] = (places + 1).astype(NUMBER)
        return structure.build([numbers] * len(leaves))


@final
class Picks:
    """Batches of one share, picked out of what the devices keep.

    Attributes:
        reader: gives the numbers of rows, in place of the rows.
        share: of batches of these.
    """

    def __init__(self, share: Share, source: Numbers, placed: Sequence[Placed], arrays: Sequence[jax.Array]):
        self._arrays = list(arrays)
        rows = [PartitionSpec(*spec[:1]) for spec in share.specs]
        leaves = list(zip(share.batch.leaves, rows, strict=True))
        # A device needs the numbers of those rows that it holds: one leaf for each way in which rows are cut.
        cuts = list(dict.fromkeys(spec for leaf, spec in leaves if leaf.source is not None))
        made = [leaf.made for leaf in share.batch.leaves if leaf.made]
        spec: Tree = {_ROWS: [ArraySpec((), NUMBER)] * len(cuts)}
        batch = batch_spec(spec, made)
        own = {leaf.made: number for number, leaf in enumerate(share.batch.leaves) if leaf.made}
        grid = grid_of(share.mesh)
        specs = [share.specs[own[leaf.made]] if leaf.made else cuts[leaf.source or 0] for leaf in batch.leaves]
        layouts = [
            plan_leaf(grid, each, (share.batch_size, *leaf.spec.shape)) for each, leaf in zip(specs, batch.leaves, strict=True)
        ]
        self.reader = Reader(source.with_spec(spec), (), None)
        self.share = Share(batch, share.mesh, tuple(specs), tuple(layouts), share.batch_size, share.first, share.microbatches)
        numbers = {leaf.source: number for number, leaf in enumerate(batch.leaves) if not leaf.made}
        self._numbers = [numbers[number] for number in range(len(cuts))]
        self._made = {leaf.made: number for number, leaf in enumerate(batch.leaves) if leaf.made}
        self._leaves = share.batch.leaves
        of = [cuts.index(spec) for leaf, spec in leaves if leaf.source is not None]
        sources = [leaf.source or 0 for leaf in share.batch.leaves if leaf.source is not None]

        def pick(*given: jax.Array) -> list[jax.Array]:
            kept, numbers = given[: len(placed)], given[len(placed) :]
            return [kept[which].at[numbers[cut]].get(mode="promise_in_bounds") for which, cut in zip(sources, of, strict=True)]

        assert isinstance(share.mesh, Mesh)
        inputs = flatten(self.share.shape_dtypes)[0]
        whole = flatten(share.shape_dtypes)[0]
        outputs = [each for leaf, each in zip(share.batch.leaves, whole, strict=True) if leaf.source is not None]
        self._program = OwnDevices(share.mesh).compile(pick, [*placed, *(inputs[number] for number in self._numbers)], outputs)

    def __call__(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """The leaves of the batch whose rows have these numbers. Never communicates, and waits for nothing."""
        picked = iter(self._program([*self._arrays, *(arrays[number] for number in self._numbers)]))
        return [arrays[self._made[leaf.made]] if leaf.made else next(picked) for leaf in self._leaves]
