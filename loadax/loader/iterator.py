"""DataIterator and Epoch: iterators over placed batches."""

import os
import threading
import weakref
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, final

from jax.sharding import Mesh

from loadax.errors import ClosedError, MeshError
from loadax.loader.checkpoint import FutureFolder, loaded, read_state, write_state
from loadax.loader.execution.autotune import WorkerAutotuner
from loadax.loader.execution.executor import PieceExecutor, open_executor
from loadax.loader.execution.monitor import RunMonitor
from loadax.loader.execution.scheduler import OverError, PrefetchScheduler
from loadax.loader.execution.thread_pool import ThreadPool
from loadax.loader.metrics.stats import Stats
from loadax.loader.pipeline import Pipeline
from loadax.loader.reports.bottleneck import Report, report
from loadax.loader.reports.loader_info import LoaderInfo, loader_info
from loadax.loader.reports.timeline_plot import write_timeline
from loadax.loader.state import OrderHash, make_state, step_of
from loadax.protocols import Tree
from loadax.sharding.mesh import current_mesh


@final
class Ledger:
    """Statistics of an iterator and its step, for observers. Keeps alive neither the iterator nor its batches."""

    monitor: RunMonitor
    """The newest one of the iterator, which counts on from where those before it ended."""

    def stats(self) -> Stats:
        """What was counted so far."""
        return self.monitor.stats()

    @property
    def step(self) -> int:
        """The number of the next step."""
        return self.monitor.step


