"""DataIterator and Epoch: iterators over placed batches."""

import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
from jax.sharding import Mesh

from loadax.core.arguments import flag
from loadax.core.context import Caller
from loadax.core.distributed import this_process
from loadax.core.replacements import missing_attribute
from loadax.errors import ArgumentError, ClosedError, HostError, MeshError, PartitionError
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.checkpoint import FutureFolder, check_folder, loaded, read_state, returned, write_state
from loadax.loader.execution.autotune import WorkerAutotuner
from loadax.loader.execution.executor import PieceExecutor, open_executor
from loadax.loader.execution.monitor import RunMonitor
from loadax.loader.execution.scheduler import OverError, PrefetchScheduler
from loadax.loader.execution.thread_pool import ThreadPool
from loadax.loader.host_rows import HostRows, host_leaves_of
from loadax.loader.metrics.stats import Stats
from loadax.loader.pipeline import Pipeline
from loadax.loader.reports.bottleneck import LoaderInfo, Report, loader_info, report
from loadax.loader.reports.timeline_plot import write_timeline
from loadax.loader.state import OrderHash, make_state, step_of
from loadax.loader.streams.agreement import EndAgreement, end_agreement, goes_on
from loadax.loader.streams.run import KEY, StreamRun, lane_states
from loadax.loader.watch.hosts import RunHosts
from loadax.loader.watch.process_exit import process_exit
from loadax.loader.watch.stalls import StallCheck
from loadax.loader.watch.watch import RunWatch
from loadax.protocols import Tree
from loadax.sharding.key_value import key_value_store
from loadax.sharding.mesh import current_mesh, grid_of, resolve_mesh

JoinHosts: TypeAlias = Callable[
    [Pipeline, Mesh | None, HostShard, int, Callable[[], tuple[int, Stats]], Callable[[BaseException], None]],
    RunHosts | None,
]
"""Begins the exchange with the other hosts of a run; see `run_hosts`."""


_STREAM_LIMIT = 1.0  # seconds of waiting for the coordinator, after which limits of waiting are looked at


@final
class Ledger:
    """Statistics and step of an iterator, for observers. References neither the iterator nor its batches."""

    monitor: RunMonitor
    """Latest monitor of the iterator, which continues the statistics of earlier ones."""

    def stats(self) -> Stats:
        """Statistics so far."""
        return self.monitor.stats()

    @property
    def step(self) -> int:
        """Next step."""
        return self.monitor.step


