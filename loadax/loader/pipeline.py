"""BatchPipeline: makes batch producers from the dataset, the options and the mesh."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from loadax.core.arguments import MOST_POSITIONS, integer, shown
from loadax.core.spec import flatten_spec
from loadax.core.tree import flatten
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.io import as_dataset
from loadax.loader.assembly.block_shuffles import block_shuffles
from loadax.loader.assembly.host_shard import HostShard, batch_specs, resolve_shard
from loadax.loader.batch_spec import KEY, MASK, NO_LEAVES, BatchSpec
from loadax.loader.execution.executor import ThreadExecutor
from loadax.loader.execution.producer import BatchProducer, StepProducer
from loadax.loader.loader_arguments import (
    ErrorArguments,
    LoaderArguments,
    PlaceArguments,
    StepArguments,
    WorkerArguments,
    loader_options,
)
from loadax.loader.options import (
    LoaderOptions,
    Schedule,
    SeqLens,
    for_user_objects,
    host_leaf_names,
    schedule,
    seq_lens,
    together,
    value_at,
)
from loadax.loader.slots import (
    CachedRows,
    DeviceFunction,
    DeviceRows,
    Finish,
    Lanes,
    PieceExecutor,
    StepsChoice,
)
from loadax.plan.batches import BatchPlan, BatchSizeSegment, Costs, Remainder
from loadax.plan.steps import Steps
from loadax.protocols import Integers, Tree
from loadax.reader import Reader
from loadax.sharding.layout import position_ranges
from loadax.sharding.mesh import plan_mesh

if TYPE_CHECKING:
    from loadax.loader.assembly.chunk_budget import OpenChunks
    from loadax.loader.mask_errors import MaskErrors

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
    if dataset.reader.first is None or not any(
        spec.dtype.hasobject for spec in flatten_spec(dataset.spec)[0]
    ):
        return []
    try:
        (example,) = dataset.reader.examples(dataset.reader.first)
    except Exception:  # noqa: BLE001 - whoever reads this row will hear of it
        return []
    values = (
        next(iter(np.ravel(np.asarray(leaf, object))), None)
        for leaf in flatten(example)[0]
    )
    return [
        "" if isinstance(value, str) else b"" if isinstance(value, bytes) else None
        for value in values
    ]


def forms_of(
    dataset: Dataset,
    datasets: Schedule[Dataset],
    generated_leaves: Sequence[str],
    host_leaves: Sequence[str],
) -> tuple[BatchForm, Schedule[BatchForm]]:
    """The form of batches with whole sequences, and the forms by step.

    Args:
        dataset: Dataset of the rows.
        datasets: Datasets of batches by step, cropped or padded.
        generated_leaves: Names of the generated leaves.
        host_leaves: Names of the leaves that are not placed.
    """
    if MASK in generated_leaves and host_leaves:
        missing = _missing_of(dataset)
    else:
        missing = []

    def form(data: Dataset) -> BatchForm:
        return BatchForm(
            data, *batch_specs(data.spec, generated_leaves, host_leaves, missing)
        )

    forms = {id(dataset): form(dataset)}
    for _, data in datasets:
        if id(data) not in forms:
            forms[id(data)] = form(data)
    return forms[id(dataset)], tuple(
        (step, forms[id(data)]) for step, data in datasets
    )


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

    plan: Steps
    whole: BatchForm
    forms: Schedule[BatchForm]
    options: LoaderOptions
    device_map: DeviceFunction | None
    _shards: dict[Any, HostShard] = field(default_factory=dict)
    _caches: dict[Any, DeviceRows] = field(default_factory=dict)

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
        # kept in a local: another thread may be on another mesh
        shard = self._shards.get(key)
        if shard is None:
            options = self.options
            shard = resolve_shard(
                form.batch,
                segment.batch_size,
                mesh,
                options.partition,
                options.shard,
                options.microbatches,
                form.host_leaves,
            )
            if options.keep_on_device:
                chunks = []
            else:
                chunks = self.open_chunks(shard, segment)
            if chunks:
                from loadax.loader.assembly.chunk_budget import check_memory

                check_memory(chunks, options.cache_bytes, options.readers)
            if self.device_map is not None:
                # raises early if the partition does not fit
                self.device_map.on(shard)
            for other in [known for known in list(self._shards) if known[0] != mesh]:
                self._shards.pop(other, None)
            self._shards[key] = shard
        return shard

    def shape_dtypes(self, shard: HostShard) -> Tree:
        """Shapes, dtypes and shardings of the batches of a shard."""
        if self.device_map is None:
            return shard.shape_dtypes
        return self.device_map.on(shard).shape_dtypes

    def open_chunks(
        self, shard: HostShard, segment: BatchSizeSegment
    ) -> "list[OpenChunks]":
        """The chunks that block shuffles keep open for a shard."""
        own = self.plan.of(self.plan.skips.left(segment.first))
        reader = value_at(self.forms, segment.first).dataset.reader
        shuffles = list(block_shuffles(own.order, reader.source))
        if not shuffles:
            return []
        from loadax.loader.assembly.chunk_budget import find_open_chunks

        return find_open_chunks(
            reader,
            BatchPlan(own.order, segment.batch_size, None, "pad"),
            shard,
            shuffles,
        )

    def host_shard(
        self, positions: Integers, step: int, leaves: BatchSpec
    ) -> HostShard:
        """A shard of the batch of a step that places nothing.

        Args:
            positions: Batch positions of its rows, ascending and unique.
            step: Step of the run.
            leaves: Leaves that it has on the host.
        """
        size = self.plan.segment_of(step)[0].batch_size
        rows = tuple(position_ranges(positions))
        return HostShard(
            NO_LEAVES, _NO_DEVICES, (), (), size, 0, host=leaves, rows=rows
        )

    def with_partition(self, partition: Any) -> "BatchPipeline":
        """The same pipeline with another partition. It shares the data on devices, for two may not fit there."""
        return replace(
            self, options=replace(self.options, partition=partition), _shards={}
        )

    def on_host(self) -> "BatchPipeline":
        """The pipeline of batches that stay on the host, by `host_shard`."""
        return replace(
            self, options=replace(self.options, keep_on_device=False), device_map=None
        )

    def lanes(self, start: object) -> Lanes | None:
        """The lanes of the streams, to be read from a step, a state, or the states of several processes on.

        Returns:
            None: There are no streams.

        Raises:
            StateError: If a state has something else in place of states of lanes.
        """
        options = self.options.streams
        if options is None:
            return None
        from loadax.loader.streams.run import StreamRun, lane_states

        return StreamRun(
            self.plan.of(0), self.whole.dataset.source, options, lane_states(start)
        )

    def producer(
        self,
        shard: HostShard,
        step: int,
        executor: PieceExecutor,
        lanes: Lanes | None = None,
        shard_of: Callable[[int], HostShard] | None = None,
    ) -> StepProducer:
        """The producer of a step and of the following steps with the same shapes, on their shard.

        Of steps that alternate between shapes, the producer of all following ones, on the shards that `shard_of` gives
        for the first step of each shape.
        """
        if self.plan.alternating:
            assert shard_of is not None
            return self._alternating_producer(shard_of, executor)
        end = self.plan.segment_of(step)[1]
        options = self.options
        if options.keep_on_device:
            cached = self._cache(shard, step).gather(shard)
            finish = self._finish(shard, cached)
            return BatchProducer(
                self.plan, cached.reader, cached.shard, options, executor, end, finish
            )
        reader = self._reader(shard, step, options.cache_bytes)
        if lanes is not None:
            reader = lanes.bind(reader)
        return BatchProducer(
            self.plan,
            reader,
            shard,
            options,
            executor,
            end,
            self._finish(shard),
            lanes,
            step,
        )

    def _alternating_producer(
        self, shard_of: Callable[[int], HostShard], executor: PieceExecutor
    ) -> StepProducer:
        from loadax.loader.execution.alternating import AlternatingProducer

        plan = self.plan
        options = self.options
        shards = {
            plan.shape_of(step): (step, shard_of(step)) for step in plan.first_steps
        }
        if options.cache_bytes is None:
            cache_bytes = None
        else:
            cache_bytes = options.cache_bytes // len(shards)
        readers = {
            shape: self._reader(shard, step, cache_bytes)
            for shape, (step, shard) in shards.items()
        }
        family = tuple(readers.values())
        producers = {
            shape: BatchProducer(
                plan,
                readers[shape],
                shard,
                options,
                executor,
                plan.num_steps,
                self._finish(shard),
                step=step,
                family=family,
            )
            for shape, (step, shard) in shards.items()
        }
        return AlternatingProducer(producers, plan.shape_of)

    def _reader(self, shard: HostShard, step: int, cache_bytes: int | None) -> Reader:
        """The reader of a step, with the chunks kept that block shuffles keep open for a shard."""
        reader = self.form(step).dataset.reader
        options = self.options
        chunks = self.open_chunks(shard, self.plan.segment_of(step)[0])
        if not chunks:
            return reader
        from loadax.loader.assembly.chunk_budget import (
            cache_open_chunks,
            shard_columns,
        )

        columns = shard_columns(reader, shard)
        return cache_open_chunks(
            reader,
            chunks,
            cache_bytes,
            columns,
            options.prefetch_bytes,
            options.readers,
        )

    def one_step(self, shard: HostShard, step: int) -> BatchProducer:
        """The producer of a single step, without caches of chunks or of the dataset."""
        reader = self.form(step).dataset.reader
        finish = self._finish(shard)
        return BatchProducer(
            self.plan,
            reader,
            shard,
            self.options,
            ThreadExecutor(),
            step + 1,
            finish,
            step=step,
        )

    def _finish(self, shard: HostShard, gather: CachedRows | None = None) -> Finish:
        """Builds a batch from placed leaves: gathers cached rows, then applies the user's function."""
        last: Finish = shard.batch.structure.build
        if self.device_map is not None:
            last = self.device_map.compiled(shard)
        if gather is None:
            return last
        return lambda leaves: last(gather(leaves))

    def _cache(self, shard: HostShard, step: int) -> DeviceRows:
        """The dataset in device memory, read on first use."""
        form = self.form(step)
        key = (shard.mesh, shard.specs, form)
        cache = self._caches.get(key)
        if cache is None:
            from loadax.loader.device.cache import DeviceCache

            self._caches.clear()  # there may not be enough memory for two
            cache = self._caches[key] = DeviceCache(form.dataset, shard, self.options)
        return cache


