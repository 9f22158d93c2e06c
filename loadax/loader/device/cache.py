"""Caches a small dataset in device memory and gathers batches from it.

Every device stores all rows of the columns that it holds of a batch. A step then needs only row indices from the host,
which are read ahead, placed, padded and split into microbatches like any batch. The plan is the same, so the batches
are the same.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from math import prod
from typing import final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from loadax.core.context import Caller
from loadax.core.formatting import count_text, size_text
from loadax.core.progress_bar import progress_bar
from loadax.core.tree import flatten
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.loader.assembly.host_shard import HostShard, batch_specs
from loadax.loader.batch_spec import BatchSpec
from loadax.loader.device.gather import INDEX_DTYPE, DeviceGather, RowIndexSource
from loadax.loader.execution.executor import open_executor
from loadax.loader.execution.producer import BatchProducer
from loadax.loader.execution.scheduler import PrefetchScheduler
from loadax.loader.execution.thread_pool import ThreadPool
from loadax.loader.options import LoaderOptions
from loadax.plan.batches import BatchPlan
from loadax.plan.concat import Concatenated
from loadax.plan.order import check_fixed_rows
from loadax.plan.sequential import Sequential
from loadax.plan.slice import Sliced
from loadax.plan.subset import Subset, met_rows
from loadax.protocols import Integers, Order
from loadax.sharding.layout import plan_leaf
from loadax.sharding.mesh import grid_of
from loadax.sharding.own_devices import OwnDevices, Program

_UNKNOWN_LIMIT = 4 << 30  # bytes, for devices that don't report their memory
_PART_OF_DEVICE = 4  # a quarter of a device's memory; the rest is for training
BLOCK_BYTES = 8 << 20  # bytes to read and place at a time


def check_fixed(dataset: Dataset, options: LoaderOptions) -> None:
    """Checks that rows are the same in every epoch, and in every batch.

    Raises:
        ArgumentError: If a map is random, the source changes its rows per epoch, or rows may be masked.
    """
    remedy = (
        "and shuffle with loadax after that: .shuffle(seed), or leave keep_on_device "
        "out"
    )
    check_fixed_rows(dataset.order, "keep_on_device", remedy)
    if dataset.reader.traits.random:
        raise ArgumentError(
            "keep_on_device: a map is random or has with_epoch=True, so rows differ "
            "between epochs; leave keep_on_device out, or make the random part a "
            "device_map, with key_seed= for its random keys"
        )
    if options.masks:
        raise ArgumentError(
            "keep_on_device: all rows are read once, so none is masked; leave it "
            "out, or on_error and quarantine"
        )


def usual_limit(stats: Sequence[Mapping[str, int]]) -> int:
    """Default limit of a device in bytes.

    Args:
        stats: Memory statistics of the devices; empty if a device has none.
    """
    limits = [device["bytes_limit"] for device in stats if "bytes_limit" in device]
    if limits:
        return min(limits) // _PART_OF_DEVICE
    return _UNKNOWN_LIMIT


@final
class DeviceCache:
    """All rows of a dataset in the memory of a mesh's devices.

    Args:
        dataset: Dataset whose maps are not random.
        shard: This process's shard of any batch.
        options: Options of the loader. `keep_on_device` is a device's limit in bytes; True: a quarter of its memory.

    Raises:
        ArgumentError: If the rows exceed the limit; shows both sizes.
    """

    def __init__(self, dataset: Dataset, shard: HostShard, options: LoaderOptions):
        mesh = shard.mesh
        assert isinstance(mesh, Mesh)
        self._mesh = mesh
        self._devices = OwnDevices(mesh)
        self._source = RowIndexSource(_rows_of(dataset), dataset.reader.num_rows)
        given = {
            leaf.source: (leaf, spec)
            for leaf, spec in shard.leaf_specs
            if not leaf.generated
        }
        example = batch_specs(dataset.spec, [])[0]  # without generated leaves
        batch = BatchSpec(
            example.structure, tuple(given[leaf.source][0] for leaf in example.leaves)
        )
        # Each device has all rows; columns are split as in a batch.
        self._specs = tuple(
            PartitionSpec(None, *given[leaf.source][1][1:]) for leaf in batch.leaves
        )
        shardings = (NamedSharding(mesh, spec) for spec in self._specs)
        self._placed = [
            jax.ShapeDtypeStruct(
                (1 + self._source.count, *leaf.spec.shape),
                leaf.dtype,
                sharding=sharding,
            )
            for leaf, sharding in zip(batch.leaves, shardings, strict=True)
        ]
        self._check_size(options.keep_on_device)
        self._batch = batch
        self._gathers: dict[HostShard, DeviceGather] = {}
        self._arrays = self._read(dataset, options)

    def gather(self, shard: HostShard) -> DeviceGather:
        """The program that gathers batches of this shard from the cache; compiled once per shard."""
        if shard not in self._gathers:
            self._gathers[shard] = DeviceGather(
                shard, self._source, self._placed, self._arrays
            )
        return self._gathers[shard]

    def _check_size(self, limit: bool | int) -> None:
        rows = self._source.count
        if rows >= np.iinfo(INDEX_DTYPE).max:
            raise ArgumentError(
                f"keep_on_device: the {count_text(rows, 'row')} are more than "
                f"{INDEX_DTYPE} can index; leave it out"
            )
        size = sum(
            prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in self._placed
        )
        if limit is True:
            limit = usual_limit(
                [device.memory_stats() or {} for device in self._mesh.local_devices]
            )
        if size > limit:
            raise ArgumentError(
                f"keep_on_device: the {count_text(rows, 'row')} take "
                f"{size_text(size)} of each device, and the limit is "
                f"{size_text(limit)}; pass keep_on_device={size} or more if the "
                "device has enough memory, partition columns over more devices, or "
                "leave it out"
            )

    def _read(self, dataset: Dataset, options: LoaderOptions) -> list[jax.Array]:
        """Reads all rows in blocks and writes each to the devices, so that the host needs memory for a few only."""
        rows = self._source.count
        row_bytes = sum(
            leaf.dtype.itemsize * prod(leaf.spec.shape) for leaf in self._batch.leaves
        )
        most = max(1, min(BLOCK_BYTES, options.prefetch_bytes) // max(1, row_bytes))
        # as few blocks as possible, of about equal size
        height = -(-rows // -(-rows // most))
        grid = grid_of(self._mesh)
        leaves = zip(self._batch.leaves, self._specs, strict=True)
        layouts = tuple(
            plan_leaf(grid, spec, (height, *leaf.spec.shape)) for leaf, spec in leaves
        )
        shard = HostShard(self._batch, self._mesh, self._specs, layouts, height, 0)
        plan = BatchPlan(_in_blocks(self._source, height), height)
        arrays, write = self._writer(shard, height)
        if not len(self._devices):
            return arrays[:-1]
        steps = plan.steps_per_epoch
        options = replace(
            options,
            prefetch=1,
            keep_on_device=False,
            first_workers=options.num_workers,
        )
        with closing(open_executor(options)) as executor:
            producer = BatchProducer(
                plan, dataset.reader, shard, options, executor, steps
            )
            scheduler = PrefetchScheduler(producer, 0, options)
            bar = progress_bar("keep_on_device", rows, "row", None)
            with (
                closing(ThreadPool(scheduler, executor, Caller())) as threads,
                bar as shown,
            ):
                threads.start()
                try:
                    for step in range(steps):
                        # Wait, so that blocks don't accumulate in front of a slow link.
                        arrays = jax.block_until_ready(
                            write([*arrays, *flatten(scheduler.next_batch()[1])[0]])
                        )
                        shown(min(height, rows - step * height))
                except Exception as error:
                    error.add_note(
                        "loadax: while keep_on_device read the "
                        f"{count_text(rows, 'row')}, {height} a step"
                    )
                    raise
        return arrays[:-1]

    def _writer(
        self, shard: HostShard, height: int
    ) -> tuple[list[jax.Array], Program]:
        """Zeros and a block counter, and the program that writes a block into them and increments the counter."""
        counter = jax.ShapeDtypeStruct(
            (1,), INDEX_DTYPE, sharding=NamedSharding(self._mesh, PartitionSpec())
        )
        outputs = [*self._placed, counter]
        parts = [self._devices.part(output) for output in outputs]
        # start of the last block, which may overlap the one before
        last = 1 + self._source.count - height

        def nothing() -> list[jax.Array]:
            return [
                jax.numpy.zeros(shape, output.dtype)
                for shape, output in zip(parts, outputs, strict=True)
            ]

        def write(*arrays: jax.Array) -> list[jax.Array]:
            kept = arrays[: len(parts) - 1]
            block_index = arrays[len(parts) - 1]
            blocks = arrays[len(parts) :]
            # Row 0 is zeros, for padding.
            start = jax.numpy.minimum(1 + block_index[0] * height, last)
            pairs = zip(kept, blocks, strict=True)
            written = [
                jax.lax.dynamic_update_slice_in_dim(whole, block, start, 0)
                for whole, block in pairs
            ]
            return [*written, block_index + 1]

        blocks = flatten(shard.shape_dtypes)[0]
        program = self._devices.compile(
            write, [*outputs, *blocks], outputs, donate=range(len(outputs))
        )
        return self._devices.compile(nothing, [], outputs)([]), program


def _rows_of(dataset: Dataset) -> Integers | None:
    """The rows of the source that the dataset uses, ascending. None: all, or they differ between epochs."""
    if dataset.order.size >= dataset.reader.num_rows:
        return None
    try:
        met = met_rows(dataset.order, "keep_on_device", dataset.reader.num_rows)
    except (
        ArgumentError
    ):  # a mixture, or a slice of a shuffle: rows differ between epochs
        return None
    return np.flatnonzero(met)


def _in_blocks(source: RowIndexSource, height: int) -> Order:
    """The order of the cached rows in blocks of equal height; the last block overlaps the one before, to be full."""
    rows: Order = Sequential(source.num_rows)
    if source.rows is not None:
        rows = Subset(rows, source.rows, ("cached",))
    before = (source.count - 1) // height * height
    return Concatenated(
        (Sliced(rows, 0, 1, before), Sliced(rows, source.count - height, 1, height)),
        (0, 0),
    )
