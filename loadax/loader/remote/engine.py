"""TaskEngine: gives tasks to an executor, and notices when its workers are gone, and when they are back."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager, suppress
from itertools import count
from math import inf
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, final

from loadax.core.log import log
from loadax.errors import ClosedError
from loadax.loader.metrics.stats import usable_cores
from loadax.loader.remote.task import Filled
from loadax.loader.remote.workers import options_for, workers_of
from loadax.protocols import Engine
from loadax.work.tasks import open_engine, shut_down
from loadax.work.worker import Source, call_of

# A task is late after this multiple of the usual time, at most these seconds later, and at least after these.
_SLOW = 4.0
_LATER = 0.5
_LEAST = 1.0
# times these seconds, beside the wait for tasks before it, a task is late even if none has overtaken it
_AGED = 1.5
# pieces whose mean distance tells how long a task waits for those before it
_LATEST = 8
_FIRST = 0.5  # seconds, before any answer
# times the seconds after which a task is late: without any answer, the workers are gone
_GONE = 1.4
_STARTING = 15.0  # seconds that workers have before their first answer
# pieces of which a quarter takes no longer than the usual time, since others may wait for lost workers
_RECENT = 32
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
_RETRY = 1.0
_FORGOTTEN = 10.0


# What tasks call that only show that there is a worker.
_PROBE = Source("", "remote", {}, None)

# Futures of the tasks for one piece, as they are done; None: workers are gone, or the engine is closed.
Answers: TypeAlias = SimpleQueue[Future[Any] | None]


class _Given(NamedTuple):
    """A task that was given out, and is not answered.

    Args:
        began: When it was given out.
        executor: What has it.
        answers: Where its future goes.
        ahead: Number of tasks that were given out before it, and not answered then.
    """

    began: float
    executor: Executor
    answers: Answers
    ahead: int


@final
class TaskEngine:
    """An executor, and the tasks that it has. Thread-safe.

    No lock is held while the executor is called: it may hold its own while it calls `_done`.

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
        self._executor: Executor | None = None
        # reentrant: garbage collection may close this
        self._lock = threading.Condition(threading.RLock())
        self._numbers = count()
        self._given: dict[Future[Any], _Given] = {}
        # steps of pieces that wait for a core of this process
        self._waiting: list[int] = []
        self._filling = 0  # pieces that this process fills
        self._seconds: deque[float] = deque(maxlen=_RECENT)
        # when the latest pieces arrived
        self._filled_at: deque[float] = deque(maxlen=_LATEST)
        # When tasks were given out that nothing was before, when the last answer came, and when the latest of the tasks
        # that are answered was given out.
        self._asked = perf_counter()
        self._answered = 0.0
        self._newest = 0.0
        self._reached = inf  # since when workers answer
        self._losses = 0
        self.closed = False
        self._stillborn = 0  # executors that broke before any worker had answered
        # whether workers are gone, and whether they were before
        self._lost = self._warned = False
        self._over = threading.Event()
        self._looked = threading.Event()
        self.workers: tuple[str, ...] = ()
        try:
            self.open()
            # else the first rows would not go where they do in other jobs
            self._looked.wait(_FIRST)
        except BaseException:
            self.close()
            raise

    def open(self) -> None:
        """Makes the executor.

        Raises:
            Exception: Whatever making it raises.
        """
        if self._executor is None:
            self.workers = ()
            self._executor = open_engine(self._engine, "remote")
            threading.Thread(
                target=self._watch,
                args=(self._executor,),
                name="loadax-workers",
                daemon=True,
            ).start()

    def _watch(self, executor: Executor) -> None:
        """Looks now and then which workers there are."""
        while (
            workers := workers_of(executor)
        ) is not None and self._executor is executor:
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
            while not self.closed and (
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
        if self._lost:
            return usable_cores()
        return 1

    def give_up(self, answers: Answers) -> None:
        """Cancels the tasks of a piece. Idempotent."""
        with self._lock:
            if self._reached == inf:
                return  # these tasks have workers import loadax
            mine = {
                future: given.began
                for future, given in self._given.items()
                if given.answers is answers
            }
            for future in mine:
                del self._given[future]
            # else pieces that take longer than before would be given up again and again
            if mine:
                self._seconds.append(perf_counter() - min(mine.values()))
        for future in mine:
            future.cancel()

    def submit(
        self, answers: Answers, arguments: Sequence[Any], worker: str | None = None
    ) -> str | None:
        """Gives out a task, and returns its name. None: workers are gone, or have enough to start with.

        Args:
            answers: Where its future goes when it is done.
            arguments: Arguments of `run`, which it calls.
            worker: The one of `workers` that should run it. None: any.
        """
        is_starting = self._reached == inf and len(self._given) >= self._first
        if is_starting:
            self.late()
        if self._lost or is_starting:
            return None
        return self._submit(answers, arguments, worker)

    def _submit(
        self, answers: Answers, arguments: Sequence[Any], worker: str | None = None
    ) -> str | None:
        executor = self._executor
        name = f"loadax-{id(self):x}-{next(self._numbers)}"
        if executor is None or self.closed:
            return None
        began = perf_counter()
        try:
            future = executor.submit(
                *call_of(name, *arguments), **options_for(worker)
            )
        except Exception as error:  # noqa: BLE001 - it is broken, or was shut down: each has its own
            self._fail(error, executor, is_broken=True)
            return None
        with self._lock:
            if self._over.is_set():
                future.cancel()
                return None
            if not self._given:
                self._asked = began
            self._given[future] = _Given(began, executor, answers, len(self._given))
        future.add_done_callback(self._done)
        return name

    def _done(self, future: Future[Any]) -> None:
        error = CancelledError() if future.cancelled() else future.exception()
        is_back = False
        with self._lock:
            now = perf_counter()
            given = self._given.pop(future, None)
            if given is None:
                began = 0.0
            else:
                began = given.began
            if error is None:
                is_back, self._lost, self._losses, self._answered = (
                    self._lost,
                    False,
                    0,
                    now,
                )
                self._newest = max(self._newest, began)
                is_filled = isinstance(future.result(), Filled)
                if is_back or self._reached == inf:
                    self._reached = now
                    self._filled_at.clear()
                elif began > self._reached and is_filled:
                    self._seconds.append(now - began)
                if is_filled:
                    self._filled_at.append(now)
        if is_back:
            log.info("remote=: workers answer again")
        if given is None:  # it was given up
            return
        if error is not None and not self.closed:
            self._fail(
                error, given.executor, is_broken=isinstance(error, BrokenExecutor)
            )
        given.answers.put(future)

    def took(self, seconds: float) -> None:
        """Notes how long this process took for a piece, which a worker may need too."""
        with self._lock:
            self._seconds.append(seconds)

    def is_reached(self) -> bool:
        """Whether any worker has answered."""
        return self._reached < inf

    def patience(self) -> float:
        """Seconds after which a task is late."""
        with self._lock:
            seconds = sorted(self._seconds)
        if seconds:
            usual = seconds[len(seconds) // 4]
        else:
            usual = 0.0
        if self._reached == inf:
            return _FIRST
        return max(_LEAST, min(_SLOW * usual, usual + _LATER))

    def late(self) -> None:
        """Notes that a task is late: if nothing was answered meanwhile, the workers are gone."""
        silence = perf_counter() - max(self._asked, self._answered)
        if silence > (_STARTING if self._reached == inf else _GONE * self.patience()):
            self._lose(
                f"none of {len(self._given)} tasks was answered in the last "
                f"{silence:.1f} s"
            )

    def _fail(
        self, error: BaseException, executor: Executor, *, is_broken: bool
    ) -> None:
        """Counts a task that the executor has lost."""
        with self._lock:
            self._losses += 1
            if is_broken and executor is self._executor:
                self._executor = None
                if self._reached == inf:
                    self._stillborn += 1
        if is_broken or self._losses >= _LOSSES:
            self._lose(f"{type(error).__name__}: {error}")

    def _lose(self, reason: str) -> None:
        with self._lock:
            if self._lost or self.closed:
                return
            self._lost = True
            is_first = not self._warned
            self._warned = True
            self._wake()
            is_over = self._executor is None and isinstance(self._engine, Executor)
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
        for answers in {given.answers for given in self._given.values()}:
            answers.put(None)

    def _look_for_workers(self) -> None:
        """Gives out small tasks until one is answered, if need be to a new executor."""
        answers = Answers()
        asked = -_FORGOTTEN
        while not self._over.wait(_RETRY) and self._lost:
            if self._stillborn >= _STILLBORN:
                log.warning(_STILLBORN_TEXT, self._stillborn)
                return
            if self._executor is None and isinstance(self._engine, Executor):
                return  # it can't be used any more
            if answers.empty() and perf_counter() - asked < _FORGOTTEN:
                continue
            answers = Answers()
            try:
                self.open()
                if self._submit(answers, (_PROBE,)):
                    asked = perf_counter()
                else:
                    asked = -_FORGOTTEN
            except Exception as error:  # noqa: BLE001 - whatever the user's function raises
                log.debug("remote=: no executor: %s", error)

    def next(self, answers: Answers, began: float, tries: int) -> Future[Any] | None:
        """Waits for the next answer; None: workers are gone, or the task is late.

        A task is late if later ones have overtaken it, or if nothing is answered. Workers that are slow for all tasks
        make none of them late.

        Args:
            answers: Answers to the tasks for the piece.
            began: When the piece was given out.
            tries: Number of times that it was.

        Raises:
            ClosedError: If this is closed.
        """
        future: Future[Any] | None = None
        while True:
            now = perf_counter()
            aged = (now - began - self._queued(answers)) / _AGED
            behind = max(self._newest - began, now - max(self._answered, began), aged)
            if (left := self.patience() / tries - behind) <= 0:
                self.late()
                break
            with suppress(Empty):
                future = answers.get(timeout=left)
                break
        self._check_open()
        return future

    def _queued(self, answers: Answers) -> float:
        """Seconds that the task for a piece waits for those before it, by the distances of the latest pieces.

        An executor of which few workers have started answers all of its tasks, but slowly.
        """
        with self._lock:
            ahead = max(
                (
                    given.ahead
                    for given in self._given.values()
                    if given.answers is answers
                ),
                default=0,
            )
            times = self._filled_at
            if len(times) < 2:
                return inf if ahead else 0.0
            return ahead * (times[-1] - times[0]) / (len(times) - 1)

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("the iterator was closed")

    def close(self) -> None:
        """Cancels all tasks, and shuts down an executor that was made here. Idempotent."""
        with self._lock:
            self.closed = True
            self._over.set()
            self._wake()
            given = list(self._given)
            executor = self._executor
            self._executor = None
        for future in given:
            future.cancel()
        if executor is not None and executor is not self._engine:
            shut_down(executor, wait=False)