def make_pipeline(arguments: LoaderArguments) -> BatchPipeline:
    """Makes the pipeline that the arguments of a `Dataloader` describe.

    Raises:
        ArgumentError: If one can't be used.
    """
    steps = arguments.steps
    place = arguments.place
    workers = arguments.workers
    chosen, sizes = _chosen_steps(steps)
    if steps.seq_len is None:
        lengths = None
    else:
        lengths = seq_lens(steps.seq_len)
    if lengths is not None:
        sizes = together(sizes, lengths)
    dataset = as_dataset(arguments.data)
    if dataset.order.by_step and chosen is None:
        dataset = _at_positions(dataset, sizes, steps.num_epochs)
    if steps.num_epochs is None:
        epochs = None
    else:
        epochs = integer("num_epochs", steps.num_epochs)
    remainder = steps.remainder
    masking, quarantine = _unreadable(arguments.errors, dataset)
    _remember_unread(workers, dataset.reader)
    plan: Steps | None = None
    datasets: Schedule[Dataset] = ((0, dataset),)
    if chosen is not None:
        _check_chosen(steps, place)
        plan, datasets = chosen.steps(dataset, epochs, remainder, quarantine)
        sizes = plan.schedule
    if masking is not None or len(quarantine):
        datasets = _probed(datasets, quarantine, masking is not None)
    dataset = datasets[0][1]
    if plan is not None:  # its order has all rows of the dataset
        dataset = Dataset(dataset.source, plan.order, dataset.maps).probed_at(
            dataset.reader.first
        )
    elif lengths is not None:
        datasets = _cropped(dataset, lengths, steps.seq_len)
    batch_sizes = [size for _, size in sizes]
    options = loader_options(
        place, workers, arguments.limits, dataset, batch_sizes, masking, quarantine
    )
    if dataset.is_stream:
        options = _with_streams(options, dataset, epochs, remainder, min(batch_sizes))
        if dataset.order.size >= MOST_POSITIONS:
            epochs = None
            remainder = "drop"
    if steps.balance is None:
        costs = None
    else:
        costs = _costs(steps.balance, dataset)
    if plan is None:
        plan = BatchPlan(
            dataset.order,
            sizes if len(sizes) > 1 else batch_sizes[0],
            epochs,
            remainder,
            costs=costs,
        )
    host_leaves = host_leaf_names(place.host_leaves, dataset.spec, options)
    if options.keep_on_device:
        _check_fixed(dataset, options)
    generated_leaves = []
    if options.masks or steps.remainder == "pad":
        generated_leaves.append(MASK)
    if options.key_seed is not None:
        generated_leaves.append(KEY)
    forms = forms_of(dataset, datasets, generated_leaves, host_leaves)
    # which may have opened something for the spec
    options = for_user_objects(options, dataset.reader)
    return BatchPipeline(plan, *forms, options, _device_function(place))