@final
class DataIterator:
    """Yields the batches of a `Dataloader`, one per step.

    Made by `iter(loader)` and `loader.iterate`, whose batches are placed, and by `loader.host_batches`.

    Its threads end when it is exhausted, closed or garbage-collected.

    Args:
        pipeline: Pipeline of the loader.
        order: Hash of the order, for states.
        shard: Function of a step: this process's shard of its batch.
        mesh: Mesh that batches are placed on. None: they are not placed.
        mesh_given: Whether the user passed the mesh to the loader.
        used_up: Event to set at the end of the run.
        start: Step or state to start from; of a stream, also the states of several processes.
        hosts: Function that begins the exchange with the other hosts of a run, if there are any.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        order: OrderHash,
        shard: Callable[[int], HostShard],
        mesh: Mesh | None,
        mesh_given: bool,
        used_up: threading.Event,
        start: Any,
        hosts: JoinHosts,
    ):
        self._pipeline, self._plan, self._order = pipeline, pipeline.plan, order
        self._shard = shard
        self._mesh = mesh
        self._mesh_given = mesh_given
        self._used_up = used_up
        self._step = step_of(self._plan, order, start)
        # Latest step, its leaves on the host, and the shards of its mesh.
        self._host: tuple[int, Tree, Callable[[int], HostShard]] | None = None
        self._error: BaseException | None = None
        self._interrupted = False
        self._caller = Caller()
        # Of several threads that share this iterator, one switches to the next scheduler. Reentrant: a Ctrl-C may leave
        # it held.
        self._lock = threading.RLock()
        self._process = os.getpid()
        self.ledger = Ledger()
        """Counters of this iterator, for monitoring from outside."""
        self._executor: PieceExecutor | None = None
        self._autotuner: WorkerAutotuner | None = None  # later schedulers keep its result
        self._join_hosts = hosts
        self._hosts: RunHosts | None = None
        self._stalls = StallCheck(pipeline.options.stall_after, pipeline.options.abort_after)
        self._ended = False  # whether a stream has ended
        self._unwatch: weakref.finalize[Any, Any] | None = None
        self._agreement: EndAgreement | None = None
        self._disagree: Callable[[], object] = lambda: None
        self._begin_streams(pipeline.stream_run(lane_states(start)))
        self._agree()
        self._begin(self._open)

    def _begin(self, start: Callable[[], None]) -> None:
        """Begins a run at the current step, with the other hosts. `start` is what opens it."""
        self._watch_anew()
        start()
        if self._hosts is not None:
            self._watch.start()  # the others may be waiting for this one

    def _watch_anew(self) -> None:
        ledger, stalls = self.ledger, self._stalls
        stalls.hosts = self._hosts = self._join_hosts(
            self._pipeline,
            self._mesh,
            self._shard(self._first_shard_step()),
            self._step,
            lambda: (ledger.step, ledger.stats()),
            stalls.fail,
        )
        checks = stalls.needed * [stalls.check] + ([] if self._hosts is None else [self._hosts.check])
        # Closed apart from the threads that read: a Ctrl-C may come while these are replaced.
        before, self._watch, self._watching = self._unwatch, RunWatch(checks), False
        self._unwatch = weakref.finalize(self, self._watch.close)
        if before is not None:
            before.detach()

    def _first_shard_step(self) -> int:
        """A step of the run whose shard the present one is like: the last one, if the run is over."""
        num_steps = self._plan.num_steps
        return self._step if num_steps is None else min(self._step, num_steps - 1)

    def _first_batch(self) -> None:
        """Starts watching, since a consumer waits from now on, when the hosts have agreed.

        Raises:
            HostError: If a host differs.
        """
        self._watching = True
        self._watch.start()
        if self._hosts is not None:
            self._hosts.wait()

    def restart_statistics(self) -> None:
        """Resets the statistics after a warm-up."""
        self._monitor.restart()

    def _open(self, earlier: RunMonitor | None = None) -> None:
        """Starts reading at the current step.

        Args:
            earlier: Monitor of the previous steps, whose statistics continue. None: they start here.
        """
        if self._executor is None or self._executor.closed:
            self._executor = open_executor(self._pipeline.options)  # once for all batch sizes
        executor = self._executor
        try:
            options, step = self._pipeline.options, self._first_shard_step()
            producer = self._caller.run(self._pipeline.producer, self._shard(step), step, executor, self._streams)
            self._autotuner = self._autotuner or WorkerAutotuner(
                executor.first, executor.concurrency, executor.settling
            )
            monitor = RunMonitor(producer, options, self._step, self._autotuner, earlier)
            scheduler = PrefetchScheduler(producer, self._step, options, monitor)
            threads = ThreadPool(scheduler, executor, self._caller)
        except BaseException:
            executor.close()
            raise
        self._stalls.scheduler = scheduler
        if self._hosts is not None and self._hosts.error is not None:
            scheduler.abort(self._hosts.error)
        self._threads, self._scheduler, self._monitor, self._end = threads, scheduler, monitor, producer.end
        self.ledger.monitor = monitor
        # Also runs at exit, before the interpreter clears modules that the threads use. First this, then the threads:
        # none is left behind where a Ctrl-C comes.
        self._close = weakref.finalize(self, threads.close)
        threads.start()

    if not TYPE_CHECKING:  # type checkers must still report misspelt names
        __getattr__ = missing_attribute

    def __iter__(self) -> "DataIterator":
        return self

    def __next__(self) -> Tree:
        """The next batch: every leaf a `jax.Array` on the mesh, or a NumPy array of `loader.host_batches`.

        Raises:
            StopIteration: After the last step of the last epoch.
            MeshError: If the current mesh of the caller's thread is not the mesh of the batches.
            Exception: Whatever reading this step raised, with a note that names step and row; also at later calls.
        """
        self._check_process()
        while True:
            if self._error is not None:
                raise self._error
            if self._is_over():
                self._finish()
            self._check_mesh()
            with self._lock:
                if self._step == self._end and self._close.alive:  # the next batches have other shapes
                    self._reopen(self._monitor)
                if self._interrupted:
                    # A Ctrl-C may have left the scheduler in any state: restart from this step.
                    self._host, self._ended = None, False
                    self._begin_streams(self._same_streams())
                    self._reopen()
                scheduler, streams, agreement = self._scheduler, self._streams, self._agreement
            step: int | None = None
            try:
                if not self._watching:
                    self._first_batch()
                # Without workers, this thread reads, perhaps in another context than that of `iter(loader)`.
                reads = self._executor is not None and not self._executor.concurrency
                step, batch, host = self._caller.run(scheduler.next_batch) if reads else scheduler.next_batch()
                with self._lock:
                    if not _goes_on(step, streams, agreement, scheduler.check):
                        self._ended = self._ended or streams is self._streams
                        continue
                    if scheduler is self._scheduler:
                        self._count(step, host)
            except OverError:
                continue  # another thread has the last batch, or is about to open the next scheduler
            except Exception as error:
                with self._lock:
                    if isinstance(error, ClosedError) and (self._is_over() or scheduler is not self._scheduler):
                        continue  # another thread reached the end first, or has opened the next scheduler
                self._error = error
                self._tell_hosts(error)
                self.close()
                raise
            except BaseException:
                self._interrupt(step)
                raise
            return batch

    def _interrupt(self, step: int | None) -> None:
        """Notes a Ctrl-C, before which the scheduler may have given the batch of `step`. The caller gets it again."""
        self._interrupted = True
        with self._lock:
            if step is not None and self._step == step + 1:
                self._step = step

    def _count(self, step: int, host: Tree) -> None:
        """Notes that a batch is handed out, unless another thread has taken a later one."""
        if step < self._step:
            return
        self._step, self._host = step + 1, (step, host, self._shard)
        if self._streams is not None:
            self._streams.consumed = step

    @property
    def step(self) -> int:
        """Next step: number of batches handed out so far, counted from the run's first step."""
        return self._step

    @property
    def mesh(self) -> Mesh:
        """Mesh that the batches are placed on.

        Raises:
            MeshError: If they are those of `host_batches`, which are not placed.
        """
        if self._mesh is None:
            raise MeshError("batches of host_batches() have no mesh; use loader.iterate() for placed ones")
        return self._mesh

    @property
    def host(self) -> HostRows:
        """The host leaves of the latest batch, for the rows that this process reads.

        Where several threads share the iterator, use `loader.host(step)`.

        Raises:
            ArgumentError: If no batch was handed out yet, or the loader has no `host_leaves`.
        """
        if self._host is None:
            raise ArgumentError("no batch was handed out yet; call next() first, or use loader.host(step)")
        step, leaves, shard = self._host
        return HostRows(step, shard(step).positions, host_leaves_of(leaves))

    @property
    def epoch(self) -> int:
        """Epoch of the next batch."""
        return self._plan.position_of_step(self._step)[0]

    def get_state(self) -> dict[str, Any]:
        """JSON-serialisable state, equal on all hosts. Counts batches handed out, not prefetched ones.

        That of a stream also has the states of the lanes that this process has opened, which differ between hosts.
        """
        with self._lock:  # lanes drop the states before the latest step
            state = make_state(self._plan, self._order, self._step)
            return state if self._streams is None else state | {KEY: self._streams.states(self._step)}

    def set_state(self, state: Any) -> None:
        """Continues from `state`, saved on any mesh and with any number of hosts and workers.

        For a stream, also a list of the states of several processes. Lanes whose states are missing are read from their
        first rows.

        Raises:
            StateError: If it belongs to other data, or its position is inside a batch of this size. The iterator is
                then unchanged.
        """
        self._check_process()
        step, streams = step_of(self._plan, self._order, state), self._pipeline.stream_run(lane_states(state))
        with self._lock:
            self._interrupted = True  # prefetched batches are not those of the new step
            # Both at once, whenever a Ctrl-C comes: the streams before may have no states of this step any more.
            self._step, self._streams = step, streams
            self._error, self._host, self._ended = None, None, False
            self._begin_streams(streams)
            self._agree()
            self._watch.close()
            self._threads.pause()  # other rows may be read now, to compare the hosts
            self._begin(self._reopen)

    def _begin_streams(self, streams: StreamRun | None) -> None:
        """Begins to read the lanes of streams at the current step, if there are streams."""
        self._streams = streams
        if streams is not None:
            streams.consumed = self._step

    def _same_streams(self) -> StreamRun | None:
        """The streams, to be read again from the current step on."""
        return self._pipeline.stream_run(lane_states(self.get_state()))

    def _agree(self) -> None:
        """Begins to agree with the other processes on the end of the streams, if there are any of both."""
        self._disagree()
        self._agreement = self._stalls.agreement = None
        store = key_value_store(_STREAM_LIMIT)
        if store is None or self._streams is None or self._streams.endless:
            return
        process, everyone, options = this_process().index, range(this_process().count), self._pipeline.options
        owners = everyone if self._mesh is None else np.unique(grid_of(self._mesh).owners).tolist()
        if list(owners) == [process] and options.shard is not None:
            owners = everyone  # every process has a mesh of its own, and a part of each batch
        if len(owners) > 1:
            self._agreement = self._stalls.agreement = end_agreement(store, process, owners, self._streams.end_rule)
            self._disagree = weakref.finalize(self, self._agreement.close)
            ledger = self.ledger
            process_exit.begin(lambda: ledger.step, options.abort_after)

    def _is_over(self) -> bool:
        return self._ended or self._step == self._plan.num_steps

    def _finish(self) -> None:
        """Ends the run, unless another thread has set it back meanwhile.

        Raises:
            StopIteration: If it is over.
        """
        with self._lock:  # another thread may be opening the next scheduler
            if self._is_over():
                self.close()
                self._used_up.set()
                raise StopIteration

    def move_to(self, mesh: Mesh, partition: Any = None) -> None:
        """Continues on another mesh in the same process: later batches are the same, placed there.

        Batches that were placed ahead on the old mesh are dropped and read again, and rows of `keep_on_device` are read
        for the new mesh. Workers and statistics continue. The loader itself stays on its mesh. All processes of the
        new mesh must call this at the same step; a process without devices on it holds no rows.

        Args:
            mesh: Mesh with devices. It is then the mesh of this iterator, whatever the current mesh is.
            partition: Sharding of each leaf, as for `Dataloader`. None: as before.

        Raises:
            PartitionError: If the partition does not fit the mesh: names the leaf and the axis.
            MeshError: If the mesh has no devices, the partition is a `NamedSharding` on another mesh, or these are the
                batches of `host_batches`. After any error the iterator continues where it was.

        Examples:
            >>> import jax, numpy as np
            >>> from loadax import Dataloader
            >>> from loadax.sharding import data_parallel
            >>> batches = iter(Dataloader(np.arange(32), batch_size=8))
            >>> next(batches).sharding.num_devices
            8
            >>> batches.move_to(data_parallel(jax.devices()[:4]))
            >>> batch = next(batches)
            >>> batch.sharding.num_devices, batch.tolist()
            (4, [8, 9, 10, 11, 12, 13, 14, 15])
        """
        self._check_process()
        if self._mesh is None:
            raise MeshError(
                "batches of host_batches() are not placed, so they can't move to another mesh; make a new iterator in "
                "that mesh: loader.host_batches(start=it.get_state())"
            )
        if mesh is None:
            raise ArgumentError("mesh=None: pass the jax.sharding.Mesh to move to")
        pipeline = self._pipeline if partition is None else self._pipeline.with_partition(partition)
        with self._lock:
            shard = partial(pipeline.shard, resolve_mesh(mesh))
            self._check_shards(shard, partition is not None)
            interrupted, self._interrupted = self._interrupted, True
            self._scheduler.close()
            if not interrupted and not self._ended:
                # Another thread may be about to return a batch that is not counted here yet.
                for step in range(self._step, self._monitor.step):
                    if not _goes_on(step, self._streams, self._agreement, lambda: None):
                        self._ended = True
                        break
                    self._step = step + 1
            before = self._pipeline, self._shard, self._mesh, self._mesh_given
            self._pipeline, self._shard, self._mesh, self._mesh_given, self._error = pipeline, shard, mesh, True, None
            self._watch.close()
            self._threads.pause()
            try:
                self._begin_streams(self._same_streams())
                self._begin(partial(self._reopen, self._monitor))
                self._agree()
            except BaseException:
                self._pipeline, self._shard, self._mesh, self._mesh_given = before
                self._watch_anew()
                raise

    def _check_shards(self, shard: Callable[[int], HostShard], chosen: bool) -> None:
        """Checks that all remaining batches can be placed on a mesh.

        Args:
            shard: This process's shard of the batch of a step on the mesh.
            chosen: Whether the partition was chosen for this mesh.
        """
        last = self._step if self.num_steps is None else min(self._step, self.num_steps - 1)
        try:
            for step in [last, *(first for first in self._plan.first_steps if first > last)]:
                _ = shard(step).shardings
        except (MeshError, PartitionError) as error:
            if chosen:
                raise
            message = f"{error}; or move to another mesh, or with another partition: it.move_to(mesh, partition=…)"
            raise type(error)(message) from error

    def save(self, directory: FutureFolder) -> Coroutine[Any, Any, Awaitable[None]]:
        """Saves the present state to a folder: Orbax calls this, since iterators are `StatefulCheckpointable`.

        The state is that of now, however many batches are handed out before it is written. Process 0 writes one file,
        which any number of hosts can load.

        Raises:
            ArgumentError: If the folder is not Orbax's. At the call: what fails in what this returns, nobody may await.
        """
        check_folder("save", directory, FutureFolder)
        return returned(write_state(self.get_state(), directory))

    def load(self, directory: Path) -> Coroutine[Any, Any, Awaitable[None]]:
        """Sets the state that is saved in a folder: Orbax calls this.

        Raises:
            ArgumentError: If the folder is not Orbax's.
            StateError: If there is no state, or it belongs to other data; then nothing has changed.
        """
        check_folder("load", directory, os.PathLike)
        # At once: what fails in the awaitable that this returns, Orbax reports as a handler that does not fit.
        self.set_state(read_state(directory))
        return returned(loaded())

    def _reopen(self, earlier: RunMonitor | None = None) -> None:
        """Like `_open`, but keeps the workers of the executor, unless they are busy for long."""
        self._interrupted = True  # until `_open` is done
        if self._close.alive:
            # Detach last: after a Ctrl-C, the finalizer must still close the scheduler.
            if not self._threads.pause() and self._executor is not None:
                self._executor.close()  # starting new workers is faster than waiting for useless tasks
            self._close.detach()
        self._open(earlier)
        self._interrupted = False

    def stats(self) -> Stats:
        """Times and counters since the iterator was started, or its state was set."""
        return self.ledger.stats()

    def report(self, hosts: bool = False) -> Report:
        """Reports whether the loader is the bottleneck, what it is busy with, and what to do.

        Args:
            hosts: Whether to name the host of the run that waits longest for data. What the others tell is a few
                seconds old.
        """
        told = report(self.stats(), self._info())
        if not flag("hosts", hosts):
            return told
        return replace(told, hosts="this run has one host" if self._hosts is None else self._hosts.slowest())

    def _info(self) -> LoaderInfo:
        whole, options = self._pipeline.whole, self._pipeline.options
        return loader_info(whole.dataset.reader, whole.batch, self._mesh, bool(options.keep_on_device))

    def timeline(self, path: str | os.PathLike[str]) -> None:
        """Writes a timeline of all threads and workers, with the last 20,000 events.

        Args:
            path: File name: `.html` for a page, `.json` for a Chrome trace (Perfetto).

        Raises:
            ArgumentError: If the suffix is unknown, or the file can't be written.
            UnsupportedError: If matplotlib is not installed, for an image.
        """
        write_timeline(self._monitor.timeline(), self.report(), path)

    @property
    def num_steps(self) -> int | None:
        """Number of steps of the run; None: infinite."""
        return self._plan.num_steps

    @property
    def batch_size(self) -> int:
        """Rows of the next global batch; of the last one if the run is over."""
        last = self._step if self.num_steps is None else min(self._step, self.num_steps - 1)
        return self._plan.segment_of(last)[0].batch_size

    def close(self) -> None:
        """Stops all workers. Idempotent; also called on garbage collection and at exit."""
        if self._unwatch is not None and self._unwatch.alive:  # else at exit, when modules may be gone already
            self._watch.close()
        closing = self._close  # another thread may be opening the next threads, which are not closed here
        if (finalizer := closing.peek()) is not None:
            _, close_threads, _, _ = finalizer
            ended = close_threads()
            # Detach last: after a Ctrl-C, the next call must still close the threads.
            closing.detach()
            if ended and self._streams is not None:
                self._streams.close()
        self._disagree()

    def __enter__(self) -> "DataIterator":
        return self

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        # A StopIteration is how a loop over several iterators ends.
        if isinstance(error, Exception) and error is not self._error and not isinstance(error, StopIteration):
            self._tell_hosts(error)
        self.close()

    def _tell_hosts(self, error: Exception) -> None:
        """Tells the other hosts that this one can't go on."""
        if isinstance(error, HostError | ClosedError):
            return
        if self._hosts is not None:
            self._hosts.ended(self._step, error)
        if self._agreement is not None:
            self._agreement.fail(error)

    def __repr__(self) -> str:
        return f"DataIterator(step={self.step}, epoch={self.epoch}, {'open' if self._close.alive else 'closed'})"

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ClosedError(
                f"this iterator belongs to process {self._process}, and this process, {os.getpid()}, is its os.fork(): "
                "a fork does not have the reader threads, and JAX does not work in it; "
                "start processes with multiprocessing.get_context('spawn'), and make the loader in them"
            )

    def _check_mesh(self) -> None:
        if self._mesh_given:
            return
        mesh = current_mesh()
        if mesh is not None and mesh is not self.mesh and mesh != self.mesh:
            raise MeshError(
                f"this iterator's batches are for {self.mesh}, but the current mesh of this thread is {mesh}; "
                "continue there with it.move_to(mesh), make a new iterator in that mesh "
                "(loader.iterate(start=it.get_state())), or pass mesh= to the Dataloader"
            )


