"""Stretch: all that is open while an iterator reads on from one step; RunGuard: what watches that run."""

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

from jax.sharding import Mesh

from loadax.core.context import Caller
from loadax.core.key_value import LoaderRuns, key_value_store
from loadax.errors import ClosedError, HostError
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.execution.autotune import WorkerAutotuner
from loadax.loader.execution.executor import open_executor
from loadax.loader.execution.monitor import RunMonitor
from loadax.loader.execution.scheduler import PrefetchScheduler
from loadax.loader.execution.thread_pool import ThreadPool
from loadax.loader.metrics.stats import Stats
from loadax.loader.order_hash import OrderHash
from loadax.loader.pipeline import BatchPipeline
from loadax.loader.slots import Agreement, Lanes, OtherHosts, PieceExecutor
from loadax.loader.watch.stalls import StallCheck
from loadax.loader.watch.watch import RunWatch
from loadax.protocols import Tree
from loadax.sharding.mesh import resolve_mesh

if TYPE_CHECKING:
    from loadax.loader.metrics.exported import Rates

# Begins the exchange with the other hosts of a run; see `join_hosts`.
JoinHosts: TypeAlias = Callable[
    [
        BatchPipeline,
        Mesh | None,
        HostShard,
        int,
        Callable[[], tuple[int, Stats]],
        Callable[[BaseException], None],
    ],
    OtherHosts | None,
]


@final
class Ledger:
    """Statistics and step of an iterator, for observers. References neither the iterator nor its batches."""

    # Latest monitor of the iterator, which continues the statistics of earlier ones.
    monitor: RunMonitor
    # First step of the present phase.
    first = 0
    # Rates of `metrics()`, since the statistics began. None: it was not called yet.
    rates: "Rates | None" = None

    def stats(self) -> Stats:
        """Statistics so far."""
        return self.monitor.stats()

    def metrics(self) -> dict[str, float]:
        """Statistics so far, and rates since the call before; see `DataIterator.metrics`."""
        from loadax.loader.metrics.exported import Rates, flat_metrics

        if self.rates is None:
            self.rates = Rates()
        return flat_metrics(self.stats(), self.step, self.rates)

    @property
    def step(self) -> int:
        """Next step."""
        return self.first + self.monitor.step


def join_hosts(
    runs: LoaderRuns, order: OrderHash, pipeline: BatchPipeline, mesh: Any, *run: Any
) -> OtherHosts | None:
    """The exchange with the other hosts of a run; None if there are none.

    Args:
        runs: Names of the loader's runs.
        order: Hash of the loader's order.
        pipeline: Its pipeline.
        mesh: Mesh whose processes take part. A planned one, or none, has no processes.
        run: Shard, first step, and functions of the run, as of `JoinHosts`.
    """
    if key_value_store() is None or not isinstance(mesh, Mesh):
        return None
    from loadax.loader.watch.hosts import run_hosts

    return run_hosts(runs, order, pipeline, mesh, *run)


class Target(NamedTuple):
    """Where the batches of an iterator go.

    Args:
        pipeline: Pipeline of the loader.
        shard: Function of a step: this process's shard of its batch.
        mesh: Mesh that batches are placed on. None: they are not placed.
        mesh_given: Whether the user passed the mesh.
        join_hosts: Function that begins the exchange with the other hosts of a run, if there are any.
        phase: The `Phase` whose batches they are.
        origin: The same phase before weights were set in mid-run.
        make: Function of such two phases: the target of the first one, before `move_to`.
    """

    pipeline: BatchPipeline
    shard: Callable[[int], HostShard]
    mesh: Mesh | None
    mesh_given: bool
    join_hosts: JoinHosts
    phase: Any = None
    origin: Any = None
    make: Callable[[Any, Any], "Target"] | None = None

    def on_mesh(self, mesh: Mesh, partition: Any) -> "Target":
        """The same batches on another mesh. `partition`: None for the same."""
        if partition is None:
            pipeline = self.pipeline
        else:
            pipeline = self.pipeline.with_partition(partition)
        return self._replace(
            pipeline=pipeline,
            shard=partial(pipeline.shard, resolve_mesh(mesh)),
            mesh=mesh,
            mesh_given=True,
        )

    def of_phase(self, phase: Any) -> "Target":
        """The batches of the same phase with other weights, on the mesh and with the partition of these."""
        assert self.make is not None
        target = self.make(phase, self.origin)
        if self.mesh is None:
            return target
        moved = target.on_mesh(self.mesh, self.pipeline.options.partition)
        return moved._replace(mesh_given=self.mesh_given)

    def shape_step(self, step: int) -> int:
        """The step whose shapes the present batches have: the last one, if the run is over."""
        num_steps = self.pipeline.plan.num_steps
        if num_steps is None:
            return step
        return min(step, num_steps - 1)


