"""RemoteExecutor: has pieces filled by the workers of an executor, and fills here what they don't deliver in time."""

import hashlib
import pickle
from collections.abc import Sequence
from concurrent.futures import CancelledError
from functools import partial
from queue import SimpleQueue
from threading import get_ident
from time import perf_counter
from typing import Any, final

import numpy as np

from loadax.core.buffers import BufferPool
from loadax.loader.assembly.assembler import (
    Assembler,
    FillOptions,
    Piece,
    fill_all,
    piece_layout,
    tile_span,
)
from loadax.loader.assembly.buffer_layout import BatchBuffers, lease_buffers
from loadax.loader.metrics.stages import Mark, unmarked
from loadax.loader.metrics.stats import Timing
from loadax.loader.remote.affinity import ordered, worker_of
from loadax.loader.remote.engine import TaskEngine
from loadax.loader.remote.task import Filled, RemoteFiller
from loadax.loader.workers.job import LatestReader, SharedReader
from loadax.protocols import Engine
from loadax.reader import Reader
from loadax.work.capacity import Capacity
from loadax.work.dispatch import Answers, Attempt
from loadax.work.executors import check_import
from loadax.work.payload import Payload, versions
from loadax.work.pickling import unpickle_answer
from loadax.work.remote_errors import unwrap
from loadax.work.worker import PayloadSource, Raised, Ready, content_of

# a worker has the next piece while the answer to the previous one is on its way
_TASKS_PER_WORKER = 2
# each piece costs a scheduler, this process and the worker some milliseconds
_PIECE_SECONDS = 0.2
_SETTLING = 0.6  # seconds
_TRIES = 2  # times that a piece is given out, before it is filled here


@final
class RemoteExecutor:
    """A `PieceExecutor` over a `concurrent.futures.Executor`.

    Args:
        engine: The executor, or a function that makes one.
        workers: Largest number of its workers to keep busy.
        first: Number of workers to keep busy at first.
        mark: Marks the time that a thread waits for a piece, for a profiler.

    Raises:
        Exception: Whatever making the executor raises.
    """

    def __init__(
        self, engine: Engine, workers: int, first: int, mark: Mark = unmarked
    ):
        self.capacity = Capacity(
            worker_type="remote",
            workers=workers,
            concurrency=_TASKS_PER_WORKER * workers,
            first=_TASKS_PER_WORKER * first,
            piece_seconds=_PIECE_SECONDS,
            settling=_SETTLING,
        )
        self.tasks = TaskEngine(engine, self.capacity.first)
        self.mark = mark
        self.closed = False
        # By thread: the task that it waits for and its worker, as text, and since when.
        self.serving: dict[int, tuple[str, float]] = {}
        self._latest = LatestReader(RemoteFiller)

    def load(
        self,
        reader: Reader,
        options: FillOptions,
        prefetch_bytes: int,
        family: tuple[Reader, ...] = (),
    ) -> "_RemoteJob":
        """Makes a job for the workers; raises as `LatestReader.share` does."""
        return _RemoteJob(
            self, self._latest.share(reader, family), reader, options, prefetch_bytes
        )

    def worker_text(self, thread: int) -> str:
        """The task that a thread waits for; empty if it fills the piece itself."""
        name, began = self.serving.get(thread, ("", 0.0))
        return (
            name and f" by task {name}, given out {perf_counter() - began:.1f} s ago"
        )

    def places(self) -> int:
        return min(self.capacity.workers, len(self.tasks.workers))

    def close(self) -> None:
        """Cancels all tasks. Idempotent and thread-safe."""
        self.closed = True
        self.tasks.close()
        self._latest = LatestReader(RemoteFiller)


