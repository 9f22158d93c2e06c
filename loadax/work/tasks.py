"""Runs numbered tasks on an executor: a window of futures, lost tasks again, and second copies of stragglers.

Source of the rule for second copies: cubed, `runtime/backup.py` (Dean and Ghemawat, "MapReduce", OSDI 2004, 3.6).
"""

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import suppress
from inspect import signature
from math import inf
from multiprocessing import current_process, parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeAlias, final

from loadax.core.arguments import shown
from loadax.core.log import log
from loadax.core.patience import Patience
from loadax.errors import ArgumentError, WorkerError
from loadax.protocols import Engine
from loadax.work.payload import Package
from loadax.work.remote_errors import RemoteError, unwrap
from loadax.work.worker import Missing, Raised, Source

# of a task beyond the first and those of the engine, and of an engine that has never finished one
_TRIES = 3
_POLL = 0.2  # seconds between two looks at stragglers, and at the tasks of others
# times the median, finished tasks, seconds
_SLOW = 3.0
_FEWEST = 10
_LEAST = 2.0
_FIRST_OF_ALL = 100  # before the queues of a pool, which have 10
_RECENT = 1000  # tasks whose median is taken
_PER_WORKER = (
    # tasks that are submitted at a time: no worker waits for the next one, and few are lost with an engine
    64
)
# times the longest, seconds: an engine may forget tasks, as executorlib does
_SILENT = 10.0
_SILENCE = 60.0


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
# The function returns the seconds that it took, `Raised` if it fails, or `Missing`.
Call: TypeAlias = Callable[[int, int], Sequence[Any]]


class _Attempt(NamedTuple):
    number: int
    order: int  # of its submission
    began: float


def checked_engine(value: Any, name: str = "executor") -> Engine | None:
    """Returns the value of the argument `name`.

    Raises:
        ArgumentError: When it is neither an executor nor a function, or this is a worker that imports the main script.
    """
    if value is not None and hasattr(current_process(), "_inheriting"):
        # this process ends now; each one of a pool would print a traceback
        sys.tracebacklimit = 0
        raise ArgumentError(
            f"{name}= in a worker process that imports the main script to find what "
            "it defines; put the code that "
            'runs there under `if __name__ == "__main__":`'
        )
    is_function = (
        callable(value)
        and not isinstance(value, type)
        and not _takes_arguments(value)
    )
    if value is None or isinstance(value, Executor) or is_function:
        return value
    if type(value).__name__ == "Parallel" and type(value).__module__.startswith(
        "joblib."
    ):
        remedy = (
            "pass the processes that joblib uses: "
            f"{name}=joblib.externals.loky.get_reusable_executor"
        )
    elif type(value).__module__.partition(".")[0] == "submitit":
        remedy = (
            "on SLURM, pass a cluster of dask_jobqueue: "
            f"{name}=distributed.Client(SLURMCluster(…)).get_executor()"
        )
    elif isinstance(value, type) and issubclass(value, Executor):
        remedy = f"pass a function that makes one: {name}=lambda: {value.__name__}(…)"
    elif callable(getattr(value, "get_executor", None)):
        remedy = f"pass {name}=client.get_executor()"
    else:
        remedy = (
            "pass an instance of concurrent.futures.Executor, or a function without "
            "arguments that makes one"
        )
    raise ArgumentError(f"{name}={shown(value)} is not an executor; {remedy}")


def _takes_arguments(function: Any) -> bool:
    """Whether a callable object must be called with arguments, as `joblib.Parallel`."""
    try:
        signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # a function of C code without a signature
        return False
    return False


def open_engine(engine: Engine, name: str = "executor") -> Executor:
    """The executor, or a new one that the function makes.

    Raises:
        ArgumentError: When the function returns something else, or processes that import a main script that is no file.
            `name`: argument that has it.
    """
    executor: Any
    if isinstance(engine, Executor):
        executor = engine
    else:
        executor = engine()
    if isinstance(executor, Executor):
        _check_main_script(executor, name)
        return executor
    remedy = (
        "return a concurrent.futures.Executor, such as Dask's client.get_executor()"
    )
    raise ArgumentError(
        f"the function of {name}= returned {shown(executor)}; {remedy}", argument=name
    )


