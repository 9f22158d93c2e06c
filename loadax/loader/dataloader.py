"""Dataloader: iterates over a dataset in batches, each a globally sharded `jax.Array`.

From top to bottom: the dataset's order becomes a `BatchPlan`. The mesh and the partition become a `HostShard`, this
process's part of every batch. A `BatchProducer` reads, assembles and places steps. A `PrefetchScheduler` decides what
to read ahead, and an iterator delivers the batches. All of these belong to a `Phase`; a loader has one, or many.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Never, final

import numpy as np
from jax.sharding import Mesh

from loadax.core.arguments import integer, shown
from loadax.core.replacements import missing_attribute, replacements
from loadax.errors import ArgumentError, MeshError, RowIndexError, StreamError
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.execution.scheduler import PrefetchScheduler
from loadax.loader.iterations import Iterations
from loadax.loader.iterator import DataIterator
from loadax.loader.loader_arguments import (
    ErrorArguments,
    LimitArguments,
    LoaderArguments,
    PlaceArguments,
    StepArguments,
    WorkerArguments,
)
from loadax.loader.options import LoaderOptions
from loadax.loader.phase import Phase, make_phase
from loadax.loader.phases import Phases
from loadax.loader.pipeline import BatchPipeline
from loadax.loader.stretch import Ledger, Target
from loadax.plan.batches import Remainder
from loadax.plan.skips import Skips
from loadax.protocols import Engine, Integers, Tree
from loadax.sharding.mesh import PlannedMesh

if TYPE_CHECKING:
    from loadax.loader.buckets import Buckets
    from loadax.loader.device.device_map import DeviceMap
    from loadax.loader.epoch import Epoch
    from loadax.loader.host_rows import HostRows
    from loadax.loader.inspection.check_plan import PlanCheck
    from loadax.loader.inspection.explanation import Explanation
    from loadax.loader.lease import Lease
    from loadax.loader.mask_errors import MaskErrors
    from loadax.loader.preflight.report import Preflight
    from loadax.loader.receipts.content_digests import ContentDigests
    from loadax.loader.receipts.receipt import Receipt
    from loadax.loader.trace import Trace
    from loadax.plan.find import StepPosition


def _refuse(named: Mapping[str, Any]) -> None:
    """Raises for unknown arguments. For those of other data loaders, the error says what to use instead."""
    known = Dataloader.__init__.__annotations__
    for name, value in named.items():
        if name in known:
            continue
        hint = replacements("Dataloader()").get(name)
        if hint is None:
            close = difflib.get_close_matches(name, [*known], 1)
            if close:
                guess = f"; did you mean {close[0]}?"
            else:
                guess = ""
            raise TypeError(
                f"Dataloader() got an unexpected keyword argument {name!r}{guess}"
            )
        raise ArgumentError(
            f"{name}={shown(value)}: Dataloader has no such argument; {hint}"
        )


def _batch_of(pipeline: BatchPipeline, shard: HostShard, step: int) -> Tree:
    """Reads a single step, without reading ahead."""
    producer = pipeline.one_step(shard, step)
    return PrefetchScheduler(
        producer, step, LoaderOptions(prefetch=1, prefetch_bytes=1)
    ).next_batch()[1]


def refuse_next(loader: Any) -> Never:
    """The `__next__` of loaders.

    Raises:
        TypeError: As Python's own for an object that is no iterator; says what to write.
    """
    raise TypeError(
        f"next(loader): a {type(loader).__name__} has no position, its iterators "
        "have: batches = iter(loader), then next(batches) for each batch; for a look "
        "at one, next(loader.iterate())"
    )


def loader_of(phases: Iterable[Phase]) -> "Dataloader":
    """The loader of these phases."""
    made = Dataloader.__new__(Dataloader)
    made._set(tuple(phases))  # noqa: SLF001 - of this file
    return made


def restored(
    *given: tuple[LoaderArguments, Skips, Sequence[list[int]]],
) -> "Dataloader":
    """The loader that was pickled, from arguments, skipped steps and weights set in mid-run of each phase."""
    return loader_of(
        make_phase(arguments).weighted(weights).skipping(skips)
        for arguments, skips, weights in given
    )


@final
class Dataloader:
    """Iterates over a dataset in batches of globally sharded `jax.Array`s on the caller's mesh.

    A batch is a pure function of (dataset, step). Mesh, partition, hosts, workers and prefetch decide which host reads
    which rows and when, never the content of a batch. The loader is stateless: `iter(loader)` starts at step 0,
    `iterate` anywhere.

    Examples:
        >>> import numpy as np
        >>> from loadax import Dataloader, from_arrays
        >>> data = from_arrays({"x": np.arange(32.0).reshape(16, 2)}).shuffle(seed=0)
        >>> loader = Dataloader(data, batch_size=8)
        >>> for batch in loader:
        ...     print(batch["x"].shape, "over", *batch["x"].sharding.mesh.axis_names)
        (8, 2) over data
        (8, 2) over data

    Args:
        data: `Dataset`, or anything that `as_dataset` accepts: a `Source`, arrays (or a dict, tuple or dataclass of
            them), data frames, open stores, a dataset of Grain or Hugging Face, any object with `__len__` and
            `__getitem__`.
        batch_size: Rows of the global batch over all hosts; the mesh never changes it. Or a schedule by step, such as
            `{0: 256, 10_000: 1024}`, where each size is used until the next one starts. The step function is compiled
            once per size; `specs` lists the shapes. Or `loadax.Buckets`: rows of similar length in each step, padded to
            the length of their bucket.
        num_epochs: Number of epochs. None: infinite. Epochs never share a batch, and each has its own shuffle.
        mesh: Mesh that batches are placed on. None: the current mesh when iteration starts (`jax.set_mesh` or
            `with mesh:`), else the current mesh when the loader was made, else all devices on one axis "data". A
            `loadax.sharding.plan_mesh` works for everything but placing.
        partition: Sharding of each leaf: a `PartitionSpec`, a `NamedSharding`, a pytree prefix of these, or a
            `DataPartitionType`. None: rows over the axis of a one-axis mesh.
        remainder: What to do with an epoch's last, partial batch. "drop" it. "pad" it with zeros; then every batch has
            a bool leaf "mask", False for padding. Host leaves of strings are padded with "" (bytes with b""), other
            objects with None. "error" raises now.

    Args: What a batch has
        host_leaves: Names of leaves that are not placed: strings, 64-bit ids, any dtype; those of a subtree by keys
            joined by dots, `"meta.id"`, as in `Dataset.keep`. `it.host` and `loader.host(step)` have them by these
            names, for the rows that this process reads. Examples must be dicts. If all leaves are named, batches
            consist of the leaf "mask".
        seq_len: Sequence length of batches, or a schedule by step, `{0: 512, 5_000: 2048}`. Every leaf whose first
            dimension after the rows is the longest one is cropped to it, if no shorter one could be meant. Or a dict of
            these by the name of a leaf, `{"tokens": 512}`: every leaf whose first dimension is that of the named one is
            cropped. None: not cropped.
        microbatches: Number k of microbatches. Leaves have shape (k, batch_size / k, …), for gradient accumulation, and
            the partition applies to a microbatch. Row r of the batch is entry (r % k, r // k), so that rows stay on
            their devices.
        balance: Costs by which the rows of each step are arranged, so that cuts of the batch into 2, 4, 8, … parts cost
            nearly the same, on any mesh: "attention" for packed rows, the sums of their squared segment lengths;
            an array of the costs of all rows of the source; or a function of row ids, int64[n], that returns n numbers.
            The rows of a step stay the same. Every host needs the costs of all rows of its steps.
        key_seed: Seed of random keys: every batch gets a leaf "key", uint32 of shape (batch_size, 2), and
            `jax.random.wrap_key_data(batch["key"])` is one random key per row. It depends only on the seed, the epoch
            and the row. Use it for augmentation on devices.

    Args: On the devices
        device_map: Function of one example, like that of `map`, which JAX compiles and the devices apply to every row
            of a placed batch, ahead of the consumer. For example, uint8 is transferred and normalised bfloat16 comes
            out. If the partition splits columns of a leaf that it changes, pass
            `loadax.DeviceMap(fn, elementwise=True)`. `host_batch` shows its inputs. It is compiled under
            `jax.disable_jit` too, and `jax.debug_nans` finds its NaNs in the step.
        keep_on_device: True: all rows are read once, when iteration first starts, cached on the devices, and gathered
            into the same batches there. They may take a quarter of each device's memory; an int sets that limit in
            bytes. Not available for maps with rng=True.
        prefetch: Number of placed batches to keep ahead of the consumer.
        shard_index: Index of the part to load, if each batch is split into `shard_count` equal contiguous parts. On a
            mesh of this process's own devices, batches consist of that part. A mesh that spans processes determines the
            parts, and other values are an error. A stream that ends is refused outside of a `jax.distributed` run.
        shard_count: Number of parts, see `shard_index`.

    Args: Workers and memory
        num_workers: Number of threads or processes that read ahead. None: autotuned. It starts with one, or as many as
            the source wants reads in flight, and adds workers while training waits for data and they raise throughput,
            up to one process or two threads per core. 0: everything runs on the caller's thread, which reads several
            steps at once if that takes it at most a millisecond.
        worker_type: "thread": threads of this process, the fastest choice if reads and maps release the GIL. "process":
            new Python interpreters, for maps in pure Python; they write into shared memory. Functions of scripts and
            notebooks, lambdas and closures are supported; objects that they refer to are copied to each worker once.
            Batches are the same either way.
        remote: A `concurrent.futures.Executor`, or a function without arguments that makes one: Dask's
            `client.get_executor()`, `loadax.interop.ray.executor()`, a process pool. Its workers read ahead, and this
            process copies their rows. What they do not deliver in time is given to another worker, then read here: no
            batch, state or order depends on them. `num_workers` is the number of them to keep busy, autotuned up to 32.
            Tasks are pickles, so use it in trusted networks only.
        prefetch_bytes: Host memory for reading ahead, in bytes, not counting placed batches.
        cache_bytes: Host memory, in bytes, for the open chunks of a block shuffle, so that each is decoded once. None:
            as much as they need, up to half of this machine's memory. The need follows from the shuffle; a lower value
            is an error.

    Args: Failures
        on_error: "raise": a row that can't be read ends the iteration with an error. "mask": its place holds zeros, and
            is False in the leaf "mask" of the batch; `MaskErrors(…)` sets the limits, and names a file for the record.
        quarantine: Rows that are never read, and masked in their places: the record of `MaskErrors`, or row ids as in
            `rows`. The order and saved states stay as they are. The same on all hosts.
        stall_after: Seconds of waiting for a batch after which the log tells what it waits for: rows, file, map, worker
            and its stack; again after twice as long, and so on. None: never.
        abort_after: Seconds of waiting for a batch after which `next()` raises a `StallError` with the same text, and
            the other hosts of the run a `HostError` that names this one, about 7 seconds later. A host that waits for
            them in a collective ends after `abort_after` seconds, but at least 10. None: never, unless another host
            exits with an error. With `num_workers=0`, the caller itself waits for the data and can't be interrupted.
        contents: What states have of the data's files. "identity": hashes of sizes, and of times of change or ETags, as
            far as they are known without a request; a resume warns where they have changed, and names the file.
            "digest": hashes of the bytes, for which all files are read once before the first batch; a resume is refused
            where a byte has changed. `ContentDigests(index=…)` keeps them. A state with digests is compared whatever
            is passed here, except None, with which nothing is compared.

    Attributes:
        dataset: The dataset. Of the first phase, if there are several.
        phases: What each phase of the run reads, and where it goes: one, or those of `loadax.chain`. For loadax itself.

    Raises:
        ArgumentError: If an argument can't be used.
        PartitionError: If a spec does not fit its leaf, or the mesh can't split a batch of the run evenly. If there is
            no mesh yet, this is raised when iteration starts.
        LeafTypeError: If a leaf that is not in `host_leaves` has a dtype that JAX does not have.
    """

    def __init__(
        self,
        data: Any,
        batch_size: "int | Mapping[int, int] | Buckets",
        *,
        mesh: Mesh | PlannedMesh | None = None,
        partition: Any = None,
        host_leaves: Sequence[str] | str = (),
        num_epochs: int | None = 1,
        remainder: Remainder = "drop",
        balance: Any = None,
        seq_len: int | Mapping[int, int] | Mapping[str, Any] | None = None,
        microbatches: int = 1,
        key_seed: int | None = None,
        device_map: "Callable[[Tree], Tree] | DeviceMap | None" = None,
        keep_on_device: bool | int = False,
        num_workers: int | None = None,
        worker_type: str = "thread",
        remote: Engine | None = None,
        prefetch: int = 2,
        prefetch_bytes: int = 256 << 20,
        cache_bytes: int | None = None,
        shard_index: int | None = None,
        shard_count: int | None = None,
        on_error: "str | MaskErrors" = "raise",
        quarantine: Any = None,
        stall_after: float | None = 60.0,
        abort_after: float | None = None,
        contents: "str | ContentDigests | None" = "identity",
    ):
        arguments = LoaderArguments(
            data,
            StepArguments(batch_size, num_epochs, remainder, balance, seq_len),
            PlaceArguments(
                mesh,
                partition,
                host_leaves,
                microbatches,
                key_seed,
                device_map,
                keep_on_device,
                shard_index,
                shard_count,
            ),
            WorkerArguments(num_workers, worker_type, remote),
            LimitArguments(
                prefetch, prefetch_bytes, cache_bytes, stall_after, abort_after
            ),
            ErrorArguments(on_error, quarantine),
            contents,
        )
        self._set((make_phase(arguments),))

    def _set(self, phases: tuple[Phase, ...]) -> None:
        """Sets all attributes, from the phases of the run."""
        self.phases = phases
        self.dataset = phases[0].pipeline.whole.dataset
        self._steps = Phases([(phase.pipeline.plan, phase.order) for phase in phases])
        self._iterations = Iterations(self._steps, phases)

    if not TYPE_CHECKING:  # type checkers must still report wrong arguments

        def __new__(cls, *_: Any, **named: Any) -> "Dataloader":
            """Refuses unknown arguments before Python looks for missing ones, such as `batch_size`."""
            _refuse(named)
            return object.__new__(cls)

    def __reduce__(self) -> Any:
        for phase in self.phases:
            if isinstance(phase.mesh, Mesh):
                raise MeshError(
                    "a Dataloader with mesh=, or a NamedSharding in partition=, can't "
                    "be pickled, since devices belong to their process; pickle "
                    "loader.dataset, and make the loader where it is used"
                )
            if isinstance(phase.arguments.workers.remote, Executor):
                raise ArgumentError(
                    "a Dataloader with an executor as remote= can't be pickled; pass "
                    "a function that makes one"
                )
        return restored, tuple(
            (phase.arguments, phase.plan.skips, phase.order.weights)
            for phase in self.phases
        )

    def __deepcopy__(self, _: object = None) -> "Dataloader":
        return self  # it has no state

    __copy__ = __deepcopy__

    def __bool__(self) -> bool:
        """True even without a length, so that `if eval_loader:` checks whether there is a loader."""
        return True

    def __len__(self) -> int:
        """Number of steps of all epochs together.

        Raises:
            TypeError: If it is infinite.
        """
        self._refuse_stream("len(loader)")
        if self._steps.num_steps is None:
            raise TypeError(
                "num_epochs=None: the loader is infinite and has no len(); use "
                "loader.steps_per_epoch"
            )
        return self._steps.num_steps

    @property
    def loaders(self) -> "tuple[Dataloader, ...]":
        """A loader of each phase by itself."""
        return tuple(loader_of([phase]) for phase in self.phases)

    @property
    def first_steps(self) -> tuple[int, ...]:
        """First step of each phase."""
        return self._steps.first_steps

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of one epoch, including skipped ones. Of the first epoch if the batch size is scheduled."""
        self._refuse_stream("steps_per_epoch")
        return self.phases[0].plan.steps_per_epoch

    @property
    def batch_size(self) -> int:
        """Rows of the global batch. Of the first one if the batch size is scheduled."""
        return self.phases[0].plan.schedule[0][1]

    @property
    def spec(self) -> Tree:
        """The batch as a pytree of `jax.ShapeDtypeStruct` with shardings, for ahead-of-time compilation.

        The first batch, if shapes change during the run; see `specs`.
        """
        phase = self.phases[0]
        return phase.pipeline.shape_dtypes(phase.shard())

    @property
    def specs(self) -> dict[int, Tree]:
        """The specs of all batch shapes of the run, by the first step of each in each phase."""
        return {
            first + step: phase.pipeline.shape_dtypes(phase.shard(step))
            for first, phase in zip(self.first_steps, self.phases, strict=True)
            for step in phase.plan.first_steps
        }

    def rows(self, step: int) -> Integers:
        """int64[batch_size]: row ids of the step in batch order, the same on every host; -1 for padding.

        With `microbatches=k`, int64[k, batch_size / k], like the leaves. Of a chain: ids in the dataset of the phase.
        """
        phase, local = self._at(step)
        rows = phase.plan.visits(local).rows
        microbatches = phase.pipeline.options.microbatches
        if microbatches == 1:
            return rows
        return rows.reshape(-1, microbatches).T

    def local_rows(self, step: int) -> Integers:
        """int64[n]: row ids that this process reads for the step, by ascending batch position; -1 for padding.

        The cost is proportional to n, not to the batch. Needs no mesh if `shard_index` and `shard_count` are given.
        """
        phase, local = self._at(step)
        return phase.plan.visits(local, phase.positions(local)).rows

    def host_batch(self, step: int) -> Tree:
        """The rows of `local_rows(step)` as NumPy arrays, with all columns of every leaf, including host leaves.

        Padding is zeros, empty strings or bytes, or None in place of other objects.
        """
        phase, local = self._at(step)
        pipeline = phase.pipeline.on_host()
        shard = pipeline.host_shard(
            phase.positions(local), local, pipeline.form(local).host_batch
        )
        return _batch_of(pipeline, shard, local)

    # type checkers must still report misspelt names, and `next(loader)`
    if not TYPE_CHECKING:
        __getattr__ = missing_attribute
        __next__ = refuse_next

    def host_batches(self, start: Any = 0) -> DataIterator:
        """Iterates over `host_batch(step)`, read ahead, for what places batches by itself, or takes no `jax.Array`s.

        The states are those of the placed batches. Needs no mesh if `shard_index` and `shard_count` are given.

        Args:
            start: Step or state, as for `iterate`.

        Raises:
            StateError: As for `iterate`.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader
            >>> rows = {"prompt": np.array(["a", "b"] * 8)}
            >>> loader = Dataloader(rows, batch_size=8, host_leaves="prompt")
            >>> [batch["prompt"][:2].tolist() for batch in loader.host_batches()]
            [['a', 'b'], ['a', 'b']]
        """
        return self._iterations.iterate(
            [phase.host_target() for phase in self.phases], start
        )

    def lease(self, start: Any = 0) -> "Lease":
        """Hands out rows as NumPy arrays, `batch_size` or fewer at once, that may be finished in any order.

        For reinforcement learning: prompts are handed out in the order of the run, rollouts take longer or shorter, and
        those that were trained on are acknowledged. A run that is killed and resumed serves each row until it is
        acknowledged or dropped, in order: exactly once a row, not once a rollout. The last, partial batch of an epoch
        is served whatever `remainder` says, unless the steps before and after it are skipped as one range.

        Each process has the rows of `local_rows`, and its own state; a resume takes the states of all of them, on any
        number of hosts. Positions of a chain count on from one phase to the next, whose rows may be in flight together.

        Args:
            start: State of `lease.get_state()`, or a list of those of all processes; also a step, or a state of an
                iterator, before which all rows are finished.

        Raises:
            ArgumentError: If the batch size is scheduled.
            StateError: If a state belongs to other data, or one of a process is missing.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader
            >>> loader = Dataloader({"prompt": np.arange(10)}, batch_size=4)
            >>> with loader.lease() as lease:
            ...     first, second = next(lease), next(lease)
            ...     lease.ack(second.positions)  # a rollout may end earlier than the one before it
            ...     state = lease.get_state()
            >>> with loader.lease(state) as lease:
            ...     [leased.examples["prompt"].tolist() for leased in lease]
            [[0, 1, 2, 3], [8, 9]]
        """
        from loadax.loader.lease import Lease, leased_phase

        self._refuse_stream("lease()")
        leased = [
            leased_phase(phase.pipeline, phase.order, partial(phase.positions, 0))
            for phase in self.phases
        ]
        return Lease(leased, self._steps, start)

    def host(self, step: int) -> "HostRows":
        """Reads the host leaves of a step, for the rows of `local_rows(step)`.

        Raises:
            ArgumentError: If the loader has no `host_leaves`.
        """
        from loadax.core.leaf_names import path_of, value_at
        from loadax.loader.host_rows import HostRows, host_leaves_of

        phase, local = self._at(step)
        kept = phase.pipeline.form(local).host_leaves
        names = host_leaves_of(kept.structure.build(kept.leaves))
        # all leaves, since any may be why a row is masked
        batch = self.host_batch(step)
        leaves = {name: value_at(batch, path_of(batch, name) or ()) for name in names}
        return HostRows(int(step), phase.positions(local), leaves)

    def explain(self, steps: int = 8, at: int = 0) -> "Explanation":
        """Reports what every host of the mesh will read, hold and drop in this run. The mesh may be a planned one.

        `print` shows the figures, and `explain().plot()` draws them with matplotlib: who holds what of a batch, shares
        of a mixture, documents in packed rows, padding by bucket, balance, and the chunks that each host reads,
        whichever of these the order has. `plot("mixture")` draws one of its panels: "mesh", "mixture", "packing",
        "buckets", "balance" or "chunks".

        Args:
            steps: Number of steps to sample for figures that depend on their rows: chunks, files, and rows decoded per
                row used.
            at: Step whose batch size to explain, if it is scheduled.
        """
        from loadax.loader.inspection.explain import explain

        sampled = integer("steps", steps, 1)

        def explained(phase: Phase, at: int) -> "Explanation":
            return explain(
                phase.pipeline.form(at).dataset,
                phase.plan,
                phase.shard(at),
                at,
                phase.pipeline.options,
                sampled,
            )

        phase, local = self._at(at, "at")
        later = [
            (first, explained(other, 0))
            for first, other in zip(self.first_steps, self.phases, strict=True)
            if first > at
        ]
        return replace(explained(phase, local), later=tuple(later))

    def check_plan(self, steps: int | None = None) -> "PlanCheck":
        """Simulates the run on all hosts of its mesh.

        Checks that each row is read by exactly the hosts that hold it.

        Args:
            steps: Number of evenly spaced steps to check. None: all, or as many as fit into a second or two. The result
                has the number.

        Raises:
            ConformanceError: If a check fails. Names the step and the position.
        """
        from loadax.loader.inspection.check_plan import check_run

        self._refuse_stream("check_plan()")
        most = None if steps is None else integer("steps", steps, 1)
        first, *others = [
            check_run(phase.plan, phase.shard, most) for phase in self.phases
        ]
        later = zip(self.first_steps[1:], others, strict=True)
        return first._replace(later=tuple(later))

    def preflight(
        self,
        steps: int | range | None = None,
        executor: Engine | None = None,
        index: Any = None,
        *,
        bounds: Mapping[str, Any] | None = None,
        workers: int | None = None,
        progress: bool | None = None,
        key: str | None = None,
    ) -> "Preflight":
        """Reads, maps and checks the rows of the planned steps before the run, on CPUs and without a mesh.

        Finds the rows that `MaskErrors` would mask, values that are not finite or out of bounds, the shapes to compile
        for, the slowest rows and files, and what reading costs. A row is read once however often the run reads it; with
        random maps, once an epoch. Rows in quarantine are not read. What would end the run with `MaskErrors` too, such
        as an error of the network, ends the preflight.

        Args:
            steps: Range of steps, or the number of first steps. None: all.
            executor: What reads rows instead of threads; it needs `index`. See `Dataset.filter`.
            index: Folder that keeps the findings, so that a call that was killed goes on, and hosts share the work.
            bounds: Least and greatest value by leaf, such as `{"label": (0, 999)}`; None in place of one: open.
            workers: Number of threads. None: chosen from the source.
            progress: Whether to show a progress bar. None: if stderr is a terminal.
            key: Identifier of the maps in `index`, for maps that can't be recognised by their code.

        Raises:
            ArgumentError: If an argument can't be used, or the run is infinite and no steps are given.
            RowIndexError: If the run does not have these steps.
        """
        from loadax.loader.preflight.preflight import preflight
        from loadax.row_index.build import scan_options

        self._refuse_stream("preflight()")
        options = scan_options(index, workers, executor, progress, key)
        return preflight(self.phases, self._steps, steps, bounds, options)

    def __getitem__(self, step: int) -> Tree:
        """The placed global batch of a step, identical to the one that iteration yields."""
        phase, local = self._at(step)
        return _batch_of(phase.pipeline, phase.shard(local), local)

    def __iter__(self) -> DataIterator:
        return self._iterations.iterate(self._targets(), loop="iter(loader)")

    def iterate(self, start: Any = 0) -> DataIterator:
        """Makes an iterator that starts at a step or a saved state.

        Args:
            start: Step, or a state of `get_state()` from a run on any mesh and any number of hosts. None: step 0.

        Raises:
            StateError: If the state belongs to other data, or its position is inside a batch of this size.
        """
        return self._iterations.iterate(self._targets(), start)

    def warmup(self, start: Any = 0) -> None:
        """Starts reading ahead in the background, while a model is compiled or restored.

        The next iterator from the same `start` continues with these batches; one with another start or mesh discards
        them. Has no effect without workers. Maps see the context variables and JAX's settings of this call.

        Args:
            start: As for `iterate`.

        Raises:
            StateError: As for `iterate`.
        """
        self._iterations.warmup(self._targets(), start)

    @property
    def ledger(self) -> Ledger | None:
        """Counters of the latest iterator, for monitoring from outside. None: there was none."""
        return self._iterations.ledger

    def _targets(self) -> list[Target]:
        return list(map(Phase.target, self.phases))

    def epochs(self, start: Any = None) -> "Iterator[Epoch]":
        """Yields one sized iterator per epoch: `for epoch in loader.epochs(): for batch in epoch: …`.

        An epoch that is left early can't be continued: the next one starts at its own first batch.

        Args:
            start: Step or state to start from. The first epoch is then the rest of that one. None: step 0, with a
                warning if a loop has begun there before, as of `iter(loader)`.
        """
        self._refuse_stream("epochs()")
        yield from self._iterations.epochs(self._targets(), start)

    def trace(self, step: int, positions: Any = None) -> "Trace":
        """The origin of a step's records: dataset, row, epoch and file. Reads no data.

        Args:
            step: Step of the run.
            positions: Positions in the batch. None: all.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader, mix
            >>> data = mix({"web": np.arange(100), "code": np.arange(50)}, weights=[3, 1])
            >>> Dataloader(data, 8).trace(2)[1]
            Record(position=1, dataset='code', row=4, epoch=0, id=104, where=None, documents=None)
        """
        from loadax.loader.trace import trace

        phase, local = self._at(step)
        size = phase.plan.segment_of(local)[0].batch_size
        if positions is None:
            chosen = np.arange(size)
        else:
            chosen = np.asarray(positions)
        if chosen.size and (
            chosen.dtype.kind not in "iu" or chosen.min() < 0 or chosen.max() >= size
        ):
            raise RowIndexError(
                f"positions={shown(positions)}: pass ints of 0 or more, below "
                f"{size}, the batch size"
            )
        traced = trace(
            phase.plan,
            phase.dataset.source,
            local,
            chosen.astype(np.int64).reshape(-1),
        )
        return replace(traced, step=int(step))

    def find(
        self,
        row: int,
        dataset: str | None = None,
        *,
        phase: int | None = None,
        epochs: Any = None,
        steps: Any = None,
    ) -> "list[StepPosition]":
        """Finds the steps and batch positions at which the run reads a record.

        The inverse of `rows`, computed without reading data.

        Args:
            row: Row id as in `rows`, or a row of the part named by `dataset`.
            dataset: Name of a part of a mixture or concatenation, as in `trace`.
            phase: Index of the phase whose dataset has the row. None: the only one.
            epochs: Epochs to search: an int or a range, counted in the phase. None: all.
            steps: Steps to search instead, counted in the phase.

        Raises:
            ArgumentError: If there is no such part, several phases and none is named, or the run is infinite and
                neither epochs nor steps are given.
            RowIndexError: If the row is out of range.
        """
        from loadax.loader.trace import find_places

        self._refuse_stream("find()")
        last = self._steps.last
        if phase is None and last:
            raise ArgumentError(
                f"find({row}): the loader has {last + 1} phases, each with row ids of "
                f"its own; pass phase=, an int from 0 to {last}"
            )
        number = integer("phase", phase or 0, 0, last)
        searched = self.phases[number]
        return find_places(
            searched.plan,
            self.first_steps[number],
            searched.dataset.source,
            integer("row", row),
            dataset,
            epochs,
            steps,
        )

    def receipt(self, step: Any) -> "Receipt":
        """Accounts for all steps before a step: rows, tokens, epochs and distinct rows of each source, and its files.

        For the checkpoint of that step. Computed from the order without reading data, in milliseconds for 10^9 rows.
        Rows are looked up one by one (about 10^7 a second) where no arithmetic tells: where `shuffle` follows `concat`,
        in the partial epoch of shuffled documents of different lengths, and for `sample` and lists with repeats. Rows
        that `on_error` masks count, those in `quarantine` don't.

        Args:
            step: Step of the run, its end included, or a state of `get_state()`.

        Raises:
            StateError: If the run does not have the step, or as for `iterate`.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader, mix
            >>> data = mix({"web": np.arange(100), "code": np.arange(20)}, weights=[3, 1])
            >>> receipt = Dataloader(data, 8).receipt(9)
            >>> receipt
            9 steps, order 2dbb318276fb537c
            source  rows  tokens  epochs  distinct  files
            web     54            1       54        0
            code    18            1       18        0
            >>> receipt.saw("code", 4)
            [2]
        """
        from loadax.loader.receipts.receipt import receipt_of

        self._refuse_stream("receipt()")
        run = self
        if type(step) is not int:
            from loadax.loader.weights import restored_phases

            run = loader_of(restored_phases(self.phases, step))
        phases = [
            (
                phase.plan,
                phase.dataset,
                phase.order,
                phase.pipeline.options.quarantine,
            )
            for phase in run.phases
        ]
        return receipt_of(run._steps, phases, step)  # noqa: SLF001 - of this class

    def skip(self, steps: Any) -> "Dataloader":
        """A loader of the same run without some steps: step t is the t-th of the remaining ones, which are unchanged.

        States saved before the first skipped step stay valid, so a run can resume from before a loss spike without the
        batches that caused it.

        Args:
            steps: Steps of this loader: an int, a range, a slice, or any iterable of these.

        Raises:
            ArgumentError: If the run does not have these steps, or none of a phase would remain.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader
            >>> loader = Dataloader(np.arange(100), batch_size=10)
            >>> shorter = loader.skip(range(2, 5))
            >>> len(shorter), shorter.rows(2)[0]
            (7, np.int64(50))
        """
        from loadax.loader.skip import skip

        return loader_of(skip(self._steps, self.phases, steps))

    def with_weights(self, weights: Any) -> "Dataloader":
        """A loader of the same run with weights of its mixture that were set in mid-run, as by `it.set_weights`.

        Any step of it can be read and planned, before and after the changes. Its states are those of the iterator.

        Args:
            weights: A state of an iterator. Or weights by the first step that they apply to, `{0: …, 1000: …}`, each as
                of `mix`, which replace the rest of its schedule.

        Raises:
            ArgumentError: If a weight or a step is wrong, or the last verb of the dataset but for maps is not `mix`.
            StateError: If the state belongs to other data.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader, mix
            >>> data = mix({"web": np.zeros(99), "code": np.ones(99)}, weights=[1, 1], stop="never")
            >>> loader = Dataloader(data, batch_size=8)
            >>> changed = loader.with_weights({1: [3, 1], 2: [0, 1]})
            >>> [int(changed[step].sum()) for step in range(3)]
            [4, 2, 8]
        """
        from loadax.loader.weights import with_weights

        changed = with_weights(self._steps, self.phases, weights)
        return loader_of(phase.skipping(phase.plan.skips) for phase in changed)

    def digest(self, steps: range | None = None) -> str:
        """Hash of the rows at each step and position, as 32 hexadecimal digits. Reads no data.

        Two runs with equal digests read the same rows in the same batches, whatever their meshes and hosts. It covers
        row ids and epochs, not the content of rows. Rows in quarantine count as padding.

        Args:
            steps: Range of consecutive steps. None: all.

        Raises:
            ArgumentError: If the run is infinite and no steps are given.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader, from_arrays
            >>> data = from_arrays(np.arange(64)).shuffle(seed=0)
            >>> Dataloader(data, 8).digest() == Dataloader(data, 8, shard_index=1, shard_count=2).digest()
            True
        """
        from loadax.loader.inspection.run_digest import DigestedSteps, digest_of

        self._refuse_stream("digest()")
        return digest_of(
            DigestedSteps(
                self.phases[number].plan,
                local,
                self.phases[number].pipeline.options.quarantine,
                self.first_steps[number],
            )
            for number, local in self._steps.ranges_of(steps)
        )

    def __repr__(self) -> str:
        texts = [phase.text() for phase in self.phases]
        if len(texts) == 1:
            return texts[0]
        return f"chain([{', '.join(texts)}])"

    def _refuse_stream(self, what: str) -> None:
        if self.dataset.is_stream:
            raise StreamError(what)

    def _at(self, step: Any, name: str = "step") -> tuple[Phase, int]:
        """The phase of a step, and the step counted in that phase.

        Raises:
            RowIndexError: If the run does not have the step.
        """
        self._refuse_stream(
            "the rows of one step, as in loader[step], rows(step) or explain()"
        )
        number, local = self._steps.check(integer(name, step, most=None))
        return self.phases[number], local
