"""Runs numbered tasks on an executor: lost tasks again, and second copies of stragglers.

Source of the rule for second copies: cubed, `runtime/backup.py` (Dean and Ghemawat, "MapReduce", OSDI 2004, 3.6).
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor
from math import inf
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, Protocol, TypeAlias, final

from loadax.core.formatting import count_text
from loadax.core.log import log
from loadax.errors import WorkerError
from loadax.protocols import Engine
from loadax.work.dispatch import Answers, Attempt, Dispatcher, Policy
from loadax.work.executors import capacity_of, check_import, runs_main_script
from loadax.work.payload import Package
from loadax.work.remote_errors import RemoteError, unwrap
from loadax.work.worker import PayloadMissing, PayloadSource, Raised

# of a task beyond the first and those of the engine, and of an engine that has never finished one
_TRIES = 3
_POLL = 0.2  # seconds between two looks at stragglers, and at the tasks of others
_FEWEST = 10  # finished tasks, before any is late
# tasks that are submitted at a time: no worker waits for the next one, and few are lost with an engine
_PER_WORKER = 64
# An engine may forget tasks, as executorlib does.
POLICY = Policy(
    quantile=0.5,
    recent=1000,
    slow=3.0,
    later=inf,
    least=2.0,
    first=inf,
    starting=60.0,
    silence=60.0,
    times_longest=10.0,
    times_late=0.0,
)


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


# From a task and the number of the attempt, since Dask runs equal calls once, to a function and its arguments.
#
# The function returns the seconds that it took, `Raised` if it fails, or `PayloadMissing`.
Call: TypeAlias = Callable[[int, int], Sequence[Any]]


@final
class TaskRun:
    """A run of tasks on an engine.

    Args:
        tasks: The tasks.
        engine: What runs them. An executor that it makes is shut down at the end.
        window: Number of tasks that are submitted at a time; fewer where the executor has few workers.
        remote: Whether tasks run in processes that may be slow or forget them: a task that takes much longer than
            others is submitted a second time, and so are all after a long silence. Tasks must allow that.
    """

    def __init__(self, tasks: Tasks, engine: Engine, window: int, *, remote: bool):
        self._tasks = tasks
        self._engine = engine
        self._window = window
        self._remote = remote
        self._dispatcher = Dispatcher(engine, POLICY, "executor")
        self._workers = 1  # of the executor
        # of executors in use; those that were given up may still answer
        self._running: dict[Attempt, None] = {}
        self._again: deque[int] = deque()
        self._answers: Answers = SimpleQueue()
        self._finished: set[int] = set()
        self._lost: Counter[int] = Counter()  # by task
        self._is_lossy = False
        self._next_look = 0.0
        self._failed: tuple[int, BaseException] | None = None

    def run(self, call: Call, package: Package[PayloadSource] | None = None) -> None:
        """Runs all tasks.

        Args:
            call: Makes what runs a task: a function and its arguments.
            package: What it calls, with the code of modules that workers lack. None: they run in this process.

        Raises:
            BaseException: What a task has raised.
            ArgumentError: When the engine's workers can't import loadax.
            WorkerError: When the engine loses a task again and again, or breaks before it finishes any, or its executor
                can't be used any more.
        """
        is_whole = False
        try:
            while not self._is_over(call):
                try:
                    attempt = self._answers.get(timeout=_POLL)
                except Empty:
                    continue
                is_running = attempt in self._running
                self._running.pop(attempt, None)
                if is_running or not _is_lost(attempt):
                    self._take(attempt, package)
            is_whole = True
        finally:
            self._dispatcher.close(
                wait=is_whole and not self._running and not self._is_lossy
            )

    def _is_over(self, call: Call) -> bool:
        """Submits tasks, and says whether all are finished. Raises the error of the first task that has one."""
        if self._failed is not None:
            # Tasks before it may fail too; those of an engine may have to wait for others first.
            if self._remote or all(
                attempt.task > self._failed[0] for attempt in self._running
            ):
                raise self._failed[1]
            return False
        while len(self._running) < self._window_now():
            number = self._again.popleft() if self._again else self._tasks.claim()
            if number is None:
                break
            if number not in self._finished:
                self._submit(call, number)
        if self._remote and perf_counter() > self._next_look:
            self._next_look = perf_counter() + _POLL
            self._check_silence()
            executor = self._dispatcher.executor
            if executor is not None and len(self._running) >= self._window_now():
                # some have come, such as those of an adaptive cluster
                self._workers = capacity_of(executor)
            if (
                len(self._running) < self._window_now()
                and len(self._finished) >= _FEWEST
            ):
                self._copy_stragglers(call)
        if self._again or not self._tasks.is_complete():
            return False
        return all(attempt.task in self._finished for attempt in self._running)

    def _window_now(self) -> int:
        """Number of tasks that the engine may have now."""
        if self._is_suspect():
            return 1
        if self._dispatcher.executor is None:
            return min(self._window, _PER_WORKER)
        return min(self._window, _PER_WORKER * max(1, self._workers))

    def _submit(self, call: Call, number: int) -> None:
        executor = self._dispatcher.executor
        try:
            if executor is None:
                executor = self._dispatcher.open()
                self._workers = capacity_of(executor)
            attempt = self._dispatcher.submit(
                number, lambda order: call(number, order), self._answers
            )
        except RuntimeError as error:  # a broken executor, or one that was shut down
            self._dispatcher.count_loss(executor, is_broken=True)
            self._lose(error, number, executor, is_broken=True)
            return
        self._running[attempt] = None

    def _take(self, attempt: Attempt, package: Package[PayloadSource] | None) -> None:
        number = attempt.task
        try:
            result = attempt.future.result()
        except (Exception, CancelledError) as error:  # noqa: BLE001 - each engine has its own
            has_copy = any(other.task == number for other in self._running)
            if number not in self._finished and not has_copy:
                is_broken = isinstance(error, BrokenExecutor)
                self._lose(error, number, attempt.executor, is_broken=is_broken)
            return
        if number in self._finished:
            return
        if isinstance(result, Raised):
            if self._failed is None or number < self._failed[0]:
                self._failed = number, _restored(result.error)
            return
        if isinstance(result, PayloadMissing):
            assert package is not None
            if result.digest == package.latest.digest:
                package.add_module(result.module or "", package.latest)
            self._again.append(number)
            return
        self._finished.add(number)
        self._dispatcher.took(result)
        self._tasks.finish(number)

    def _is_suspect(self) -> bool:
        """Whether the engine may finish nothing at all: it then gets one task at a time, until it finishes one.

        So a hopeless engine is given up after a few losses, although each task has its own tries.
        """
        counted = self._dispatcher
        return counted.losses > _TRIES and (
            not self._finished or counted.breaks > _TRIES
        )

    def _lose(
        self,
        error: BaseException,
        number: int,
        executor: Executor | None,
        *,
        is_broken: bool,
    ) -> None:
        """Has a lost task run again, if need be by a new executor; gives up after several losses of one task."""
        check_import(error, "the executor", "executor")
        if is_broken and isinstance(self._engine, Executor):
            name = type(self._engine).__name__
            raise WorkerError(
                f"the {name} can't be used any more ({error}); pass a function that "
                f"makes one, such as executor=lambda: {name}(…)"
            ) from error
        if is_broken:
            self._dispatcher.drop(executor)
        losses = self._dispatcher.losses
        self._lost[number] += 1
        self._is_lossy = True
        is_stillborn = is_broken and not self._finished
        if is_stillborn and executor is not None and runs_main_script(executor):
            raise WorkerError(
                f"the executor has lost task {number}, and finished none: "
                f"{type(error).__name__}: {error}; each of its processes runs the "
                "main script, which nothing in it prevents: put the code that runs "
                "there under "
                '`if __name__ == "__main__":`'
            ) from None
        if self._lost[number] > _TRIES or (
            is_stillborn and self._dispatcher.breaks > _TRIES
        ):
            in_row = (
                f"tasks {count_text(losses, 'time')} in a row, without finishing "
                f"any, task {number} last"
            )
            if losses > _TRIES:
                lost = in_row
            else:
                lost = f"task {number} {count_text(self._lost[number], 'time')}"
            what = (
                f"the executor has lost {lost}: {type(error).__name__}: {error}; "
                "look at the log of its workers"
            )
            if is_stillborn:
                raise WorkerError(
                    f"{what}: no task was ever finished, so its processes may end "
                    "when they start. Spawned ones import "
                    "the main script: put the code that runs there under `if "
                    '__name__ == "__main__":`. Or they lack '
                    "memory"
                ) from None
            raise WorkerError(f"{what}: they may lack memory") from error
        log.warning(
            "the executor has lost task %d (%s: %s): it is run again",
            number,
            type(error).__name__,
            error,
        )
        is_replaced = is_broken or (
            losses > 1 and not isinstance(self._engine, Executor)
        )
        if is_replaced or self._is_suspect():
            given_up = [
                attempt
                for attempt in self._running
                if attempt.executor is executor or self._is_suspect()
            ]
            running = {attempt.task for attempt in given_up}
            self._again.extend(
                sorted(running - self._finished - {number, *self._again})
            )
            for attempt in given_up:
                del self._running[attempt]
            self._dispatcher.give_up(given_up, cancel=not is_replaced)
        if is_replaced:
            self._dispatcher.drop(executor)
        if self._is_suspect():
            # first, so that it is known soon whether nothing can be run
            self._again.appendleft(number)
        else:
            # after the others, since it may be what kills workers
            self._again.append(number)

    def _check_silence(self) -> None:
        """Makes an engine again that has not answered for long, if it did before; its answers count even then."""
        silence = self._dispatcher.silence
        if not self._running or not silence.due():
            return
        error = TimeoutError(f"no task has ended for {silence.waited:.0f} s")
        if self._finished and not isinstance(self._engine, Executor):
            attempt = next(iter(self._running))
            self._dispatcher.count_loss(attempt.executor, is_broken=True)
            self._lose(error, attempt.task, attempt.executor, is_broken=True)
        else:
            text = (
                "%s, of %d that the executor has; if it has lost its workers, end "
                "this program and run it again"
            )
            log.warning(text, error, len(self._running))

    def _copy_stragglers(self, call: Call) -> None:
        """Submits tasks again that take far longer than others did, now that there are no others to submit."""
        copies = Counter(attempt.task for attempt in self._running)
        for attempt in list(self._running):
            if self._again:  # the executor is broken
                break
            if (
                self._dispatcher.left(attempt) < 0
                and attempt.task not in self._finished
                and copies[attempt.task] == 1
                and len(self._running) < self._window_now()
            ):
                log.info(
                    "task %d takes more than %.1f s: it is run a second time beside "
                    "the first",
                    attempt.task,
                    self._dispatcher.late(),
                )
                self._submit(call, attempt.task)


def _is_lost(attempt: Attempt) -> bool:
    return attempt.future.cancelled() or attempt.future.exception() is not None


def _restored(error: Any) -> BaseException:
    if isinstance(error, RemoteError):
        return unwrap(error, "a worker of the executor")
    raised: BaseException = error
    return raised
