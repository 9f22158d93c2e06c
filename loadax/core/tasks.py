"""Runs numbered tasks on an executor: a window of futures, lost tasks again, and second copies of stragglers.

Source of the rule for second copies: cubed, `runtime/backup.py` (Dean and Ghemawat, "MapReduce", OSDI 2004, 3.6).
"""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeAlias, final

from loadax.core.arguments import shown
from loadax.errors import ArgumentError, WorkerError

_TRIES = 3  # of lost tasks, without a finished one in between, beyond those of the engine
_POLL = 0.2  # seconds between two looks at stragglers, and at the tasks of others
_SLOW, _FEWEST, _LEAST = 3.0, 10, 2.0  # times the median, finished tasks, seconds
_SILENT, _SILENCE = 10.0, 60.0  # times the longest, seconds: an engine may forget tasks, as executorlib does

_log = logging.getLogger("loadax")

Engine: TypeAlias = Executor | Callable[[], Executor]
"""An executor, or a function that makes one: a process pool whose worker has died can't be used again."""


class Tasks(Protocol):
    """Tasks that are claimed one by one, as others may work on them too."""

    def claim(self) -> int | None:
        """Takes a task that nobody works on; None: there is none at the moment."""
        ...

    def is_complete(self) -> bool:
        """Whether all tasks are finished, also those of others."""
        ...

    def finish(self, number: int) -> None:
        """Ends the claim of a finished task."""
        ...


class Raised(NamedTuple):
    """What a task returns that has raised; whatever a future raises itself is a failure of its engine."""

    error: Any


class _Attempt(NamedTuple):
    number: int
    began: float


def checked_engine(value: Any) -> Engine | None:
    """Returns the value of `executor=`.

    Raises:
        ArgumentError: When it is neither an executor nor a function.
    """
    if value is None or isinstance(value, Executor) or (callable(value) and not isinstance(value, type)):
        return value
    if isinstance(value, type) and issubclass(value, Executor):
        remedy = f"pass a function that makes one: executor=lambda: {value.__name__}(…)"
    elif callable(getattr(value, "get_executor", None)):
        remedy = "pass executor=client.get_executor()"
    else:
        remedy = "pass an instance of concurrent.futures.Executor, or a function without arguments that makes one"
    raise ArgumentError(f"executor={shown(value)} is not an executor; {remedy}", argument="executor")


def index_engine(value: Any, index: Any) -> Engine | None:
    """Returns the value of `executor=` of a verb that keeps parts at `index=`.

    Raises:
        ArgumentError: When it is not an executor, or there is no index.
    """
    engine = checked_engine(value)
    if engine is not None and index is None:
        raise ArgumentError(
            "executor= needs index=, a folder that all its workers share: they keep parts of the result there",
            argument="index",
        )
    return engine