@final
class RunGuard:
    """Watches a run for one target: its stalls, the other hosts, and their agreement on the end of streams.

    Args:
        owner: Iterator of the run, whose garbage collection closes this.
        target: Where its batches go.
        step: First step.
        streams: Lanes of the streams that it reads.
        ledger: Counters of the iterator.
    """

    def __init__(
        self,
        owner: Any,
        target: Target,
        step: int,
        streams: Lanes | None,
        ledger: Ledger,
    ):
        pipeline = target.pipeline
        options = target.pipeline.options
        self._stalls = stalls = StallCheck(options.stall_after, options.abort_after)
        shard, progress = (
            target.shard(target.shape_step(step)),
            lambda: (ledger.step, ledger.stats()),
        )
        # Exchange with the other hosts, if there are any.
        self.hosts = stalls.hosts = target.join_hosts(
            pipeline, target.mesh, shard, step, progress, stalls.fail
        )
        # Agreement with the other processes on the end of the streams, if there are any of both.
        self.agreement = stalls.agreement = _agreement(target, streams, ledger)
        self.watch = RunWatch(
            stalls.needed * [stalls.check]
            + ([] if self.hosts is None else [self.hosts.check])
        )
        # Whether a consumer has asked for a batch.
        self.waited_for = False
        # Apart from the threads that read: a Ctrl-C may come while these are replaced.
        self._finalizer = weakref.finalize(owner, self._close)

    def begin(self, scheduler: PrefetchScheduler) -> None:
        """Guards a scheduler from now on."""
        self._stalls.scheduler = scheduler
        if self.hosts is not None and self.hosts.error is not None:
            scheduler.abort(self.hosts.error)

    def first_batch(self) -> None:
        """Starts watching, since a consumer waits from now on, when the hosts have agreed.

        Raises:
            HostError: If a host differs.
        """
        self.waited_for = True
        self.watch.start()
        if self.hosts is not None:
            self.hosts.wait()

    def tell_hosts(self, step: int, error: Exception) -> None:
        """Tells the other hosts that this one can't go on."""
        if isinstance(error, HostError | ClosedError):
            return
        if self.hosts is not None:
            self.hosts.ended(step, error)
        if self.agreement is not None:
            self.agreement.fail(error)

    def close(self) -> None:
        """Ends all of it. Idempotent."""
        if self._finalizer.alive:  # else at exit, when modules may be gone already
            self._close()
            self._finalizer.detach()

    def _close(self) -> None:
        self.watch.close()
        if self.agreement is not None:
            self.agreement.close()


def _agreement(
    target: Target, lanes: Lanes | None, ledger: Ledger
) -> Agreement | None:
    """The agreement on the end of streams that end, if several processes read them."""
    if lanes is None or lanes.endless:
        return None
    from loadax.loader.watch.stream_end import agree_on_end

    options = target.pipeline.options
    return agree_on_end(
        lanes.end_rule,
        options.shard,
        target.mesh,
        options.abort_after,
        lambda: ledger.step,
    )


