"""HostShard: this process's part of every batch, computed from the mesh, the partition and the element spec."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from loadax.core.formatting import count_text, type_text
from loadax.core.intervals import merge
from loadax.core.leaf_names import path_of, value_at, without
from loadax.core.spec import all_columns, flatten_spec
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, LeafTypeError, MeshError, PartitionError
from loadax.loader.assembly.buffer_layout import BufferLayout, ColumnTile
from loadax.loader.batch_spec import (
    ADDED_BY,
    KEY,
    MASK,
    NO_LEAVES,
    BatchLeaf,
    BatchSpec,
)
from loadax.protocols import ArraySpec, Integers, Interval, Tree
from loadax.sharding.dtypes import placed_dtype
from loadax.sharding.layout import LeafLayout, plan_leaf, positions
from loadax.sharding.mesh import PlannedMesh, grid_of
from loadax.sharding.partition import resolve_partition

_GENERATED = {
    MASK: ArraySpec((), np.dtype(bool)),
    KEY: ArraySpec((2,), np.dtype(np.uint32)),
}


@final
@dataclass(frozen=True)
class ShardSpec:
    """One of `count` equal contiguous parts of each batch, numbered from 0."""

    index: int
    count: int


def batch_specs(
    example: Tree,
    generated: Sequence[str],
    host_leaves: Sequence[str] = (),
    missing: Sequence[Any] = (),
) -> tuple[BatchSpec, BatchSpec, BatchSpec]:
    """The specs of a placed batch, of its host leaves alone, and of a whole batch on the host.

    Args:
        example: Spec of an example.
        generated: Which of the generated leaves `MASK` and `KEY` to add. If all leaves are host leaves, a placed batch
            consists of the mask.
        host_leaves: Names of the leaves that are not placed; they keep their dtype.
        missing: Padding of each leaf of objects. Empty: None.

    Raises:
        LeafTypeError: If JAX does not have a leaf's dtype.
        ArgumentError: If a generated leaf can't be added: an example is not a dict, or has that key.
    """
    specs, structure = flatten_spec(example)
    if not specs:
        raise ArgumentError(
            f"an example has no leaves: it is {example!r}; check what the maps return"
        )
    tree = structure.build(range(len(specs)))  # the index of each leaf in its place
    on_host = {
        name: value_at(tree, path_of(tree, name) or ()) for name in host_leaves
    }
    kept = flatten(on_host)[0]
    placed = tree
    added = generated
    if host_leaves:
        for name in host_leaves:
            placed = without(placed, path_of(tree, name) or ())
        if not flatten(placed)[0]:
            added = [MASK, *(name for name in generated if name != MASK)]
    return (
        _spec(_with_generated(placed, added), specs),
        _spec(on_host, specs, kept, missing),
        _spec(_with_generated(tree, generated), specs, kept, missing),
    )


def _with_generated(tree: Any, generated: Sequence[str]) -> Any:
    """Adds the names of generated leaves to a tree of leaf indices."""
    for name in generated:
        if type(tree) is not dict or name in tree:
            if isinstance(tree, int):
                problem = "is one bare array"
            else:
                problem = f"is {type_text(tree)}"
            if isinstance(tree, dict):
                problem = f"already has the key {name!r}"
            if name == MASK:
                others = ", on_error= and quarantine="
            else:
                others = ""
            raise ArgumentError(
                f"a leaf {name!r} is to be added to every batch, but an example "
                f"{problem}; make examples dicts without that key in a map, or leave "
                f"out {ADDED_BY[name]}{others}"
            )
    if generated:
        return {**tree, **{name: name for name in generated}}
    return tree


def _spec(
    tree: Any,
    specs: Sequence[ArraySpec],
    kept: Sequence[int] = (),
    missing: Sequence[Any] = (),
) -> BatchSpec:
    """The spec of a tree of leaf indices and names of generated leaves; leaves `kept` keep their dtype."""
    indices, structure = flatten(tree)
    leaves = []
    refused = dict[int | str, LeafTypeError]()
    for path, index in zip(structure.paths, indices, strict=True):
        if isinstance(index, str):
            name = index
        else:
            name = ""
        if name:
            spec = _GENERATED[name]
        else:
            spec = specs[index]
        try:
            if index in kept:
                dtype = spec.dtype
            else:
                dtype = placed_dtype(spec.dtype, path)
        except LeafTypeError as error:
            refused[index] = error
            continue
        if name or not missing:
            padding = None
        else:
            padding = missing[index]
        leaves.append(
            BatchLeaf(path, None if name else index, spec, dtype, name, padding)
        )
    if refused:
        first = next(iter(refused.values()))
        if type(tree) is not dict:
            raise first
        found = zip(structure.names, indices, strict=True)
        wrong = tuple(name for name, index in found if index in refused)
        which, names = (
            ("it", wrong[0]) if len(wrong) == 1 else ("all such leaves", wrong)
        )
        raise LeafTypeError(
            f"{first}; or keep {which} on the host: Dataloader(…, "
            f"host_leaves={names!r})"
        ) from first
    return BatchSpec(structure, tuple(leaves))


@final
@dataclass(frozen=True)
class HostShard:
    """This process's part of every batch on a mesh.

    Args:
        batch: Leaves of a batch.
        mesh: The caller's mesh, or a planned one.
        specs: Partition spec of each leaf.
        layouts: Boxes of each leaf that this process holds; their rows are counted from `first`.
        batch_size: Rows of the placed arrays.
        first: Batch position of the first row of the placed arrays.
        microbatches: Number of microbatches; 1: not split.
        host: Leaves that are not placed; this process has them for all rows that it reads.
        rows: Rows that it reads, of a shard that places nothing. None: those of the layouts.
    """

    batch: BatchSpec
    mesh: Mesh | PlannedMesh
    specs: tuple[PartitionSpec, ...]
    layouts: tuple[LeafLayout, ...]
    batch_size: int
    first: int
    microbatches: int = 1
    host: BatchSpec = NO_LEAVES
    rows: tuple[Interval, ...] | None = None

    @cached_property
    def positions(self) -> Integers:
        """int64[n]: batch positions that this process reads, ascending and unique."""
        return self.first + self.local_rows

    @cached_property
    def local_rows(self) -> Integers:
        """int64[n]: the same, as rows of the placed arrays."""
        held = merge(
            [interval for layout in self.layouts for interval in layout.rows]
        )
        return positions(held if self.rows is None else self.rows)

    @property
    def leaf_specs(self) -> list[tuple[BatchLeaf, PartitionSpec]]:
        """The leaves of the batch, each with its spec."""
        return list(zip(self.batch.leaves, self.specs, strict=True))

    @cached_property
    def shardings(self) -> tuple[NamedSharding, ...]:
        """Sharding of each leaf, on the caller's own mesh object.

        Raises:
            MeshError: If the mesh is a planned one.
        """
        mesh = self.mesh
        if not self.specs:
            return ()
        if isinstance(mesh, PlannedMesh):
            raise MeshError(
                f"{mesh} is for planning only; pass mesh= a jax.sharding.Mesh to "
                "iterate"
            )
        before = (None,) if self.microbatches > 1 else ()
        return tuple(
            NamedSharding(mesh, PartitionSpec(*before, *spec)) for spec in self.specs
        )

    @property
    def shape_dtypes(self) -> Tree:
        """The batch as `jax.ShapeDtypeStruct`s, with shardings unless the mesh is a planned one."""
        planned = isinstance(self.mesh, PlannedMesh)
        shardings = [None] * len(self.specs) if planned else self.shardings
        micro = self.microbatches
        rows = (micro, self.batch_size // micro) if micro > 1 else (self.batch_size,)
        return self.batch.structure.build(
            jax.ShapeDtypeStruct(
                (*rows, *leaf.spec.shape), leaf.dtype, sharding=sharding
            )
            for leaf, sharding in zip(self.batch.leaves, shardings, strict=True)
        )


def resolve_shard(
    batch: BatchSpec,
    batch_size: int,
    mesh: Mesh | PlannedMesh,
    partition: Any,
    part: ShardSpec | None,
    microbatches: int = 1,
    host: BatchSpec = NO_LEAVES,
) -> HostShard:
    """Computes this process's shard; `host`: leaves that are not placed.

    Raises:
        PartitionError: If a spec does not fit its leaf, the mesh can't split the batch, or `part` differs from this
            process's part on the mesh; names the leaf.
    """
    grid = grid_of(mesh)
    if (
        part is not None
        and isinstance(mesh, PlannedMesh)
        and part.count == len(np.unique(grid.owners))
    ):
        # A planned mesh has no processes: shard_index chooses the host to simulate.
        grid = grid._replace(process=int(np.unique(grid.owners)[part.index]))
    spans = bool((grid.owners != grid.process).any())
    first = 0
    parts = 1
    if part is not None and not spans:
        parts = part.count
        batch_size //= part.count
        first = part.index * batch_size
    shapes = [(batch_size, *leaf.spec.shape) for leaf in batch.leaves]
    specs = _resolve_specs(batch, shapes, mesh, partition)
    layouts = tuple(
        plan_leaf(grid, spec, shape)
        for spec, shape in zip(specs, shapes, strict=True)
    )
    for leaf, spec, layout in zip(batch.leaves, specs, layouts, strict=True):
        if any(
            start % microbatches or stop % microbatches
            for (start, stop), *_ in layout.boxes
        ):
            (start, stop), *_ = layout.boxes[0]
            raise PartitionError(
                f"leaf {leaf.path or 'of the example'}: {spec} gives a device "
                f"{stop - start} of the {count_text(batch_size, 'row')}, not a "
                f"multiple of microbatches={microbatches}; use a batch_size that is "
                "a multiple of "
                f"{batch_size // (stop - start) * microbatches * parts}"
            )
    shard = HostShard(
        batch, mesh, tuple(specs), layouts, batch_size, first, microbatches, host
    )
    if part is None or not spans:
        return shard
    actual = shard.positions
    rows = batch_size // part.count
    wanted = np.arange(part.index * rows, (part.index + 1) * rows)
    if not np.array_equal(actual, wanted):
        if len(actual):
            shown = (
                f"{count_text(len(actual), 'row')}, from {actual[0]} to {actual[-1]}"
            )
        else:
            shown = "no rows"
        raise PartitionError(
            f"shard_index={part.index} of shard_count={part.count} is rows "
            f"{wanted[0]} to {wanted[-1]} of a batch of {batch_size}, but on this "
            f"mesh this process holds {shown}; leave shard_index and shard_count "
            "out, so that the mesh decides"
        )
    return shard


def _resolve_specs(
    batch: BatchSpec, shapes: list[tuple[int, ...]], mesh: Any, partition: Any
) -> list[PartitionSpec]:
    if isinstance(partition, dict):
        named = partition
    else:
        named = None
    unnamed = [
        leaf.generated
        for leaf in batch.leaves
        if leaf.generated and leaf.generated not in (named or ())
    ]
    if unnamed:
        # They are partitioned like the rows of the first leaf, and an error names a leaf that the user knows.
        example = batch.structure.build(range(len(batch.leaves)))
        indices, structure = flatten(
            {name: index for name, index in example.items() if name not in unnamed}
        )
        if named is not None and not indices:
            raise PartitionError(
                f"partition={partition!r} is for no leaf: all stay on the host, and "
                f"a batch consists of the leaf {MASK!r}; pass one spec, such as "
                "P('data')"
            )
        first = resolve_partition(
            partition, structure, [shapes[index] for index in indices], mesh
        )[:1]
        if named is not None:
            partition = named | dict.fromkeys(unnamed, PartitionSpec(*first[0][:1]))
    return resolve_partition(partition, batch.structure, shapes, mesh)


def buffer_layout(shard: HostShard) -> BufferLayout:
    """Computes the buffer layout of one step of this shard."""
    tiles: list[ColumnTile] = []
    order: list[tuple[tuple[int, int], ...]] = []
    for leaf, layout in zip(shard.batch.leaves, shard.layouts, strict=True):
        places = {}
        for group in layout.groups:
            for box, start in enumerate(group.starts):
                places[(start, group.columns)] = (len(tiles), box)
            rows = (
                np.asarray(group.starts)[:, None] + np.arange(group.height)
            ).ravel()
            if np.array_equal(rows, shard.local_rows):
                select = None
            else:
                select = np.searchsorted(shard.local_rows, rows)
            tiles.append(
                ColumnTile(
                    leaf, group.columns, len(group.starts), group.height, select
                )
            )
        order.append(tuple(places[(box[0][0], box[1:])] for box in layout.boxes))
    for leaf in shard.host.leaves:
        order.append(((len(tiles), 0),))
        tiles.append(
            ColumnTile(
                leaf, all_columns(leaf.spec.shape), 1, len(shard.local_rows), None
            )
        )
    return BufferLayout(tuple(tiles), tuple(order))
