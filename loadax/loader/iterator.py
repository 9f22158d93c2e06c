"""DataIterator: step, state and moves of an iterator over batches. What is open meanwhile is a `Stretch`.

It goes through the phases of a chain of loaders; of a single loader there is one.
"""

import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, final

from jax.sharding import Mesh

from loadax.core.arguments import flag
from loadax.core.distributed import this_process
from loadax.core.replacements import missing_attribute
from loadax.errors import ArgumentError, ClosedError, MeshError
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.execution.monitor import RunMonitor
from loadax.loader.execution.scheduler import OverError
from loadax.loader.metrics.stats import Stats
from loadax.loader.phases import Phases
from loadax.loader.slots import Lanes
from loadax.loader.stretch import Ledger, RunGuard, Stretch, Target
from loadax.protocols import Tree
from loadax.sharding.mesh import current_mesh

if TYPE_CHECKING:
    from loadax.loader.checkpoint import FutureFolder
    from loadax.loader.host_rows import HostRows
    from loadax.loader.metrics.timeline import Piece
    from loadax.loader.reports.bottleneck import Report
    from loadax.loader.trace import Trace

# last steps of a phase, the same on all hosts, during which the next one is read ahead
EARLY = 64


def at_state(
    targets: Sequence[Target], phases: Phases, start: Any
) -> tuple[Sequence[Target], Phases]:
    """The targets and phases of a run with the weights that were set before a step or a state, which a state has."""
    if type(start) is int:
        return targets, phases
    from loadax.loader.weights import of_state

    return of_state(targets, phases, start)


