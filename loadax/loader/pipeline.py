"""BatchPipeline: makes batch producers from the dataset, the options and the mesh."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from loadax.core.arguments import integer
from loadax.core.spec import flatten_spec
from loadax.core.tree import flatten
from loadax.dataset import Dataset
from loadax.io import as_dataset
from loadax.loader.assembly.chunk_budget import (
    OpenChunks,
    check_memory,
    find_open_chunks,
    held_columns,
    keep_open_chunks,
)
from loadax.loader.assembly.host_shard import HostShard, batch_specs, resolve_shard
from loadax.loader.assembly.maskable import probe_readable
from loadax.loader.assembly.seq_len import cut_to
from loadax.loader.batch_spec import KEY, MASK, NO_LEAVES, BatchSpec
from loadax.loader.buckets import Buckets, bucketed
from loadax.loader.device.cache import DeviceCache, check_fixed
from loadax.loader.device.device_map import DevicePrograms
from loadax.loader.device.gather import DeviceGather
from loadax.loader.execution.executor import PieceExecutor, ThreadExecutor
from loadax.loader.execution.producer import BatchProducer, BucketProducer, Finish
from loadax.loader.mask_errors import masking_of, quarantined_rows
from loadax.loader.options import (
    LoaderOptions,
    Schedule,
    for_user_objects,
    host_leaf_names,
    loader_options,
    schedule,
    seq_lens,
    together,
    value_at,
    with_streams,
)
from loadax.loader.row_costs import costs_of
from loadax.loader.streams.run import LaneStates, StreamRun
from loadax.loader.workers.job import remember_unread
from loadax.plan.batches import BatchPlan, BatchSizeSegment
from loadax.plan.buckets import BucketPlan, RunPlan
from loadax.plan.mix import ENDLESS, Mixed
from loadax.protocols import Integers, Tree
from loadax.reader import Reader
from loadax.sharding.layout import position_ranges
from loadax.sharding.mesh import plan_mesh

_NO_DEVICES = plan_mesh({"host": 1}, hosts=1)  # of batches that are not placed


@final
@dataclass(frozen=True, eq=False)
class BatchForm:
    """Dataset and leaves of batches with one sequence length.

    Args:
        dataset: Dataset, cropped to the sequence length.
        batch: Spec of its placed batches.
        host_leaves: Spec of the leaves that are not placed.
        host_batch: Spec of its batches on the host, with all leaves.
    """

    dataset: Dataset
    batch: BatchSpec
    host_leaves: BatchSpec
    host_batch: BatchSpec


def _missing_of(dataset: Dataset) -> list[str | bytes | None]:
    """For each leaf, what padding is in place of objects, as in the first row; empty if no leaf has objects."""
    if dataset.reader.first is None or not any(spec.dtype.hasobject for spec in flatten_spec(dataset.spec)[0]):
        return []
    try:
        (example,) = dataset.reader.examples(dataset.reader.first)
    except Exception:  # noqa: BLE001 - whoever reads this row will hear of it
        return []
    values = (next(iter(np.ravel(np.asarray(leaf, object))), None) for leaf in flatten(example)[0])
    return ["" if isinstance(value, str) else b"" if isinstance(value, bytes) else None for value in values]


def forms_of(
    dataset: Dataset, datasets: Schedule[Dataset], generated_leaves: Sequence[str], host_leaves: Sequence[str]
) -> tuple[BatchForm, Schedule[BatchForm]]:
    """The form of batches with whole sequences, and the forms by step.

    Args:
        dataset: Dataset of the rows.
        datasets: Datasets of batches by step, cropped or padded.
        generated_leaves: Names of the generated leaves.
        host_leaves: Names of the leaves that are not placed.
    """
    missing = _missing_of(dataset) if MASK in generated_leaves and host_leaves else []

    def form(data: Dataset) -> BatchForm:
        return BatchForm(data, *batch_specs(data.spec, generated_leaves, host_leaves, missing))

    forms = {id(dataset): form(dataset)}
    for _, data in datasets:
        if id(data) not in forms:
            forms[id(data)] = form(data)
    return forms[id(dataset)], tuple((step, forms[id(data)]) for step, data in datasets)


@final
@dataclass(frozen=True, eq=False)
class BatchPipeline:
    """Makes batch producers on any mesh. Caches the shards and device data of the latest mesh.

    Args:
        plan: Plan of the run.
        whole: Form of batches with whole sequences.
        forms: Forms of the batches by step.
        options: Options of the loader.
        device_map: The user's function for devices, if there is one.
    """

    plan: RunPlan
    whole: BatchForm
    forms: Schedule[BatchForm]
    options: LoaderOptions
    device_map: DevicePrograms | None
    _shards: dict[Any, HostShard] = field(default_factory=dict)
    _caches: dict[Any, DeviceCache] = field(default_factory=dict)

    def form(self, step: int) -> BatchForm:
        """The form of the batch of a step."""
        return value_at(self.forms, self.plan.segment_of(step)[0].first)

    def shard(self, mesh: Any, step: int) -> HostShard:
        """This process's shard of the batch of a step on a mesh, which may be a planned one.

        Raises:
            PartitionError: If a spec does not fit its leaf, the mesh can't split the batch, or `shard_index` differs
                from this process's part on the mesh; names the leaf.
            ArgumentError: If `cache_bytes` is too low for the open chunks.
        """
        segment = self.plan.segment_of(step)[0]
        form = value_at(self.forms, segment.first)
        key = (mesh, segment.batch_size, form)
        shard = self._shards.get(key)  # kept in a local: another thread may be on another mesh
        if shard is None:
            options = self.options
            shard = resolve_shard(
                form.batch, segment.batch_size, mesh, options.partition, options.shard, options.microbatches
            )
            shard = replace(shard, host=form.host_leaves)
            if not options.keep_on_device:  # else rows are read in the order of the store
                check_memory(self.open_chunks(shard, segment), options.cache_bytes, options.readers)
            if self.device_map is not None:
                self.device_map.on(shard)  # raises early if the partition does not fit
            for other in [known for known in list(self._shards) if known[0] != mesh]:
                self._shards.pop(other, None)
            self._shards[key] = shard
        return shard

    def shape_dtypes(self, shard: HostShard) -> Tree:
        """Shapes, dtypes and shardings of the batches of a shard."""
        return shard.shape_dtypes if self.device_map is None else self.device_map.on(shard).shape_dtypes

    def open_chunks(self, shard: HostShard, segment: BatchSizeSegment) -> list[OpenChunks]:
        """The chunks that block shuffles keep open for a shard."""
        own = self.plan.of(self.plan.skips.left(segment.first))
        plan = BatchPlan(own.order, segment.batch_size, None, "pad")
        return find_open_chunks(value_at(self.forms, segment.first).dataset.reader, plan, shard)

    def host_shard(self, positions: Integers, step: int, leaves: BatchSpec) -> HostShard:
        """A shard of the batch of a step that places nothing.

        Args:
            positions: Batch positions of its rows, ascending and unique.
            step: Step of the run.
            leaves: Leaves that it has on the host.
        """
        size = self.plan.segment_of(step)[0].batch_size
        rows = tuple(position_ranges(positions))
        return HostShard(NO_LEAVES, _NO_DEVICES, (), (), size, 0, host=leaves, rows=rows)

    def with_partition(self, partition: Any) -> "BatchPipeline":
        """The same pipeline with another partition. It shares the data on devices, for two may not fit there."""
        return replace(self, options=replace(self.options, partition=partition), _shards={})

    def on_host(self) -> "BatchPipeline":
        """The pipeline of batches that stay on the host, by `host_shard`."""
        return replace(self, options=replace(self.options, keep_on_device=False), device_map=None)

    def stream_run(self, states: LaneStates) -> StreamRun | None:
        """The lanes of the streams, to be read from saved states. None: there are no streams."""
        options = self.options.streams
        return None if options is None else StreamRun(self.plan.of(0), self.whole.dataset.source, options, states)

    def producer(
        self,
        shard: HostShard,
        step: int,
        executor: PieceExecutor,
        streams: StreamRun | None = None,
        shard_of: Callable[[int], HostShard] | None = None,
    ) -> BatchProducer | BucketProducer:
        """The producer of a step and of the following steps with the same shapes, on their shard.

        With buckets, of all following steps, on the shards that `shard_of` gives for the first step of each bucket.
        """
        if isinstance(self.plan, BucketPlan):
            assert shard_of is not None
            return self._bucket_producer(self.plan, shard_of, executor)
        end = self.plan.segment_of(step)[1]
        options = self.options
        if options.keep_on_device:
            gather = self._cache(shard, step).gather(shard)
            finish = self._finish(shard, gather)
            return BatchProducer(self.plan, gather.reader, gather.shard, options, executor, end, finish)
        reader = self._reader(shard, step, options.cache_bytes)
        if streams is not None:
            reader = streams.bind(reader)
        return BatchProducer(self.plan, reader, shard, options, executor, end, self._finish(shard), streams, step)

    def _bucket_producer(
        self, plan: BucketPlan, shard_of: Callable[[int], HostShard], executor: PieceExecutor
    ) -> BucketProducer:
        firsts = {plan.bucket(plan.skips.whole_step(first)): first for first in plan.first_steps}
        shards = [shard_of(first) for first in firsts.values()]
        cache_bytes = None if (whole := self.options.cache_bytes) is None else whole // len(shards)
        readers = tuple(self._reader(*each, cache_bytes) for each in zip(shards, firsts.values(), strict=True))
        options, end = self.options, plan.num_steps
        made = [
            BatchProducer(plan, reader, shard, options, executor, end, self._finish(shard), step=first, family=readers)
            for reader, shard, first in zip(readers, shards, firsts.values(), strict=True)
        ]
        return BucketProducer(
            dict(zip(firsts, made, strict=True)), lambda step: plan.bucket(plan.skips.whole_step(step))
        )

    def _reader(self, shard: HostShard, step: int, cache_bytes: int | None) -> Reader:
        """The reader of a step, with the chunks kept that block shuffles keep open for a shard."""
        reader, segment = self.form(step).dataset.reader, self.plan.segment_of(step)[0]
        chunks, columns = self.open_chunks(shard, segment), held_columns(reader, shard)
        return keep_open_chunks(reader, chunks, cache_bytes, columns, self.options.prefetch_bytes, self.options.readers)

    def one_step(self, shard: HostShard, step: int) -> BatchProducer:
        """The producer of a single step, without caches of chunks or of the dataset."""
        reader, finish = self.form(step).dataset.reader, self._finish(shard)
        return BatchProducer(self.plan, reader, shard, self.options, ThreadExecutor(), step + 1, finish, step=step)

    def _finish(self, shard: HostShard, gather: DeviceGather | None = None) -> Finish:
        """Builds a batch from placed leaves: gathers cached rows, then applies the user's function."""
        last: Finish = shard.batch.structure.build
        if self.device_map is not None:
            last = self.device_map.compiled(shard)
        return last if gather is None else lambda leaves: last(gather(leaves))

    def _cache(self, shard: HostShard, step: int) -> DeviceCache:
        """The dataset in device memory, read on first use."""
        form = self.form(step)
        key = (shard.mesh, shard.specs, form)
        cache = self._caches.get(key)
        if cache is None:
            self._caches.clear()  # there may not be enough memory for two
            cache = self._caches[key] = DeviceCache(form.dataset, shard, self.options)
        return cache


