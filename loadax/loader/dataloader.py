"""Dataloader: a dataset as a sequence of batches, each already a globally sharded `jax.Array`.

From top to bottom: the dataset's order becomes a `BatchPlan`; the mesh and the partition become a `HostShard`, what
this process holds of every batch; a `BatchProducer` reads, assembles and places the steps; a `PrefetchScheduler`
decides what is read ahead, and an iterator hands the batches out.
"""

import copy
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Never, final

import numpy as np
from jax.sharding import Mesh

from loadax.core.arguments import flag, integer, shown
from loadax.core.habits import for_dataloader
from loadax.errors import ArgumentError, RowIndexError, UnsupportedError
from loadax.io import as_dataset
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.batch_spec import KEY, MASK
from loadax.loader.device.cache import check_fixed
from loadax.loader.device.device_map import DeviceMap
from loadax.loader.execution.scheduler import PrefetchScheduler
from loadax.loader.headroom import Headroom, Replay, measure
from loadax.loader.inspection.certificate import Certificate, alike_steps, certify, stretches
from loadax.loader.inspection.check_plan import PlanCheck, check_run
from loadax.loader.inspection.explain import Setting, forecast
from loadax.loader.inspection.explanation import Explanation
from loadax.loader.inspection.trace import Trace, find_places, trace
from loadax.loader.iterator import DataIterator, Epoch, Ledger
from loadax.loader.options import (
    LoaderOptions,
    device_limit,
    mesh_of,
    microbatch_count,
    schedule,
    shard_spec,
    together,
    with_positions,
    worker_counts,
)
from loadax.loader.pipeline import Pipeline, forms_of
from loadax.loader.state import OrderHash, step_of
from loadax.plan.batches import BatchPlan, Remainder
from loadax.plan.inverse import Place
from loadax.plan.skips import step_ranges
from loadax.protocols import Integers, Tree
from loadax.sharding.mesh import PlannedMesh, current_mesh, grid_of, resolve_mesh


def _refuse(unknown: Mapping[str, Any]) -> None:
    """Refuses arguments that a `Dataloader` does not have; for those of other loaders it says what to write."""
    for name, value in unknown.items():
        hint = for_dataloader(name)
        if hint is None:
            raise TypeError(f"Dataloader() got an unexpected keyword argument {name!r}")
        raise ArgumentError(f"{name}={shown(value)}: Dataloader has no such argument; {hint}")