@final
class DataIterator:
    """Yields the batches of a `Dataloader`, one per step.

    Made by `iter(loader)` and `loader.iterate`, whose batches are placed, and by `loader.host_batches`; also of a chain
    of loaders. The next loader of a chain is read ahead before the present one ends, within its `prefetch_bytes`.

    Its threads end when it is exhausted, closed or garbage-collected.

    Args:
        targets: Where the batches of each phase go.
        phases: Steps and states of the phases.
        used_up: Event to set at the end of the run.
        start: Step or state to start from; of a stream, also the states of several processes.

    Attributes:
        ledger: Counters of this iterator, for monitoring from outside.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        phases: Phases,
        used_up: threading.Event,
        start: Any,
    ):
        self._targets, self._phases = at_state(targets, phases, start)
        self._used_up = used_up
        self._step = self._phases.start_of(start)
        self._streams = self._targets[0].pipeline.lanes(start)
        # Latest step, its leaves on the host, and the shards of its mesh.
        self._host: tuple[int, Tree, Callable[[int], HostShard]] | None = None
        self._error: BaseException | None = None
        # Warns before step 0 that these steps were there already; not where `set_state` goes on from another step.
        self.warn_at_first_step: Callable[[], None] | None = None
        # of the next phase, once it is read ahead
        self._following: Stretch | None = None
        # Of several threads that share this iterator, one switches to the next stretch. Reentrant: a Ctrl-C may leave
        # it held.
        self._lock = threading.RLock()
        self.ledger = Ledger()
        self._begin(None)

    @property
    def _target(self) -> Target:
        return self._targets[self.phase]

    def _guard(self, step: int) -> RunGuard:
        phase, local = self._phases.locate(step)
        return RunGuard(self, self._targets[phase], local, self._streams, self.ledger)

    def _made(
        self,
        step: int,
        guard: RunGuard,
        before: Stretch | None = None,
        earlier: RunMonitor | None = None,
    ) -> Stretch:
        """The stretch that reads from a step on; see `_open`."""
        phase, local = self._phases.locate(step)
        first = self._phases.first_steps[phase]
        target = self._targets[phase]
        # this phase has its own workers
        if before is not None and before.first != first:
            before.leave()
            before.executor.close()
            before = None
        try:
            return Stretch(
                self, target, first, local, self._streams, guard, before, earlier
            )
        except Exception as error:
            self._name_phase(error, step)
            raise

    def _name_phase(self, error: Exception, step: int) -> None:
        """Adds a note to the error of a step that says which loader of a chain it is of."""
        if self._phases.last:
            phase = self._phases.locate(step)[0]
            first = self._phases.first_steps[phase]
            error.add_note(
                f"in loaders[{phase}] of the chain, which begins at its step {first}"
            )

    def _begin(
        self, before: Stretch | None, earlier: RunMonitor | None = None
    ) -> None:
        """Begins a run at the current step, with the other hosts.

        Args:
            before: Stretch that this replaces.
            earlier: As in `_open`.
        """
        if before is None:
            guard = self._guard(self._step)
        else:
            guard = self._replaced_guard(before)
        self._open(guard, before, earlier)
        if guard.hosts is not None:
            guard.watch.start()  # the others may be waiting for this one

    def _replaced_guard(self, stretch: Stretch) -> RunGuard:
        closing = stretch.guard
        stretch.guard = self._guard(self._step)
        closing.close()
        return stretch.guard

    def _open(
        self,
        guard: RunGuard,
        before: Stretch | None,
        earlier: RunMonitor | None = None,
    ) -> None:
        """Starts reading at the current step.

        Args:
            guard: What watches the run.
            before: Stretch that this replaces.
            earlier: Monitor of the previous steps, whose statistics continue. None: they start here.
        """
        self._interrupted = True  # until it is open
        if before is not None:
            before.replaced_at = self._step
        if self._streams is not None:
            self._streams.consumed = self._step
        self._stretch = stretch = self._made(self._step, guard, before, earlier)
        self.ledger.monitor = stretch.monitor
        self.ledger.first = stretch.first
        if earlier is None:
            self.ledger.rates = None
        stretch.start()
        self._interrupted = False

    def _read_next_phase(self, stretch: Stretch) -> None:
        """Reads the next phase ahead, if the present one is about to end, in what this leaves of the memory."""
        first = self._phases.next_first(self._step)
        if first is None or first - self._step > EARLY or not stretch.open:
            return
        following = self._following
        used = stretch.scheduler.bytes_of(first - self._step)
        if following is not None and following.first == first:
            following.leave_memory(used)
            return
        following = self._made(first, self._guard(first))
        following.leave_memory(used)
        following.start()
        if following.guard.hosts is not None:
            following.guard.watch.start()
        self._following = following  # after a Ctrl-C, there is none

    def _follow(self, before: Stretch, following: Stretch) -> None:
        """Goes on with the next phase, which is read ahead."""
        self._interrupted = True
        before.replaced_at = self._step
        before.close()
        following.monitor.follow(before.monitor)
        following.leave_memory(0)
        self._stretch = following
        self._following = None
        self.ledger.monitor = following.monitor
        self.ledger.first = following.first
        self._interrupted = False

    def _drop_next_phase(self) -> None:
        following = self._following
        self._following = None
        # a Ctrl-C may have left it here
        if following is not None and following.first != self._stretch.first:
            following.close()

    if not TYPE_CHECKING:  # type checkers must still report misspelt names
        __getattr__ = missing_attribute

    def __reduce__(self) -> Never:
        raise TypeError(
            "an iterator of batches can't be pickled or copied, since its threads "
            "and devices belong to this process; save its get_state(), and continue "
            "with loader.iterate(start=state)"
        )

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
        if self.warn_at_first_step is not None:
            self._warn_at_first_step()
        while True:
            if self._error is not None:
                raise self._error
            if self._is_over():
                self._finish()
            self._check_mesh()
            stretch = self._present_stretch()
            step: int | None = None
            try:
                if not stretch.guard.waited_for:
                    stretch.guard.first_batch()
                step, batch, host = stretch.next_batch()
                with self._lock:
                    # Another thread has moved, set or interrupted the iterator: the next stretch reads this step.
                    interrupted = self._interrupted and stretch is self._stretch
                    replaced_at = self._step if interrupted else stretch.replaced_at
                    if replaced_at is not None and step >= replaced_at:
                        continue
                    if stretch.streams is not None and not stretch.goes_on(
                        step, stretch.scheduler.check
                    ):
                        stretch.ended = (
                            stretch.ended or stretch.streams is self._streams
                        )
                        continue
                    if stretch is self._stretch:
                        self._count(step, host, stretch)
            except OverError:
                # another thread has the last batch, or is about to open the next stretch
                continue
            except Exception as error:
                with self._lock:
                    ended = (
                        self._is_over()
                        or self._interrupted
                        or stretch is not self._stretch
                    )
                    if isinstance(error, ClosedError) and ended:
                        # another thread reached the end first, or is about to open the next stretch
                        continue
                self._error = error
                self._name_phase(error, self._step)
                self._stretch.guard.tell_hosts(self._step, error)
                self.close()
                raise
            except BaseException:
                self._interrupt(step)
                raise
            return batch

    def _warn_at_first_step(self) -> None:
        warn = self.warn_at_first_step
        self.warn_at_first_step = None
        if warn is not None and self._step == 0:
            warn()

    def _present_stretch(self) -> Stretch:
        """The stretch to read from: another one after a Ctrl-C, or where batches get other shapes."""
        with self._lock:
            before = self._stretch
            if self._interrupted:
                # A Ctrl-C may have left the scheduler in any state: restart from this step.
                self._host, before.ended, self._streams = (
                    None,
                    False,
                    self._same_streams(),
                )
                self._open_next(before, None)
            elif self._step == before.end and before.open:
                self._open_next(before, before.monitor)
            if self._phases.last:
                self._read_next_phase(self._stretch)
            return self._stretch

    def _open_next(self, before: Stretch, earlier: RunMonitor | None) -> None:
        following = self._following
        first = self._phases.first_steps[self.phase]
        if before.first == first:
            self._open(before.guard, before, earlier)
        elif following is not None and following.first == self._step:
            self._follow(before, following)
        else:
            self._begin(before, earlier)

    def _interrupt(self, step: int | None) -> None:
        """Notes a Ctrl-C, before which the scheduler may have given the batch of `step`. The caller gets it again."""
        self._interrupted = True
        with self._lock:
            if step is not None and self._step == step + 1:
                self._step = step

    def _count(self, step: int, host: Tree, stretch: Stretch) -> None:
        """Notes that a batch is handed out, unless another thread has taken a later one."""
        if step < self._step:
            return
        self._step = step + 1
        self._host = (step, host, stretch.shard)
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
        if self._target.mesh is None:
            raise MeshError(
                "batches of host_batches() are not placed, so they have no mesh; use "
                "loader.iterate(), or make a new iterator in another mesh: "
                "loader.host_batches(start=it.get_state())"
            )
        return self._target.mesh

    @property
    def host(self) -> "HostRows":
        """The host leaves of the latest batch, for the rows that this process reads.

        Where several threads share the iterator, use `loader.host(step)`.

        Raises:
            ArgumentError: If no batch was handed out yet, or the loader has no `host_leaves`.
        """
        from loadax.loader.host_rows import HostRows, host_leaves_of

        if self._host is None:
            raise ArgumentError(
                "no batch was handed out yet; call next() first, or use "
                "loader.host(step)"
            )
        step, leaves, shard = self._host
        return HostRows(
            step,
            shard(self._phases.locate(step)[1]).positions,
            host_leaves_of(leaves),
        )

    @property
    def epoch(self) -> int:
        """Epoch of the next batch, counted over all phases."""
        return self._phases.epoch_of(self._step)

    @property
    def epoch_stop(self) -> int:
        """Step after the last one of the epoch of the next batch."""
        return self._phases.epoch_stop(self._step)

    @property
    def phase(self) -> int:
        """Index of the next batch's loader in a chain; 0 for a single loader."""
        return self._phases.locate(self._step)[0]

    def get_state(self) -> dict[str, Any]:
        """JSON-serialisable state, equal on all hosts. Counts batches handed out, not prefetched ones.

        That of a stream also has the states of the lanes that this process has opened, which differ between hosts.
        """
        with self._lock:  # lanes drop the states before the latest step
            state = self._phases.state(self._step)
            if self._streams is None:
                return state
            return state | self._streams.state(self._step)

    def set_state(self, state: Any) -> None:
        """Continues from `state`, saved on any mesh and with any number of hosts and workers.

        For a stream, also a list of the states of several processes. Lanes whose states are missing are read from their
        first rows.

        Raises:
            StateError: If it belongs to other data, or its position is inside a batch of this size. The iterator is
                then unchanged.
        """
        self._check_process()
        targets, phases = at_state(self._targets, self._phases, state)
        step = phases.start_of(state)
        streams = targets[0].pipeline.lanes(state)
        with self._lock:
            self._targets = targets
            self._phases = phases
            self._drop_next_phase()
            # prefetched batches are not those of the new step
            self._interrupted = True
            # Both at once, whenever a Ctrl-C comes: the streams before may have no states of this step any more.
            self._step = step
            self._streams = streams
            self._error = None
            self._host = None
            self._stretch.ended = False
            self._begin(self._stretch)

    def _same_streams(self) -> Lanes | None:
        """The streams, to be read again from the current step on."""
        if self._streams is None:
            return None
        return self._target.pipeline.lanes(self.get_state())

    def _is_over(self) -> bool:
        return self._stretch.ended or self._step == self.num_steps

    def _finish(self) -> None:
        """Ends the run, unless another thread has set it back meanwhile.

        Raises:
            StopIteration: If it is over.
        """
        with self._lock:  # another thread may be opening the next stretch
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
        from loadax.loader.moving import check_shards

        self._check_process()
        _ = self.mesh  # raises if batches are not placed
        if mesh is None:
            raise ArgumentError("mesh=None: pass the jax.sharding.Mesh to move to")
        with self._lock:
            targets = [target.on_mesh(mesh, partition) for target in self._targets]
            chosen = partition is not None
            check_shards(targets, self._phases.locate(self._step), chosen)
            self._go_on(targets, self._phases)

    def set_weights(self, weights: Any) -> None:
        """Sets the weights of the mixture from the next batch on, the next one that `next` returns.

        Batches that were read ahead are dropped and read again. Each dataset continues where it was. The weights
        replace the rest of a schedule, and stay until they are set again. They are part of the state, so that a resumed
        run has them, on any hosts. `loader.with_weights(state)[step]` is the batch of any step, before and after.

        All processes of a run must set the same weights at the same step; else they get an error.

        Args:
            weights: Weights by name, or a sequence, as of `mix`. Of a chain, those of its present loader.

        Raises:
            ArgumentError: If a weight is wrong, or the last verb of the dataset but for maps is not `mix`. The iterator
                then continues as it was.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader, mix
            >>> data = mix({"web": np.zeros(99), "code": np.ones(99)}, weights=[1, 1], stop="never")
            >>> batches = iter(Dataloader(data, batch_size=8))
            >>> int(next(batches).sum())
            4
            >>> batches.set_weights({"web": 3, "code": 1})
            >>> int(next(batches).sum())
            2
        """
        from loadax.loader.weights import set_weights

        self._check_process()
        with self._lock:
            targets, phases = set_weights(
                self._targets, self._phases, self._step, weights
            )
            hosts = self._stretch.guard.hosts
            if hosts is not None:
                hosts.set_weights(self._step)
            self._go_on(targets, phases)

    def _go_on(self, targets: Sequence[Target], phases: Phases) -> None:
        """Continues with other targets at the current step. After an error, it is where it was."""
        self._drop_next_phase()
        stretch = self._stretch
        self._interrupted = True
        stretch.scheduler.close()
        before = self._targets, self._phases
        self._targets = targets
        self._phases = phases
        self._error = None
        try:
            self._streams = self._same_streams()
            self._begin(stretch, stretch.monitor)
        except BaseException:
            self._targets, self._phases = before
            self._replaced_guard(self._stretch)
            raise

    def save(self, directory: "FutureFolder") -> Coroutine[Any, Any, Awaitable[None]]:
        """Saves the present state to a folder: Orbax calls this, since iterators are `StatefulCheckpointable`.

        The state is that of now, however many batches are handed out before it is written. Process 0 writes one file,
        which any number of hosts can load.

        Raises:
            ArgumentError: If the folder is not Orbax's. At the call: what fails in what this returns, nobody may await.
        """
        from loadax.loader.checkpoint import (
            FutureFolder,
            check_folder,
            returned,
            write_state,
        )

        check_folder("save", directory, FutureFolder)
        return returned(write_state(self.get_state(), directory))

    def load(self, directory: Path) -> Coroutine[Any, Any, Awaitable[None]]:
        """Sets the state that is saved in a folder: Orbax calls this.

        Raises:
            ArgumentError: If the folder is not Orbax's.
            StateError: If there is no state, or it belongs to other data; then nothing has changed.
        """
        from loadax.loader.checkpoint import (
            check_folder,
            loaded,
            read_state,
            returned,
        )

        check_folder("load", directory, os.PathLike)
        # At once: what fails in the awaitable that this returns, Orbax reports as a handler that does not fit.
        self.set_state(read_state(directory))
        return returned(loaded())

    def stats(self) -> Stats:
        """Times and counters since the iterator was started, or its state was set."""
        return self.ledger.stats()

    def metrics(self) -> dict[str, float]:
        """Numbers of this process by names such as `loadax/wait_seconds`, for TensorBoard, W&B and the like.

        Call it in every step or once in a while; it takes some tens of microseconds. Totals count from the start of the
        iterator, or since its state was set. `loadax/step_seconds`, `loadax/rows_per_second` and `loadax/waited_share`
        are means of the steps since the call before; of another call at the same step, the same. Rows a second are
        those of the global batches, without padding: equal on all hosts, so take those of one, not the sum. The guide
        to speed lists all.

        Returns:
            Floats by name, the same names in each call.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader
            >>> with Dataloader(np.zeros((64, 2), np.float32), 8).iterate() as batches:
            ...     first = next(batches)
            ...     metrics = batches.metrics()
            >>> metrics["loadax/steps"], metrics["loadax/masked_rows"]
            (1.0, 0.0)
        """
        return self.ledger.metrics()

    def report(self, hosts: bool = False) -> "Report":
        """Reports whether the loader is the bottleneck, what it is busy with, and what to do.

        Args:
            hosts: Whether to name the host of the run that waits longest for data. What the others tell is a few
                seconds old.
        """
        from loadax.loader.reports.bottleneck import loader_info, report
        from loadax.loader.reports.run_record import Snapshot, slow_piece

        whole = self._target.pipeline.whole
        options = self._target.pipeline.options
        info = loader_info(
            whole.dataset.reader,
            whole.batch,
            self._target.mesh,
            bool(options.keep_on_device),
        )
        told = report(self.stats(), info)
        waits: list[list[float]] = []
        if flag("hosts", hosts):
            others = self._stretch.guard.hosts
            if others is None:
                text = "this run has one host"
            else:
                text, waits = others.slowest()
            told = replace(told, hosts=text)
        recording = self._stretch.monitor.recording()
        slowest = [
            slow_piece(piece, self._origin(piece)) for piece in recording.slowest
        ]
        snapshot = Snapshot(recording, this_process().index, slowest, waits)
        return replace(told, snapshot=snapshot)

    def _origin(self, piece: "Piece") -> "Trace | None":
        """Trace of the rows of a piece in its first step; None for streams, and for chains of loaders."""
        from loadax.loader.trace import trace

        if self._streams is not None or self._phases.last:
            return None
        pipeline = self._target.pipeline
        rows = self._target.shard(piece.step).positions[piece.low : piece.high]
        source = pipeline.whole.dataset.source
        return trace(pipeline.plan, source, piece.step, rows)

    def timeline(self, path: str | os.PathLike[str]) -> None:
        """Writes a timeline of all threads and workers, with the last 20,000 events, as a Chrome trace.

        Open it at https://ui.perfetto.dev or `chrome://tracing`.

        Args:
            path: Name of a `.json` file.

        Raises:
            ArgumentError: If the name has another suffix, or the file can't be written.
        """
        from loadax.loader.reports.chrome_trace import write_chrome_trace

        write_chrome_trace(self._stretch.monitor.timeline(), self.report(), path)

    @property
    def num_steps(self) -> int | None:
        """Number of steps of the run; None: infinite."""
        return self._phases.num_steps

    @property
    def batch_size(self) -> int:
        """Rows of the next global batch; of the last one if the run is over."""
        return self._phases.batch_size(self._step)

    def close(self) -> None:
        """Stops all workers. Idempotent; also called on garbage collection and at exit."""
        self._drop_next_phase()
        self._stretch.close()

    def __enter__(self) -> "DataIterator":
        return self

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        # A StopIteration is how a loop over several iterators ends.
        if (
            isinstance(error, Exception)
            and error is not self._error
            and not isinstance(error, StopIteration)
        ):
            self._stretch.guard.tell_hosts(self._step, error)
        self.close()

    def __repr__(self) -> str:
        return (
            f"DataIterator(step={self.step}, epoch={self.epoch}, "
            f"{'open' if self._stretch.open else 'closed'})"
        )

    def _check_process(self) -> None:
        process = self._stretch.process
        here = os.getpid()
        if here != process:
            raise ClosedError(
                f"this iterator belongs to process {process}, and this process, "
                f"{here}, is its os.fork(): a fork does not have the reader threads, "
                "and JAX does not work in it; start processes with "
                "multiprocessing.get_context('spawn'), and make the loader in them"
            )

    def _check_mesh(self) -> None:
        if self._target.mesh_given:
            return
        mesh = current_mesh()
        if mesh is not None and mesh is not self.mesh and mesh != self.mesh:
            raise MeshError(
                f"this iterator's batches are for {self.mesh}, but the current mesh "
                f"of this thread is {mesh}; continue there with it.move_to(mesh), "
                "make a new iterator in that mesh "
                "(loader.iterate(start=it.get_state())), or pass mesh= to the "
                "Dataloader"
            )