def make_pipeline(given: Any) -> BatchPipeline:
    """Makes the pipeline that the arguments of a `Dataloader` describe.

    Args:
        given: Arguments, as attributes.

    Raises:
        ArgumentError: If one can't be used.
    """
    buckets = given.batch_size if isinstance(given.batch_size, Buckets) else None
    sizes = schedule("batch_size", 1 if buckets else given.batch_size)
    lengths = None if given.seq_len is None else seq_lens(given.seq_len)
    sizes = sizes if lengths is None else together(sizes, lengths)
    dataset = as_dataset(given.data)
    if isinstance(dataset.order, Mixed) and dataset.order.by_step and not buckets:
        # Its weights change at positions from now on.
        dataset = Dataset(dataset.source, dataset.order.at_positions(sizes, given.num_epochs), dataset.maps)
    epochs, remainder = given.num_epochs, given.remainder
    epochs = None if epochs is None else integer("num_epochs", epochs)
    masking = masking_of(given.on_error)  # which makes the file of a record that is a quarantine too
    rows = quarantined_rows(given.quarantine, dataset.reader.num_rows)
    remember_unread(given.worker_type if given.remote is None else "process", given.num_workers, dataset.reader)
    plan: RunPlan | None = None
    datasets: Schedule[Dataset] = ((0, dataset),)
    if buckets:
        plan, datasets = bucketed(given, dataset, epochs, rows)
        sizes = plan.schedule
    if masking is not None or len(rows):
        datasets = tuple((first, probe_readable(data, rows, masking is not None)) for first, data in datasets)
    dataset = datasets[0][1]
    if plan is not None:  # its order is that of all buckets
        dataset = Dataset(dataset.source, plan.order, dataset.maps).probed_at(dataset.reader.first)
    elif lengths is not None:
        cut = {length: cut_to(dataset, length, given.seq_len) for _, length in lengths}
        datasets = tuple((step, cut[length]) for step, length in lengths)
    batch_sizes = [size for _, size in sizes]
    options = replace(loader_options(given, dataset, batch_sizes), masking=masking, quarantine=rows)
    if dataset.is_stream:
        options = with_streams(options, dataset, epochs, remainder, min(batch_sizes))
        if dataset.order.size >= ENDLESS:
            epochs, remainder = None, "drop"
    costs = costs_of(given.balance, dataset)
    if plan is None:
        plan = BatchPlan(dataset.order, sizes if len(sizes) > 1 else batch_sizes[0], epochs, remainder, costs=costs)
    host_leaves = host_leaf_names(given.host_leaves, dataset.spec, options)
    if options.keep_on_device:
        check_fixed(dataset, options)
    padded = options.masks or given.remainder == "pad"
    generated_leaves = [MASK] * padded + [KEY] * (options.key_seed is not None)
    forms = forms_of(dataset, datasets, generated_leaves, host_leaves)
    options = for_user_objects(options, dataset.reader)  # which may have opened something for the spec
    return BatchPipeline(plan, *forms, options, None if given.device_map is None else DevicePrograms(given.device_map))
