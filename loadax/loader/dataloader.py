"""Dataloader: a dataset as a sequence of batches, each already a globally sharded `jax.Array`.

The story from top to bottom: the dataset's order becomes a `BatchPlan`; the mesh and the partition become a `Share`, what this
process holds of every batch; a `Feed` reads, assembles and places the steps of the one on the other; a `Window` decides what is
read ahead, and an iterator hands the batches out.
"""

import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, final

import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import NDArray

from loadax.dataset import Dataset
from loadax.doors import as_dataset
from loadax.errors import ArgumentError, UnsupportedError
from loadax.loader.feed import Feed
from loadax.loader.iterator import DataIterator, Epoch, Run
from loadax.loader.open_chunks import OpenChunks, check_memory, find_open_chunks, held_columns, keep_open_chunks, row_bytes
from loadax.loader.prefetch import Window
from loadax.loader.share import Part, Share, batch_spec, resolve_share
from loadax.loader.state import order_hash, step_of
from loadax.plan.batches import BatchPlan, Remainder
from loadax.plan.mix import Mixed
from loadax.protocols import Integers, Tree
from loadax.sharding.dtypes import cast_into
from loadax.sharding.mesh import PlannedMesh, current_mesh, resolve_mesh
from loadax.trees import flatten

_MOST_WORKERS = 8  # threads beyond that mostly wait for each other; pass num_workers for more