def shut_down(executor: Executor, *, wait: bool) -> None:
    """Shuts an executor down that a function has made, if need be without waiting for its workers.

    A child process of multiprocessing ends without the threads of its pools: workers that these have not told to end
    would be waited for without end. There, its end waits until they are told.
    """
    if wait or parent_process() is None:
        executor.shutdown(wait)
        return
    ending = threading.Thread(
        target=executor.shutdown, name="loadax-shutdown", daemon=True
    )
    ending.start()
    Finalize(None, ending.join, exitpriority=_FIRST_OF_ALL)


def _check_main_script(executor: Executor, name: str) -> None:
    """Refuses a pool of spawned processes, which import the main script, if that is no file, such as `<stdin>`."""
    script = _imported_script(executor)
    if script is None or script.exists():
        return
    raise ArgumentError(
        f"{name}= is a pool of spawned processes, which import the main script, "
        f"{script}, that is no file; save the "
        "script to a file, with the code that runs under `if __name__ == "
        '"__main__":`, or run it by python -c',
        argument=name,
    )


def check_import(error: BaseException, whose: str, argument: str) -> None:
    """Checks that a worker has not failed since it can't import loadax.

    Args:
        error: What its task has raised.
        whose: What has the worker, for the message.
        argument: Argument that names it.

    Raises:
        ArgumentError: When it has.
    """
    if (
        isinstance(error, ImportError)
        and (error.name or "").partition(".")[0] == "loadax"
    ):
        raise ArgumentError(
            f"the workers of {whose} can't import loadax ({error}); install it "
            "there, in the same version",
            argument=argument,
        ) from error


def capacity_of(executor: Executor) -> int:
    """Number of tasks that an executor runs at a time, as far as it tells; else a number that limits nothing."""
    # Dask has no public way from an executor to its client
    client = getattr(executor, "_client", None)
    # whatever a lost scheduler raises, or an executor that has no such attribute
    with suppress(Exception):
        if client is not None and type(executor).__module__.startswith(
            "distributed."
        ):
            return sum(client.nthreads().values())
        # of those of Python, loky and mpi4py; of executorlib
        for name in ("_max_workers", "max_workers"):
            workers = getattr(executor, name, None)
            if isinstance(workers, int):
                return workers
    return sys.maxsize


def _runs_main_script(executor: Executor) -> bool:
    """Whether processes of a pool import a main script that never asks for its name, and so run all of it."""
    script = _imported_script(executor)
    try:
        return script is not None and "__name__" not in script.read_text(
            errors="replace"
        )
    except OSError:
        return False


def _imported_script(executor: Executor) -> Path | None:
    """The main script that processes of a pool import when they start; None: they import no script."""
    context = getattr(executor, "_mp_context", None)
    if context is None or context.get_start_method() not in ("spawn", "forkserver"):
        return None
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None)
    if script is None or getattr(main, "__spec__", None) is not None:
        return None
    return Path(script)