@final
class Epoch:
    """Iterator over the remaining batches of one epoch, with a length. Made by `loader.epochs()`."""

    def __init__(self, batches: DataIterator, number: int, stop: int):
        self._batches = batches
        self._stop = stop
        self._left = False
        self.number = number
        """Number of the epoch, from 0."""

    def __len__(self) -> int:
        """Number of remaining batches of this epoch."""
        return max(0, self._stop - self._batches.step)

    def __iter__(self) -> Iterator[Tree]:
        return self

    def __next__(self) -> Tree:
        """The next batch of the epoch.

        Raises:
            StopIteration: After its last batch.
            ClosedError: If `epochs()` has continued with the next epoch before this one was over.
        """
        if self._left:
            raise ClosedError(
                f"epoch {self.number} was left before its end, when epochs() continued with the next one; finish each "
                "epoch before the next, as in `for epoch in loader.epochs(): for batch in epoch: …`"
            )
        if self._batches.step >= self._stop:
            raise StopIteration
        return next(self._batches)

    def leave(self) -> None:
        """Skips the remaining batches of this epoch."""
        if self._batches.step < self._stop:
            self._left = True
            self._batches.set_state(self._stop)

    @property
    def step(self) -> int:
        """Next step of the run: number of batches handed out so far, in all epochs."""
        return self._batches.step

    def get_state(self) -> dict[str, Any]:
        """State of the run; see `DataIterator.get_state`."""
        return self._batches.get_state()

    def move_to(self, mesh: Mesh, partition: Any = None) -> None:
        """Continues the run on another mesh; see `DataIterator.move_to`."""
        self._batches.move_to(mesh, partition)

    @property
    def host(self) -> HostRows:
        """The host leaves of the latest batch; see `DataIterator.host`."""
        return self._batches.host

    def stats(self) -> Stats:
        """Statistics of the run; see `DataIterator.stats`. They restart after an epoch that is left early."""
        return self._batches.stats()

    def report(self, hosts: bool = False) -> Report:
        """Whether the loader is the bottleneck; see `DataIterator.report`."""
        return self._batches.report(hosts)

    @property
    def ledger(self) -> Ledger:
        """Counters of the run's iterator, for monitoring from outside."""
        return self._batches.ledger

    def timeline(self, path: str | os.PathLike[str]) -> None:
        """Writes a timeline of the run so far; see `DataIterator.timeline`."""
        self._batches.timeline(path)

    @property
    def batch_size(self) -> int:
        """Rows of the next global batch."""
        return self._batches.batch_size

    def __repr__(self) -> str:
        return f"Epoch({self.number}, {len(self)} batches left)"


def _goes_on(step: int, streams: StreamRun | None, agreement: EndAgreement | None, check: Callable[[], None]) -> bool:
    """Whether a step that was read is part of the run: whether streams have not ended before it, on any process."""
    if streams is None:
        return True
    if agreement is not None:
        return agreement.goes_on(step, streams.progress, streams.ended_lane, check)
    return bool(goes_on(streams.end_rule, step, [streams.progress], streams.ended_lane))