# What fills a slot, from its own room, where an argument asks for it.


def _chosen_steps(steps: StepArguments) -> tuple[StepsChoice | None, Schedule[int]]:
    """The value that decides the steps, if it is not a number of rows, and the numbers of rows by step."""
    size = steps.batch_size
    if not isinstance(size, int | type) and isinstance(size, StepsChoice):
        return size, ((0, 1),)
    return None, schedule("batch_size", size)


def _at_positions(
    dataset: Dataset, sizes: Schedule[int], num_epochs: int | None
) -> Dataset:
    """A mixture whose weights change at positions, in place of steps."""
    from loadax.plan.mix import Mixed

    assert isinstance(dataset.order, Mixed)
    return Dataset(
        dataset.source, dataset.order.at_positions(sizes, num_epochs), dataset.maps
    )


def _check_chosen(steps: StepArguments, place: PlaceArguments) -> None:
    kind = type(steps.batch_size).__name__
    others = (
        ("seq_len", steps.seq_len),
        ("balance", steps.balance),
        ("keep_on_device", place.keep_on_device or None),
    )
    for name, value in others:
        if value is not None:
            raise ArgumentError(
                f"{name}={shown(value)}: not with batch_size={kind}(…); leave one out"
            )


def _unreadable(
    errors: ErrorArguments, dataset: Dataset
) -> tuple["MaskErrors | None", Integers]:
    """Handling of rows that can't be read, and the rows that are never read."""
    if (
        isinstance(errors.on_error, str)
        and errors.on_error == "raise"
        and errors.quarantine is None
    ):
        return None, np.empty(0, np.int64)
    from loadax.loader.mask_errors import masking_of, quarantined_rows

    # which makes the file of a record that is a quarantine too
    masking = masking_of(errors.on_error)
    return masking, quarantined_rows(errors.quarantine, dataset.reader.num_rows)