@final
class Dataloader:
    """Turns a dataset into batches that are already globally sharded `jax.Array`s on the caller's mesh.

    A batch is a pure function of (dataset, step): mesh, partition, hosts, workers and prefetch decide who reads what
    and when, never what a batch is. The loader itself is stateless: `iter(loader)` begins at step 0, `iterate`
    anywhere.

    Args:
        data: a `Dataset`, or what `as_dataset` makes one of: a `Source`, arrays (or a dict, tuple or dataclass of
            them), data frames, open stores, a `grain.MapDataset`, any object with `__len__` and `__getitem__`.
        batch_size: rows of the global batch, all hosts together; never changed by the mesh. Or a schedule by step,
            `{0: 256, 10_000: 1024}`: each size holds until the next one begins. A step is compiled once for each;
            `specs` tells them beforehand.
        mesh: where batches go. None: the mesh the caller is in when iteration begins (`jax.set_mesh` or `with mesh:`),
            else the one the loader was made in, else all devices on one axis "data". A `loadax.sharding.plan_mesh`
            serves for everything but placing.
        partition: how each leaf is cut: a `PartitionSpec`, a `NamedSharding`, a pytree prefix of these, a
            `DataPartitionType`, or logical rules such as `(("batch", "data"),)`. None: rows over the axis of a one-axis
            mesh.
        num_epochs: None for ever. Epochs never share a batch, and each is shuffled anew.
        remainder: an epoch's last, partial batch. "drop": left out. "pad": filled up with zeros, and every batch of the
            run gets a bool leaf "mask", False there. "error": refused here.
        seq_len: how much of the sequences a batch has, or a schedule of that by step, `{0: 512, 5_000: 2048}`: every
            leaf that is as long as the longest one, in its first dimension behind the rows, is cut to its first so many
            entries. None: whole.
        microbatches: k: leaves have shape (k, batch_size / k, …), for a step that goes through k microbatches in turn,
            and the partition is that of a microbatch. Row r of the batch is entry (r % k, r // k), so that no row
            changes its device.
        key_seed: an int: every batch gets a leaf "key", uint32 of shape (batch_size, 2):
            `jax.random.wrap_key_data(batch["key"])` is a random key for each row that follows from the seed, the epoch
            and the row alone. For augmentation on the device.
        device_map: a function of one example, as that of `map`, that JAX traces and the devices run: on every row of a
            placed batch by itself, ahead of the consumer. So uint8 crosses the wire, and a normalised bfloat16 comes
            out. Where the partition cuts columns, it gets those of a device. `host_batch` and certificates are of what
            it is given.
        keep_on_device: True: all rows are read once, when iteration first begins, and stay on the devices, where
            batches are picked out of them; the same batches. A device may give a quarter of its memory to them; an int:
            so many bytes. Not for maps with rng=True.
        num_workers: threads or processes that read ahead. None: found by trying: one to begin with, or as many reads as
            the source wants under way at once, and more while training waits for data and that serves it faster, up to
            one process or two threads a core. 0: all on the caller's thread.
        worker_type: "thread": they share this process, and are fastest for data whose reading and maps don't hold the
            interpreter. "process": fresh interpreters, for maps in pure Python; they write to memory that this process
            shares. Functions of scripts and notebooks, lambdas and closures are fine; what they refer to is copied
            there once. Batches are the same either way.
        prefetch: placed batches kept ahead of the consumer.
        prefetch_bytes: host memory for reading ahead, beyond the batches that are placed.
        cache_bytes: host memory for the chunks that a block shuffle of chunked data has open, so that each is decoded
            once. None: as much as they need, up to half of this machine's memory. What they need follows from the
            shuffle: too little is an error.
        shard_index, shard_count: load part `shard_index` of `shard_count` equal contiguous parts of each batch. On a
            mesh of this process's own devices that part is what is yielded. A mesh that spans processes decides by
            itself, and other values are an error.
        on_error: "raise": a record that can't be read ends the iteration with an error.

    Raises:
        ArgumentError: when an argument can't be used; names it, shows it, says what to do.
        PartitionError: when a spec does not fit its leaf or the mesh can't cut the batch; names the leaf. With no mesh
            at hand yet, this comes when iteration begins.
        LeafTypeError: when a leaf is of a kind that JAX does not have.

    Examples:
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
        batch_size: int | Mapping[int, int],
        *,
        mesh: Mesh | PlannedMesh | None = None,
        partition: Any = None,
        num_epochs: int | None = 1,
        remainder: Remainder = "drop",
        seq_len: int | Mapping[int, int] | None = None,
        microbatches: int = 1,
        key_seed: int | None = None,
        device_map: Callable[[Tree], Tree] | None = None,
        keep_on_device: bool | int = False,
        num_workers: int | None = None,
        worker_type: str = "thread",
        prefetch: int = 2,
        prefetch_bytes: int = 256 << 20,
        cache_bytes: int | None = None,
        shard_index: int | None = None,
        shard_count: int | None = None,
        on_error: str = "raise",
        **unknown: Never,
    ):
        _refuse(unknown)
        if not isinstance(on_error, str) or on_error != "raise":
            raise UnsupportedError(f"on_error={shown(on_error)}: only 'raise' is there so far; leave it out")
        if isinstance(data, Dataloader):
            raise ArgumentError("data is a Dataloader already; pass its dataset: Dataloader(loader.dataset, …)")
        sizes = schedule("batch_size", batch_size)
        lengths = None if seq_len is None else schedule("seq_len", seq_len)
        if lengths is not None:
            sizes = together(sizes, lengths)
        self.dataset = with_positions(as_dataset(data), sizes, num_epochs)
        self._plan = BatchPlan(
            self.dataset.order,
            sizes[0][1] if len(sizes) == 1 else sizes,
            None if num_epochs is None else integer("num_epochs", num_epochs),
            remainder,
        )
        batch_sizes = [size for _, size in sizes]
        most, first = worker_counts(num_workers, worker_type, self.dataset.reader.concurrent_reads)
        options = LoaderOptions(
            partition=partition,
            shard=shard_spec(shard_index, shard_count, batch_sizes),
            microbatches=microbatch_count(microbatches, batch_sizes),
            key_seed=None if key_seed is None else integer("key_seed", key_seed, most=None),
            keep_on_device=device_limit(keep_on_device),
            num_workers=most,
            first_workers=first,
            worker_type=worker_type,
            prefetch=integer("prefetch", prefetch, 0),
            prefetch_bytes=integer("prefetch_bytes", prefetch_bytes, 1),
            cache_bytes=None if cache_bytes is None else integer("cache_bytes", cache_bytes, 0),
        )
        if options.keep_on_device:
            check_fixed(self.dataset)
        made_leaves = [MASK] * (remainder == "pad") + [KEY] * (options.key_seed is not None)
        self._pipeline = Pipeline(
            self._plan,
            *forms_of(self.dataset, lengths, made_leaves),
            options,
            None if device_map is None else DeviceMap(device_map),
        )
        self._order = OrderHash(self.dataset)
        # A sharding brings its mesh along.
        self._mesh = mesh_of(partition) if mesh is None else mesh
        self._made_in = current_mesh()
        self._used_up, self._warned = threading.Event(), False
        self._ledger: Ledger | None = None
        self._warm: deque[DataIterator] = deque()  # an iterator that reads ahead already, or none
        if self._mesh is not None or self._made_in is not None:
            for stretch in self._plan.stretches:
                self._share(stretch.first)

    def __bool__(self) -> bool:
        """True, also where there is no `len`: `if eval_loader:` asks whether there is one."""
        return True

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
        """How many steps one epoch has, also where some are skipped.

        The first one, where the batch size is scheduled.
        """
        return self._plan.steps_per_epoch

    @property
    def batch_size(self) -> int:
        """Rows of the global batch; of the first one, where it is scheduled."""
        return self._plan.schedule[0][1]

    @property
    def spec(self) -> Tree:
        """The batch as a pytree of `jax.ShapeDtypeStruct` with shardings, for ahead-of-time compilation.

        The first one, where it changes.
        """
        return self._pipeline.shape_dtypes(self._share())

    @property
    def specs(self) -> dict[int, Tree]:
        """What batches look like from which step on: one entry for each time that their shapes change."""
        return {step: self._pipeline.shape_dtypes(self._share(step)) for step in self._plan.first_steps}

    def rows(self, step: int) -> Integers:
        """int64[batch_size]: the row ids of that step in batch order, the same on every host; -1 for padding.

        With `microbatches=k`, int64[k, batch_size / k], as the leaves are.
        """
        rows, microbatches = self._plan.visits(self._checked(step)).rows, self._pipeline.options.microbatches
        return rows if microbatches == 1 else rows.reshape(-1, microbatches).T

    def local_rows(self, step: int) -> Integers:
        """int64[n]: the row ids that this process reads for that step, by ascending batch position; -1 for padding.

        Costs in proportion to them, not to the batch. Needs no mesh when `shard_index` and `shard_count` are given.
        """
        return self._plan.visits(self._checked(step), self._positions(step)).rows

    def host_batch(self, step: int) -> Tree:
        """The rows of `local_rows(step)` of every leaf, whole, as numpy; padding is zeros."""
        form = self._pipeline.form(self._checked(step))
        leaves = self._pipeline.host_leaves(form, self._plan.visits(step, self._positions(step)))
        return form.batch.structure.build(leaves)

    def explain(self, steps: int = 8, at: int = 0) -> Explanation:
        """What this run will read, hold and leave out, on every host of its mesh, which need not be there.

        Args:
            steps: how many are looked at for what depends on the rows in them: chunks, files, and rows decoded for each
                one used.
            at: a step of the batch size to explain, where that is scheduled.
        """
        at = self._checked(at, "at")
        setting = Setting(self._pipeline.form(at).dataset, self._plan, self._share(at), at, self._pipeline.options)
        return forecast(setting, integer("steps", steps, 1))

    def check_plan(self, steps: int | None = None) -> PlanCheck:
        """Plays the run through with all hosts of its mesh.

        Each row must be read by those, and only those, that hold it.

        Args:
            steps: how many, evenly spread; None: all, or as many as take a second or two. The result says how many.

        Raises:
            ConformanceError: when that is not so; names the step and the position.
        """
        return check_run(self._plan, self._share, None if steps is None else integer("steps", steps, 1))

    def __getitem__(self, step: int) -> Tree:
        """The placed global batch of that step: the very one that iteration hands out."""
        step = self._checked(step)
        producer = self._pipeline.one_step(self._share(step), step)
        return PrefetchScheduler(producer, step, LoaderOptions(prefetch=1, prefetch_bytes=1)).next_batch()[1]

    def __iter__(self) -> DataIterator:
        if self._used_up.is_set() and not self._warned and (self.dataset.order.varies or self.dataset.reader.random):
            self._warned = True
            warnings.warn(
                "iter(loader) begins at step 0 again, so it repeats the batches of the first pass, in the same order; "
                "for new epochs pass num_epochs= and iterate once, or use `for epoch in loader.epochs():`. Where the "
                "same batches are wanted again, as for evaluation, loader.iterate() gives them without this warning",
                UserWarning,
                stacklevel=2,
            )
        return self.iterate()

    def iterate(self, start: Any = 0) -> DataIterator:
        """An iterator that begins at `start`: a step, or what `get_state()` gave, on any mesh and any number of hosts.

        None: step 0.

        Raises:
            StateError: when the state belongs to other data, or lies inside a batch of this size.
        """
        step, mesh = self._step_of(start), self._placing_mesh()
        batches = self._take_warm(mesh, step) or self._begin(mesh, step)
        self._ledger = batches.ledger
        return batches

    def _aside(self, start: Any = 0) -> DataIterator:
        """An iterator for measuring: it leaves what was warmed up, and the one that metrics show, as they are."""
        return self._begin(self._placing_mesh(), self._step_of(start))

    def warmup(self, start: Any = 0) -> None:
        """Begins to read ahead in the background, while a model compiles or is restored.

        The next iterator from `start` on goes on with it.

        Of use where there are workers. When the next iterator begins elsewhere, or on another mesh, this ends and was
        in vain.

        Args:
            start: as for `iterate`.

        Raises:
            StateError: as for `iterate`.
        """
        step, mesh = self._step_of(start), self._placing_mesh()
        self._take_warm()
        self._warm.append(self._begin(mesh, step))

    def _take_warm(self, mesh: Mesh | None = None, step: int = 0) -> DataIterator | None:
        """The iterator that `warmup()` has begun, when it is for that mesh and step; else it is closed. Once only."""
        try:
            batches = self._warm.pop()  # atomic: of several threads, one gets it
        except IndexError:
            return None
        if (batches.mesh, batches.step) == (mesh, step):
            batches.restart_statistics()
            return batches
        batches.close()
        return None

    def _placing_mesh(self) -> Mesh:
        """The mesh of the caller's thread, on which batches can be placed."""
        mesh = self._share().shardings[0].mesh
        assert isinstance(mesh, Mesh)
        return mesh

    def _begin(self, mesh: Mesh, step: int) -> DataIterator:
        return DataIterator(self._pipeline, self._order, mesh, self._mesh is not None, self._used_up, step)

    @property
    def ledger(self) -> Ledger | None:
        """What the iterator that was made last counts, or has counted.

        For who watches the loader of a training loop from outside.
        """
        return self._ledger

    def replay(self, batches: int = 4, start: Any = 0) -> Replay:
        """The run as a perfect loader would give it.

        Its first few batches again and again, for as many steps as the run has.

        Train on it as you do on the loader, and `replay.headroom(it)` says what a perfect loader would gain. What is
        learned is worth nothing.

        Args:
            batches: how many are read first, and kept on the devices.
            start: a step or a state, as for `iterate`.

        Raises:
            ArgumentError: when the run has no batch from there on.
        """
        count = integer("batches", batches, 1)
        run = self._aside(start)
        if run.step == run.num_steps:
            run.close()
            raise ArgumentError(
                f"start={start!r}: the run ends there, at step {run.step}; "
                "begin earlier, so that there is a batch to replay"
            )
        return Replay(run, count)

    def headroom(self, train: Callable[[Tree], Any], steps: int = 50, *, batches: int = 4) -> Headroom:
        """What a perfect loader would gain.

        Trains some steps on this run and as many on its replay, and waits for each.

        Args:
            train: called with a batch; what it returns is waited for. It must not donate the batch.
            steps: how many, at most those of the run; the first two are not counted, so that `train` may be compiled in
                them.
            batches: how many are replayed.

        Raises:
            ArgumentError: when there are fewer than 12 steps.

        Examples:
            >>> import numpy as np
            >>> loader = Dataloader(np.zeros((320, 8), np.float32), batch_size=8)
            >>> print(loader.headroom(lambda batch: batch.sum(), steps=20))
            a perfect loader would take ...
        """
        return measure(self._aside(), partial(self.replay, batches), train, integer("steps", steps, 12))

    def epochs(self, start: Any = 0) -> Iterator[Epoch]:
        """One sized iterator an epoch: `for epoch in loader.epochs(): for batch in epoch: …`.

        An epoch that is left early is left for good: the next one begins at its own first batch.

        Args:
            start: a step or a state to go on from; the first epoch is then what is left of that one.
        """
        with self.iterate(start) as batches:
            while batches.step != self._plan.num_steps:
                number = batches.epoch
                epoch = Epoch(batches, number, self._plan.epoch_steps(number).stop)
                yield epoch
                epoch.leave()

    def trace(self, step: int, positions: Any = None) -> Trace:
        """Where the records of a step came from: of which dataset, row, epoch and file. Reads nothing.

        Args:
            step: of the run.
            positions: of the batch; None: all.

        Examples:
            >>> import numpy as np
            >>> from loadax import mix
            >>> data = mix({"web": np.arange(100), "code": np.arange(50)}, weights=[3, 1])
            >>> Dataloader(data, 8).trace(2)[1]
            Record(position=1, dataset='web', row=13, epoch=0, id=13, where=None, documents=None)
        """
        size = self._plan.stretch(self._checked(step))[0].batch_size
        chosen = np.arange(size) if positions is None else np.asarray(positions)
        if chosen.size and (chosen.dtype.kind not in "iu" or chosen.min() < 0 or chosen.max() >= size):
            raise RowIndexError(
                f"positions={shown(positions)}: pass ints of at least 0 and below {size}, the batch size"
            )
        return trace(self._plan, self.dataset.source, int(step), chosen.astype(np.int64).reshape(-1))

    def find(self, row: int, dataset: str | None = None, *, epochs: Any = None, steps: Any = None) -> list[Place]:
        """In which steps, and at which positions of their batches, the run meets a record.

        The inverse of `rows`, by arithmetic.

        Args:
            row: as `rows` numbers them; or, with `dataset`, that of a part.
            dataset: the name of a part of a mixture or concatenation, as `trace` shows it.
            epochs: which epochs of the run to look at: an int, or a range. None: all.
            steps: or which steps.

        Raises:
            ArgumentError: when there is no such part, or the run has no end and nothing says where to look.
            RowIndexError: when there is no such row.
        """
        return find_places(self._plan, self.dataset.source, integer("row", row), dataset, epochs, steps)

    def skip(self, steps: Any) -> "Dataloader":
        """A loader of the same run without some steps: step t is the t-th of those that are left.

        Nothing else about them changes.

        A state that was saved before the first of them is good for it: go on from before a loss spike without the
        batches that made it.

        Args:
            steps: of this loader: an int, a range, a slice, or any number of these.

        Raises:
            ArgumentError: when the run does not have these steps, or none would be left.

        Examples:
            >>> import numpy as np
            >>> loader = Dataloader(np.arange(100), batch_size=10)
            >>> shorter = loader.skip(range(2, 5))
            >>> len(shorter), shorter.rows(2)[0]
            (7, np.int64(50))
        """
        plan = self._plan
        ranges = [
            (plan.skips.number(low), plan.skips.number(high - 1) + 1)
            for low, high in step_ranges(steps, plan.num_steps)
        ]
        skipping = replace(plan, skips=plan.skips.and_also(ranges))
        if skipping.num_steps == 0:
            raise ArgumentError(f"steps={steps!r} are all steps of the run; leave some")
        made = copy.copy(self)
        vars(made).update(
            _plan=skipping,
            _pipeline=replace(self._pipeline, plan=skipping),
            _used_up=threading.Event(),
            _warned=False,
            _warm=deque(),
            _ledger=None,
        )
        return made

    def certificate(
        self,
        steps: Any = None,
        *,
        contents: bool = False,
        per_step: bool = False,
        positions: Any = None,
        run: str | None = None,
    ) -> Certificate:
        """What proves which records this process's part of the run consists of.

        The same for all hosts together as for one process alone.

        Save those of all hosts, and `loadax audit` tells whether they make one whole run, and whether two runs saw the
        same.

        Args:
            steps: a range of steps of the run, one after another. None: all.
            contents: whether to read the records, and to certify their bytes too.
            per_step: whether to keep a digest of every step, which tells the first that differs.
            positions: of the batch. None: those that this process holds.
            run: what the run is called. None: "8 processes", or as many as the mesh has.

        Raises:
            ArgumentError: when the run goes on for ever and no steps are named; or the positions don't ascend.
        """
        contents, per_step = flag("contents", contents), flag("per_step", per_step)
        if run is not None and not isinstance(run, str):
            raise ArgumentError(f"run={shown(run)}: pass a name for the run, as a str")
        if steps is None and self._plan.num_steps is None:
            raise ArgumentError("num_epochs=None: the run goes on for ever; pass steps=range(start, stop)")
        chosen = range(self._plan.num_steps or 0) if steps is None else steps
        if not isinstance(chosen, range) or chosen.step != 1 or not chosen:
            raise ArgumentError(f"steps={shown(steps)}: pass a range of steps, one after another")
        self._checked(chosen[0])
        self._checked(chosen[-1])
        held = None if positions is None else np.asarray(positions)
        if held is not None:
            sizes = [self._plan.stretch(step)[0].batch_size for step in (*self._plan.first_steps, chosen[0])]
            if (
                held.ndim != 1
                or held.dtype.kind not in "iu"
                or not held.size
                or held[0] < 0
                or held[-1] >= min(sizes)
                or (np.diff(held) < 1).any()
            ):
                raise ArgumentError(
                    f"positions={shown(positions)}: pass a list of ascending ints of at least 0 and below "
                    f"{min(sizes)}, the batch size"
                )
        same = None if held is None else stretches(held.astype(np.int64))
        pieces = {
            steps: self._stretches(steps.start) if same is None else same for steps in alike_steps(self._plan, chosen)
        }
        return certify(
            self._plan,
            self._order,
            run if run is not None else self._run_name(),
            pieces,
            partial(self._pipeline.host_leaves, self._pipeline.whole) if contents else None,
            per_step,
        )

    def _stretches(self, step: int) -> list[tuple[int, int]]:
        """The positions that this process holds, cut so that what several processes hold is cut alike.

        Where any device's part begins.
        """
        layouts = self._share(step).layouts if self._pipeline.options.shard is None else ()
        heights = {stop - start for layout in layouts for (start, stop), *_ in layout.boxes[:1]}
        return stretches(self._positions(step), heights)

    def _run_name(self) -> str:
        shard = self._pipeline.options.shard
        count = shard.count if shard is not None else len(np.unique(grid_of(self._share().mesh).owners))
        return "1 process" if count == 1 else f"{count} processes"

    def __repr__(self) -> str:
        steps = "endless" if self._plan.num_steps is None else f"{self._plan.num_steps} steps"
        sizes = ", ".join(f"{first}: {size}" for first, size in self._plan.schedule)
        shown = self.batch_size if isinstance(self._plan.batch_size, int) else f"{{{sizes}}}"
        return f"Dataloader({self.dataset!r}, batch_size={shown}, {steps})"

    def _share(self, step: int = 0) -> HostShard:
        """This process's share of a step on the mesh of the caller's thread, which is where this must be called."""
        mesh = resolve_mesh(self._mesh if self._mesh is not None else current_mesh() or self._made_in)
        return self._pipeline.share(mesh, step)

    def _positions(self, step: int) -> Integers:
        shard = self._pipeline.options.shard
        if shard is not None and self._mesh is None and (current_mesh() or self._made_in) is None:
            size = self._plan.stretch(step)[0].batch_size // shard.count
            return np.arange(shard.index * size, (shard.index + 1) * size, dtype=np.int64)
        return self._share(step).positions

    def _checked(self, step: Any, name: str = "step") -> int:
        return self._plan.check(integer(name, step, most=None))

    def _step_of(self, start: Any) -> int:
        """The step of a step or a state; None is the beginning, as where there is no checkpoint yet."""
        return step_of(self._plan, self._order, 0 if start is None else start)