@final
class _RemoteJob:
    """A job of a `RemoteExecutor`. Its payload is sent to each worker once."""

    def __init__(
        self,
        executor: RemoteExecutor,
        shared_reader: SharedReader,
        reader: Reader,
        options: FillOptions,
        most_idle: int,
    ):
        self._executor = executor
        self._shared_reader = shared_reader
        self._options = options
        self._index = shared_reader.index(reader)
        self._pickled = pickle.dumps(options)
        self.buffers = partial(
            lease_buffers, options.layout, BufferPool(most_idle).lease
        )
        self._assembler = Assembler(reader, options, executor.mark)
        self._latest: tuple[Payload, PayloadSource] | None = None
        self._known()

    def prepare(self, threads: int) -> None:
        """Does nothing: the user starts workers."""

    def run(self, piece: Piece) -> Timing:
        """Has a worker fill a piece. Reads it here if it is late or lost twice, or if there are no workers.

        Raises:
            ClosedError: If the executor was closed.
            ArgumentError: If workers can't import loadax, or have another version.
            Exception: Whatever the source or a map raised.
        """
        answers: Answers = SimpleQueue()
        try:
            with self._executor.mark("loadax.remote"):
                return self._run(piece, answers)
        finally:
            self._executor.tasks.give_up(answers)
            self._executor.serving.pop(get_ident(), None)

    def _run(self, piece: Piece, answers: Answers) -> Timing:
        tasks = self._executor.tasks
        layout = self._options.layout
        visits = [
            np.ascontiguousarray(numbers, np.int64).tobytes()
            for numbers in piece.visits
        ]
        arguments = [
            self._index,
            self._pickled,
            *visits,
            piece.low,
            piece.buffers.count,
        ]
        (payload, source), tries, again, lacking = self._known(), 1, 0, False
        worker = worker_of(
            ordered(tasks.workers, source.digest, self._executor.capacity.workers),
            piece.low,
            layout.rows,
        )
        # Before any worker has answered, a task has no piece: workers that take seconds to start would fill one that
        # was read here meanwhile.
        first = arguments if tasks.is_reached else ()
        given = self._give_out(answers, (source, *first), worker)
        while given is not None:
            answered = tasks.next(answers, given, tries)
            result = _result(answered)
            if result is None:  # it is late, or was lost
                tries += 1
                given = None
                if tries <= _TRIES:
                    given = self._give_out(answers, (source, *arguments))
                if given is not None:
                    again += 1
            elif isinstance(result, Filled):
                assert answered is not None
                tasks.filled(answered)
                return self._take(piece, result)._replace(given_again=again)
            elif isinstance(result, Ready):
                given = self._give_out(answers, (source, *arguments), worker)
            elif isinstance(result, Raised):
                raise unwrap(result.error, "a worker of remote=")
            elif (
                result.digest == source.digest
            ):  # else a task given out before the payload was made again
                if result.module is not None:
                    self._shared_reader.package.add_module(result.module, payload)
                    payload, source = self._known()
                sent = source._replace(content=content_of(payload))
                began = given.began
                given = self._give_out(answers, (sent, *arguments), worker)
                # once: a piece is late too if each worker is killed before it has the payload
                if lacking and given is not None:
                    given.overtaken = began
                lacking = True
        with tasks.here(piece.first):  # workers may answer while others are read here
            while not answers.empty():
                if isinstance(result := _result(answers.get()), Filled):
                    return self._take(piece, result)._replace(given_again=again)
        tasks.give_up(answers)
        return self._fill_here(piece)._replace(given_again=again)

    def _fill_here(self, piece: Piece) -> Timing:
        """Reads a piece here, step by step: others may have the rest of the step that is needed first."""
        self._executor.serving.pop(get_ident(), None)

        def fill(part: Piece) -> Timing:
            with self._executor.tasks.here(part.first):
                timing = self._assembler.fill(part)
            piece.filled(part.first + 1 - piece.first)
            return timing

        timing = fill_all(fill, piece.by_step())
        self._executor.tasks.took(timing.seconds)
        return timing._replace(read_here=timing.rows)

    def _give_out(
        self, answers: Answers, arguments: Sequence[Any], worker: str | None = None
    ) -> Attempt | None:
        tasks = self._executor.tasks
        given = tasks.submit(answers, arguments, worker)
        if given is not None:
            name = tasks.name_of(given.order)
            if worker is None:
                text = f"{name} of remote="
            else:
                text = f"{name} for {worker}"
            self._executor.serving[get_ident()] = text, given.began
        return given

    def _known(self) -> tuple[Payload, PayloadSource]:
        """The payload of the readers, and its source, without its content."""
        payload = self._shared_reader.package.latest
        if self._latest is None or self._latest[0] is not payload:
            known = versions()
            message, arrays, memory = content_of(payload)
            digest = hashlib.sha256(repr((known, arrays)).encode())
            digest.update(message)
            digest.update(memory)
            self._latest = (
                payload,
                PayloadSource(digest.hexdigest(), "remote", known, None),
            )
        return self._latest

    def _take(self, piece: Piece, filled: Filled) -> Timing:
        """Copies the rows of a piece to its buffers."""
        rows = BatchBuffers(
            piece_layout(
                self._options.layout, piece.low, piece.high, piece.buffers.count
            ),
            filled.memory,
            1,
        )
        if filled.objects:
            objects = rows.objects(0, len(piece.visits.rows))
            for into, values in zip(
                objects, unpickle_answer(filled.objects), strict=True
            ):
                into[:] = values
        for index, tile in enumerate(self._options.layout.tiles):
            values = rows.rows(index)
            assert values is not None  # a piece has one box
            piece.buffers.write(
                index, *tile_span(tile, piece.low, piece.high), values
            )
        timing = Timing(*filled.timing)
        return timing._replace(
            began=perf_counter() - timing.seconds, worker=filled.worker
        )


def _result(answered: Attempt | None) -> Any:
    """The result of a task; None: it is late, or the executor has lost it.

    Raises:
        ArgumentError: If the worker can't import loadax.
    """
    try:
        return answered and answered.future.result()
    except (Exception, CancelledError) as error:  # noqa: BLE001 - each engine has its own
        check_import(error, "remote=", "remote")
        return None
