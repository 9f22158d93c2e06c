"""Dispatcher: gives tasks to an executor, and tells which are late, whether it is silent, and what it has lost.

What becomes of a late or lost task is decided by whoever asks: a pass has it run again, and makes the executor again;
a loader reads rows itself meanwhile.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from dataclasses import dataclass, field
from math import inf
from queue import SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, final

from loadax.core.patience import Patience
from loadax.protocols import Engine
from loadax.work.executors import open_engine, shut_down

_NO_OPTIONS: Mapping[str, Any] = {}


class Policy(NamedTuple):
    """When a task is late, and an executor silent. All times are in seconds.

    Args:
        quantile: Share of the recent tasks that take no longer than the usual time.
        recent: Number of tasks that are recent.
        slow: A task is late after this multiple of the usual time,
        later: after at most these seconds more than it,
        least: and after at least these,
        first: or after these, as long as no task was answered.
        starting: Silence of an executor that has never answered.
        silence: Silence of one that has,
        times_longest: but at least this multiple of the longest time of a task,
        times_late: and of the time after which a task is late.
    """

    quantile: float
    recent: int
    slow: float
    later: float
    least: float
    first: float
    starting: float
    silence: float
    times_longest: float
    times_late: float


@final
@dataclass(eq=False, slots=True)
class Attempt:
    """A task that was given to an executor.

    Args:
        task: The task, as its owner knows it.
        order: Number of the submission.
        executor: What has it.
        answers: Where it goes when it is done. None in it: the owner is woken up.
        began: When it was given out.
        future: Its future.
        ended: When it was done.
        overtaken: When a task that was given out later was answered. None: none was.
        is_live: Whether its owner waits for it.
    """

    task: Any
    order: int
    executor: Executor
    answers: "Answers"
    began: float
    future: Future[Any]
    ended: float = field(default=inf, init=False)
    overtaken: float | None = field(default=None, init=False)
    is_live: bool = field(default=True, init=False)


Answers: TypeAlias = SimpleQueue[Any]  # of attempts


@final
class Dispatcher:
    """An executor, and the tasks that it has. Thread-safe.

    No lock is held while the executor is called: it may hold its own while it calls `_done`.

    Args:
        engine: The executor, or what makes one.
        policy: When tasks are late, and an executor is silent.
        argument: Argument that has the engine, for messages.

    Attributes:
        executor: The executor. None: it was not made, or has broken.
        silence: Wait for an answer of any task.
        reached: Since when workers answer; infinite: since never.
        answered: Number of tasks that were answered.
        losses: Number of losses since a task was answered.
        breaks: Number of executors that broke since then.
        closed: Whether `close` was called.
    """

    def __init__(self, engine: Engine, policy: Policy, argument: str):
        self._engine = engine
        self._policy = policy
        self._argument = argument
        self.executor: Executor | None = None
        # reentrant: garbage collection may close this
        self._lock = threading.RLock()
        self._orders = 0
        # in the order of their submission
        self._given: dict[Attempt, None] = {}
        self._seconds: deque[float] = deque(maxlen=policy.recent)
        self._longest = 0.0
        self.silence = Patience(policy.starting, inf)
        self.reached = inf
        self.answered = 0
        self.losses = 0
        self.breaks = 0
        self.closed = False

    def __len__(self) -> int:
        """Number of tasks that the executor has."""
        return len(self._given)

    def open(self) -> Executor:
        """The executor, which is made if there is none.

        Raises:
            Exception: Whatever making it raises.
        """
        executor = self.executor
        if executor is None:
            executor = open_engine(self._engine, self._argument)
            self.executor = executor
        return executor

    def submit(
        self,
        task: Any,
        call: Callable[[int], Sequence[Any]],
        answers: Answers,
        options: Mapping[str, Any] = _NO_OPTIONS,
    ) -> Attempt:
        """Gives out a task.

        Args:
            task: The task.
            call: Makes what runs it from the number of the submission: a function and its arguments.
            answers: Where the attempt goes when it is done.
            options: Options of the executor's `submit`.

        Raises:
            RuntimeError: When there is no executor.
            Exception: Whatever the executor raises, which is broken then, or was shut down.
        """
        executor = self.executor
        if executor is None:
            raise RuntimeError("the executor has broken")
        with self._lock:
            self._orders += 1
            order = self._orders
        began = perf_counter()
        future = executor.submit(*call(order), **options)
        attempt = Attempt(task, order, executor, answers, began, future)
        with self._lock:
            if not any(other.is_live for other in self._given):
                self._listen()
            self._given[attempt] = None
            is_closed = self.closed
        if is_closed:
            future.cancel()
        future.add_done_callback(lambda _: self._done(attempt))
        return attempt

    def _done(self, attempt: Attempt) -> None:
        if attempt.future.cancelled():
            error: BaseException | None = CancelledError()
        else:
            error = attempt.future.exception()
        with self._lock:
            now = perf_counter()
            attempt.ended = now
            self._given.pop(attempt, None)
            if error is None:
                self.answered += 1
                self.losses = 0
                self.breaks = 0
                self.reached = min(self.reached, now)
                for other in self._given:
                    if other.order > attempt.order:
                        break
                    if other.overtaken is None:
                        other.overtaken = now
            if error is None or attempt.is_live:
                self._listen()
        if error is not None and attempt.is_live and not self.closed:
            self.count_loss(
                attempt.executor, is_broken=isinstance(error, BrokenExecutor)
            )
        attempt.answers.put(attempt)

    def count_loss(self, executor: Executor | None, *, is_broken: bool) -> None:
        """Counts a loss of an executor, a break of one once: it is not used again."""
        with self._lock:
            if not is_broken:
                self.losses += 1
            elif executor is self.executor:
                self.losses += 1
                self.breaks += 1
                self.executor = None

    def give_up(self, attempts: Iterable[Attempt], *, cancel: bool) -> None:
        """Waits for these attempts no longer, whose answers still arrive unless they are cancelled."""
        for attempt in attempts:
            attempt.is_live = False
            if cancel:
                attempt.future.cancel()

    def given_to(self, answers: Answers) -> list[Attempt]:
        """The attempts that are not done, and whose answers go there."""
        with self._lock:
            return [attempt for attempt in self._given if attempt.answers is answers]

    def wake(self) -> None:
        """Wakes up all who wait for answers."""
        with self._lock:
            for answers in {attempt.answers for attempt in self._given}:
                answers.put(None)

    def drop(self, executor: Executor | None) -> None:
        """Shuts down an executor that was made here and is not to be used again, without waiting for it."""
        if executor is not None and executor is not self._engine:
            shut_down(executor, wait=False)
        with self._lock:
            if executor is self.executor:
                self.executor = None

    def took(self, seconds: float) -> None:
        """Notes how long a task took."""
        with self._lock:
            self._seconds.append(seconds)
            self._longest = max(self._longest, seconds)

    def late(self) -> float:
        """Seconds after which a task is late, beyond an answer to a later one."""
        policy = self._policy
        if not self.answered:
            return policy.first
        with self._lock:
            seconds = sorted(self._seconds)
        if seconds:
            usual = seconds[int(len(seconds) * policy.quantile)]
        else:
            usual = 0.0
        return max(policy.least, min(policy.slow * usual, usual + policy.later))

    def left(self, attempt: Attempt, tries: int = 1) -> float:
        """Seconds until a task is late, by its n-th try; negative: it is.

        A task has begun once a later one is answered; until then, it may wait for those before it. So workers that are
        slow for all tasks make none of them late.
        """
        since = attempt.overtaken
        if since is None:
            since = max(attempt.began, self.silence.since)
        return self.late() / tries - (perf_counter() - since)

    def _listen(self) -> None:
        policy = self._policy
        if self.answered:
            limit = max(policy.silence, policy.times_longest * self._longest)
            if policy.times_late:
                limit = max(limit, policy.times_late * self.late())
        else:
            limit = policy.starting
        self.silence = Patience(limit, inf)

    def close(self, *, wait: bool) -> None:
        """Cancels all tasks, and shuts down an executor that was made here. Idempotent."""
        with self._lock:
            self.closed = True
            given = list(self._given)
            executor = self.executor
            self.executor = None
        for attempt in given:
            attempt.future.cancel()
        if executor is not None and executor is not self._engine:
            shut_down(executor, wait=wait)
