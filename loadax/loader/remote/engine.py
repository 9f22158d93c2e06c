"""TaskEngine: gives pieces to an executor, and notices when its workers are gone, and when they are back."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Executor
from contextlib import contextmanager, suppress
from math import inf
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, final

from loadax.core.formatting import count_text
from loadax.core.log import log
from loadax.errors import ClosedError
from loadax.loader.metrics.stats import usable_cores
from loadax.loader.remote.affinity import options_for, workers_of
from loadax.protocols import Engine
from loadax.work.dispatch import Answers, Attempt, Dispatcher, Policy
from loadax.work.worker import PayloadSource, call_of

# A quarter of the tasks take no longer than the usual time, since others may wait for lost workers.
POLICY = Policy(
    quantile=0.25,
    recent=32,
    slow=4.0,
    later=0.5,
    least=1.0,
    first=0.5,
    starting=15.0,
    silence=0.0,
    times_longest=0.0,
    times_late=1.4,
)
# tasks that an executor loses one after the other, without an answer in between
_LOSSES = 4
# executors that break one after the other before any worker has answered
_STILLBORN = 2
_STILLBORN_TEXT = (
    "the processes of remote= ended %d times before any of them had answered: rows "
    "are read in this process from now "
    "on. Spawned ones import the main script: put the code that runs there under `if "
    '__name__ == "__main__":`. Or they '
    "lack memory"
)
_WATCH = 5.0  # seconds between two looks at which workers there are
# seconds between two attempts to reach workers, and until one counts as lost
RETRY = 1.0
FORGOTTEN = 10.0

# What tasks call that only show that there is a worker.
_PROBE = PayloadSource("", "remote", {}, None)


@final
class TaskEngine:
    """An executor, and the pieces that it has. Thread-safe.

    Args:
        engine: The executor, or what makes one.
        first: Tasks to give out before the first one is answered.

    Attributes:
        workers: Workers to which tasks can be given by name.

    Raises:
        Exception: Whatever making the executor raises.
    """

    def __init__(self, engine: Engine, first: int):
        self._engine = engine
        self._first = first
        self._dispatcher = Dispatcher(engine, POLICY, "remote")
        # reentrant: garbage collection may close this
        self._lock = threading.Condition(threading.RLock())
        # steps of pieces that wait for a core of this process
        self._waiting: list[int] = []
        self._filling = 0  # pieces that this process fills
        # number of answers when workers were last found to be gone
        self._lost_after = -1
        self._warned = False
        self._over = threading.Event()
        self._looked = threading.Event()
        self.workers: tuple[str, ...] = ()
        try:
            self.open()
            # else the first rows would not go where they do in other jobs
            self._looked.wait(POLICY.first)
        except BaseException:
            self.close()
            raise

    @property
    def is_lost(self) -> bool:
        """Whether workers are gone."""
        return self._lost_after == self._dispatcher.answered

    @property
    def is_reached(self) -> bool:
        """Whether any worker has answered."""
        return self._dispatcher.answered > 0

    def open(self) -> None:
        """Makes the executor.

        Raises:
            Exception: Whatever making it raises.
        """
        if self._dispatcher.executor is None:
            self.workers = ()
            executor = self._dispatcher.open()
            threading.Thread(
                target=self._watch,
                args=(executor,),
                name="loadax-workers",
                daemon=True,
            ).start()

    def _watch(self, executor: Executor) -> None:
        """Looks now and then which workers there are."""
        while (
            workers := workers_of(executor)
        ) is not None and self._dispatcher.executor is executor:
            self.workers = workers
            self._looked.set()
            if self._over.wait(_WATCH):
                break
        self._looked.set()

    @contextmanager
    def here(self, step: int) -> Iterator[None]:
        """Waits for a core of this process to fill a part of a step: the step that is needed first comes first.

        Raises:
            ClosedError: If this is closed.
        """
        with self._lock:
            self._waiting.append(step)
            while not self._over.is_set() and (
                self._filling >= self._most_here() or min(self._waiting) != step
            ):
                self._lock.wait()
            self._waiting.remove(step)
            self._filling += 1
        try:
            self._check_open()
            yield
        finally:
            with self._lock:
                self._filling -= 1
                self._lock.notify_all()

    def _most_here(self) -> int:
        """Pieces that may be filled here at a time: others would slow down the threads that wait for workers."""
        if self.is_lost:
            return usable_cores()
        return 1

    def give_up(self, answers: Answers) -> None:
        """Cancels the tasks of a piece. Idempotent."""
        if not self.is_reached:
            return  # these tasks have workers import loadax
        mine = self._dispatcher.given_to(answers)
        # else pieces that take longer than before would be given up again and again
        if mine:
            self.took(perf_counter() - mine[0].began)
        self._dispatcher.give_up(mine, cancel=True)

    def submit(
        self, answers: Answers, arguments: Sequence[Any], worker: str | None = None
    ) -> Attempt | None:
        """Gives out a task. None: workers are gone, or have enough to start with.

        Args:
            answers: Where the attempt goes when it is done.
            arguments: Arguments of `run`, which it calls.
            worker: The one of `workers` that should run it. None: any.
        """
        is_starting = not self.is_reached and len(self._dispatcher) >= self._first
        if is_starting:
            self._check_silence()
        if self.is_lost or is_starting:
            return None
        return self._submit(answers, arguments, worker)

    def _submit(
        self, answers: Answers, arguments: Sequence[Any], worker: str | None = None
    ) -> Attempt | None:
        executor = self._dispatcher.executor
        if executor is None or self._over.is_set():
            return None
        try:
            return self._dispatcher.submit(
                worker,
                lambda order: call_of(self.name_of(order), *arguments),
                answers,
                options_for(worker),
            )
        except Exception as error:  # noqa: BLE001 - it is broken, or was shut down: each has its own
            self._dispatcher.count_loss(executor, is_broken=True)
            self._check_losses(error)
            return None

    def name_of(self, order: int) -> str:
        """Name of a task."""
        return f"loadax-{id(self):x}-{order}"

    def took(self, seconds: float) -> None:
        """Notes how long this process took for a piece, which a worker may need too."""
        self._dispatcher.took(seconds)

    def filled(self, attempt: Attempt) -> None:
        """Notes that workers have filled a piece."""
        if attempt.began > self._dispatcher.reached:
            self.took(attempt.ended - attempt.began)

    def _check_silence(self) -> None:
        """Notes that workers are gone, if nothing was answered for long."""
        silence = self._dispatcher.silence
        if silence.due():
            self._lose(
                f"none of {count_text(len(self._dispatcher), 'task')} was answered "
                f"in the last {silence.waited:.1f} s"
            )

    def _check_losses(self, error: BaseException) -> None:
        """Notes that workers are gone, if the executor is broken, or has lost many tasks."""
        if self._dispatcher.executor is None or self._dispatcher.losses >= _LOSSES:
            self._lose(f"{type(error).__name__}: {error}")

    def _lose(self, reason: str) -> None:
        with self._lock:
            if self.is_lost or self._over.is_set():
                return
            self._lost_after = self._dispatcher.answered
            self._dispatcher.reached = inf
            is_first = not self._warned
            self._warned = True
            self._wake()
            is_over = self._dispatcher.executor is None and isinstance(
                self._engine, Executor
            )
        then = "until they answer again"
        name = type(self._engine).__name__
        if is_over:
            then = (
                f"from now on, since this {name} can't be used any more; "
                f"remote=lambda: {name}(…) is made again"
            )
        text = (
            "the workers of remote= are gone (%s): rows are read in this process %s"
        )
        (log.warning if is_first else log.info)(text, reason, then)
        if not is_over:
            threading.Thread(
                target=self._look_for_workers, name="loadax-remote", daemon=True
            ).start()

    def _wake(self) -> None:
        """Ends the waiting for answers, and for a core."""
        self._lock.notify_all()
        self._dispatcher.wake()

    def _look_for_workers(self) -> None:
        """Gives out small tasks until one is answered, if need be to a new executor."""
        answers: Answers = SimpleQueue()
        asked = -FORGOTTEN
        while not self._over.wait(RETRY):
            if not self.is_lost:
                log.info("remote=: workers answer again")
                return
            if not self.is_reached and self._dispatcher.breaks >= _STILLBORN:
                log.warning(_STILLBORN_TEXT, self._dispatcher.breaks)
                return
            if self._dispatcher.executor is None and isinstance(
                self._engine, Executor
            ):
                return  # it can't be used any more
            if answers.empty() and perf_counter() - asked < FORGOTTEN:
                continue
            answers = SimpleQueue()
            try:
                self.open()
                if self._submit(answers, (_PROBE,)):
                    asked = perf_counter()
                else:
                    asked = -FORGOTTEN
            except Exception as error:  # noqa: BLE001 - whatever the user's function raises
                log.debug("remote=: no executor: %s", error)

    def next(self, answers: Answers, attempt: Attempt, tries: int) -> Attempt | None:
        """Waits for the next answer; None: workers are gone, or the task is late.

        Args:
            answers: Answers to the tasks for the piece.
            attempt: The latest of these tasks.
            tries: Number of times that the piece was given out.

        Raises:
            ClosedError: If this is closed.
        """
        answered: Attempt | None = None
        while True:
            left = self._dispatcher.left(attempt, tries)
            if left <= 0:
                self._check_silence()
                break
            with suppress(Empty):
                answered = answers.get(timeout=left)
                break
        self._check_open()
        if answered is not None and answered.future.done():
            error = _error_of(answered)
            if error is not None:
                self._check_losses(error)
        return answered

    def _check_open(self) -> None:
        if self._over.is_set():
            raise ClosedError("the iterator was closed")

    def close(self) -> None:
        """Cancels all tasks, and shuts down an executor that was made here. Idempotent."""
        with self._lock:
            self._over.set()
            self._wake()
        self._dispatcher.close(wait=False)


def _error_of(attempt: Attempt) -> BaseException | None:
    if attempt.future.cancelled():
        return CancelledError()
    return attempt.future.exception()