@final
class DataIterator:
    """Yields the placed batches of a `Dataloader`, one a step. Made by `iter(loader)` and `loader.iterate`.

    Its threads end when it is used up, closed, or forgotten.

    Args:
        pipeline: Makes the producers of batches.
        order: Hash of the order, for states.
        mesh: Mesh that batches are placed on.
        mesh_given: Whether the user passed that mesh to the loader.
        used_up: Set at the end of the run.
        start: Step or state to begin at.
    """

    def __init__(
        self, pipeline: Pipeline, order: OrderHash, mesh: Mesh, mesh_given: bool, used_up: threading.Event, start: Any
    ):
        self._pipeline, self._plan, self._order = pipeline, pipeline.plan, order
        self.mesh = mesh
        """Mesh that the batches are placed on."""
        self._mesh_given = mesh_given
        self._used_up = used_up
        self._step = step_of(self._plan, order, start)
        self._error: BaseException | None = None
        self._interrupted = False
        # Of several threads that go through this iterator, one goes on to the next scheduler. Reentrant: a Ctrl-C may
        # leave it held.
        self._turn = threading.RLock()
        self._process = os.getpid()
        self.ledger = Ledger()
        """What this counts, for who looks at it from outside."""
        self._executor: PieceExecutor | None = None
        self._autotuner: WorkerAutotuner | None = None  # what it has found out holds for later schedulers too
        self._open()

    def restart_statistics(self) -> None:
        """Counts from here on: what was read so far, nobody waited for."""
        self._monitor.restart()

    def _open(self, earlier: RunMonitor | None = None) -> None:
        """Begins to read at the present step.

        Args:
            earlier: Monitor of the steps before, whose statistics go on. None: they begin here.
        """
        if self._executor is None or self._executor.closed:
            self._executor = open_executor(self._pipeline.options)  # once for all batch sizes
        executor = self._executor
        try:
            options, num_steps = self._pipeline.options, self._plan.num_steps
            step = min(self._step, num_steps - 1) if num_steps is not None else self._step
            producer = self._pipeline.producer(self.mesh, step, executor)
            self._autotuner = self._autotuner or WorkerAutotuner(
                executor.first, executor.concurrency, executor.settling
            )
            monitor = RunMonitor(producer, options, self._step, self._autotuner, earlier)
            scheduler = PrefetchScheduler(producer, self._step, options, monitor)
            threads = ThreadPool(scheduler, executor)
        except BaseException:
            executor.close()
            raise
        # Also runs at the end of the program, before the interpreter takes modules apart under the threads.
        self._close = weakref.finalize(self, threads.close)
        self._pause, self._scheduler, self._monitor, self._end = threads.pause, scheduler, monitor, producer.end
        self.ledger.monitor = monitor

    def __iter__(self) -> "DataIterator":
        return self

    def __next__(self) -> Tree:
        """The next batch: every leaf a `jax.Array` on the mesh.

        Raises:
            StopIteration: after the last step of the last epoch.
            MeshError: when the caller's thread is now in another mesh than the one the batches are for.
            Exception: what reading this step raised, with a note that names step and row; again at each further call.
        """
        self._check_process()
        while True:
            if self._error is not None:
                raise self._error
            if self._step == self._plan.num_steps:
                self.close()
                self._used_up.set()
                raise StopIteration
            self._check_mesh()
            with self._turn:
                if self._step == self._end and self._close.alive:  # batches of another shape begin
                    self._reopen(self._monitor)
                if self._interrupted:
                    # A Ctrl-C may have come at any point, so the scheduler's state is not to be relied on: begin anew
                    # from this step.
                    self.set_state(self._step)
                scheduler = self._scheduler
            try:
                step, batch = scheduler.next_batch()
                with self._turn:
                    if scheduler is self._scheduler:
                        self._step = max(self._step, step + 1)  # another thread may have taken a later one
            except OverError:
                continue  # another thread has the last batch, or is about to open the next scheduler
            except Exception as error:
                with self._turn:
                    if isinstance(error, ClosedError) and (
                        self._step == self._plan.num_steps or scheduler is not self._scheduler
                    ):
                        continue  # another thread met the end first, or has gone on to the next scheduler
                self._error = error
                self.close()
                raise
            except BaseException:
                self._interrupted = True
                raise
            return batch

    @property
    def step(self) -> int:
        """How many batches were handed out so far, counted from the run's first step: the number of the next one."""
        return self._step

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._plan.place(self._step)[0]

    def get_state(self) -> dict[str, Any]:
        """Where this iterator is, as JSON: handed-out batches count, prefetched ones don't. Equal on all hosts."""
        return make_state(self._plan, self._order, self._step)

    def set_state(self, state: Any) -> None:
        """Goes on from `state`, whatever mesh, hosts or workers it was saved with.

        Raises:
            StateError: when it belongs to other data, or lies inside a batch of this size; then nothing has changed.
        """
        self._check_process()
        step = step_of(self._plan, self._order, state)
        with self._turn:
            self._interrupted = True  # what is being read does not belong to the step that follows
            self._step, self._error = step, None
            self._reopen()

    async def save(self, directory: FutureFolder) -> Awaitable[None]:
        """Saves the present state to a folder: Orbax calls this, since iterators are `StatefulCheckpointable`.

        The state is that of now, however many batches are handed out before it is written. Process 0 writes one file,
        which any number of hosts can load.
        """
        return write_state(self.get_state(), directory)

    async def load(self, directory: Path) -> Awaitable[None]:
        """Sets the state that is saved in a folder: Orbax calls this.

        Raises:
            StateError: If there is none, or it belongs to other data; then nothing has changed.
        """
        # At once: what fails in the awaitable that this returns, Orbax reports as a handler that does not fit.
        self.set_state(read_state(directory))
        return loaded()

    def _reopen(self, earlier: RunMonitor | None = None) -> None:
        """As `_open`; the workers of the executor stay, unless they are busy for long."""
        self._interrupted = True  # until all is new
        if self._close.alive:
            # Then detached: a Ctrl-C before it is done must leave somebody who closes the scheduler.
            if not self._pause() and self._executor is not None:
                self._executor.close()  # what is under way is of no use any more, and takes longer than to start others
            self._close.detach()
        self._open(earlier)
        self._interrupted = False

    def stats(self) -> Stats:
        """Where the time went since this iterator began, or its state was set."""
        return self.ledger.stats()

    def report(self) -> Report:
        """Whether the loader is the bottleneck, what it is busy with, and what to do.

        A sentence, and the numbers behind it.
        """
        return report(self.stats(), self._info())

    def _info(self) -> LoaderInfo:
        whole, options = self._pipeline.whole, self._pipeline.options
        return loader_info(whole.dataset.reader, whole.batch, self.mesh, bool(options.keep_on_device))

    def timeline(self, path: str | os.PathLike[str]) -> None:
        """Writes who did what when: a page (`.html`), a Chrome trace for Perfetto (`.json`) or an image (`.png`).

        It has the last 20,000 events: pieces read, batches placed and handed out.

        Raises:
            ArgumentError: When the name ends in something else.
            UnsupportedError: When matplotlib is not installed, for an image.
        """
        write_timeline(self._monitor.timeline(), self.report(), path)

    @property
    def num_steps(self) -> int | None:
        """How many steps the run has, from its first one; None: it goes on for ever."""
        return self._plan.num_steps

    @property
    def batch_size(self) -> int:
        """Rows of the next global batch; of the last one, when the run is over."""
        last = self._step if self.num_steps is None else min(self._step, self.num_steps - 1)
        return self._plan.stretch(last)[0].batch_size

    def close(self) -> None:
        """Stops every worker. Idempotent; also done on garbage collection and at the end of the program."""
        self._close()

    def __enter__(self) -> "DataIterator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DataIterator(step={self.step}, epoch={self.epoch}, {'open' if self._close.alive else 'closed'})"

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ClosedError(
                f"this iterator belongs to process {self._process}, of which this one, {os.getpid()}, "
                "is a copy by os.fork(): the threads that read were not copied, and JAX does not work in a copy; "
                "start processes by multiprocessing.get_context('spawn'), and make the loader in them"
            )

    def _check_mesh(self) -> None:
        if self._mesh_given:
            return
        mesh = current_mesh()
        if mesh is not None and mesh is not self.mesh and mesh != self.mesh:
            raise MeshError(
                f"this iterator's batches are for {self.mesh}, but this thread is now in {mesh}; make a new "
                "iterator inside the new mesh (loader.iterate(start=it.get_state())), or pass mesh= to the Dataloader"
            )