def _probed(
    datasets: Schedule[Dataset], quarantine: Integers, masking: bool
) -> Schedule[Dataset]:
    from loadax.loader.assembly.maskable import probe_readable

    return tuple(
        (first, probe_readable(data, quarantine, masking)) for first, data in datasets
    )


def _cropped(
    dataset: Dataset, lengths: Schedule[SeqLens], seq_len: Any
) -> Schedule[Dataset]:
    from loadax.loader.assembly.seq_len import cut_to

    cut = {length: cut_to(dataset, length, seq_len) for _, length in lengths}
    return tuple((step, cut[length]) for step, length in lengths)


def _with_streams(
    options: LoaderOptions,
    dataset: Dataset,
    epochs: int | None,
    remainder: Remainder,
    smallest: int,
) -> LoaderOptions:
    from loadax.loader.streams.stream_checks import with_streams

    return with_streams(options, dataset, epochs, remainder, smallest)


def _costs(balance: Any, dataset: Dataset) -> Costs:
    from loadax.loader.row_costs import costs_of

    return costs_of(balance, dataset)


def _check_fixed(dataset: Dataset, options: LoaderOptions) -> None:
    from loadax.loader.device.cache import check_fixed

    check_fixed(dataset, options)


def _device_function(place: PlaceArguments) -> DeviceFunction | None:
    if place.device_map is None:
        return None
    from loadax.loader.device.device_map import DevicePrograms

    return DevicePrograms(place.device_map)


def _remember_unread(workers: WorkerArguments, reader: Reader) -> None:
    """Keeps what worker processes, or other machines, will get of objects that reading changes."""
    elsewhere = (
        isinstance(workers.worker_type, str) and workers.worker_type == "process"
    )
    if (elsewhere or workers.remote is not None) and workers.num_workers != 0:
        from loadax.loader.workers.job import remember_unread

        remember_unread(reader)