@final
class TaskRun:
    """A run of tasks on an engine.

    Args:
        tasks: The tasks.
        engine: What runs them. An executor that it makes is shut down at the end.
        window: Number of tasks that are submitted at a time.
        backups: Whether a task that takes much longer than others is submitted a second time. Tasks must allow that.
    """

    def __init__(self, tasks: Tasks, engine: Engine, window: int, *, backups: bool):
        self._tasks, self._engine, self._window, self._backups = tasks, engine, window, backups
        self._executor: Executor | None = None
        self._running: dict[Future[Any], _Attempt] = {}
        self._again: deque[int] = deque()
        self._queue: SimpleQueue[Future[Any]] = SimpleQueue()
        self._finished: set[int] = set()
        self._seconds: list[float] = []
        self._losses, self._attempts, self._is_lossy = 0, 0, False
        self._last = perf_counter()  # time of the last answer of the engine
        self._failed: tuple[int, BaseException] | None = None

    def run(self, call: Callable[[int, int], Raised | None], restore: Callable[[Any], BaseException]) -> None:
        """Runs all tasks.

        Args:
            call: Runs a task on the engine, by its number; returns `Raised` if it fails. It also gets the number of the
                attempt, since Dask runs equal calls once.
            restore: Makes the exception of what a `Raised` has.

        Raises:
            BaseException: What a task has raised.
            ArgumentError: When the engine's workers can't import loadax.
            WorkerError: When the engine loses tasks again and again, or its executor is broken.
        """
        is_whole = False
        try:
            while not self._is_over(call):
                with suppress(Empty):
                    future = self._queue.get(timeout=_POLL)
                    attempt = self._running.pop(future, None)
                    if attempt is not None:
                        self._last = perf_counter()
                        self._take(future, attempt, restore)
            is_whole = True
        finally:
            for future in self._running:
                future.cancel()
            self._close(wait=is_whole and not self._running and not self._is_lossy)

    def _is_over(self, call: Callable[[int, int], Any]) -> bool:
        """Submits tasks, and says whether all are finished. Raises the error of the first task that has one."""
        if self._failed is not None:
            # Tasks before it may fail too; those of an engine may have to wait for others first.
            if self._backups or all(attempt.number > self._failed[0] for attempt in self._running.values()):
                raise self._failed[1]
            return False
        while len(self._running) < self._window:
            number = self._again.popleft() if self._again else self._tasks.claim()
            if number is None:
                self._copy_stragglers(call)
                break
            self._submit(call, number)
        self._check_silence()
        numbers = {attempt.number for attempt in self._running.values()}
        return numbers <= self._finished and not self._again and self._tasks.is_complete()

    def _submit(self, call: Callable[[int, int], Any], number: int) -> None:
        try:
            if self._executor is None:
                self._executor = self._engine if isinstance(self._engine, Executor) else self._engine()
            self._attempts += 1
            future = self._executor.submit(call, number, self._attempts)
        except RuntimeError as error:  # a broken executor, or one that was shut down
            self._again.append(number)
            self._lose(error, number)
            return
        self._running[future] = _Attempt(number, perf_counter())
        future.add_done_callback(self._queue.put)

    def _take(self, future: Future[Any], attempt: _Attempt, restore: Callable[[Any], BaseException]) -> None:
        try:
            result = future.result()
        except (Exception, CancelledError) as error:  # noqa: BLE001 - each engine has its own
            if attempt.number not in self._finished:
                self._again.append(attempt.number)
                self._lose(error, attempt.number)
            return
        if attempt.number in self._finished:
            return
        if isinstance(result, Raised):
            if self._failed is None or attempt.number < self._failed[0]:
                self._failed = attempt.number, restore(result.error)
            return
        self._finished.add(attempt.number)
        self._seconds.append(perf_counter() - attempt.began)
        self._losses = 0
        self._tasks.finish(attempt.number)

    def _lose(self, error: BaseException, number: int) -> None:
        """Counts a loss of the engine; gives up after several without a finished task in between."""
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "loadax":
            raise ArgumentError(
                f"the workers of the executor can't import loadax ({error}); install it there, in the same version",
                argument="executor",
            ) from error
        self._losses += 1
        self._is_lossy = True
        is_made = not isinstance(self._engine, Executor)
        broken = isinstance(error, BrokenExecutor | TimeoutError) or (is_made and self._losses > 1)
        if broken and not is_made:
            raise WorkerError(
                f"{type(self._engine).__name__} has lost a worker ({error}) and can't be used again; pass a function "
                f"that makes one, such as executor=lambda: {type(self._engine).__name__}(…)"
            ) from error
        if self._losses > _TRIES:
            raise WorkerError(
                f"the executor has lost task {number} or one beside it {self._losses} times in a row, without "
                f"finishing any: {type(error).__name__}: {error}; look at the log of its workers: they may lack memory"
            ) from error
        _log.warning("the executor has lost task %d (%s: %s): it is run again", number, type(error).__name__, error)
        if broken:
            lost = {attempt.number for attempt in self._running.values()} - self._finished - {*self._again}
            self._again.extend(sorted(lost))
            self._running.clear()
            self._close(wait=False)

    def _check_silence(self) -> None:
        """Counts an engine as broken that has not answered for very long, if it can be made again."""
        silence = perf_counter() - self._last
        can_be_made = not isinstance(self._engine, Executor)
        if can_be_made and self._running and self._seconds and silence > max(_SILENCE, _SILENT * max(self._seconds)):
            self._last = perf_counter()
            number = min(attempt.number for attempt in self._running.values())
            self._lose(TimeoutError(f"no task has ended for {silence:.0f} s"), number)

    def _copy_stragglers(self, call: Callable[[int, int], Any]) -> None:
        """Submits tasks again that take far longer than the others did, now that there are no others."""
        if not self._backups or len(self._seconds) < _FEWEST:
            return
        limit = max(_LEAST, _SLOW * median(self._seconds))
        copies = [attempt.number for attempt in self._running.values()]
        for number, began in list(self._running.values()):
            slow = perf_counter() - began > limit and number not in self._finished
            if slow and copies.count(number) == 1 and len(self._running) < self._window:
                _log.info("task %d takes more than %.1f s: it is run a second time beside the first", number, limit)
                self._submit(call, number)

    def _close(self, *, wait: bool) -> None:
        if self._executor is not None and self._executor is not self._engine:
            self._executor.shutdown(wait)
        self._executor = None