@final
class Stretch:
    """Reads ahead from a step on, until the step is set, the mesh changes, or the shapes of batches do.

    Args:
        owner: Iterator, whose garbage collection closes this.
        target: Where its batches go.
        first: First step of its phase, from which on other steps here are counted.
        step: First step.
        streams: Lanes of the streams that it reads.
        guard: What watches the run.
        before: Stretch that this one replaces, whose workers go on here. None: there is none.
        earlier: Monitor of the previous steps, whose statistics continue. None: they start here.
    """

    def __init__(
        self,
        owner: Any,
        target: Target,
        first: int,
        step: int,
        streams: Lanes | None,
        guard: RunGuard,
        before: "Stretch | None",
        earlier: RunMonitor | None,
    ):
        options = target.pipeline.options
        like = target.shape_step(step)
        self.first = first
        self.streams = streams
        self.guard = guard
        self.shard = target.shard
        self._prefetch_bytes = options.prefetch_bytes
        # Whether the streams have ended.
        self.ended = False
        # First step of the stretch that replaces this one. None: there is none.
        self.replaced_at: int | None = None
        self.process = os.getpid()
        self.caller: Caller = Caller() if before is None else before.caller
        executor: PieceExecutor
        if before is None:
            executor = open_executor(options)
        else:
            executor = before.executor
        try:
            if before is not None:
                before.leave()
            if executor.closed:
                executor = open_executor(options)
            make = target.pipeline.producer
            producer = self.caller.run(
                make, target.shard(like), like, executor, streams, target.shard
            )
            # Later stretches keep its result.
            capacity = executor.capacity
            tuner = WorkerAutotuner(
                capacity.first, capacity.concurrency, capacity.settling
            )
            self.autotuner: WorkerAutotuner = (
                tuner if before is None else before.autotuner
            )
            self.monitor = RunMonitor(
                producer, options, step, self.autotuner, earlier
            )
            self.scheduler = PrefetchScheduler(producer, step, options, self.monitor)
            self.executor: PieceExecutor = executor
            # Step of the run from which on batches have other shapes.
            if producer.end is None:
                self.end = None
            else:
                self.end = first + producer.end
            self._threads = ThreadPool(self.scheduler, executor, self.caller)
        except BaseException:
            executor.close()
            raise
        guard.begin(self.scheduler)
        self.start = self._threads.start
        # Also runs at exit, before the interpreter clears modules that the threads use. First this, then the threads:
        # none is left behind where a Ctrl-C comes.
        self._finalizer = weakref.finalize(owner, self._threads.close)

    @property
    def open(self) -> bool:
        """Whether it is not closed, nor replaced by a later stretch."""
        return self._finalizer.alive

    def next_batch(self) -> tuple[int, Tree, Tree]:
        """Waits for the next step of the run, as `PrefetchScheduler.next_batch`."""
        wait = self.scheduler.next_batch
        # Without workers, this thread reads, perhaps in another context than that of `iter(loader)`.
        if self.executor.capacity.concurrency:
            step, batch, host = wait()
        else:
            step, batch, host = self.caller.run(wait)
        return self.first + step, batch, host

    def leave_memory(self, used: int) -> None:
        """Reads ahead in what another stretch leaves of `prefetch_bytes`. `used`: its bytes."""
        self.scheduler.budget = self._prefetch_bytes - used

    def goes_on(self, step: int, check: Callable[[], None]) -> bool:
        """Whether a step that was read is part of the run: whether streams have not ended before it, on any process.

        Args:
            step: The step.
            check: Raises an error if waiting for the other processes is in vain.
        """
        streams = self.streams
        agreement = self.guard.agreement
        if streams is None:
            return True
        if agreement is not None:
            return agreement.goes_on(
                step, streams.progress, streams.ended_lane, check
            )
        return streams.goes_on(step)

    def leave(self) -> None:
        """Ends the threads, and leaves the workers to the next stretch, unless they are busy for long."""
        if self.open:
            if not self._threads.pause():
                # starting new workers is faster than waiting for useless tasks
                self.executor.close()
            # Detach last: after a Ctrl-C, the finalizer must still close the scheduler.
            self._finalizer.detach()

    def close(self) -> None:
        """Stops all workers. Idempotent."""
        self.guard.close()
        if self.open:
            ended = self._threads.close()
            # Detach last: after a Ctrl-C, the next call must still close the threads.
            self._finalizer.detach()
            if ended and self.streams is not None:
                self.streams.close()