@final
class Dataloader:
    """Turns a dataset into batches that are already globally sharded `jax.Array`s on the caller's mesh.

    A batch is a pure function of (dataset, step): mesh, partition, hosts, workers and prefetch decide who reads what and when,
    never what a batch is. The loader itself is stateless: `iter(loader)` begins at step 0, `iterate` anywhere.

    Args:
        data: a `Dataset`, a `Source`, arrays (or a dict or tuple of them), or any object with `__len__` and `__getitem__`.
        batch_size: rows of the global batch, all hosts together; never changed by the mesh.
        mesh: where batches go. None: the mesh the caller is in when iteration begins (`jax.set_mesh` or `with mesh:`), else the
            one the loader was made in, else all devices on one axis "data". A `loadax.sharding.plan_mesh` serves for everything but placing.
        partition: how each leaf is cut: a `PartitionSpec`, a `NamedSharding`, a pytree prefix of these, a `DataPartitionType`,
            or logical rules such as `(("batch", "data"),)`. None: rows over the axis of a one-axis mesh.
        num_epochs: None for ever. Epochs never share a batch, and each is shuffled anew.
        remainder: an epoch's last, partial batch. "drop": left out. "pad": filled up with zeros, and every batch of the run gets a
            bool leaf "mask", False there. "error": refused here.
        num_workers: threads that read ahead. None: one a core, 8 at most, or as many reads as the source wants under way at
            once; they sleep while the consumer does not have to wait. 0: all on the caller's thread.
        worker_type: "thread".
        prefetch: placed batches kept ahead of the consumer.
        prefetch_bytes: host memory for reading ahead, beyond the batches that are placed.
        cache_bytes: host memory for the chunks that a block shuffle of chunked data has open, so that each is decoded once. None: as much as
            they need, up to half of this machine's memory. What they need follows from the shuffle: too little is an error.
        shard_index, shard_count: load part `shard_index` of `shard_count` equal contiguous parts of each batch. On a mesh of this
            process's own devices that part is what is yielded. A mesh that spans processes decides by itself, and other values
            are an error.
        on_error: "raise": a record that can't be read ends the iteration with an error.

    Raises:
        ArgumentError: when an argument can't be used; names it, shows it, says what to do.
        PartitionError: when a spec does not fit its leaf or the mesh can't cut the batch; names the leaf. With no mesh at hand yet,
            this comes when iteration begins.
        LeafTypeError: when a leaf is of a kind that JAX does not have.

    Example:
        >>> import numpy as np
        >>> from loadax import from_arrays
        >>> data = from_arrays({"x": np.arange(32.0).reshape(16, 2)}).shuffle(seed=0)
        >>> loader = Dataloader(data, batch_size=8)
        >>> for batch in loader:
        ...     print(batch["x"].shape, "over", *batch["x"].sharding.mesh.axis_names)
        (8, 2) over data
        (8, 2) over data
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        *,
        mesh: Mesh | PlannedMesh | None = None,
        partition: Any = None,
        num_epochs: int | None = 1,
        remainder: Remainder = "drop",
        num_workers: int | None = None,
        worker_type: str = "thread",
        prefetch: int = 2,
        prefetch_bytes: int = 256 << 20,
        cache_bytes: int | None = None,
        shard_index: int | None = None,
        shard_count: int | None = None,
        on_error: str = "raise",
    ):
        if worker_type != "thread":
            raise UnsupportedError(f"worker_type={worker_type!r}: only 'thread' is there so far; leave it out")
        if on_error != "raise":
            raise UnsupportedError(f"on_error={on_error!r}: only 'raise' is there so far; leave it out")
        if isinstance(data, Dataloader):
            raise ArgumentError("data is a Dataloader already; pass its dataset: Dataloader(loader.dataset, …)")
        batch_size = _integer("batch_size", batch_size)
        self.dataset = _scheduled(as_dataset(data), batch_size, num_epochs)
        self._plan = BatchPlan(
            self.dataset.order,
            batch_size,
            None if num_epochs is None else _integer("num_epochs", num_epochs),
            remainder,
        )
        self._workers = _workers(num_workers, self.dataset.reader.concurrent_reads)
        self._depth = _at_least("prefetch", prefetch, 0)
        self._budget = _at_least("prefetch_bytes", prefetch_bytes, 1)
        self._cache = None if cache_bytes is None else _at_least("cache_bytes", cache_bytes, 0)
        self._part = _part(shard_index, shard_count, self._plan.batch_size)
        self._batch = batch_spec(self.dataset.spec, padded=remainder == "pad")
        self._order = order_hash(self.dataset)
        self._partition = partition
        # A sharding brings its mesh along.
        self._mesh = _mesh_of(partition) if mesh is None else mesh
        self._made_in = current_mesh()
        self._shares: dict[Any, Share] = {}
        self._used_up = self._warned = False
        if self._mesh is not None or self._made_in is not None:
            self._share()

    def __len__(self) -> int:
        """How many steps there are in all epochs together.

        Raises:
            TypeError: when they go on for ever.
        """
        if self._plan.num_steps is None:
            raise TypeError("num_epochs=None: the loader goes on for ever and has no len(); use loader.steps_per_epoch")
        return self._plan.num_steps

    @property
    def steps_per_epoch(self) -> int:
        """How many steps one epoch has."""
        return self._plan.steps_per_epoch

    @property
    def batch_size(self) -> int:
        """Rows of the global batch."""
        return self._plan.batch_size

    @property
    def spec(self) -> Tree:
        """The batch as a pytree of `jax.ShapeDtypeStruct` with shardings, for ahead-of-time compilation."""
        return self._share().shape_dtypes

    def rows(self, step: int) -> Integers:
        """int64[batch_size]: the row ids of that step in batch order, the same on every host; -1 for padding."""
        return self._plan.visits(self._checked(step)).rows

    def local_rows(self, step: int) -> Integers:
        """int64[n]: the row ids that this process reads for that step, by ascending batch position; -1 for padding.

        Costs in proportion to them, not to the batch. Needs no mesh when `shard_index` and `shard_count` are given.
        """
        return self._plan.visits(self._checked(step), self._positions()).rows

    def host_batch(self, step: int) -> Tree:
        """The rows of `local_rows(step)` of every leaf, whole, as numpy; padding is zeros."""
        visits = self._plan.visits(self._checked(step), self._positions())
        there = visits.rows >= 0
        leaves: list[NDArray[Any]] = []
        if there.any():
            leaves = flatten(self.dataset.reader.read_visits(type(visits)(visits.rows[there], visits.epochs[there])))[0]
        out = []
        for leaf in self._batch.leaves:
            array = np.zeros((len(there), *leaf.spec.shape), leaf.dtype)
            if leaf.source is None:
                array[...] = there
            elif leaves:
                real = np.empty((int(there.sum()), *leaf.spec.shape), leaf.dtype)
                cast_into(real, leaves[leaf.source], leaf.path)
                array[there] = real
            out.append(array)
        return self._batch.structure.build(out)

    def __getitem__(self, step: int) -> Tree:
        """The placed global batch of that step: the very one that iteration hands out."""
        step = self._checked(step)
        # Nothing is kept open for one step alone.
        feed = Feed(self._plan, self.dataset.reader, self._share(), keep=self._budget)
        window = Window(feed, step, step + 1, depth=1, budget=1, workers=0)
        return window.take()[1]

    def __iter__(self) -> DataIterator:
        if self._used_up and not self._warned and (self.dataset.order.varies or self.dataset.reader.random):
            self._warned = True
            warnings.warn(
                "iter(loader) begins at step 0 again, so it repeats the batches of the first pass, in the same order; for new epochs "
                "pass num_epochs= and iterate once, or use `for epoch in loader.epochs():`. Where the same batches are wanted again, as "
                "for evaluation, loader.iterate() gives them without this warning",
                UserWarning,
                stacklevel=2,
            )
        return self.iterate()

    def iterate(self, start: Any = 0) -> DataIterator:
        """An iterator that begins at `start`: a step, or what `get_state()` gave, on any mesh and any number of hosts.

        Raises:
            StateError: when the state belongs to other data, or lies inside a batch of this size.
        """
        step_of(self._plan, self._order, start)
        share = self._share()
        mesh = share.shardings[0].mesh
        assert isinstance(mesh, Mesh)
        run = Run(
            feed=self._feed(share),
            plan=self._plan,
            order=self._order,
            mesh=mesh,
            mesh_given=self._mesh is not None,
            depth=self._depth,
            budget=self._budget,
            workers=self._workers,
            used_up=self._mark_used_up,
        )
        return DataIterator(run, start)

    def epochs(self, start: Any = 0) -> Iterator[Epoch]:
        """One sized iterator an epoch: `for epoch in loader.epochs(): for batch in epoch: …`.

        An epoch that is left early is left for good: the next one begins at its own first batch.

        Args:
            start: a step or a state to go on from; the first epoch is then what is left of that one.
        """
        with self.iterate(start) as batches:
            while batches.step != self._plan.num_steps:
                number = batches.epoch
                epoch = Epoch(batches, number, (number + 1) * self.steps_per_epoch)
                yield epoch
                epoch.leave()

    def __repr__(self) -> str:
        steps = "endless" if self._plan.num_steps is None else f"{self._plan.num_steps} steps"
        return f"Dataloader({self.dataset!r}, batch_size={self.batch_size}, {steps})"

    def _share(self) -> Share:
        """This process's share on the mesh of the caller's thread, which is where this must be called."""
        mesh = resolve_mesh(self._mesh if self._mesh is not None else current_mesh() or self._made_in)
        share = self._shares.get(mesh)
        if share is None:
            share = resolve_share(self._batch, self._plan.batch_size, mesh, self._partition, self._part)
            check_memory(self._open_chunks(share), self._cache)
            self._shares = {mesh: share}
        return share

    def _open_chunks(self, share: Share) -> list[OpenChunks]:
        reader = self.dataset.reader
        each_row = row_bytes(reader, held_columns(reader, share))
        return find_open_chunks(reader, self._plan, share.positions, each_row)

    def _positions(self) -> Integers:
        if self._part is not None and self._mesh is None and (current_mesh() or self._made_in) is None:
            size = self._plan.batch_size // self._part.count
            return np.arange(self._part.index * size, (self._part.index + 1) * size, dtype=np.int64)
        return self._share().positions

    def _feed(self, share: Share) -> Feed:
        reader = self.dataset.reader
        boxes = held_columns(reader, share)
        reader = keep_open_chunks(reader, self._open_chunks(share), self._cache, boxes, self._budget)
        return Feed(self._plan, reader, share, keep=self._budget)

    def _checked(self, step: Any) -> int:
        return self._plan.check(_integer("step", step))

    def _mark_used_up(self) -> None:
        self._used_up = True


def _scheduled(dataset: Dataset, batch_size: int, num_epochs: Any) -> Dataset:
    """The dataset with what is scheduled by step scheduled by position, now that the batch size is known.

    Raises:
        ArgumentError: when something is scheduled for a later epoch, whose first step depends on what becomes of the last batch.
    """
    order = dataset.order
    if not isinstance(order, Mixed) or not order.by_step:
        return dataset
    known = replace(dataset, order=order.at_positions(batch_size))
    last = order.segments[-1].start
    if num_epochs != 1 and (last + 1) * batch_size > known.order.size:
        raise ArgumentError(
            f"weights are scheduled from step {last} on, but an epoch has only {known.order.size // batch_size} steps of batch_size={batch_size}; "
            "schedule by example, or pass stop='never' to mix()"
        )
    return known


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(f"{name}={value!r}: pass an int")
    return int(value.__index__())


def _at_least(name: str, value: Any, least: int) -> int:
    number = _integer(name, value)
    if number < least:
        raise ArgumentError(f"{name}={number}: pass {least} or more")
    return number


def _workers(num_workers: int | None, concurrent_reads: int) -> int:
    if num_workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(min(cores, _MOST_WORKERS), concurrent_reads)
    return _at_least("num_workers", num_workers, 0)


def _part(index: int | None, count: int | None, batch_size: int) -> Part | None:
    if index is None and count is None:
        return None
    if index is None or count is None:
        raise ArgumentError(f"shard_index={index} and shard_count={count}: pass both, or neither")
    count = _at_least("shard_count", count, 1)
    index = _integer("shard_index", index)
    if not 0 <= index < count:
        raise ArgumentError(f"shard_index={index} is not one of shard_count={count} parts: pass 0 to {count - 1}")
    if batch_size % count:
        raise ArgumentError(f"batch_size={batch_size} can't be cut in shard_count={count} equal parts; use a multiple of {count}")
    return Part(index, count)


def _mesh_of(partition: Any) -> Mesh | None:
    """The mesh of the first sharding in `partition`, if there is one."""
    for leaf in flatten(partition)[0]:
        if isinstance(leaf, NamedSharding) and isinstance(leaf.mesh, Mesh):
            return leaf.mesh
    return None
