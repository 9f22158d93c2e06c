"""Pipeline: makes the batch producer of a run from the options, the dataset and the mesh."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from loadax.core.casting import cast_into
from loadax.core.tree import flatten
from loadax.dataset import Dataset
from loadax.loader.arguments import Schedule, value_at
from loadax.loader.assembly.assembler import made
from loadax.loader.assembly.chunk_budget import (
    OpenChunks,
    check_memory,
    find_open_chunks,
    held_columns,
    keep_open_chunks,
    row_bytes,
)
from loadax.loader.assembly.host_shard import HostShard, ShardSpec, batch_spec, resolve_share
from loadax.loader.assembly.seq_len import cut_to
from loadax.loader.batch_spec import BatchSpec
from loadax.loader.device.cache import DeviceCache
from loadax.loader.device.device_map import DevicePrograms
from loadax.loader.device.gather import DeviceGather
from loadax.loader.execution.producer import BatchProducer, Finish
from loadax.loader.workers.process_pool import ProcessPool
from loadax.plan.batches import BatchPlan, BatchSizeSegment
from loadax.protocols import Tree, Visits


@final
@dataclass(frozen=True, eq=False)
class BatchForm:
    """What batches are made of.

    The dataset, with its sequences as long as they are at that time, and what a batch of it looks like.
    """

    dataset: Dataset
    batch: BatchSpec


@final
@dataclass(frozen=True, eq=False)
class SeqLenSchedule:
    """What batches are made of, by step.

    Args:
        whole: where no length is scheduled.
        lengths: a schedule of the sequences' lengths; None: they are whole.
        cut: for each of these lengths.
    """

    whole: BatchForm
    lengths: Schedule | None
    cut: Mapping[int, BatchForm]

    def at(self, step: int) -> BatchForm:
        """What the batch of a step is made of."""
        return self.whole if self.lengths is None else self.cut[value_at(self.lengths, step)]


def forms_of(dataset: Dataset, lengths: Schedule | None, made_leaves: Sequence[str]) -> SeqLenSchedule:
    """The forms of a dataset's batches.

    Args:
        dataset: of the rows.
        lengths: a schedule of the sequences' lengths; None: they are whole.
        made_leaves: that the loader adds to every batch.
    """
    whole = BatchForm(dataset, batch_spec(dataset.spec, made_leaves))
    cut = {length: cut_to(dataset, length) for _, length in lengths or ()}
    return SeqLenSchedule(
        whole, lengths, {length: BatchForm(each, batch_spec(each.spec, made_leaves)) for length, each in cut.items()}
    )


@final
@dataclass(frozen=True, eq=False)
class Pipeline:
    """How batches are made on any mesh. Of the mesh that was used last it keeps what was worked out.

    Args:
        plan: which rows a step has.
        forms: what its batch is made of.
        partition: as the user gave it.
        part: of each batch that is loaded, where the user says so.
        microbatches: in how many a batch is cut.
        key_seed: of the random keys, where there are any.
        device_map: the user's function that devices run.
        keep: whether all rows stay on the devices.
        keep_limit: bytes that a device may give to them; None: the usual ones.
        budget: bytes of host memory for reading ahead.
        cache: bytes for chunks that are open; None: the usual ones.
        workers: how many read.
        in_processes: whether they are processes.
    """

    plan: BatchPlan
    forms: SeqLenSchedule
    partition: Any
    part: ShardSpec | None
    microbatches: int
    key_seed: int | None
    device_map: DevicePrograms | None
    keep: bool
    keep_limit: int | None
    budget: int
    cache: int | None
    workers: int
    in_processes: bool
    _shares: dict[Any, HostShard] = field(default_factory=dict)
    _kept: dict[Any, DeviceCache] = field(default_factory=dict)

    def of(self, plan: BatchPlan) -> "Pipeline":
        """The same for a plan whose batches look alike."""
        return replace(self, plan=plan)

    def form(self, step: int) -> BatchForm:
        """What the batch of a step is made of."""
        return self.forms.at(self.plan.stretch(step)[0].first)

    def share(self, mesh: Any, step: int) -> HostShard:
        """What this process holds of the batch of a step on a mesh, which need not be there.

        Raises:
            PartitionError: when a spec does not fit its leaf or the mesh can't cut the batch; names the leaf.
            ArgumentError: when `part` is not what the mesh makes of this process, or too little memory is allowed for
                open chunks.
        """
        stretch = self.plan.stretch(step)[0]
        form = self.forms.at(stretch.first)
        key = (mesh, stretch.batch_size, form)
        if key not in self._shares:
            share = resolve_share(form.batch, stretch.batch_size, mesh, self.partition, self.part, self.microbatches)
            if not self.keep:  # what is kept is read as it lies
                check_memory(
                    self.open_chunks(share, stretch), self.cache, max(1, self.workers) if self.in_processes else 1
                )
            if self.device_map is not None:
                self.device_map.on(share)  # what does not fit is said when the partition is looked at
            for other in [each for each in self._shares if each[0] != mesh]:
                self._shares.pop(other, None)
            self._shares[key] = share
        return self._shares[key]

    def shape_dtypes(self, share: HostShard) -> Tree:
        """What a batch of that share looks like."""
        return share.shape_dtypes if self.device_map is None else self.device_map.on(share).shape_dtypes

    def open_chunks(self, share: HostShard, stretch: BatchSizeSegment) -> list[OpenChunks]:
        """What block shuffles of chunked data have open on that share."""
        reader = self.forms.at(stretch.first).dataset.reader
        each_row = row_bytes(reader, held_columns(reader, share))
        return find_open_chunks(
            reader, BatchPlan(self.plan.order, stretch.batch_size, None, "pad"), share.positions, each_row
        )

    def feed(self, mesh: Mesh, step: int, processes: ProcessPool | None) -> BatchProducer:
        """What feeds that step, and those after it that look alike."""
        stretch, end = self.plan.stretch(step)
        share = self.share(mesh, step)
        feed = partial(BatchProducer, self.plan, keep=self.budget, end=end, key_seed=self.key_seed)
        if self.keep:
            picks = self._kept_on(mesh, step).picks(share)
            return feed(picks.reader, picks.share, finish=self._finish(share, picks))
        reader = self.form(step).dataset.reader
        found = self.open_chunks(share, stretch)
        columns = held_columns(reader, share)
        reader = keep_open_chunks(reader, found, self.cache, columns, self.budget, processes.count if processes else 1)
        return feed(reader, share, processes=processes, finish=self._finish(share))

    def feed_one(self, share: HostShard, step: int) -> BatchProducer:
        """What feeds that step alone: nothing is kept open for it, nor on the devices."""
        reader = self.form(step).dataset.reader
        finish = self._finish(share)
        return BatchProducer(
            self.plan, reader, share, keep=self.budget, end=step + 1, key_seed=self.key_seed, finish=finish
        )

    def host_leaves(self, form: BatchForm, visits: Visits) -> list[NDArray[Any]]:
        """The rows at these visits of every leaf of a batch, whole, as numpy; padding is zeros."""
        there = visits.rows >= 0
        leaves: list[NDArray[Any]] = []
        if there.any():
            leaves = flatten(form.dataset.reader.read_visits(type(visits)(visits.rows[there], visits.epochs[there])))[0]
        out = []
        for leaf in form.batch.leaves:
            array = np.zeros((len(there), *leaf.spec.shape), leaf.dtype)
            if leaf.source is None:
                array[...] = made(leaf.made, visits, self.key_seed)
            elif leaves:
                real = np.empty((int(there.sum()), *leaf.spec.shape), leaf.dtype)
                cast_into(real, leaves[leaf.source], leaf.path)
                array[there] = real
            out.append(array)
        return out

    def _finish(self, share: HostShard, picks: DeviceGather | None = None) -> Finish:
        """What becomes of placed leaves: those that they pick out of what is kept, and the user's function of these."""
        last: Finish = share.batch.structure.build
        if self.device_map is not None:
            last = self.device_map.compiled(share)
        return last if picks is None else lambda leaves: last(picks(leaves))

    def _kept_on(self, mesh: Mesh, step: int) -> DeviceCache:
        """The dataset on the devices; read when it is not there yet."""
        form = self.form(step)
        if (mesh, form) not in self._kept:
            self._kept.clear()  # of other meshes and lengths nothing is kept, and there may be no room for two
            kept = DeviceCache(
                form.dataset, self.share(mesh, step), self.keep_limit, self.budget, self.workers, self.in_processes
            )
            self._kept[mesh, form] = kept
        return self._kept[mesh, form]