@final
class Epoch:
    """The batches of one epoch that are left. Sized; made by `loader.epochs()`."""

    def __init__(self, batches: DataIterator, number: int, stop: int):
        self._batches = batches
        self._stop = stop
        self._left = False
        self.number = number
        """Which epoch this is, from 0."""

    def __len__(self) -> int:
        """How many batches of this epoch are left."""
        return max(0, self._stop - self._batches.step)

    def __iter__(self) -> Iterator[Tree]:
        return self

    def __next__(self) -> Tree:
        """The next batch of the epoch.

        Raises:
            StopIteration: after its last.
            ClosedError: when `epochs()` has gone on to another epoch before this one was over.
        """
        if self._left:
            raise ClosedError(
                f"epoch {self.number} was left before its end when epochs() went on to the next; go through each epoch "
                "before you take the next one, as in `for epoch in loader.epochs(): for batch in epoch: …`"
            )
        if self._batches.step >= self._stop:
            raise StopIteration
        return next(self._batches)

    def leave(self) -> None:
        """Goes on to the next epoch, with this one over or not."""
        if self._batches.step < self._stop:
            self._left = True
            self._batches.set_state(self._stop)

    @property
    def step(self) -> int:
        """How many batches the run has handed out so far, in all epochs."""
        return self._batches.step

    def get_state(self) -> dict[str, Any]:
        """Where the run is; see `DataIterator.get_state`."""
        return self._batches.get_state()

    def stats(self) -> Stats:
        """Where the time of the run went; see `DataIterator.stats`."""
        return self._batches.stats()

    def report(self) -> Report:
        """Whether the loader is the bottleneck; see `DataIterator.report`."""
        return self._batches.report()

    @property
    def ledger(self) -> Ledger:
        """What the run's iterator counts, for who looks at it from outside."""
        return self._batches.ledger

    def timeline(self, path: str | os.PathLike[str]) -> None:
        """Writes a picture of the run so far; see `DataIterator.timeline`."""
        self._batches.timeline(path)

    @property
    def batch_size(self) -> int:
        """Rows of the next global batch."""
        return self._batches.batch_size

    def __repr__(self) -> str:
        return f"Epoch({self.number}, {len(self)} batches left)"