def index_engine(value: Any, index: Any) -> Engine | None:
    """Returns the value of `executor=` of a verb that keeps parts at `index=`.

    Raises:
        ArgumentError: When it is not an executor, or there is no index.
    """
    engine = checked_engine(value)
    if engine is not None and index is None:
        raise ArgumentError(
            "executor= needs index=, a folder that all its workers share: they keep "
            "parts of the result there",
            argument="index",
        )
    return engine


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
        self._executor: Executor | None = None
        self._workers = 1  # of the executor
        self._running: dict[Future[Any], _Attempt] = {}
        # of executors that were given up; some may still answer
        self._former: dict[Future[Any], _Attempt] = {}
        self._again: deque[int] = deque()
        self._queue: SimpleQueue[Future[Any]] = SimpleQueue()
        self._finished: set[int] = set()
        self._losses = 0  # since a task was finished
        self._breaks = 0  # executors that broke since a task was finished
        self._lost: Counter[int] = Counter()  # by task
        self._is_lossy = False
        # of submissions: how many, and the last one that was answered
        self._orders = 0
        self._newest = 0
        # by order: when an answer to a later submission was seen
        self._overtaken: dict[int, float] = {}
        self._seconds: deque[float] = deque(maxlen=_RECENT)
        self._longest = 0.0
        self._next_look = 0.0
        self._silence = Patience(_SILENCE, inf)  # since the last answer
        self._failed: tuple[int, BaseException] | None = None

    def run(self, call: Call, package: Package[Source] | None = None) -> None:
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
                    future = self._queue.get(timeout=_POLL)
                except Empty:
                    continue
                attempt = self._running.pop(future, None)
                former = self._former.pop(future, None)
                if attempt is not None:
                    self._take(future, attempt, package)
                elif (
                    former is not None
                    and not future.cancelled()
                    and future.exception() is None
                ):
                    self._take(future, former, package)
            is_whole = True
        finally:
            for future in (*self._running, *self._former):
                future.cancel()
            self._close(wait=is_whole and not self._running and not self._is_lossy)

    def _is_over(self, call: Call) -> bool:
        """Submits tasks, and says whether all are finished. Raises the error of the first task that has one."""
        if self._failed is not None:
            # Tasks before it may fail too; those of an engine may have to wait for others first.
            if self._remote or all(
                attempt.number > self._failed[0] for attempt in self._running.values()
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
            if (
                self._executor is not None
                and len(self._running) >= self._window_now()
            ):
                # some have come, such as those of an adaptive cluster
                self._workers = capacity_of(self._executor)
            if (
                len(self._running) < self._window_now()
                and len(self._seconds) >= _FEWEST
            ):
                self._copy_stragglers(call)
        if self._again or not self._tasks.is_complete():
            return False
        return all(
            attempt.number in self._finished for attempt in self._running.values()
        )

    def _window_now(self) -> int:
        """Number of tasks that the engine may have now."""
        if self._is_suspect():
            return 1
        if self._executor is None:
            return min(self._window, _PER_WORKER)
        return min(self._window, _PER_WORKER * max(1, self._workers))

    def _submit(self, call: Call, number: int) -> None:
        try:
            if self._executor is None:
                self._executor = open_engine(self._engine)
                self._workers = capacity_of(self._executor)
            self._orders += 1
            future = self._executor.submit(*call(number, self._orders))
        except RuntimeError as error:  # a broken executor, or one that was shut down
            self._lose(error, number, is_broken=True)
            return
        if not self._running:
            self._silence = Patience(_SILENCE, inf)
        self._running[future] = _Attempt(number, self._orders, perf_counter())
        future.add_done_callback(self._queue.put)

    def _take(
        self,
        future: Future[Any],
        attempt: _Attempt,
        package: Package[Source] | None,
    ) -> None:
        self._silence = Patience(max(_SILENCE, _SILENT * self._longest), inf)
        self._newest = max(self._newest, attempt.order)
        self._overtaken.pop(attempt.order, None)
        try:
            result = future.result()
        except (Exception, CancelledError) as error:  # noqa: BLE001 - each engine has its own
            has_copy = any(
                other.number == attempt.number for other in self._running.values()
            )
            if attempt.number not in self._finished and not has_copy:
                self._lose(
                    error, attempt.number, is_broken=isinstance(error, BrokenExecutor)
                )
            return
        if attempt.number in self._finished:
            return
        if isinstance(result, Raised):
            if self._failed is None or attempt.number < self._failed[0]:
                self._failed = attempt.number, _restored(result.error)
            return
        if isinstance(result, Missing):
            assert package is not None
            if result.digest == package.latest.digest:
                package.add_module(result.module or "", package.latest)
            self._again.append(attempt.number)
            return
        self._finished.add(attempt.number)
        self._seconds.append(result)
        self._longest = max(self._longest, result)
        self._losses = 0
        self._breaks = 0
        self._tasks.finish(attempt.number)

    def _is_suspect(self) -> bool:
        """Whether the engine may finish nothing at all: it then gets one task at a time, until it finishes one.

        So a hopeless engine is given up after a few losses, although each task has its own tries.
        """
        return self._losses > _TRIES and (not self._finished or self._breaks > _TRIES)

    def _lose(self, error: BaseException, number: int, *, is_broken: bool) -> None:
        """Counts a loss of the engine, and makes a broken one again; gives up after several of one task."""
        check_import(error, "the executor", "executor")
        if is_broken and isinstance(self._engine, Executor):
            name = type(self._engine).__name__
            raise WorkerError(
                f"the {name} can't be used any more ({error}); pass a function that "
                f"makes one, such as executor=lambda: {name}(…)"
            ) from error
        self._losses += 1
        self._lost[number] += 1
        self._is_lossy = True
        if is_broken:
            self._breaks += 1
        is_stillborn = is_broken and not self._finished
        if (
            is_stillborn
            and self._executor is not None
            and _runs_main_script(self._executor)
        ):
            raise WorkerError(
                f"the executor has lost task {number}, and finished none: "
                f"{type(error).__name__}: {error}; each of its processes runs the "
                "main script, which nothing in it prevents: put the code that runs "
                "there under "
                '`if __name__ == "__main__":`'
            ) from None
        if self._lost[number] > _TRIES or (is_stillborn and self._breaks > _TRIES):
            in_row = (
                f"tasks {self._losses} times in a row, without finishing any, task "
                f"{number} last"
            )
            if self._losses > _TRIES:
                losses = in_row
            else:
                losses = f"task {number} {self._lost[number]} times"
            what = (
                f"the executor has lost {losses}: {type(error).__name__}: {error}; "
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
            self._losses > 1 and not isinstance(self._engine, Executor)
        )
        if is_replaced or self._is_suspect():
            running = {attempt.number for attempt in self._running.values()}
            self._again.extend(
                sorted(running - self._finished - {number, *self._again})
            )
            for future in self._running if not is_replaced else ():
                future.cancel()
            self._former.update(self._running)
            self._running.clear()
        if is_replaced:
            self._close(wait=False)
        if self._is_suspect():
            # first, so that it is known soon whether nothing can be run
            self._again.appendleft(number)
        else:
            # after the others, since it may be what kills workers
            self._again.append(number)

    def _check_silence(self) -> None:
        """Makes an engine again that has not answered for long, if it did before; its answers count even then."""
        if not self._running or not self._silence.due():
            return
        error = TimeoutError(f"no task has ended for {self._silence.waited:.0f} s")
        if self._seconds and not isinstance(self._engine, Executor):
            self._lose(
                error, next(iter(self._running.values())).number, is_broken=True
            )
        else:
            text = (
                "%s, of %d that the executor has; if it has lost its workers, end "
                "this program and run it again"
            )
            log.warning(text, error, len(self._running))

    def _copy_stragglers(self, call: Call) -> None:
        """Submits tasks again that take far longer than others did, now that there are no others to submit."""
        limit = max(_LEAST, _SLOW * median(self._seconds))
        now = perf_counter()
        copies = Counter(attempt.number for attempt in self._running.values())
        for number, order, began in list(self._running.values()):
            # A task has begun when a later one is finished; else it may wait for one that has not.
            is_overtaken = order < self._newest
            if is_overtaken:
                since = self._overtaken.setdefault(order, now)
            else:
                since = max(began, self._silence.since)
            slow = now - since > limit and number not in self._finished
            if self._again:  # the executor is broken
                break
            if (
                slow
                and copies[number] == 1
                and len(self._running) < self._window_now()
            ):
                log.info(
                    "task %d takes more than %.1f s: it is run a second time beside "
                    "the first",
                    number,
                    limit,
                )
                self._submit(call, number)

    def _close(self, *, wait: bool) -> None:
        if self._executor is not None and self._executor is not self._engine:
            shut_down(self._executor, wait=wait)
        self._executor = None


def _restored(error: Any) -> BaseException:
    if isinstance(error, RemoteError):
        return unwrap(error, "a worker of the executor")
    raised: BaseException = error
    return raised
