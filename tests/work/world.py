"""A simulated executor, whose clock, losses and answers a test chooses: it judges all that gives out tasks."""

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from queue import Empty
from typing import Any

import pytest

from loadax.core import patience
from loadax.work import dispatch, tasks
from loadax.work.tasks import TaskRun
from loadax.work.worker import Raised


class Numbers:
    """Tasks 0 to `count`, and how often each was finished."""

    def __init__(self, count: int):
        self.unclaimed, self.finished, self.count = deque(range(count)), Counter[int](), count

    def claim(self) -> int | None:
        return self.unclaimed.popleft() if self.unclaimed else None

    def is_complete(self) -> bool:
        return len(self.finished) == self.count

    def finish(self, number: int) -> None:
        self.finished[number] += 1


class Engine(Executor):
    """An executor of a simulated world."""

    def __init__(self, world: "World"):
        self.world, self.is_broken, self.is_shut = world, False, False
        self.pending: list[tuple[Future[Any], int, Callable[[], Any], float]] = []

    def submit(self, call: Any, number: int, attempt: int) -> Any:  # type: ignore[override]
        if self.is_broken:
            raise BrokenExecutor("broken before")
        if self.is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self.world.submitted.append(number)
        copies = [began for future, other, _, began in self.pending if other == number and not future.cancelled()]
        if copies:
            assert self.world.remote
            assert len(copies) == 1
            assert not self.world.numbers.unclaimed
            assert self.world.now - copies[0] > 2.0
        future: Future[Any] = Future()
        self.pending.append((future, number, lambda: call(number, attempt), self.world.now))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.is_shut = True
        assert not (wait and self.pending)

    def finish(self, index: int) -> None:
        future, _, call, _ = self.pending.pop(index)
        if future.set_running_or_notify_cancel():
            future.set_result(call())

    def lose(self, index: int, error: BaseException) -> None:
        self.pending.pop(index)[0].set_exception(error)

    def destroy(self) -> None:
        """Breaks it, as the death of a process breaks a pool."""
        self.is_broken = True
        while self.pending:
            self.lose(0, BrokenExecutor("a process died"))


class World:
    """A clock, the engines that were made, and the queue of a run: what happens is decided whenever the run waits.

    Args:
        count: Number of tasks.
        happens: Called when the run waits; may finish or lose tasks, else it has waited in vain.
        monkeypatch: What replaces the clock and the queue.
        remote: Argument of the run.
    """

    def __init__(self, count: int, happens: Callable[[], object], monkeypatch: pytest.MonkeyPatch, remote: bool = True):
        self.numbers, self.happens, self.remote = Numbers(count), happens, remote
        self.now, self.answers = 0.0, deque[Any]()
        self.engines: list[Engine] = []
        self.submitted: list[int] = []
        monkeypatch.setattr(tasks, "perf_counter", lambda: self.now)
        monkeypatch.setattr(dispatch, "perf_counter", lambda: self.now)
        monkeypatch.setattr(patience, "perf_counter", lambda: self.now)
        monkeypatch.setattr(tasks, "SimpleQueue", lambda: self)

    def make(self) -> Engine:
        self.engines.append(Engine(self))
        return self.engines[-1]

    def put(self, future: Any) -> None:
        self.answers.append(future)

    def get(self, timeout: float) -> Any:
        if not self.answers:
            self.now += timeout
            self.happens()
        if not self.answers:
            raise Empty
        return self.answers.popleft()

    def run(
        self, engine: Any = None, window: int = 4, call: Callable[[int, int], Raised | float] = lambda *_: 0.1
    ) -> None:
        run = TaskRun(self.numbers, engine or self.make, window, remote=self.remote)
        run.run(lambda number, attempt: (call, number, attempt))
